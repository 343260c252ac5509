"""The measuring loops of all load generators in Python, and the line protocol that drives them.

Commands come from standard input, one per line, and each is answered with one line of JSON. Sizes are bytes of a
message's data, timeouts seconds. Any failed send fails the command.
"""

from __future__ import annotations

import itertools
import json
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, Protocol

__all__ = [
    "LATENCY_TIMEOUT_SECONDS",
    "STAMP",
    "Answer",
    "Client",
    "Commands",
    "Generator",
    "Poll",
    "PollArrow",
    "percentiles",
    "rate",
    "receive_stamps",
    "send_by_threads",
    "send_paced",
    "send_pipelined",
    "serve",
]

Answer = dict[str, Any]
Poll = Callable[[], Sequence[Any]]
"""Returns the next messages as the client's users get them; none if no message comes for a while."""
PollArrow = Callable[[], Any]
"""Returns the next messages as one pyarrow.RecordBatch with a column `payload`; it may be empty."""

LATENCY_TIMEOUT_SECONDS = 60.0
STAMP = struct.Struct(">iq")  # number of the message; monotonic nanoseconds of its send call, or of its due time


class Sent(Protocol):
    """A message in flight."""

    def result(self) -> object:
        """Wait for the acknowledgement. Raises the error of the send."""
        ...


class Client(Protocol):
    """The methods of a messaging system's client that the loops need. All except close() may be called on several
    threads."""

    def send(self, topic: str, data: bytes) -> object:
        """Send and wait for the acknowledgement."""
        ...

    def send_async(self, topic: str, data: bytes) -> Sent:
        """Send without waiting."""
        ...

    def produce(self, topic: str, data: bytes, count: int) -> None:
        """Send `count` single messages, each with a call-back, and flush once. When this returns, all were reported as
        stored. Raises NotImplementedError if the client has no call-backs."""
        ...

    def send_batches(self, topic: str, payloads: list[bytes], batches: int) -> None:
        """Send `payloads` `batches` times, in the system's own way for bulk. When this returns, all are
        acknowledged."""
        ...

    def consume(self, topic: str, group: str) -> AbstractContextManager[Poll]:
        """Return a member of a group that begins at the earliest message."""
        ...

    def consume_arrow(self, topic: str, group: str) -> AbstractContextManager[PollArrow]:
        """Return a member as consume() does, whose messages come as Arrow. Raises NotImplementedError if the client
        cannot do this."""
        ...

    def data(self, message: Any) -> bytes:
        """Return the payload of a polled message."""
        ...

    def close(self) -> None: ...


class Commands(Protocol):
    """The commands of a load generator, all with positional arguments; numbers are int."""

    def send_blocking(self, topic: str, threads: int, count: int, size: int) -> Answer: ...
    def send_async(self, topic: str, window: int, count: int, size: int) -> Answer: ...
    def produce(self, topic: str, count: int, size: int) -> Answer: ...
    def futures(self, topic: str, count: int, size: int) -> Answer: ...
    def send_batch(self, topic: str, batch: int, count: int, size: int) -> Answer: ...
    def consume(self, topic: str, group: str, count: int, timeout: int) -> Answer: ...
    def consume_arrow(self, topic: str, group: str, count: int, timeout: int) -> Answer: ...
    def latency(self, topic: str, group: str, per_second: int, warm_up: int, count: int, size: int) -> Answer: ...


def rate(count: int, nanoseconds: int) -> Answer:
    """Return the answer for `count` messages in that time: the rate."""
    return {"count": count, "seconds": nanoseconds / 1e9, "rate": count * 1e9 / nanoseconds}


