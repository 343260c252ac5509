"""Natural batching: one request under way per partition, a few per broker, and whatever arrives meanwhile goes next.

An idle partition's message goes out at once on the caller's own thread. While its request is under way further messages
wait in the partition's queue; who completes the request sends them all as one batch. A broker that takes SEND_MANY has
at most `max_requests_in_flight` requests under way; the partitions that become ready meanwhile, however few messages
each of them has, go together in the next one. So requests grow exactly as far as the broker needs, without a delay at
low rates, and order within a partition holds across retries.

`Outbox._lock` guards every Accumulator, every Lane and the count of buffered bytes; it is never held during I/O.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence

from metaq.protocol.errors import ClientError, RequestTimedOut

from ..config import ProducerConfig
from ..values import TopicPartition
from .lanes import Accumulator, Flight, Lane, Turn
from .outgoing import Outgoing

__all__ = ["Outbox"]


class Outbox:
    """All messages that were accepted and not yet answered. Any thread.

    transmit(flight): sends one request; called outside the lock, its partitions' turns are the sender's.
    linger(lane): have `flush_lingering` called after the linger time.
    """

    def __init__(
        self,
        config: ProducerConfig,
        transmit: Callable[[Flight], None],
        linger: Callable[[Lane], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_bytes = config.max_batch_bytes
        self._max_records = config.max_batch_records
        self._max_flights = config.max_requests_in_flight
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
        self._lanes: dict[int, Lane] = {}  # by broker

    @property
    def buffered_bytes(self) -> int:
        return self._buffered

    def add(self, outgoing: Outgoing, partition: TopicPartition) -> tuple[Accumulator, Sequence[Flight]]:
        """Accept a message. Returns its partition's accumulator and what the caller must send now, mostly at most one
        flight. Waits for room until the message's deadline.

        Raises RequestTimedOut (no room), ClientError (closed).
        """
        flight: Flight | None = None
        try:
            with self._lock:
                if self._buffered + outgoing.size > self._max_buffered and self._buffered:
                    self._wait_for_room(outgoing)
                if self._closed:
                    raise ClientError("this producer is closed")
                accumulator = self._accumulators.get(partition) or self._accumulator(partition)
                lane = accumulator.lane
                idle = not (accumulator.busy or accumulator.paused or accumulator.queue or self._lingers or lane.ready)
                if idle and lane.is_open(self._max_flights):  # the usual case of a producer that is not busy
                    flight = Flight(lane, [Turn(accumulator, [outgoing])])
                    # no call from here on: an interrupt (interrupts.py) finds all of it done or nothing
                    accumulator.busy = True
                    lane.flights += 1
                    self._buffered += outgoing.size
                    return accumulator, (flight,)
                following = self._queue(outgoing, accumulator)
        except BaseException:
            if flight is not None and flight.turns[0].accumulator.busy:
                threading.Thread(target=self._transmit, args=(flight,), name="metaq-lost-flight", daemon=True).start()
            raise
        if following is None:
            self._linger(lane)
            following = ()
        return accumulator, following

    def landed(self, flight: Flight, finished: Sequence[Turn], failed: int = 0) -> None:
        """These turns were acknowledged, and of so many `failed` was told: send what has gathered meanwhile.

        What is finished stays in the buffer's count until `release`.
        """
        lane = flight.lane
        with self._lock:
            for accumulator, batch in finished:
                accumulator.failures = 0
                accumulator.answered = len(batch)
                accumulator.busy = False
                if accumulator.queue:
                    lane.call(accumulator)
            flight.missing -= len(finished) + failed
            if not flight.missing:
                lane.flights -= 1
            following = self._depart(lane) if lane.ready else ()
        self._transmit_all(following)

    def release(self, turns: Sequence[Turn]) -> None:
        """The messages of these turns have got their results."""
        with self._lock:
            for _, batch in turns:
                self._release(batch)

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
            following = self._call(touched.values())
        self._transmit_all(following)

    def give_up(self, outgoing: list[Outgoing]) -> None:
        """These left the queues with an error."""
        with self._lock:
            self._release(outgoing)

    def flush_lingering(self, lane: Lane) -> None:
        """The linger time of a broker's first lingering message is over."""
        with self._lock:
            lane.call_lingering()
            following = self._depart(lane)
        self._transmit_all(following)

    def flush(self, deadline: float) -> bool:
        """Wait until nothing is buffered; False if the deadline came first."""
        with self._lock:
            following = self._call(self._accumulators.values())
        self._transmit_all(following)
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

    def _transmit_all(self, flights: Sequence[Flight]) -> None:
        for flight in flights:
            self._transmit(flight)

    # --- with the lock held -----------------------------------------------------------------------------------------

    def _queue(self, outgoing: Outgoing, accumulator: Accumulator) -> Sequence[Flight] | None:
        """Returns what may leave now; None if a linger time begins."""
        self._buffered += outgoing.size
        accumulator.put(outgoing)
        if accumulator.busy or accumulator.paused:
            return ()
        lane = accumulator.lane
        if not self._lingers or outgoing.future is None or self._is_full(accumulator):
            lane.call(accumulator)
            return self._depart(lane)
        if accumulator.ready or len(accumulator.queue) > 1:
            return ()
        first = not lane.lingering
        lane.lingering.append(accumulator)
        return None if first else ()

    def _accumulator(self, partition: TopicPartition) -> Accumulator:
        lane = self._lanes.setdefault(partition.broker, Lane())
        accumulator = self._accumulators[partition] = Accumulator(partition, lane)
        return accumulator

    def _is_full(self, accumulator: Accumulator) -> bool:
        return accumulator.queued_bytes >= self._max_bytes or len(accumulator.queue) >= self._max_records

    def _call(self, accumulators: Iterable[Accumulator]) -> list[Flight]:
        """Let those go that have something queued."""
        lanes: dict[Lane, None] = {}
        for each in accumulators:
            if each.queue:
                each.lane.call(each)
                lanes[each.lane] = None
        return [flight for lane in lanes for flight in self._depart(lane)]

    def _depart(self, lane: Lane) -> list[Flight]:
        return lane.depart(self._max_flights, self._max_bytes, self._max_records)

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
