"""The loops that the threads of `metaq bench` run: they send or read messages and measure the times."""

from __future__ import annotations

import secrets
import struct
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import closing
from itertools import cycle
from typing import Any, NamedTuple, Protocol

from metaq.client.consumer.consumer import Consumer
from metaq.client.producer import Producer
from metaq.client.records.message import Message
from metaq.client.records.results import SendResult, TopicPartition
from metaq.protocol.errors import RequestTimedOut

from .bench_measure import Run, Tally

__all__ = [
    "STAMP_BYTES",
    "ArrowReader",
    "Backlog",
    "Destination",
    "Job",
    "MessageReader",
    "Piece",
    "Polled",
    "Reader",
    "Stamps",
    "send_batches",
    "send_pipelined",
    "send_single",
]

Job = Callable[[Tally], None]
Destination = dict[str, Any]
"""Keyword arguments of a producer's send call that determine the message's partition: `key` or `partition`. If there is
no argument, the producer chooses the partition.
"""

TIMED_EVERY = 16
"""The benchmark measures the time of only one in this number of pipelined sends, because measuring every send would
make the sends slower.
"""

_STAMP = struct.Struct(">QQ")  # random number of the run, time of the send call in ns
STAMP_BYTES = _STAMP.size

POLL_MESSAGES = 1000
ARROW_MESSAGES = 65_536
POLL_SECONDS = 0.1
"""A reader waits at most this number of seconds for messages before it checks whether the run is over."""
IDLE_SECONDS = 2.0
"""If a reader gets no message for this number of seconds, it assumes that the group's backlog is completely read."""
JOIN_SECONDS = 30.0
"""A reader waits at most this number of seconds for its first message. In this time the reader must connect, join its
group, and wait until other members of the group have given up the partitions that it gets.
"""

LATE_SECONDS = 10.0
"""In a latency run, all messages must have arrived at most this number of seconds after the last message was sent."""


def send_single(producer: Producer, topic: str, payload: bytes, run: Run, places: Sequence[Destination] = ()) -> Job:
    """Return a job that sends single messages and waits for each acknowledgement. A job is a function that a thread of
    the run calls. Message 1 goes to the first destination in `places`, message 2 to the second, and so on, round robin;
    without `places` the producer chooses the partitions.
    """

    def job(tally: Tally) -> None:
        clock, place = run.clock_ns, cycle(places or ({},))
        while run.take():
            sent = clock()
            producer.send(topic, payload, **next(place))
            tally.times.add(clock() - sent)
            tally.messages += 1

    return job


def send_batches(
    producer: Producer,
    topic: str,
    payload: bytes,
    batch: int,
    frames: int,
    run: Run,
    places: Sequence[Destination] = (),
) -> Job:
    """Return a job that sends frames of up to `batch` messages each. At any time at most `frames` frames are sent and
    not yet acknowledged. The job measures for each frame the time until it is acknowledged.

    places: the destinations of the frames, used in turn, as in send_single. All messages of a frame have the same
        destination.
    """

    def job(tally: Tally) -> None:
        unanswered: deque[tuple[Future[Sequence[SendResult]], int]] = deque()
        place = cycle(places or ({},))

        def wait_for_one() -> None:
            future, messages = unanswered.popleft()
            future.result()
            tally.messages += messages

        while messages := run.take(batch):
            if len(unanswered) == frames:
                wait_for_one()
            sent = run.clock_ns()
            future = producer.send_batch_async(topic, [payload] * messages, **next(place))
            future.add_done_callback(_timed(tally, sent, run.clock_ns))
            unanswered.append((future, messages))
        while unanswered:
            wait_for_one()

    return job


def send_pipelined(
    producer: Producer, topic: str, payload: bytes, window: int, run: Run, places: Sequence[Destination] = ()
) -> Job:
    """Return a job that sends single messages without waiting for each acknowledgement; at any time at most `window`
    messages are sent and not yet acknowledged. places: the destinations of the messages, used in turn, as in
    send_single.
    """

    def job(tally: Tally) -> None:
        unanswered: deque[Future[SendResult]] = deque()
        place = cycle(places or ({},))
        number = 0
        while run.take():
            if len(unanswered) == window:
                unanswered.popleft().result()
                tally.messages += 1
            sent = run.clock_ns()
            future = producer.send_async(topic, payload, **next(place))
            if number % TIMED_EVERY == 0:
                future.add_done_callback(_timed(tally, sent, run.clock_ns))
            unanswered.append(future)
            number += 1
        for future in unanswered:
            future.result()
            tally.messages += 1

    return job


def _timed(tally: Tally, sent: int, clock: Callable[[], int]) -> Callable[[Future[Any]], None]:
    return lambda _: tally.times.add(clock() - sent)


class Polled(Protocol):
    """An object whose method `poll` returns messages: a Consumer or a PartitionReader."""

    def poll(self, max_messages: int = ..., timeout: float = ...) -> list[Message]: ...


