"""The queues of a producer, one for each partition, and the requests that are made of the queued messages.

In this module a turn is the messages of one partition in a request. A flight is the turns that are sent to one broker
together. `ProducerCore._lock` guards everything here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from metaq.protocol.errors import MetaqError
from metaq.protocol.limits import MAX_PARTS

from ..records.results import TopicPartition
from ..runtime.waiting import Exchange
from ..transport.channel import Channel
from . import tuning
from .outgoing import GatheredBatch, Outgoing, OutgoingBatch

__all__ = ["BrokerQueue", "FailedTurn", "Flight", "PartitionQueue", "Queues", "Turn", "expired", "take_expired"]


class PartitionQueue:
    """The queue of one partition. The queue is in one of five states. Idle: it has nothing to send. Lingering: its
    messages wait for more messages before they are sent. Ready: the broker's next flight takes its messages. Busy: a
    request is in flight, or the sender is preparing it. Paused: nothing is sent until `retry_at`, because the last
    request failed. under_way: messages that were taken out of the queue and have no outcome yet: those of the request
    in flight, or those for which a new partition is being chosen.

    open: the batch at the end of the queue to which messages are still added; it is None if there is no such batch.
    queued_bytes and queued_records do not count the messages of this batch until it is closed. gathers_for: the topic
    or partition (the `where` of ProducerCore.join) whose messages the last opened batch takes. sticks: whether the next
    message without a key goes to this queue, as the previous one did. `sticks` becomes false when this queue is full,
    its messages are sent, or a request fails.

    sequence: the sequence number of the last request. repeat: the messages of the last request, if it is unknown
    whether the broker has stored them. These messages are sent again before all other messages, unchanged and with the
    same sequence number, until `repeat_until` (monotonic seconds). Meanwhile they count as in flight. sent_at: the time
    when these messages were first sent (monotonic seconds).
    """

    __slots__ = (
        "answered",
        "broker",
        "busy",
        "failures",
        "follows",
        "gathers_for",
        "open",
        "partition",
        "paused",
        "queue",
        "queued_bytes",
        "queued_records",
        "ready",
        "repeat",
        "repeat_until",
        "retry_at",
        "sent_at",
        "sequence",
        "sticks",
        "under_way",
    )

    def __init__(self, partition: TopicPartition, broker: BrokerQueue) -> None:
        self.partition = partition
        self.broker = broker
        self.queue: deque[Outgoing] = deque()
        self.queued_bytes = 0
        self.queued_records = 0
        self.open: GatheredBatch | None = None
        self.gathers_for: Hashable = None
        self.sticks = False
        self.ready = False
        self.busy = False
        self.paused = False
        self.failures = 0  # in a row
        self.follows = False  # paused because another node leads its broker set
        self.retry_at = 0.0  # while it is paused
        self.answered = 0  # number of messages of the last request
        self.under_way: Sequence[Outgoing] = ()
        self.sequence = 0
        self.repeat: list[Outgoing] | None = None
        self.repeat_until = 0.0
        self.sent_at = 0.0

    def put(self, outgoing: Outgoing) -> None:
        if self.open is not None:
            self.close()
        self.queue.append(outgoing)
        self.queued_bytes += outgoing.size
        self.queued_records += outgoing.count

    def put_back(self, batch: list[Outgoing]) -> None:
        """Put messages that were taken out of this queue back at its front, without changing their order."""
        self.queue.extendleft(reversed(batch))
        self.queued_bytes += sum(outgoing.size for outgoing in batch)
        self.queued_records += sum(outgoing.count for outgoing in batch)

    def stop_gathering(self) -> None:
        """Let the next message without a key go to another partition, and close the open batch."""
        self.sticks = False
        self.close()

    def close(self) -> None:
        """Close the open batch, so that no more messages join it."""
        batch = self.open
        if batch is not None:
            size, count = batch.size, batch.count
            # No call from here on: see `ProducerCore.add`.
            self.open = None
            self.queued_bytes += size
            self.queued_records += count

    def take_expired(self, now: float) -> list[Outgoing]:
        """Remove the messages whose deadline has passed from the queue, and return them."""
        due = take_expired(self.queue, now)
        if due:
            self.close()
            self.queued_bytes -= sum(outgoing.size for outgoing in due)
            self.queued_records -= sum(outgoing.count for outgoing in due)
        return due

    def take(self, max_bytes: int, max_records: int) -> list[Outgoing]:
        """Remove the messages of the next request from the queue, and return them: at least one message, and as many
        more as fit into the limits.

        Over the text protocol a message with a key is sent alone: a Java broker can append messages that were sent
        together (pipelined puts) in any order, but messages with the same key must keep their order.
        """
        queue = self.queue
        self.sequence += 1
        self.sticks = False
        if self.open is not None:
            self.close()
        first = queue.popleft()
        if not queue:
            self.queued_bytes = self.queued_records = 0
            return [first]
        batch, size, records = [first], first.size, first.count
        queued = self.queued_records
        divided = queued - records >= tuning.UNDIVIDED and type(first) is not OutgoingBatch
        left = self._for_later() if divided else 0
        connection = self.broker.connection
        one_by_one = connection is not None and not connection.speaks_frames
        while queue and not (one_by_one and (first.key is not None or queue[0].key is not None)):
            following = queue[0]
            count = following.count
            if size + following.size > max_bytes or records + count > min(max_records, queued - left):
                break
            if following.timing is not first.timing:  # delayed messages never share a batch with others
                break
            size += following.size
            records += count
            batch.append(queue.popleft())
        self.queued_bytes -= size
        self.queued_records -= records
        return batch

    def _for_later(self) -> int:
        """A request is being made of the queued messages: return how many of them are left for the following request.

        Some programs send further messages only while fewer than a certain number of their messages are unacknowledged.
        If one request contained nearly all these messages, such a program could not send until the broker answers, and
        then the broker would have nothing to do until the program has sent more. With half of the messages in each
        request, the broker works on one half while the program sends new messages in place of the half that was
        acknowledged.
        """
        return max(0, self.queued_records - self.answered) // 2

    def give_up_repeat(self) -> list[Outgoing]:
        """Stop repeating the failed request, and return its messages. Return [] and change nothing if that request is
        in flight again.
        """
        if self.repeat is None or self.busy:
            return []
        batch, self.repeat = self.repeat, None
        self.under_way = self.under_way[len(batch) :]
        return batch

    def take_all(self) -> list[Outgoing]:
        batch = list(self.queue)
        self.queue.clear()
        self.open = None
        self.sticks = False
        self.queued_bytes = self.queued_records = 0
        return batch


class Turn(NamedTuple):
    """The messages of one partition that are sent in one request."""

    queue: PartitionQueue
    batch: list[Outgoing]


FailedTurn = tuple[Turn, MetaqError]


class Flight:
    """Turns (each the messages of one partition in a request) that are sent to one broker together. missing: the number
    of turns that have no answer or error yet. taken: whether the sender has begun to send the flight. sent_at: the time
    when the sender began (monotonic seconds). request: the request of the last turn, or the one request that contains
    all turns; set just before the request is sent. counted: whether the flight may have been sent with sequence
    numbers, so that its turns can be repeated safely. failed: whether the flight could not be sent. landed: the turns
    whose answers were already reported to the core. settled: the turns whose messages the core has already released.
    `landed` and `settled` are needed because the handler of an answer is called again if it was interrupted, and must
    not report a turn twice. elsewhere: whether the answer and all later steps are processed on the thread that no
    signal reaches.
    """

    __slots__ = (
        "broker",
        "counted",
        "elsewhere",
        "failed",
        "landed",
        "missing",
        "request",
        "sent_at",
        "settled",
        "taken",
        "turns",
    )

    def __init__(self, broker: BrokerQueue, turns: list[Turn]) -> None:
        self.broker = broker
        self.turns = turns
        self.missing = len(turns)
        self.taken = False
        self.sent_at = 0.0
        self.failed = False
        self.counted = False
        self.elsewhere = False
        self.landed: list[Turn] = []
        self.settled: list[Turn] = []
        self.request: Exchange | None = None

    def deadline(self, now: float, request_seconds: float) -> float:
        """Return the time (monotonic seconds) until which the sender waits for the flight's answer: `request_seconds`
        from now, but not later than the latest deadline of its messages.
        """
        turns = self.turns
        if len(turns) == 1 and len(turns[0].batch) == 1:
            last = turns[0].batch[0].deadline
        else:
            last = max([outgoing.deadline for turn in turns for outgoing in turn.batch])
        return min(now + request_seconds, last)

    def needs_reader(self, connection: Channel) -> bool:
        """Whether a background thread must read the flight's answer from this connection: true if the flight contains a
        message whose caller does not itself wait and read from this connection.
        """
        for _, batch in self.turns:
            for outgoing in batch:
                if outgoing.driver is not connection:
                    return True
        return False

    @property
    def has_gone(self) -> bool:
        """Whether the flight was sent or has failed. If not, and the sending thread was interrupted, another thread
        must handle the flight.
        """
        if self.failed or self.missing <= 0:
            return True
        return self.request is not None and self.request.taken


class BrokerQueue:
    """The queues of all partitions of one broker.

    gathers: whether the broker accepts the messages of several partitions in one request. If it does, only a limited
    number of flights may be under way at a time. While the limit is reached, the messages of all queues that become
    ready wait for one later flight.
    """

    __slots__ = ("connection", "flights", "gathers", "lingering", "ready")

    def __init__(self) -> None:
        self.connection: Channel | None = None  # the connection of the last send
        self.gathers = False
        self.flights = 0  # number of flights in flight
        self.ready: deque[PartitionQueue] = deque()
        self.lingering: list[PartitionQueue] = []

    def use(self, connection: Channel) -> None:
        """Record the connection over which the next flight to the broker is sent, and whether the broker accepts
        several partitions in one request. The sender calls this without holding the core's lock.
        """
        self.connection = connection
        self.gathers = connection.takes_many

    def is_open(self, max_flights: int) -> bool:
        """Whether another flight may be sent now."""
        return self.flights < max_flights or not self.gathers

    def call(self, queue: PartitionQueue) -> None:
        """Mark a queue as ready, so that the next flight takes messages of it."""
        if not queue.ready:
            self.ready.append(queue)  # first: a second entry in the list does no harm
            queue.ready = True

    def call_lingering(self) -> None:
        """Mark all lingering queues as ready, so that the flight that is about to be made takes their messages, too:
        letting them wait longer would save no request.
        """
        for queue in self.lingering:
            self.call(queue)
        self.lingering.clear()

    def depart(self, max_flights: int, max_bytes: int, max_records: int) -> list[Flight]:
        """Take messages out of the ready queues, and return them as flights that the caller must send now. Mark the
        queues of these messages as busy.
        """
        flights: list[Flight] = []
        while self.ready and self.is_open(max_flights):
            turns = self._board(max_bytes, max_records)
            if turns:
                self.flights += 1
                flights.append(Flight(self, turns))
        return flights

    def _board(self, max_bytes: int, max_records: int) -> list[Turn]:
        """Take the turns of the next flight from the ready queues, in the order in which the queues became ready, until
        a limit is reached. Return these turns. If `gathers` is false, take only one turn.
        """
        turns: list[Turn] = []
        size = records = 0
        if self.lingering:
            self.call_lingering()
        while self.ready:
            first = self.ready[0]
            waits = (first.queue or first.repeat) and not (first.busy or first.paused)
            if turns and waits:
                if first.repeat is None:
                    message = first.queue[0]
                    full = size + message.size > max_bytes or records + message.count > max_records
                else:
                    full = size + _size(first.repeat) > max_bytes or records + _count(first.repeat) > max_records
                if full or len(turns) >= MAX_PARTS or not self.gathers:
                    break
            self.ready.popleft()
            first.ready = False
            if waits:
                batch = first.repeat or first.take(max_bytes - size, max_records - records)
                first.busy = True
                first.under_way = batch
                if len(batch) == 1:
                    size, records = size + batch[0].size, records + batch[0].count
                else:
                    size += _size(batch)
                    records += _count(batch)
                turns.append(Turn(first, batch))
        return turns


class Queues:
    """All queues of one producer. first: for each topic, the partition of the first message that was accepted."""

    def __init__(self, max_flights: int, max_bytes: int, max_records: int) -> None:
        """max_flights: maximum number of flights to one broker at a time. max_bytes, max_records: limits of one
        flight.
        """
        self.by_partition: dict[TopicPartition, PartitionQueue] = {}
        self.first: dict[str, TopicPartition] = {}
        self._brokers: dict[int, BrokerQueue] = {}
        self._limits = max_flights, max_bytes, max_records

    def of(self, partition: TopicPartition) -> PartitionQueue:
        """Return a partition's queue; create it if there is none."""
        found = self.by_partition.get(partition)
        if found is not None:
            return found
        broker = self._brokers.setdefault(partition.broker, BrokerQueue())
        queue = PartitionQueue(partition, broker)
        self.first.setdefault(partition.topic, partition)  # first: the partition is looked up next time
        self.by_partition[partition] = queue
        return queue

    def call(self, queues: Iterable[PartitionQueue]) -> list[Flight]:
        """Mark each of the given queues as ready if it has messages. Return the flights that the caller must send
        now.
        """
        brokers: dict[BrokerQueue, None] = {}
        for each in queues:
            if each.queue or each.repeat:
                each.broker.call(each)
                brokers[each.broker] = None
        return [flight for broker in brokers for flight in self.depart(broker)]

    def depart(self, broker: BrokerQueue) -> list[Flight]:
        """Return the broker's flights that may be sent now."""
        return broker.depart(*self._limits)


def _size(messages: Sequence[Outgoing]) -> int:
    return sum([outgoing.size for outgoing in messages])


def _count(messages: Sequence[Outgoing]) -> int:
    return sum([outgoing.count for outgoing in messages])


def expired(outgoing: Outgoing, now: float) -> bool:
    """Return whether a message must be ended now because its deadline has passed. This is false if the message has an
    outcome, or if its caller waits for it and watches the deadline itself.
    """
    return outgoing.deadline <= now and outgoing.report is not None and not outgoing.done


def take_expired(queue: deque[Outgoing], now: float) -> list[Outgoing]:
    """Remove the expired messages from `queue` and return them. The messages that stay in the queue keep their
    order.
    """
    due = [outgoing for outgoing in queue if expired(outgoing, now)]
    if due:
        left = [outgoing for outgoing in queue if not expired(outgoing, now)]
        queue.clear()
        queue.extend(left)
    return due