def percentiles(nanoseconds: Sequence[int]) -> Answer:
    """Return the answer for latencies: their percentiles."""
    ordered, count = sorted(nanoseconds), len(nanoseconds)
    return {
        "count": count,
        "min_ms": ordered[0] / 1e6,
        "p50_ms": ordered[count // 2] / 1e6,
        "p99_ms": ordered[count * 99 // 100] / 1e6,
        "p99.9_ms": ordered[count * 999 // 1000] / 1e6,
        "max_ms": ordered[-1] / 1e6,
    }


class Generator:
    """The commands for a client with threads: one client for all commands, and a new consumer for each command that
    receives."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def send_blocking(self, topic: str, threads: int, count: int, size: int) -> Answer:
        """Send messages; each thread waits for each of its sends."""
        return send_by_threads(self._client.send, topic, threads, count, size)

    def send_async(self, topic: str, window: int, count: int, size: int) -> Answer:
        """Send messages from one thread, with at most `window` unanswered sends."""
        return send_pipelined(self._client.send_async, topic, window, count, size)

    def produce(self, topic: str, count: int, size: int) -> Answer:
        """Send single messages from one thread, with a call-back each, and flush once at the end."""
        data = bytes(size)
        start = time.perf_counter_ns()
        self._client.produce(topic, data, count)
        return rate(count, time.perf_counter_ns() - start)

    def futures(self, topic: str, count: int, size: int) -> Answer:
        """Send messages from one thread that keeps the future of each send, and take all results at the end."""
        data = bytes(size)
        send = self._client.send_async
        start = time.perf_counter_ns()
        sent = [send(topic, data) for _ in range(count)]
        for future in sent:
            future.result()
        return rate(count, time.perf_counter_ns() - start)

    def send_batch(self, topic: str, batch: int, count: int, size: int) -> Answer:
        """Send from one thread, `batch` messages at a time."""
        payloads = [bytes(size)] * batch
        start = time.perf_counter_ns()
        self._client.send_batches(topic, payloads, count // batch)
        return rate(count // batch * batch, time.perf_counter_ns() - start)

    def consume(self, topic: str, group: str, count: int, timeout: int) -> Answer:
        """Consume `count` messages, and access each payload. The rate is measured from the first messages to the last;
        joining is not measured."""
        data = self._client.data
        with self._client.consume(topic, group) as poll:

            def take() -> tuple[int, int]:
                messages = poll()
                return len(messages), sum(map(len, map(data, messages)))

            return _drain(take, count, timeout)

    def consume_arrow(self, topic: str, group: str, count: int, timeout: int) -> Answer:
        """Consume as consume() does, as record batches with a column of payloads."""
        with self._client.consume_arrow(topic, group) as poll:

            def take() -> tuple[int, int]:
                batch = poll()
                return batch.num_rows, batch.column("payload").nbytes

            return _drain(take, count, timeout)

    def latency(self, topic: str, group: str, per_second: int, warm_up: int, count: int, size: int) -> Answer:
        """Measure latencies from the send call to the poll that returns the message, both in this process; percentiles
        of the last `count` in ms."""
        nanoseconds = [0] * (warm_up + count)
        with self._client.consume(topic, group) as poll, ThreadPoolExecutor(1) as pool:
            receiving = pool.submit(receive_stamps, poll, self._client.data, nanoseconds)
            self._send_stamps(topic, per_second, warm_up + count, size)
            receiving.result()
        return percentiles(nanoseconds[warm_up:])

    def _send_stamps(self, topic: str, per_second: int, count: int, size: int) -> None:
        padding = bytes(size - STAMP.size)
        send = self._client.send_async
        send_paced(lambda number: send(topic, STAMP.pack(number, time.perf_counter_ns()) + padding), per_second, count)


def send_by_threads(send: Callable[[str, bytes], object], topic: str, threads: int, count: int, size: int) -> Answer:
    """Call `send`, which waits for its acknowledgement, repeatedly on each thread."""
    data = bytes(size)
    numbers = itertools.count()

    def sender() -> None:
        while next(numbers) < count:
            send(topic, data)

    start = time.perf_counter_ns()
    with ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(sender) for _ in range(threads)]
    elapsed = time.perf_counter_ns() - start
    for each in running:
        each.result()
    return rate(count, elapsed)


def send_pipelined(send: Callable[[str, bytes], Sent], topic: str, window: int, count: int, size: int) -> Answer:
    """Call `send` on one thread, with at most `window` unanswered sends."""
    data = bytes(size)
    unanswered: deque[Sent] = deque()
    start = time.perf_counter_ns()
    for _ in range(count):
        if len(unanswered) == window:
            unanswered.popleft().result()
        unanswered.append(send(topic, data))
    for future in unanswered:
        future.result()
    return rate(count, time.perf_counter_ns() - start)


def send_paced(send: Callable[[int], Sent], per_second: int, count: int) -> None:
    """Call `send` with each number at its time. When this returns, all are acknowledged."""
    unanswered: deque[Sent] = deque()
    start = time.perf_counter_ns()
    for number in range(count):
        early = start + number * 1_000_000_000 // per_second - time.perf_counter_ns()
        if early > 0:
            time.sleep(early / 1e9)
        unanswered.append(send(number))
    for future in unanswered:
        future.result()


def _drain(take: Callable[[], tuple[int, int]], count: int, timeout: int) -> Answer:
    """Call `take` until `count` messages have come; each call returns the numbers of messages and bytes that came."""
    deadline = time.monotonic() + timeout
    first = seen = size = 0
    start = time.perf_counter_ns()
    while seen < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"received {seen} of {count} in {timeout} s")
        messages, taken = take()
        seen += messages
        size += taken
        if seen and not first:
            first, start = seen, time.perf_counter_ns()
    return {**rate(seen - first, time.perf_counter_ns() - start), "bytes": size}


def receive_stamps(
    poll: Poll, data: Callable[[Any], bytes], nanoseconds: list[int], clock: Callable[[], int] = time.perf_counter_ns
) -> None:
    """Store for each message, by its number, the time from its stamp to its poll. clock: the clock of the stamps."""
    deadline = time.monotonic() + LATENCY_TIMEOUT_SECONDS
    missing = len(nanoseconds)
    while missing:
        messages = poll()
        now = clock()
        for message in messages:
            number, sent = STAMP.unpack_from(data(message))
            nanoseconds[number] = now - sent
        missing -= len(messages)
        if time.monotonic() > deadline:
            raise TimeoutError(f"{missing} messages missing after {LATENCY_TIMEOUT_SECONDS:.0f} s")


def answer(commands: Commands, line: str, more: Sequence[Callable[..., Answer]] = ()) -> Answer:
    """Execute one line's command; its numbers are passed as int. A failure becomes an answer with the key "error".

    more: commands that only this system has.
    """
    name, *words = line.split()
    all_commands: Sequence[Callable[..., Answer]] = (
        commands.send_blocking,
        commands.send_async,
        commands.produce,
        commands.futures,
        commands.send_batch,
        commands.consume,
        commands.consume_arrow,
        commands.latency,
        *more,
    )
    known = {command.__name__: command for command in all_commands}
    if name not in known:
        return {"error": f"unknown command {name!r}, known are {sorted(known)}"}
    try:
        return known[name](*(int(word) if word.isdigit() else word for word in words))
    except Exception as error:  # the driver, which gets the type and the text, decides what a failed command means
        return {"error": f"{type(error).__name__}: {error}"}


def serve(commands: Commands, more: Sequence[Callable[..., Answer]] = ()) -> None:
    """Answer the lines of standard input until it ends. more: as for answer()."""
    for line in sys.stdin:
        print(json.dumps(answer(commands, line, more)), flush=True)