class Stamps:
    """Two jobs that measure the latency of messages. One thread sends messages at a fixed rate to a partition; each
    message contains its send time. Another thread reads the messages from this partition.
    """

    def __init__(self, run: Run, per_second: int) -> None:
        self._run = run
        self._per_second = per_second
        self._mark = secrets.randbits(64)  # marks this run's messages: others may send too
        self._sent = 0
        self._all_sent_ns: int | None = None

    def send(self, producer: Producer, partition: TopicPartition, size: int) -> None:
        """Send messages until the run is over. This method does not count the messages, because `receive` counts each
        message when it arrives. Each payload has `size` bytes, but at least STAMP_BYTES, so that it can contain the
        send time.
        """
        padding = bytes(size - STAMP_BYTES)
        unanswered: deque[Future[SendResult]] = deque()
        try:
            while self._wait_until_due() and self._run.take():
                payload = _STAMP.pack(self._mark, self._run.clock_ns()) + padding
                unanswered.append(producer.send_async(partition.topic, payload, partition=partition))
                self._sent += 1
                while unanswered[0].done():
                    unanswered.popleft().result()
                    if not unanswered:
                        break
            for future in unanswered:
                future.result()
        finally:
            self._all_sent_ns = self._run.clock_ns()

    def _wait_until_due(self) -> bool:
        due = self._run.started_ns + self._sent * 1_000_000_000 // self._per_second
        while (early := due - self._run.clock_ns()) > 0:
            if self._run.stop.wait(early / 1e9):
                return False
        return True

    def receive(self, reader: Polled, tally: Tally) -> None:
        """Read the messages, and record for each the time from its send to its arrival here. Raises RequestTimedOut if
        a message is missing LATE_SECONDS after the last message was sent.
        """
        while self._all_sent_ns is None or tally.messages < self._sent:
            messages = reader.poll(max_messages=POLL_MESSAGES, timeout=POLL_SECONDS)
            now = self._run.clock_ns()
            for message in messages:
                if len(message.payload) >= STAMP_BYTES:
                    mark, sent = _STAMP.unpack_from(message.payload)
                    if mark == self._mark:
                        tally.times.add(now - sent)
                        tally.messages += 1
            if self._all_sent_ns is not None and now - self._all_sent_ns > LATE_SECONDS * 1e9:
                missing = self._sent - tally.messages
                raise RequestTimedOut(f"{missing:,} of {self._sent:,} messages did not arrive in {LATE_SECONDS:g} s")


# --- reading a backlog: as messages or as Arrow, one reader after the other -------------------------------------------


class Piece(NamedTuple):
    """The result of one call of Reader.read. next_offset: the offset after the last message of the result; None if it
    is unknown.
    """

    messages: int
    payload_bytes: int
    next_offset: int | None = None


class Reader(Protocol):
    """A reader of messages. Each read continues where the previous one stopped."""

    def read(self, most: int, seconds: float) -> Piece:
        """Read at most `most` messages. Wait at most `seconds` for the first message."""
        ...


class MessageReader:
    """A Reader that reads message objects one by one and accesses the payload of each, as a consumer program would."""

    def __init__(self, polled: Polled) -> None:
        self._polled = polled

    def read(self, most: int, seconds: float) -> Piece:
        """Read single messages. `most` and `seconds` are as in Reader.read."""
        messages = self._polled.poll(min(most, POLL_MESSAGES), seconds)
        size = sum(len(message.payload) for message in messages)
        return Piece(len(messages), size, messages[-1].next_offset if messages else None)


class ArrowReader:
    """A Reader that reads Arrow record batches of up to 65,536 messages. It needs pyarrow."""

    def __init__(self, consumer: Consumer) -> None:
        import pyarrow.compute  # installed by an extra

        self._consumer = consumer
        self._compute = pyarrow.compute

    def read(self, most: int, seconds: float) -> Piece:
        """Read one record batch. `most` and `seconds` are as in Reader.read."""
        batch = self._consumer.poll_arrow(min(most, ARROW_MESSAGES), seconds)
        sizes = self._compute.sum(self._compute.binary_length(batch.column("payload")))
        return Piece(batch.num_rows, sizes.as_py() or 0)


class Backlog:
    """A job that reads a backlog of messages with several readers, one reader after another. `readers` yields each
    reader with its end offset, where the reader stops. If the end offset is None, the reader stops when no message has
    arrived for IDLE_SECONDS, or when the first message has not arrived within JOIN_SECONDS.

    The time is measured from the arrival of the first message, which is polled alone, to the arrival of the last
    message. So it does not include the time for connecting and for joining a group.
    """

    def __init__(self, readers: Generator[tuple[Reader, int | None], None, None], run: Run) -> None:
        self._readers = readers
        self._run = run
        self._first_ns = 0
        self._last_ns = 0
        self.payload_bytes = 0
        """Total bytes of all payloads, without the payload of the first message."""

    def read(self, tally: Tally) -> None:
        """Read the backlog and count its messages."""
        with closing(self._readers) as readers:
            for reader, end in readers:
                self._read_one(reader, end, tally)

    def _read_one(self, reader: Reader, end: int | None, tally: Tally) -> None:
        last_came = self._run.clock_ns()
        while not self._run.over and (most := self._run.left(tally.messages, ARROW_MESSAGES)):
            piece = reader.read(most if self._first_ns else 1, POLL_SECONDS)
            now = self._run.clock_ns()
            if piece.messages:
                self._count(piece, now, tally)
                last_came = now
                if end is not None and piece.next_offset is not None and piece.next_offset >= end:
                    return
            elif now - last_came > (IDLE_SECONDS if tally.messages else JOIN_SECONDS) * 1e9:
                return

    def _count(self, piece: Piece, now: int, tally: Tally) -> None:
        tally.messages += piece.messages
        self._last_ns = now
        if self._first_ns:
            self.payload_bytes += piece.payload_bytes
        else:
            self._first_ns = now

    def measured(self, messages: int) -> tuple[int, float]:
        """Return two values. The first is the number of messages after the first message, which is `messages` minus 1.
        The second is the number of seconds from the arrival of the first message to the arrival of the last one.
        """
        return messages - 1, (self._last_ns - self._first_ns) / 1e9
