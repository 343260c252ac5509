"""The measuring loops of all load generators in Python, and the line protocol that drives them.

Commands come from standard input, one a line, and each is answered with one line of JSON. Sizes are bytes of a
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
"""Returns the next messages as the client's users get them, none if there are none for a while."""
PollArrow = Callable[[], Any]
"""Returns the next messages as one pyarrow.RecordBatch with a column `payload`; it may be empty."""

LATENCY_TIMEOUT_SECONDS = 60.0
STAMP = struct.Struct(">iq")  # number of the message, monotonic nanoseconds of its send call, or when it is due


class Sent(Protocol):
    """A message under way."""

    def result(self) -> object:
        """Wait for the acknowledgement; raises what went wrong."""
        ...


class Client(Protocol):
    """What the loops need of a messaging system's client; all but close() may be called on several threads."""

    def send(self, topic: str, data: bytes) -> object:
        """Send and wait for the acknowledgement."""
        ...

    def send_async(self, topic: str, data: bytes) -> Sent:
        """Send without waiting."""
        ...

    def produce(self, topic: str, data: bytes, count: int) -> None:
        """Send singly so many times, each with a call-back, and flush once; all were reported as stored on return.
        Raises NotImplementedError if the client has no call-backs."""
        ...

    def send_batches(self, topic: str, payloads: list[bytes], batches: int) -> None:
        """Send `payloads` so many times in the system's own way for bulk; all are acknowledged on return."""
        ...

    def consume(self, topic: str, group: str) -> AbstractContextManager[Poll]:
        """A member of a group that begins at the earliest message."""
        ...

    def consume_arrow(self, topic: str, group: str) -> AbstractContextManager[PollArrow]:
        """As consume(), but messages come as Arrow. Raises NotImplementedError if the client has no such thing."""
        ...

    def data(self, message: Any) -> bytes:
        """The payload of what the member polled."""
        ...

    def close(self) -> None: ...


class Commands(Protocol):
    """The commands, all with positional arguments; numbers are int."""

    def send_blocking(self, topic: str, threads: int, count: int, size: int) -> Answer: ...
    def send_async(self, topic: str, window: int, count: int, size: int) -> Answer: ...
    def produce(self, topic: str, count: int, size: int) -> Answer: ...
    def futures(self, topic: str, count: int, size: int) -> Answer: ...
    def send_batch(self, topic: str, batch: int, count: int, size: int) -> Answer: ...
    def consume(self, topic: str, group: str, count: int, timeout: int) -> Answer: ...
    def consume_arrow(self, topic: str, group: str, count: int, timeout: int) -> Answer: ...
    def latency(self, topic: str, group: str, per_second: int, warm_up: int, count: int, size: int) -> Answer: ...


def rate(count: int, nanoseconds: int) -> Answer:
    """How a measured number of messages is reported."""
    return {"count": count, "seconds": nanoseconds / 1e9, "rate": count * 1e9 / nanoseconds}


def percentiles(nanoseconds: Sequence[int]) -> Answer:
    """How measured latencies are reported."""
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
    """The commands for a client with threads: one client for all of them, a new consumer for each that receives."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def send_blocking(self, topic: str, threads: int, count: int, size: int) -> Answer:
        """Every thread waits for each of its sends."""
        return send_by_threads(self._client.send, topic, threads, count, size)

    def send_async(self, topic: str, window: int, count: int, size: int) -> Answer:
        """One thread, at most `window` sends without an answer."""
        return send_pipelined(self._client.send_async, topic, window, count, size)

    def produce(self, topic: str, count: int, size: int) -> Answer:
        """One thread, single sends with a call-back each, one flush at the end."""
        data = bytes(size)
        start = time.perf_counter_ns()
        self._client.produce(topic, data, count)
        return rate(count, time.perf_counter_ns() - start)

    def futures(self, topic: str, count: int, size: int) -> Answer:
        """One thread that keeps the future of each send, and asks all of them for their results at the end."""
        data = bytes(size)
        send = self._client.send_async
        start = time.perf_counter_ns()
        sent = [send(topic, data) for _ in range(count)]
        for future in sent:
            future.result()
        return rate(count, time.perf_counter_ns() - start)

    def send_batch(self, topic: str, batch: int, count: int, size: int) -> Answer:
        """One thread, `batch` messages at a time."""
        payloads = [bytes(size)] * batch
        start = time.perf_counter_ns()
        self._client.send_batches(topic, payloads, count // batch)
        return rate(count // batch * batch, time.perf_counter_ns() - start)

    def consume(self, topic: str, group: str, count: int, timeout: int) -> Answer:
        """The rate from the first messages to the last, each message's payload taken; joining is not measured."""
        data = self._client.data
        with self._client.consume(topic, group) as poll:

            def take() -> tuple[int, int]:
                messages = poll()
                return len(messages), sum(map(len, map(data, messages)))

            return _drain(take, count, timeout)

    def consume_arrow(self, topic: str, group: str, count: int, timeout: int) -> Answer:
        """As consume(), as record batches whose payloads have a column of their own."""
        with self._client.consume_arrow(topic, group) as poll:

            def take() -> tuple[int, int]:
                batch = poll()
                return batch.num_rows, batch.column("payload").nbytes

            return _drain(take, count, timeout)

    def latency(self, topic: str, group: str, per_second: int, warm_up: int, count: int, size: int) -> Answer:
        """From the send call to the poll that returns the message, both here; percentiles of the last `count` in ms."""
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
    """Every thread calls `send`, which waits for its acknowledgement, again and again."""
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
    """One thread, at most `window` sends without an answer."""
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
    """Call `send` with each number at its time; all are acknowledged on return."""
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
    """Take until `count` messages have come; `take` returns how many messages and bytes came this time."""
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
    """For each message, by its number, how long after its stamp it was polled. clock: that of the stamps."""
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
    """Run one line's command; its numbers are passed as int. A failure is an answer with the key "error".

    more: commands that this system has beside those of all.
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
    except Exception as error:  # the driver decides what a failed command means; it gets the type and the text
        return {"error": f"{type(error).__name__}: {error}"}


def serve(commands: Commands, more: Sequence[Callable[..., Answer]] = ()) -> None:
    """Answer standard input's lines until it ends. more: as of answer()."""
    for line in sys.stdin:
        print(json.dumps(answer(commands, line, more)), flush=True)
