"""Natural batching: one request under way per partition, and whatever arrives meanwhile goes as the next one.

An idle partition's message goes out at once on the caller's own thread. While its request is under way further messages
wait in the partition's queue; who completes the request sends them all as one batch. So batches grow exactly as far as
the broker needs, without a delay at low rates, and order within a partition holds across retries.

`Outbox._lock` guards every Accumulator and the count of buffered bytes; it is never held during I/O.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from metaq.protocol.errors import ClientError, RequestTimedOut

from ..config import ProducerConfig
from ..connection import Connection
from ..values import TopicPartition
from .outgoing import Outgoing

__all__ = ["Accumulator", "Outbox"]


class Accumulator:
    """The queue of one partition. Either idle, or busy (a request is under way, or its sender is preparing it), or
    paused (its last request failed; the retry thread decides what becomes of the queue)."""

    __slots__ = ("busy", "connection", "failures", "partition", "paused", "queue", "queued_bytes")

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.queue: deque[Outgoing] = deque()
        self.queued_bytes = 0
        self.busy = False
        self.paused = False
        self.failures = 0  # in a row
        self.connection: Connection | None = None  # of the request under way

    def put(self, outgoing: Outgoing) -> None:
        self.queue.append(outgoing)
        self.queued_bytes += outgoing.size

    def put_back(self, batch: list[Outgoing]) -> None:
        """In front, in their order."""
        self.queue.extendleft(reversed(batch))
        self.queued_bytes += sum(outgoing.size for outgoing in batch)

    def take(self, max_bytes: int, max_records: int) -> list[Outgoing]:
        """The next request's messages: at least one, then as many as fit.

        Over the text protocol a message with a key goes alone: a Java broker may append pipelined puts in any order.
        """
        queue = self.queue
        first = queue.popleft()
        batch, size, records = [first], first.size, first.count
        one_by_one = self.connection is not None and not self.connection.speaks_frames
        while queue and not (one_by_one and (first.key is not None or queue[0].key is not None)):
            size += queue[0].size
            records += queue[0].count
            if size > max_bytes or records > max_records:
                size -= queue[0].size
                break
            batch.append(queue.popleft())
        self.queued_bytes -= size
        return batch

    def take_all(self) -> list[Outgoing]:
        batch = list(self.queue)
        self.queue.clear()
        self.queued_bytes = 0
        return batch


class Outbox:
    """All messages that were accepted and not yet answered. Any thread.

    transmit(accumulator, batch): sends one request; called with the partition's turn (busy), outside the lock.
    linger(accumulator): have `flush_lingering` called after the linger time.
    """

    def __init__(
        self,
        config: ProducerConfig,
        transmit: Callable[[Accumulator, list[Outgoing]], None],
        linger: Callable[[Accumulator], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_bytes = config.max_batch_bytes
        self._max_records = config.max_batch_records
        self._max_buffered = config.max_buffered_bytes
        self._lingers = config.linger_ms > 0
        self._transmit = transmit
        self._linger = linger
        self._clock = clock
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # room or emptiness, for those who wait for it
        self._waiting = 0
        self._buffered = 0
        self._closed = False
        self._accumulators: dict[TopicPartition, Accumulator] = {}

    @property
    def buffered_bytes(self) -> int:
        return self._buffered

    def add(self, outgoing: Outgoing, partition: TopicPartition) -> tuple[Accumulator, list[Outgoing]]:
        """Accept a message. Returns its partition's accumulator and, if its turn is now, the batch that the caller must
        send. Waits for room until the message's deadline.

        Raises RequestTimedOut (no room), ClientError (closed).
        """
        with self._lock:
            if self._buffered + outgoing.size > self._max_buffered and self._buffered:
                self._wait_for_room(outgoing)
            if self._closed:
                raise ClientError("this producer is closed")
            self._buffered += outgoing.size
            accumulator = self._accumulators.get(partition) or self._accumulator(partition)
            if not (accumulator.busy or accumulator.paused or accumulator.queue or self._lingers):
                accumulator.busy = True
                return accumulator, [outgoing]
            accumulator.put(outgoing)
            if accumulator.busy or accumulator.paused:
                return accumulator, []
            if not self._lingers or outgoing.future is None or self._is_full(accumulator):
                return accumulator, self._take(accumulator)
            first = len(accumulator.queue) == 1
        if first:
            self._linger(accumulator)
        return accumulator, []

    def finished(self, accumulator: Accumulator, batch: list[Outgoing]) -> None:
        """The batch got its results: send what has gathered meanwhile, or leave the partition idle."""
        with self._lock:
            accumulator.failures = 0
            self._release(batch)
            following = self._next_turn(accumulator)
        if following:
            self._transmit(accumulator, following)

    def failed(self, accumulator: Accumulator, again: list[Outgoing], given_up: list[Outgoing]) -> None:
        """The request failed: `again` go back in front of the queue, which is paused until `resume`."""
        with self._lock:
            accumulator.busy = False
            accumulator.paused = True
            accumulator.failures += 1
            accumulator.put_back(again)
            self._release(given_up)

    def has_sent_to(self, topic: str) -> bool:
        """Whether a message of the topic was ever accepted. O(partitions)."""
        with self._lock:
            return any(partition.topic == topic for partition in self._accumulators)

    def drain(self, accumulator: Accumulator) -> list[Outgoing]:
        """Everything queued of a paused partition, to be routed anew; it stays paused. Retry thread."""
        with self._lock:
            return accumulator.take_all()

    def resume(self, accumulator: Accumulator, placed: list[tuple[Outgoing, TopicPartition]]) -> None:
        """Put what `drain` took where it shall go now, in front of what arrived meanwhile, and end the pause."""
        with self._lock:
            own = [outgoing for outgoing, partition in placed if partition == accumulator.partition]
            accumulator.put_back(own)
            accumulator.paused = False
            touched = {accumulator.partition: accumulator}
            for outgoing, partition in placed:
                if partition != accumulator.partition:
                    other = self._accumulators.get(partition) or self._accumulator(partition)
                    other.put(outgoing)
                    touched[partition] = other
            turns = [
                (each, self._take(each)) for each in touched.values() if each.queue and not (each.busy or each.paused)
            ]
        for each, batch in turns:
            self._transmit(each, batch)

    def give_up(self, outgoing: list[Outgoing]) -> None:
        """These left the queues with an error."""
        with self._lock:
            self._release(outgoing)

    def flush_lingering(self, accumulator: Accumulator) -> None:
        """The linger time of an idle partition's first message is over."""
        with self._lock:
            if accumulator.busy or accumulator.paused or not accumulator.queue:
                return
            batch = self._take(accumulator)
        self._transmit(accumulator, batch)

    def flush(self, deadline: float) -> bool:
        """Wait until nothing is buffered; False if the deadline came first."""
        with self._lock:
            idle = [each for each in self._accumulators.values() if each.queue and not (each.busy or each.paused)]
            turns = [(each, self._take(each)) for each in idle]
        for each, batch in turns:
            self._transmit(each, batch)
        with self._lock:
            self._waiting += 1
            try:
                while self._buffered and (remaining := deadline - self._clock()) > 0:
                    self._changed.wait(remaining)
            finally:
                self._waiting -= 1
            return not self._buffered

    def close(self) -> list[Outgoing]:
        """Accept nothing any more; return what is still queued."""
        with self._lock:
            self._closed = True
            left = [outgoing for each in self._accumulators.values() for outgoing in each.take_all()]
            self._release(left)
            self._changed.notify_all()
        return left

    # --- with the lock held -----------------------------------------------------------------------------------------

    def _accumulator(self, partition: TopicPartition) -> Accumulator:
        accumulator = self._accumulators[partition] = Accumulator(partition)
        return accumulator

    def _is_full(self, accumulator: Accumulator) -> bool:
        return accumulator.queued_bytes >= self._max_bytes or len(accumulator.queue) >= self._max_records

    def _take(self, accumulator: Accumulator) -> list[Outgoing]:
        accumulator.busy = True
        return accumulator.take(self._max_bytes, self._max_records)

    def _next_turn(self, accumulator: Accumulator) -> list[Outgoing]:
        if accumulator.queue:
            return self._take(accumulator)
        accumulator.busy = False
        return []

    def _release(self, outgoing: list[Outgoing]) -> None:
        for each in outgoing:
            self._buffered -= each.size
        if self._waiting:
            self._changed.notify_all()

    def _wait_for_room(self, outgoing: Outgoing) -> None:
        self._waiting += 1
        try:
            while self._buffered and self._buffered + outgoing.size > self._max_buffered and not self._closed:
                remaining = outgoing.deadline - self._clock()
                if remaining <= 0 or not self._changed.wait(remaining):
                    raise RequestTimedOut(
                        f"{self._buffered} bytes wait for the brokers already, max_buffered_bytes="
                        f"{self._max_buffered}: they take messages more slowly than you send"
                    )
        finally:
            self._waiting -= 1
