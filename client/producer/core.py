"""Keep all messages that a producer has accepted until they are stored or have failed, and decide when each is sent.
The code here has no threads, sockets or timers.

**Natural batching.** A message to an idle partition is sent at once. While its request is in flight, further messages
wait in the partition's queue. After the answer all of them are sent as one batch. If a broker accepts SEND_MANY (one
request with the messages of several partitions), at most `max_requests_in_flight` requests to this broker are in
flight. While this limit is reached, messages for the broker's idle partitions wait, too, and the next request contains
all of them. So requests grow only if messages come faster than the broker answers, and at low rates no message waits.
Messages of a partition keep their order, even if requests are retried.

**Numbers.** A partition's requests are numbered. While it is unknown whether the broker has stored a request, the
request is repeated unchanged with its number, so the broker stores it only once. A message is sent to another partition
or in another batch only if the broker has certainly not stored it.

**A driver** reports events to the core and executes the returned actions:

1. It calls `join` or `add` for each message of the user. When a flight (messages that go to one broker together) has
   ended, it calls `landed` and then `release`. If partitions or brokers have changed, it calls `view_changed`. At the
   time `wake_at` or soon after it calls `wake`, and at `expire_at` or soon after `expire`.
2. The calls return flights, some of them in an `Actions` object. The driver sends each flight to its broker; codec.py
   makes the bytes. It tells the callers of the messages in the `ended` and `late` of an `Actions` object the errors,
   and then confirms the messages in `ended` with `forget`.

The threads of `Producer` are one driver. An event loop or a simulator can be a driver, too: it has a clock, checks
`wake_at` and `expire_at` after each event, and makes all calls on one thread. If the buffer has no room, `add` returns
None, and a driver without threads calls `add` again after the next `release` or `forget`.

All methods may be called on any thread: `_lock` guards every PartitionQueue, every BrokerQueue and the count of
buffered messages. The lock is never held during I/O, or while a user's selector chooses a partition.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

from metaq.protocol.errors import ClientError, MetaqError, RequestTimedOut
from metaq.protocol.limits import MAX_RECORD_BODY_BYTES
from metaq.protocol.record import HEADER_BYTES

from ..records.results import TopicPartition
from ..settings.config import ProducerConfig
from . import tuning
from .failures import Closed, Failures
from .futures import Outcome
from .key_order import KeyOrder
from .outgoing import GatheredBatch, GivenUp, OnDelivery, Outgoing
from .queues import BrokerQueue, FailedTurn, Flight, PartitionQueue, Queues, Turn, expired, take_expired
from .rerouting import Rerouting
from .routing import Routes, no_partition
from .undelivered import Losses

__all__ = ["Actions", "ProducerCore"]


class Actions(NamedTuple):
    """The next actions of the driver. flights: the flights to send. ended: messages that have failed, each with its
    error; the driver must tell their callers the error, and then pass the messages to `forget`. late: messages in
    flight whose callers must be told an error, too; these messages still count as buffered until their request ends.
    """

    flights: Sequence[Flight] = ()
    ended: Sequence[GivenUp] = ()
    late: Sequence[GivenUp] = ()


class ProducerCore:
    """Holds all accepted messages until the driver confirms their end with `forget` or `release`.

    interruptible: returns whether an exception may interrupt the caller's thread at any line
    (coordination/runtime/interrupts.py). On such a thread, the core returns a flight only if it can make all changes of
    its state in one step, which no interrupt can split. The messages of other flights are sent by the next `wake`,
    which the driver calls on another thread.
    """

    def __init__(
        self,
        config: ProducerConfig,
        places: Routes,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random.random,
        interruptible: Callable[[], bool] = lambda: False,
        follow: Callable[[MetaqError], float | None] = lambda _: None,
    ) -> None:
        """follow: a function that takes the error of a request. If this error says that another node leads the broker
        set, the function returns the seconds to wait before the request is sent to that node, otherwise None; see
        ConnectionPool.follow.
        """
        self._places = places
        self._clock = clock
        self._interruptible = interruptible
        self._max_bytes = config.max_batch_bytes
        self._max_joined = min(config.max_batch_bytes, MAX_RECORD_BODY_BYTES)  # a larger message is sent alone
        self._max_records = config.max_batch_records
        self._max_flights = config.max_requests_in_flight
        self._max_buffered = config.max_buffered_bytes
        self._max_messages = config.max_buffered_messages
        self._linger_seconds = config.linger_ms / 1000
        self._lock = threading.Lock()
        self._buffered = 0
        self._messages = 0
        self._closed = False
        self._all = Queues(config.max_requests_in_flight, config.max_batch_bytes, config.max_batch_records)
        self._queues = self._all.by_partition
        self._gathering: dict[Hashable, PartitionQueue] = {}  # by `where`: the queue of the last message without a key
        self._keys = KeyOrder(self._queues, places.partitions_for_keys)
        self._failures = Failures(config, places, clock, random, follow)
        self._rerouting = Rerouting(self._all, self._keys, places, self._failures, clock)
        self._depart = self._all.depart
        self._last_look = -math.inf
        self.due: list[tuple[float, int, PartitionQueue | BrokerQueue | None]] = []
        """The work that `wake` will do: a heap of entries (time, number, queue). The entry with the earliest time is
        the first; among entries of the same time, the one with the lowest number. For an entry whose queue is None,
        `wake` sends the messages of all queues. A driver may only check whether the heap is empty.
        """
        self._numbers = itertools.count()
        self.expire_at = math.inf
        """The driver must call `expire` at this time (monotonic seconds); infinity if no call is needed."""

    @property
    def buffered_bytes(self) -> int:
        return self._buffered

    @property
    def buffered_messages(self) -> int:
        return self._messages

    @property
    def wake_at(self) -> float:
        """The driver must call `wake` at this time (monotonic seconds); infinity if no call is needed."""
        due = self.due
        return due[0][0] if due else math.inf

    @property
    def keys_move(self) -> bool:
        """Whether messages are held back until the earlier messages with the same keys are stored or have failed. If
        so, `release` not only subtracts from the counts of buffered messages and bytes, but may also have to put held
        back messages into queues.
        """
        return bool(self._keys.moving)

    # --- messages come ----------------------------------------------------------------------------------------------

    def join(
        self, where: Hashable, flag: int, body: bytes, deadline: float, on_delivery: OnDelivery | Losses
    ) -> tuple[Outcome, int] | None:
        """Add a message to a batch that accepts further messages (open). where: the topic that the message is sent to
        or, if the caller has named a partition, this partition; messages share a batch only if their `where` is the
        same. Return the batch's Outcome, from which the message's future gets its result, and the message's index in
        the batch. Return None if there is no open batch, or if the batch cannot accept this message. If the result is
        None, the caller must create a GatheredBatch and pass it to `add`.

        The speed of this function determines the cost of sending a message, and so the results of the benchmarks
        `produce-128` and `futures-128`.
        """
        size = HEADER_BYTES + len(body)
        with self._lock:
            queue = self._gathering.get(where)
            if queue is None or (batch := queue.open) is None:
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
            # The last call is the only one from here on, so an interrupt finds all steps done or none.
            self._buffered += size
            self._messages += 1
            batch.size += size
            bodies.append(body)
        return batch.outcome, count

    def sticks_to(self, where: Hashable) -> TopicPartition | None:
        """Return the partition to which the last message without a key went, if the next such message shall go there,
        too.
        where: the topic or the partition that the caller has named; see `join`. Return None if a partition must be
        chosen.
        """
        with self._lock:
            queue = self._gathering.get(where)
            if queue is None or not queue.sticks or self._is_full(queue):
                return None
            return queue.partition

    def partition_of(self, topic: str) -> TopicPartition | None:
        """Return the partition that the topic's first accepted message got, or None if no message was accepted for the
        topic yet.
        """
        return self._all.first.get(topic)

    def has_room(self, outgoing: Outgoing) -> bool:
        """Whether the buffer has room for the message, so that `add` would accept it. The result is also true if the
        producer is closed: `add` then raises an error at once, so no thread must wait for room.
        """
        with self._lock:  # so that a change after this check finds the waiting thread
            return self._closed or not self._is_too_much(outgoing)

    def no_room(self) -> RequestTimedOut:
        """Return the error of a send that has waited for room in the buffer until its deadline."""
        return RequestTimedOut(
            f"{self._messages} messages of {self._buffered} bytes wait for the brokers already, "
            f"max_buffered_messages={self._max_messages}, max_buffered_bytes={self._max_buffered}: they take "
            "messages more slowly than you send"
        )

    def is_empty(self) -> bool:
        with self._lock:  # as in has_room
            return not self._messages

    def add(
        self, outgoing: Outgoing, partition: TopicPartition | None
    ) -> tuple[PartitionQueue | None, Sequence[Flight]] | None:
        """Accept a message. Return the queue of its partition, and the flights that the caller must send now, usually
        one or none. If an interrupt ends the call, the caller finds these flights in `outgoing.flights`. Return None if
        the buffer has no room for the message now.

        partition: None means the current partition of the message's key. In this case the returned queue may be None:
        the message waits, outside all queues, for earlier messages of its key. Raises ClientError (closed),
        NoPartition.
        """
        with self._lock:
            if self._closed:
                raise ClientError("this producer is closed")
            if self._is_too_much(outgoing):
                return None
            by_key = partition is None
            if partition is None:
                partition = self._by_key(outgoing)
            if outgoing.deadline < self.expire_at and outgoing.report is not None:
                self.expire_at = min(self.expire_at, max(outgoing.deadline, self._last_look + tuning.LOOK_SECONDS))
            if by_key and (waiting := self._keys.behind(outgoing)) is not None:
                self._buffered += outgoing.size  # and no call before the next statement, as below
                self._messages += 1
                waiting.append(outgoing)
                return None, ()
            queue = self._queues.get(partition) or self._all.of(partition)
            broker = queue.broker
            idle = not (queue.busy or queue.paused or queue.queue or self._linger_seconds or broker.ready)
            if idle and broker.is_open(self._max_flights):  # the usual case of a producer that is not busy
                batch = [outgoing]
                flight = Flight(broker, [Turn(queue, batch)])
                weight = outgoing.weight
                # No call from here on: an interrupt (interrupts.py) finds all steps done or none.
                queue.busy = True
                queue.under_way = batch
                queue.sequence += 1
                broker.flights += 1
                self._buffered += outgoing.size
                self._messages += weight
                outgoing.flights = flights = (flight,)
                return queue, flights
            following = self._put(outgoing, queue)
            outgoing.flights = following
            return queue, following

    # --- flights end ------------------------------------------------------------------------------------------------

    def landed_alone(self, flight: Flight) -> Sequence[Flight] | None:
        """Process the successful end of a flight with one message, as `landed` does for other flights. Return the
        flights that the caller must send. They contain the messages that were queued while this flight was under way.
        In three cases, do nothing and return None; then the caller must call `landed`. The cases are: some keys are
        moving to other partitions; some partition is avoided because a send to it has failed; or further messages are
        queued, and an interrupt can reach the calling thread.

        If a thread waits for the message, this method also does the work of `release`, because no callback of the
        message has to run first. If an interrupt comes, either all changes are made or none.
        """
        if self._places.avoids_any:
            return None
        queue, (outgoing,) = flight.turns[0]
        broker = flight.broker
        blocking, size = outgoing.report is None, outgoing.size
        count, weight = outgoing.count, outgoing.weight
        with self._lock:
            if self._keys.moving:
                return None
            gathered = queue.queue or broker.ready
            if gathered and self._interruptible():
                return None
            # no call from here on until all steps are done
            queue.failures = 0
            queue.answered = count
            queue.busy = False
            queue.under_way = ()
            queue.repeat = None
            flight.missing = 0
            broker.flights -= 1
            flight.landed = flight.turns
            if blocking:
                self._buffered -= size
                self._messages -= weight
                flight.settled = flight.turns
            if not gathered:
                return ()
            if queue.queue:
                broker.call(queue)
            return self._depart(broker)

    def landed(
        self, flight: Flight, finished: Sequence[Turn], failed: Sequence[FailedTurn] = (), answered: bool = True
    ) -> Actions:
        """Process the end of some or all turns of a flight (a turn is the messages of one partition). The turns in
        `finished` were acknowledged, the turns in `failed` have failed. The returned actions contain flights with the
        messages that were queued while this flight was under way. Messages to retry stay at the front of their queues
        until a `wake` sends them.

        answered: whether the broker has answered. If not, the flight may have reached the broker, so it is unknown
        whether its messages are stored. Acknowledged messages count as buffered until `release`. Do not call this on a
        thread that can be interrupted. After an interrupt, a turn that has ended before can be reported a second time
        in `failed`; this call then changes nothing for the turn's messages.
        """
        broker = flight.broker
        if self._places.avoids_any:
            for queue, _ in finished:
                self._places.works(queue.partition)
        with self._lock:
            ended: list[GivenUp] = []
            for turn, error in failed:
                queue, batch = turn
                if queue.under_way is batch:  # otherwise its request ended before its sender was interrupted
                    lost = not answered and (flight.counted or queue.repeat is not None)
                    ended += self._failures.failed(turn, error, lost, flight.sent_at)
                    self._wake_at(queue.retry_at, queue)
            for queue, batch in finished:
                queue.failures = 0
                queue.answered = batch[0].count if len(batch) == 1 else sum([each.count for each in batch])
                queue.busy = False
                queue.under_way = ()
                queue.repeat = None
                if queue.queue:
                    broker.call(queue)
            flight.landed = [*flight.landed, *finished]
            flight.missing -= len(finished) + len(failed)
            if not flight.missing:
                broker.flights -= 1
            return Actions(self._depart(broker) if broker.ready else (), ended)

    def release(self, flight: Flight, turns: Sequence[Turn]) -> Sequence[Flight]:
        """Stop counting the messages of these turns as buffered, because they have their results. A turn is the
        messages of one partition in a request. Return the flights that can be sent now. A repeated call for the same
        turns does no harm.
        """
        with self._lock:
            fresh = [turn for turn in turns if turn not in flight.settled] if flight.settled else turns
            ended = fresh[0].batch if len(fresh) == 1 else [each for _, batch in fresh for each in batch]
            size = ended[0].size if len(ended) == 1 else sum([each.size for each in ended])
            weight = ended[0].weight if len(ended) == 1 else sum([each.weight for each in ended])
            settled = [*flight.settled, *fresh]
            self._buffered -= size
            self._messages -= weight
            flight.settled = settled
            return self._freed(ended) if self._keys.moving else ()

    def keep(self, size: int) -> None:
        """Count a message of `size` bytes as buffered until `let_go`, although `release` has stopped counting it. Used
        for half messages, because a transaction goes on after its half message is stored.
        """
        with self._lock:
            self._buffered += size
            self._messages += 1

    def let_go(self, messages: int, size: int) -> None:
        """Stop counting messages that `keep` has counted, because their transactions have ended. messages: the number
        of these messages. size: the sum of their bytes.
        """
        with self._lock:
            self._buffered -= size
            self._messages -= messages

    def forget(self, ended: Sequence[GivenUp]) -> Sequence[Flight]:
        """Stop counting these ended messages as buffered, because the driver has told their callers the errors. Return
        the flights that can be sent now.
        """
        with self._lock:
            return self._forget([outgoing for outgoing, _ in ended])

    # --- time passes ------------------------------------------------------------------------------------------------

    def wake(self, now: float) -> Actions:
        """Do the work that is due at the time `now`: send messages whose linger time is over, and retry the messages of
        partitions whose pause after a failure is over. The core chooses a new partition for each message that it
        retries, and may call a user's selector for this.
        """
        flights: list[Flight] = []
        paused: list[PartitionQueue] = []
        with self._lock:
            while self.due and self.due[0][0] <= now:
                what = heapq.heappop(self.due)[2]
                if isinstance(what, PartitionQueue):
                    if what.paused and what.retry_at <= now:  # otherwise it was tried again when the cluster changed
                        paused.append(what)
                elif what is None:
                    flights += self._all.call(self._queues.values())
                else:
                    what.call_lingering()
                    flights += self._depart(what)
        return self._try_again(paused, flights)

    def hurry(self) -> None:
        """Let the next `wake` send all messages that wait for the end of their linger time, and make this `wake` due at
        once.
        """
        with self._lock:
            self._wake_at(-math.inf, None)

    def view_changed(self, topics: Iterable[str]) -> Actions:
        """Try again to send the messages that wait for these topics, because their partitions or brokers have
        changed.
        """
        changed = set(topics)
        with self._lock:
            paused = []
            for queue in self._queues.values():
                if queue.partition.topic in changed:
                    queue.stop_gathering()
                    if queue.paused:
                        paused.append(queue)
        return self._try_again(paused, [])

    def expire(self, now: float) -> Actions:
        """End all messages whose deadline has passed, except those for which a thread waits. Messages in queues are
        removed from them. Messages in flight count as buffered until their request ends. The time of a call is
        proportional to the number of messages, so the driver calls this method at most once in LOOK_SECONDS.
        """
        queued: list[Outgoing] = []
        under_way: list[Outgoing] = []
        with self._lock:
            if now < self.expire_at:
                return Actions()  # an earlier call has done it
            for each in self._queues.values():
                under_way += [outgoing for outgoing in each.under_way if expired(outgoing, now)]
                queued += each.take_expired(now)
            for waiting in self._keys.waiting():
                queued += take_expired(waiting, now)
            self._last_look = now
            deadlines = [each.deadline for each in self._everything() if each.report is not None and not each.done]
            later = [deadline for deadline in deadlines if deadline > now]
            self.expire_at = max(min(later), now + tuning.LOOK_SECONDS) if later else math.inf
        return Actions(
            ended=[(each, self.overdue(each)) for each in queued],
            late=[(each, self.overdue(each)) for each in under_way],
        )

    def stop_trying(self) -> None:
        """Stop retrying failed messages, because `close` follows."""
        self._failures.closing = True

    def close(self) -> Actions:
        """Stop accepting and retrying messages, and end all messages without an outcome. In the returned actions queued
        messages are `ended`, and messages in flight are `late`.
        """
        with self._lock:
            self._closed = self._failures.closing = True
            unknown = [outgoing for each in self._queues.values() for outgoing in each.give_up_repeat()]
            under_way = [outgoing for each in self._queues.values() for outgoing in each.under_way]
            queued = unknown + [outgoing for each in self._queues.values() for outgoing in each.take_all()]
            queued += self._keys.take_all()
        return Actions(ended=[(each, Closed()) for each in queued], late=[(each, Closed()) for each in under_way])

    def overdue(self, outgoing: Outgoing) -> ClientError:
        """Return the error that the caller of a message gets when the message's deadline passes."""
        return self._failures.overdue(outgoing)

    def _try_again(self, paused: Iterable[PartitionQueue], flights: Sequence[Flight]) -> Actions:
        """End the pause of these queues, and choose new partitions for all their messages. Return the flights that must
        be sent (the given `flights` and new ones), and the messages that have ended.
        """
        ended: list[GivenUp] = []
        following = list(flights)
        for queue in paused:
            with self._lock:
                drained, overdue = self._rerouting.drain(queue)
            ended += [(outgoing, self.overdue(outgoing)) for outgoing in overdue]
            placed, failed = self._rerouting.choose(queue, drained)
            ended += failed
            with self._lock:
                if not queue.paused:
                    continue
                if self._closed:  # `close` has ended all other messages
                    queue.under_way = ()
                    ended += [(outgoing, Closed()) for outgoing, _ in placed]
                else:
                    following += self._all.call(self._rerouting.resume(queue, placed))
        return Actions(following, ended)

    # --- with the lock held -----------------------------------------------------------------------------------------

    def _put(self, outgoing: Outgoing, queue: PartitionQueue) -> Sequence[Flight]:
        """Put a message at the end of a queue. Return the flights that can be sent now."""
        count, weight = outgoing.count, outgoing.weight
        if queue.open is not None:
            queue.close()
        gathered = outgoing if isinstance(outgoing, GatheredBatch) else None
        if gathered is not None:
            gathered.most = min(max(tuning.LEAST_GATHERED, queue.queued_records), self._max_records)
            if queue.gathers_for != gathered.where and self._gathering.get(queue.gathers_for) is queue:
                del self._gathering[queue.gathers_for]  # messages bound to a partition never share a batch with others
        # The last call is the only one from here on, and it is not `put`: see `add`.
        self._buffered += outgoing.size
        self._messages += weight
        if gathered is None:
            queue.queued_bytes += outgoing.size
            queue.queued_records += count
        else:
            queue.open = gathered
            queue.gathers_for = gathered.where
            queue.sticks = True
            self._gathering[gathered.where] = queue
        queue.queue.append(outgoing)
        if queue.busy or queue.paused:
            return ()
        broker = queue.broker
        if not self._linger_seconds or outgoing.report is None or self._is_full(queue):
            broker.call(queue)
            if not broker.is_open(self._max_flights):
                return ()
            if self._interruptible():
                self._wake_at(-math.inf, None)
                return ()
            return self._depart(broker)
        if not queue.ready and len(queue.queue) == 1:
            if not broker.lingering:
                self._wake_at(self._clock() + self._linger_seconds, broker)
            broker.lingering.append(queue)
        return ()

    def _wake_at(self, when: float, what: PartitionQueue | BrokerQueue | None) -> None:
        heapq.heappush(self.due, (when, next(self._numbers), what))

    def _by_key(self, outgoing: Outgoing) -> TopicPartition:
        """Return the partition of a message with a key. If the key's partition is unknown, return the partition that
        the topic's first accepted message got. Raises NoPartition if no message of the topic was accepted yet.
        """
        partition = self._keys.place(outgoing) or self.partition_of(outgoing.topic)
        if partition is None:
            raise no_partition(outgoing.topic)
        return partition

    def _is_full(self, queue: PartitionQueue) -> bool:
        size, records = queue.queued_bytes, queue.queued_records
        if queue.open is not None:
            size, records = size + queue.open.size, records + queue.open.count
        return size >= self._max_bytes or records >= self._max_records

    def _forget(self, ended: Sequence[Outgoing]) -> Sequence[Flight]:
        for each in ended:
            self._buffered -= each.size
            self._messages -= each.weight
        return self._freed(ended)

    def _freed(self, ended: Sequence[Outgoing]) -> Sequence[Flight]:
        """Queue the messages that were held back until these earlier messages of their keys had ended. Return the
        flights that can be sent now.
        """
        freed: dict[TopicPartition, PartitionQueue] = {}
        for outgoing in self._keys.settled(ended):
            partition = self._by_key(outgoing)
            if (waiting := self._keys.behind(outgoing)) is not None:  # the partitions may just have changed again
                waiting.append(outgoing)
                continue
            queue = self._queues.get(partition) or self._all.of(partition)
            queue.put(outgoing)
            freed[partition] = queue
        return self._all.call(freed.values()) if freed else ()

    def _everything(self) -> Iterator[Outgoing]:
        for each in self._queues.values():
            yield from each.under_way
            yield from each.queue
        for waiting in self._keys.waiting():
            yield from waiting

    def _is_too_much(self, outgoing: Outgoing) -> bool:
        return self._messages > 0 and (
            self._buffered + outgoing.size > self._max_buffered or self._messages >= self._max_messages
        )
