"""The measuring loops of all load generators in Python, and the line protocol that drives them.

Commands come from standard input, one per line, and each is answered with one line of JSON. Sizes are bytes of a
message's data; timeouts are seconds. A command fails if any of its sends fails.
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
"""Returns the next messages in the form in which the client's users get them; an empty sequence if no message comes for
a while.
"""
PollArrow = Callable[[], Any]
"""Returns the next messages as one pyarrow.RecordBatch with a column `payload`; it may be empty."""

LATENCY_TIMEOUT_SECONDS = 60.0
STAMP = struct.Struct(">iq")  # number of the message; nanoseconds of the clock at its send call, or its due time


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
        """Send `count` single messages, each with a call-back, and flush once. When this returns, all messages have
        been reported as stored. Raises NotImplementedError if the client has no call-backs.
        """
        ...

    def send_batches(self, topic: str, payloads: list[bytes], batches: int) -> None:
        """Send the list `payloads` `batches` times, by the system's own method for bulk sends. When this returns, all
        messages are acknowledged.
        """
        ...

    def consume(self, topic: str, group: str) -> AbstractContextManager[Poll]:
        """Return a context manager that joins a group, which begins at the earliest message, and yields a function that
        polls.
        """
        ...

    def consume_arrow(self, topic: str, group: str) -> AbstractContextManager[PollArrow]:
        """Like consume(), but the function returns messages as Arrow record batches. Raises NotImplementedError if the
        client cannot do this.
        """
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
    """Return the answer of a command that handled `count` messages in this time: count, seconds and rate."""
    return {"count": count, "seconds": nanoseconds / 1e9, "rate": count * 1e9 / nanoseconds}


def percentiles(nanoseconds: Sequence[int]) -> Answer:
    """Return the answer of a command that measured these latencies: their percentiles, minimum and maximum in ms."""
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
    """The commands for a client that works with threads. All commands use the same client; each command that receives
    messages uses a new consumer.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def send_blocking(self, topic: str, threads: int, count: int, size: int) -> Answer:
        """Send messages from several threads; each thread waits for the acknowledgement of each of its sends."""
        return send_by_threads(self._client.send, topic, threads, count, size)

    def send_async(self, topic: str, window: int, count: int, size: int) -> Answer:
        """Send messages from one thread, with at most `window` unanswered sends."""
        return send_pipelined(self._client.send_async, topic, window, count, size)

    def produce(self, topic: str, count: int, size: int) -> Answer:
        """Send single messages from one thread, each with a call-back, and flush once at the end."""
        data = bytes(size)
        start = time.perf_counter_ns()
        self._client.produce(topic, data, count)
        return rate(count, time.perf_counter_ns() - start)

    def futures(self, topic: str, count: int, size: int) -> Answer:
        """Send messages from one thread, keep the future of each send, and take all results at the end."""
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
        """Consume `count` messages, and access each payload. The rate is measured from the first received messages to
        the last; joining the group is not measured.
        """
        data = self._client.data
        with self._client.consume(topic, group) as poll:

            def take() -> tuple[int, int]:
                messages = poll()
                return len(messages), sum(map(len, map(data, messages)))

            return _drain(take, count, timeout)

    def consume_arrow(self, topic: str, group: str, count: int, timeout: int) -> Answer:
        """Like consume(), but take the messages as record batches with a column of payloads."""
        with self._client.consume_arrow(topic, group) as poll:

            def take() -> tuple[int, int]:
                batch = poll()
                return batch.num_rows, batch.column("payload").nbytes

            return _drain(take, count, timeout)

    def latency(self, topic: str, group: str, per_second: int, warm_up: int, count: int, size: int) -> Answer:
        """Measure the latency from the send call to the poll that returns the message; both happen in this process.
        Return percentiles of the last `count` messages, in ms.
        """
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
    """Call `send` repeatedly on each of `threads` threads; `send` waits for the acknowledgement."""
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
    """Call `send` with the numbers from 0 to `count` - 1, `per_second` of them a second. When this returns, all sends
    are acknowledged.
    """
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
    """Call `take` until `count` messages have been received. Each call returns the number of received messages and
    their bytes.
    """
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
    """Receive messages with stamps, and store in `nanoseconds[number]` the time from each message's stamp to the poll
    that returned it. clock: the clock of the stamps.
    """
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
    """Execute the command in one line; words that are numbers are passed as int. If the command fails, the answer has
    the key "error".

    more: additional commands that not all systems have.
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
    """Execute the commands from standard input and print the answers until the input ends. more: as for answer()."""
    for line in sys.stdin:
        print(json.dumps(answer(commands, line, more)), flush=True)
