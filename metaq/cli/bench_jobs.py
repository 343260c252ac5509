"""The loops of `metaq bench`: what each thread of a run sends, and what it times."""

from __future__ import annotations

import secrets
import struct
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import cycle
from typing import Any

from metaq.client.producer import Producer
from metaq.client.values import SendResult, TopicPartition
from metaq.protocol.errors import RequestTimedOut

from .bench_measure import Run, Tally
from .bench_reading import POLL_MESSAGES, POLL_SECONDS, Polled

__all__ = ["STAMP_BYTES", "Destination", "Job", "Stamps", "send_batches", "send_pipelined", "send_single"]

Job = Callable[[Tally], None]
Destination = dict[str, Any]
"""Where a message goes: `key` or `partition` of a producer's send call, or neither."""

TIMED_EVERY = 16
"""Of pipelined sends one in so many is timed: a callback for each would itself be a part of what is measured."""

_STAMP = struct.Struct(">QQ")  # random number of the run, time of the send call in ns
STAMP_BYTES = _STAMP.size

LATE_SECONDS = 10.0
"""How long a message of a latency run may be under way after the last was sent."""


def send_single(producer: Producer, topic: str, payload: bytes, run: Run, places: Sequence[Destination] = ()) -> Job:
    """Waits for each send; to `places` in turn, or as the producer distributes them."""

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
    """At most `frames` frames of up to `batch` messages without an answer; the times are of frames.

    places: as send_single, of frames.
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
    """At most `window` sends without an answer; places: as send_single."""

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


class Stamps:
    """One thread sends messages with the time in them at a fixed rate, another reads them from the same partition."""

    def __init__(self, run: Run, per_second: int) -> None:
        self._run = run
        self._per_second = per_second
        self._mark = secrets.randbits(64)  # others may send to the partition meanwhile
        self._sent = 0
        self._all_sent_ns: int | None = None

    def send(self, producer: Producer, partition: TopicPartition, size: int) -> None:
        """The sending job, which is not counted; payloads are `size` bytes, STAMP_BYTES at least."""
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
        """The receiving job. Raises RequestTimedOut if a message is missing LATE_SECONDS after the last was sent."""
        while self._all_sent_ns is None or tally.messages < self._sent:
            messages = reader.poll(POLL_MESSAGES, POLL_SECONDS)
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
