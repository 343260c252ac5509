"""Natural batching: one request under way per partition, a few per broker, and whatever arrives meanwhile goes next.

An idle partition's message goes out at once on the caller's own thread. While its request is under way further messages
wait in the partition's queue; who completes the request sends them all as one batch. A broker that takes SEND_MANY has
at most `max_requests_in_flight` requests under way; the partitions that become ready meanwhile, however few messages
each of them has, go together in the next one. So requests grow exactly as far as the broker needs, without a delay at
low rates, and order within a partition holds across retries.

`Outbox._lock` guards every Accumulator, every Lane and the count of buffered bytes; it is never held during I/O.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from functools import partial

from metaq.coordination.interrupts import Bells, begin_elsewhere, may_be_interrupted
from metaq.protocol.errors import ClientError, MetaqError, RequestTimedOut
from metaq.protocol.limits import MAX_BODY_BYTES
from metaq.protocol.record import HEADER_BYTES, Buffer

from ..config import ProducerConfig
from ..values import TopicPartition
from .futures import Outcome, refuse_in_callback
from .key_order import KeyOrder, PartitionsOf
from .lanes import Accumulator, Flight, Lane, Turn
from .losses import Losses
from .outgoing import GatheredBatch, OnDelivery, Outgoing
from .routing import no_partition

__all__ = ["Outbox"]

_LOOK_SECONDS = 0.25
"""Between two looks at all messages for those whose time is over; so a future ends at most this much late."""
_LEAST_GATHERED = 64
"""Messages that a batch may gather at least; and as many as are queued in front of it, so that a request can leave half
of a large queue to the one behind it."""


class Outbox:
    """All messages that were accepted and not yet answered. Any thread.

    transmit(flight): sends one request; called outside the lock, its partitions' turns are the sender's.
    linger(lane): have `flush_lingering` called after the linger time.
    look_at(when): have `take_expired` called at this clock time, or soon after.
    elsewhere(action): have it done soon on a thread that no signal reaches.
    partitions_of: as KeyOrder's; called with the lock held.
    """

    def __init__(
        self,
        config: ProducerConfig,
        transmit: Callable[[Flight], None],
        linger: Callable[[Lane], None],
        look_at: Callable[[float], None],
        elsewhere: Callable[[Callable[[], None]], None],
        partitions_of: PartitionsOf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_bytes = config.max_batch_bytes
        self._max_joined = min(config.max_batch_bytes, MAX_BODY_BYTES)  # a larger message is refused, by others
        self._max_records = config.max_batch_records
        self._max_flights = config.max_requests_in_flight
        self._max_buffered = config.max_buffered_bytes
        self._max_messages = config.max_buffered_messages
        self._lingers = config.linger_ms > 0
        self._transmit = transmit
        self._linger = linger
        self._look_at = look_at
        self._elsewhere = elsewhere
        self._clock = clock
        self._lock = threading.Lock()
        self._changed = Bells()  # room or emptiness, for those who wait for it
        self._buffered = 0
        self._messages = 0
        self._closed = False
        self._accumulators: dict[TopicPartition, Accumulator] = {}
        self._gathering: dict[Hashable, Accumulator] = {}  # where messages that nothing else distinguishes went last
        self._first: dict[str, Accumulator] = {}  # by topic
        self._lanes: dict[int, Lane] = {}  # by broker
        self._keys = KeyOrder(self._accumulators, partitions_of)
        self._last_look = -math.inf
        self._next_look = math.inf

    @property
    def buffered_bytes(self) -> int:
        return self._buffered

    def join(
        self, where: Hashable, flag: int, body: Buffer, deadline: float, on_delivery: OnDelivery | Losses
    ) -> tuple[Outcome, int] | None:
        """Accept a message into the open batch of `where`, a topic or a partition; where its future looks.
        None: there is no such batch, or it cannot take this message: `add` a GatheredBatch.

        A message costs as much as this function: the bars of bench's `produce-128` and `futures-128` hang on it.
        """
        size = HEADER_BYTES + len(body)
        with self._lock:
            accumulator = self._gathering.get(where)
            if accumulator is None or (batch := accumulator.open) is None:
                return None
            bodies = batch.bodies
            count = len(bodies)
            if (
                count >= batch.most
                or batch.size + size > self._max_joined
                or self._buffered + size > self._max_buffered
                or self._messages >= self._max_messages
                or not batch.deadline <= deadline <= batch.latest
            ):
                return None
            if batch.flags != flag:
                batch.put_flag(flag)
            if batch.runs[-1][1] is not on_delivery:
                batch.put_report(on_delivery)
            # no call from here on but the last one: an interrupt finds all of it done or nothing
            self._buffered += size
            self._messages += 1
            batch.size += size
            bodies.append(body)
        return batch.outcome, count

    def sticks_to(self, where: Hashable) -> TopicPartition | None:
        """The partition that takes the next message without a key of a topic, if there is no reason for another one."""
        with self._lock:
            accumulator = self._gathering.get(where)
            if accumulator is None or not accumulator.sticks or self._is_full(accumulator):
                return None
            return accumulator.partition

    def unstick(self, topic: str) -> None:
        """The partitions of the topic have changed."""
        with self._lock:
            for accumulator in self._gathering.values():
                if accumulator.partition.topic == topic:
                    accumulator.sticks = False
                    accumulator.close()

    def add(self, outgoing: Outgoing, partition: TopicPartition | None) -> tuple[Accumulator | None, Sequence[Flight]]:
        """Accept a message. Returns its partition's accumulator and what the caller must send now, mostly at most one
        flight; if this is interrupted, they are in `outgoing.flights`. Waits for room until the message's deadline.

        partition: None = by its key, where it goes now; the accumulator is None if it has to wait for earlier messages
        of its key. Raises RequestTimedOut (no room), ClientError (closed, or no room in a callback), NoPartition.
        """
        try:
            while True:
                with self._lock:
                    if self._closed:
                        raise ClientError("this producer is closed")
                    if not self._is_too_much(outgoing):
                        by_key = partition is None
                        if partition is None:
                            partition = self._by_key(outgoing)
                        if outgoing.deadline < self._next_look and outgoing.report is not None:
                            self._look_next(outgoing.deadline)
                        if by_key and (waiting := self._keys.behind(outgoing)) is not None:
                            self._buffered += outgoing.size  # and no call before the next, as below
                            self._messages += 1
                            waiting.append(outgoing)
                            return None, ()
                        accumulator = self._accumulators.get(partition) or self._accumulator(partition)
                        lane = accumulator.lane
                        idle = not (
                            accumulator.busy or accumulator.paused or accumulator.queue or self._lingers or lane.ready
                        )
                        if idle and lane.is_open(self._max_flights):  # the usual case of a producer that is not busy
                            batch = [outgoing]
                            flight = Flight(lane, [Turn(accumulator, batch)])
                            count = outgoing.count
                            # no call from here on: an interrupt (interrupts.py) finds all of it done or nothing
                            accumulator.busy = True
                            accumulator.under_way = batch
                            lane.flights += 1
                            self._buffered += outgoing.size
                            self._messages += count
                            outgoing.flights = flights = (flight,)
                            return accumulator, flights
                        following = self._queue(outgoing, accumulator)
                        outgoing.flights = following or ()
                        break
                self._wait_for_room(outgoing)
            if following is None:
                self._linger(lane)
                following = ()
            return accumulator, following
        except MetaqError:
            raise
        except BaseException:
            begin_elsewhere((self.send_all,))  # it may have been queued just now
            raise

    def landed_alone(self, flight: Flight) -> Sequence[Flight] | None:
        """As `landed` for a flight of one message, which it returns what has gathered meanwhile of, to be sent by the
        caller; None, and nothing is done, while somebody waits for room or emptiness or keys move.

        For one that a thread blocks for it is `release` as well: nobody else waits for its result. It is done or not,
        whatever interrupts; where that may be, what has gathered is a reason for None too.
        """
        accumulator, (outgoing,) = flight.turns[0]
        lane = flight.lane
        blocking, size, count = outgoing.report is None, outgoing.size, outgoing.count
        with self._lock:
            if self._changed.waiting or self._keys.moving:
                return None
            gathered = accumulator.queue or lane.ready
            if gathered and may_be_interrupted():
                return None
            # no call from here on, until all is done
            accumulator.failures = 0
            accumulator.answered = count
            accumulator.busy = False
            accumulator.under_way = ()
            flight.missing = 0
            lane.flights -= 1
            flight.landed = flight.turns
            if blocking:
                self._buffered -= size
                self._messages -= count
                flight.settled = flight.turns
            if not gathered:
                return ()
            if accumulator.queue:
                lane.call(accumulator)
            return self._depart(lane)

    def landed(self, flight: Flight, finished: Sequence[Turn], failed: int = 0) -> None:
        """These turns were acknowledged, and of so many `failed` was told: send what has gathered meanwhile.

        What is finished stays in the buffer's count until `release`. Not where interrupts come, as `failed`.
        """
        lane = flight.lane
        with self._lock:
            for accumulator, batch in finished:
                accumulator.failures = 0
                accumulator.answered = batch[0].count if len(batch) == 1 else sum([each.count for each in batch])
                accumulator.busy = False
                accumulator.under_way = ()
                if accumulator.queue:
                    lane.call(accumulator)
            flight.landed = [*flight.landed, *finished]
            flight.missing -= len(finished) + failed
            if not flight.missing:
                lane.flights -= 1
            following = self._depart(lane) if lane.ready else ()
        if following:
            self._transmit_all(following)

    def release(self, flight: Flight, turns: Sequence[Turn]) -> None:
        """The messages of these turns have got their results. May be repeated."""
        if self._keys.moving and may_be_interrupted():
            self._elsewhere(partial(self.release, flight, turns))
            return
        with self._lock:
            fresh = [turn for turn in turns if turn not in flight.settled] if flight.settled else turns
            ended = fresh[0].batch if len(fresh) == 1 else [each for _, batch in fresh for each in batch]
            size = ended[0].size if len(ended) == 1 else sum([each.size for each in ended])
            count = ended[0].count if len(ended) == 1 else sum([each.count for each in ended])
            settled = [*flight.settled, *fresh]
            self._buffered -= size
            self._messages -= count
            flight.settled = settled
            following = self._freed(ended) if self._changed.waiting or self._keys.moving else ()
        if following:
            self._transmit_all(following)

    def failed(self, accumulator: Accumulator, again: list[Outgoing], given_up: list[Outgoing]) -> list[Outgoing]:
        """The request failed: `again` go back in front of the queue, which is paused until `resume`.

        Returns `again` if this was closed meanwhile: nothing is tried any more, and the caller gives them up.
        """
        with self._lock:
            accumulator.busy = False
            accumulator.paused = True
            accumulator.under_way = ()
            accumulator.failures += 1
            accumulator.sticks = False
            accumulator.close()
            left = again if self._closed else []
            if not self._closed:
                accumulator.put_back(again)
            following = self._release(given_up + left)
        self._transmit_all(following)
        return left

    def partition_of(self, topic: str) -> TopicPartition | None:
        """One that a message of the topic was accepted for, None if none ever was."""
        first = self._first.get(topic)
        return None if first is None else first.partition

    def paused(self, topics: Collection[str]) -> list[Accumulator]:
        """Those of these topics that wait for `resume`. O(partitions)."""
        with self._lock:
            return [each for each in self._accumulators.values() if each.paused and each.partition.topic in topics]

    def drain(self, accumulator: Accumulator) -> list[Outgoing] | None:
        """Everything queued of a paused partition, to be routed anew; it stays paused until `resume`, which follows.
        None if it is not paused. Retry thread.
        """
        with self._lock:
            if not accumulator.paused:
                return None
            accumulator.under_way = drained = accumulator.take_all()
            return drained

    def resume(
        self, accumulator: Accumulator, placed: list[tuple[Outgoing, TopicPartition | None]], given_up: list[Outgoing]
    ) -> list[Outgoing]:
        """Put what `drain` took where it shall go now (None: by its key), in front of what arrived meanwhile, and end
        the pause.

        Returns what is left if this was closed meanwhile, as `failed`.
        """
        with self._lock:
            following = self._release(given_up)
            here = accumulator.partition
            placed = placed + [(each, None if each.goes_by_key else here) for each in accumulator.take_all()]
            if self._closed:
                left = [outgoing for outgoing, _ in placed]
                accumulator.under_way = ()
                self._release(left)
                return left
            touched = {here: accumulator}
            for outgoing, partition in placed:
                where = self._by_key(outgoing) if partition is None else partition
                other = self._accumulators.get(where) or self._accumulator(where)
                other.put(outgoing)
                touched[where] = other
            accumulator.under_way = ()
            accumulator.paused = False
            following += self._call(touched.values())
        self._transmit_all(following)
        return []

    def take_expired(self) -> tuple[list[Outgoing], list[Outgoing]]:
        """Messages with futures whose deadline has passed: those that were queued, which leave the queues, and those
        under way, which keep their place and room until their request ends. O(messages), once in _LOOK_SECONDS at most.
        """
        queued: list[Outgoing] = []
        under_way: list[Outgoing] = []
        with self._lock:
            now = self._clock()
            if now < self._next_look:
                return queued, under_way  # an earlier look has seen to it
            for each in self._accumulators.values():
                under_way += [outgoing for outgoing in each.under_way if _expired(outgoing, now)]
                if due := _take_expired(each.queue, now):
                    each.close()
                    each.queued_bytes -= sum(outgoing.size for outgoing in due)
                    each.queued_records -= sum(outgoing.count for outgoing in due)
                    queued += due
            for waiting in self._keys.waiting():
                queued += _take_expired(waiting, now)
            self._last_look, self._next_look = now, math.inf
            deadlines = [each.deadline for each in self._everything() if each.report is not None and not each.done]
            if later := [deadline for deadline in deadlines if deadline > now]:
                self._look_next(min(later))
            following = self._release(queued)
        self._transmit_all(following)
        return queued, under_way

    def flush_lingering(self, lane: Lane) -> None:
        """The linger time of a broker's first lingering message is over."""
        with self._lock:
            lane.call_lingering()
            following = self._depart(lane)
        self._transmit_all(following)

    def send_all(self) -> None:
        """Let go whatever lingers."""
        with self._lock:
            following = self._call(self._accumulators.values())
        self._transmit_all(following)

    def wait_until_empty(self, deadline: float) -> bool:
        """Wait until nothing is buffered; False if the deadline came first."""

        def is_empty() -> bool:
            with self._lock:  # so that what changes after this look finds somebody waiting
                return not self._buffered

        return self._changed.wait_for(is_empty, lambda: deadline - self._clock())

    def close(self) -> list[Outgoing]:
        """Accept nothing any more; return all that has no outcome yet: what is queued, and what is under way."""
        with self._lock:
            self._closed = True
            under_way = [outgoing for each in self._accumulators.values() for outgoing in each.under_way]
            queued = [outgoing for each in self._accumulators.values() for outgoing in each.take_all()]
            queued += self._keys.take_all()
            self._release(queued)
            self._changed.ring()
        return under_way + queued

    def _transmit_all(self, flights: Sequence[Flight]) -> None:
        for flight in flights:
            self._transmit(flight)

    # --- with the lock held -----------------------------------------------------------------------------------------

    def _queue(self, outgoing: Outgoing, accumulator: Accumulator) -> Sequence[Flight] | None:
        """Returns what may leave now; None if a linger time begins."""
        count = outgoing.count
        if accumulator.open is not None:
            accumulator.close()
        gathered = outgoing if isinstance(outgoing, GatheredBatch) else None
        if gathered is not None:
            gathered.most = min(max(_LEAST_GATHERED, accumulator.queued_records), self._max_records)
        # no call from here on but the last one, which is not `put`: see `add`
        self._buffered += outgoing.size
        self._messages += count
        if gathered is None:
            accumulator.queued_bytes += outgoing.size
            accumulator.queued_records += count
        else:
            accumulator.open = gathered
            accumulator.sticks = True
            self._gathering[gathered.where] = accumulator
        accumulator.queue.append(outgoing)
        if accumulator.busy or accumulator.paused:
            return ()
        lane = accumulator.lane
        if not self._lingers or outgoing.report is None or self._is_full(accumulator):
            lane.call(accumulator)
            if not lane.is_open(self._max_flights):
                return ()
            if may_be_interrupted():
                self._elsewhere(self.send_all)
                return ()
            return self._depart(lane)
        if accumulator.ready or len(accumulator.queue) > 1:
            return ()
        first = not lane.lingering
        lane.lingering.append(accumulator)
        return None if first else ()

    def _accumulator(self, partition: TopicPartition) -> Accumulator:
        lane = self._lanes.setdefault(partition.broker, Lane())
        accumulator = Accumulator(partition, lane)
        self._first.setdefault(partition.topic, accumulator)  # first: the partition is looked up next time
        self._accumulators[partition] = accumulator
        return accumulator

    def _by_key(self, outgoing: Outgoing) -> TopicPartition:
        """Where a message with a key goes. Raises NoPartition if that was never known, and none of its topic was."""
        partition = self._keys.place(outgoing) or self.partition_of(outgoing.topic)
        if partition is None:
            raise no_partition(outgoing.topic)
        return partition

    def _is_full(self, accumulator: Accumulator) -> bool:
        size, records = accumulator.queued_bytes, accumulator.queued_records
        if accumulator.open is not None:
            size, records = size + accumulator.open.size, records + accumulator.open.count
        return size >= self._max_bytes or records >= self._max_records

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

    def _release(self, ended: list[Outgoing]) -> list[Flight]:
        """These have their outcome. Returns what may leave now."""
        for each in ended:
            self._buffered -= each.size
            self._messages -= each.count
        return self._freed(ended)

    def _freed(self, ended: list[Outgoing]) -> list[Flight]:
        """The room of these is free again, and what waited for them may go. Returns what may leave now."""
        if self._changed.waiting:
            self._changed.ring()
        freed: dict[TopicPartition, Accumulator] = {}
        for outgoing in self._keys.settled(ended):
            partition = self._by_key(outgoing)
            if (waiting := self._keys.behind(outgoing)) is not None:  # the partitions may just have changed again
                waiting.append(outgoing)
                continue
            accumulator = self._accumulators.get(partition) or self._accumulator(partition)
            accumulator.put(outgoing)
            freed[partition] = accumulator
        return self._call(freed.values()) if freed else []

    def _everything(self) -> Iterator[Outgoing]:
        for each in self._accumulators.values():
            yield from each.under_way
            yield from each.queue
        for waiting in self._keys.waiting():
            yield from waiting

    def _look_next(self, deadline: float) -> None:
        when = max(deadline, self._last_look + _LOOK_SECONDS)
        if when < self._next_look:
            self._look_at(when)  # first: a look too many does no harm, one too few would
            self._next_look = when

    def _wait_for_room(self, outgoing: Outgoing) -> None:
        """Without the lock. There was room at a look; others may have taken it since."""
        refuse_in_callback("send_async() with max_buffered_bytes waiting already")

        def has_room() -> bool:
            with self._lock:  # as in wait_until_empty
                return not self._is_too_much(outgoing) or self._closed

        if not self._changed.wait_for(has_room, lambda: outgoing.deadline - self._clock()):
            raise RequestTimedOut(
                f"{self._messages} messages of {self._buffered} bytes wait for the brokers already, "
                f"max_buffered_messages={self._max_messages}, max_buffered_bytes={self._max_buffered}: they take "
                "messages more slowly than you send"
            )

    def _is_too_much(self, outgoing: Outgoing) -> bool:
        return self._messages > 0 and (
            self._buffered + outgoing.size > self._max_buffered or self._messages >= self._max_messages
        )


def _expired(outgoing: Outgoing, now: float) -> bool:
    return outgoing.deadline <= now and outgoing.report is not None and not outgoing.done


def _take_expired(queue: deque[Outgoing], now: float) -> list[Outgoing]:
    """Take them out of `queue`, whose others keep their order."""
    due = [outgoing for outgoing in queue if _expired(outgoing, now)]
    if due:
        left = [outgoing for outgoing in queue if not _expired(outgoing, now)]
        queue.clear()
        queue.extend(left)
    return due
