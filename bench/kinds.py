"""Commands of metaq's load generator for delayed, transactional and shared messages. They are similar to those of
loops.Generator.

RocketPeer has the same commands. Sizes are bytes of a message's data; delays are seconds.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

from metaq import Consumer, HalfOutcome, Producer, TransactionResult

from .loops import (
    STAMP,
    Answer,
    percentiles,
    rate,
    receive_stamps,
    send_by_threads,
    send_paced,
    send_pipelined,
)
from .members import Members, numbered

__all__ = ["PRODUCER_GROUP", "Kinds"]

PRODUCER_GROUP = "bench-transactions"
SHORTEST_MS, LONGEST_MS = 1000, 4000
"""Range of the delays of the messages of `lateness`, in ms. RocketMQ's clock for delayed messages ticks once a
second.
"""
BATCH = 500
_COUNT_SECONDS = 0.02
_SETTLE_SECONDS = 1.0
"""Seconds until all members wait for messages."""
_SHARED_SECONDS = 120.0


class _Committed:
    """A transaction in progress."""

    __slots__ = ("_future",)

    def __init__(self, future: Future[TransactionResult]) -> None:
        self._future = future

    def result(self) -> None:
        """Wait for the commit."""
        _check_committed(self._future.result())


def _check_committed(result: TransactionResult) -> None:
    if result.outcome is not HalfOutcome.COMMITTED:
        raise RuntimeError(f"the transaction is {result.outcome}: {result.cause}")


class Kinds:
    """The commands. All send with the given producer."""

    def __init__(self, zk_connect: str, producer: Producer, sleep: Callable[[float], None] = time.sleep) -> None:
        self._zk_connect = zk_connect
        self._producer = producer
        self._sleep = sleep
        self._numbered = 0

    @property
    def commands(self) -> Sequence[Callable[..., Answer]]:
        """The commands, in the form that loops.serve() takes as `more`."""
        return (
            self.delayed_blocking,
            self.delayed_async,
            self.lateness,
            self.transactions,
            self.transactions_async,
            self.shared,
        )

    def delayed_blocking(self, topic: str, threads: int, count: int, size: int, seconds: int) -> Answer:
        """Send messages that are delivered after `seconds`; each thread waits for the acknowledgement of each of its
        sends.
        """

        def send(topic: str, data: bytes) -> None:
            self._producer.send(topic, data, delay=seconds)

        return send_by_threads(send, topic, threads, count, size)

    def delayed_async(self, topic: str, window: int, count: int, size: int, seconds: int) -> Answer:
        """Send messages that are delivered after `seconds` from one thread, with at most `window` unanswered sends."""

        def send(topic: str, data: bytes) -> Future[Any]:
            return self._producer.send_async(topic, data, delay=seconds)

        return send_pipelined(send, topic, window, count, size)

    def lateness(self, topic: str, group: str, per_second: int, warm_up: int, count: int, size: int) -> Answer:
        """Measure the time from a message's due time to the poll that returns it, by this machine's clock. Return
        percentiles of the last `count` messages in ms; a value is negative if the message comes early.
        """
        nanoseconds = [0] * (warm_up + count)
        padding = bytes(size - STAMP.size)
        rng = random.Random(1)

        def send(number: int) -> Future[Any]:
            due_ms = time.time_ns() // 1_000_000 + rng.randrange(SHORTEST_MS, LONGEST_MS)
            data = STAMP.pack(number, due_ms * 1_000_000) + padding
            return self._producer.send_async(topic, data, deliver_at=datetime.fromtimestamp(due_ms / 1000, UTC))

        with (
            Consumer(self._zk_connect, group=group, topics=[topic], start="earliest") as consumer,
            ThreadPoolExecutor(1) as pool,
        ):
            poll = lambda: consumer.poll(timeout=1.0)  # noqa: E731
            receiving = pool.submit(receive_stamps, poll, attrgetter("payload"), nanoseconds, time.time_ns)
            send_paced(send, per_second, len(nanoseconds))
            receiving.result()
        return percentiles(nanoseconds[warm_up:])

    def transactions(self, topic: str, threads: int, count: int, size: int) -> Answer:
        """Run transactions. Each thread sends a half message, does no local work, commits, and waits for the broker's
        answers to both requests.
        """

        def send(topic: str, data: bytes) -> None:
            _check_committed(self._producer.send_in_transaction(topic, data, execute=lambda _: True))

        return send_by_threads(send, topic, threads, count, size)

    def transactions_async(self, topic: str, window: int, count: int, size: int) -> Answer:
        """Run transactions from one thread, with at most `window` unfinished ones. The producer's threads execute their
        local work.
        """

        def send(topic: str, data: bytes) -> _Committed:
            return _Committed(self._producer.send_in_transaction_async(topic, data, execute=lambda _: True))

        return send_pipelined(send, topic, window, count, size)

    def shared(
        self, topic: str, group: str, members: int, threads: int, processes: int, work: int, count: int, size: int
    ) -> Answer:
        """Let the members of a shared group work on numbered messages, `work` ms for each. `members` is the number of
        members in all processes, `threads` the number of threads of each member.

        The rate is measured from the time when a member gets the first message until a member has finished the last
        one. The members have joined before the messages are sent.
        """
        first_number, self._numbered = self._numbered, self._numbered + count
        with ExitStack() as stack:
            groups = [
                stack.enter_context(Members(self._zk_connect, topic, group, members // processes, threads, work))
                for _ in range(processes)
            ]
            for each in groups:
                each.begin()
            self._sleep(_SETTLE_SECONDS)
            for number in range(first_number, first_number + count, BATCH):
                last_number = min(number + BATCH, first_number + count)
                self._producer.send_batch(topic, [numbered(each, size) for each in range(number, last_number)])
            deadline = time.monotonic() + _SHARED_SECONDS
            while (done := sum(each.count() for each in groups)) < count:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{done} of {count} messages in {_SHARED_SECONDS:.0f} s")
                self._sleep(_COUNT_SECONDS)
            found = [each.end() for each in groups]
        worked = [each for each in found if each.finished]
        seconds = max(each.last for each in worked) - min(each.first for each in worked)
        seen = [number for each in found for number in each.numbers]
        if {*seen} != {*range(first_number, first_number + count)}:
            raise RuntimeError(f"{count} messages were sent, {len({*seen})} came, some of them others")
        return {
            **rate(count, round(seconds * 1e9)),
            "workers": sum(each.workers for each in found),
            "twice": len(seen) - count,
        }
