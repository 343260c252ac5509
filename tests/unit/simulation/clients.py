"""Clients of the simulation: the real cores of a producer and of a consumer, driven by delayed calls."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from metaq.client.fetching.core import ConsumerCore
from metaq.client.fetching.cursor import Ask, Request
from metaq.client.producer.core import Actions, ProducerCore
from metaq.client.producer.outgoing import GatheredBatch, Outgoing
from metaq.client.producer.queues import Flight
from metaq.client.producer.routing import Router
from metaq.client.producer.sending import Sender
from metaq.client.records.results import SendResult
from metaq.client.settings.config import ConnectionConfig, ProducerConfig
from metaq.client.settings.consumer_config import ConsumerConfig
from metaq.client.transport.metadata import TopicView
from metaq.protocol.client_stream import Reply
from metaq.protocol.errors import MetaqError
from metaq.protocol.limits import INT64_MAX
from metaq.protocol.record import Buffer, checksum
from metaq.protocol.statuses import Status
from metaq.protocol.text import Result, encode_offset
from metaq.protocol.topic_partition import TopicPartition
from tests.unit.simulation.world import BROKER, Client, World

__all__ = ["Consumer", "Producer", "Sent", "Stored"]

SEND_SECONDS = 1.0
PULL_SECONDS = 2.0
SENDING = ProducerConfig(max_buffered_messages=12, connection=ConnectionConfig(request_timeout_seconds=SEND_SECONDS))
CONFIG = ConsumerConfig(fetch_max_bytes=400, max_buffered_bytes=800, long_poll_ms=500)


class Stored(NamedTuple):
    """A message as it was acknowledged, or consumed."""

    offset: int
    message_id: int
    body: bytes


class Cluster:
    """A Metadata whose partitions the test sets."""

    def __init__(self, partitions: Sequence[TopicPartition]) -> None:
        self.partitions = tuple(partitions)

    def view(self, topic: str) -> TopicView:
        return TopicView(tuple(each for each in self.partitions if each.topic == topic), {0: BROKER})

    def topics(self) -> Collection[str]:
        return {each.topic for each in self.partitions}

    def is_set(self, broker_id: int) -> bool:
        return False

    def on_change(self, listener: Callable[[str], None]) -> None:
        """The test tells the Producer itself."""

    def close(self, timeout: float = 10.0) -> None:
        """Nothing is held open."""


@dataclass
class Sent:
    """A message that was given to the Producer, and what became of it."""

    topic: str
    body: bytes
    deadline: float
    key: str | None = None
    partition: TopicPartition | None = None
    stored: SendResult | None = None
    error: Exception | None = None
    ended_at: float = -1.0

    @property
    def as_stored(self) -> Stored:
        """Of one that was acknowledged."""
        assert self.stored is not None, self
        return Stored(self.stored.offset, self.stored.message_id, self.body)


class Producer:
    """Drives a ProducerCore by delayed calls, where client/producer/driver.py has threads. Router and Sender are real.

    accepted: what the core took, in this order. ended: of these, what was acknowledged or failed, in this order.
    joined: how many of them joined an open batch. refused: what there was no room for until its deadline.
    """

    def __init__(self, world: World, partitions: Sequence[TopicPartition]) -> None:
        self.accepted: list[Sent] = []
        self.ended: list[Sent] = []
        self.refused: list[Sent] = []
        self.joined = 0
        self.client = Client(world, "producer")
        self._world = world
        self._cluster = Cluster(partitions)
        self._waiting: deque[Sent] = deque()
        self._wake_armed = self._look_armed = math.inf
        pool: Any = self.client
        self._router = Router(self._cluster, pool, None, None, self._now, lambda: 0.0)
        self.core = ProducerCore(SENDING, self._router, self._now, world.rng.random)
        self._sender = Sender(
            self.core,
            self._cluster,
            pool,
            SENDING.connection,
            self._do,
            partial(world.later, 0, self._admit),
            partial(world.later, 0),
            self._now,
            producer=1,
        )

    def _now(self) -> float:
        return self._world.now

    def send(self, sent: Sent) -> None:
        """Behind all that waits for room."""
        self._waiting.append(sent)
        self._world.later(sent.deadline - self._now(), self._give_up, sent)
        self._admit()

    @property
    def is_done(self) -> bool:
        return not self._waiting and len(self.ended) == len(self.accepted) and self.core.is_empty()

    def partitions_are(self, partitions: Sequence[TopicPartition]) -> None:
        """The cluster has changed."""
        self._cluster.partitions = tuple(partitions)
        self._do(self.core.view_changed({each.topic for each in partitions}))

    # --- into the core ----------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        while self._waiting:
            flights = self._accept(self._waiting[0])
            if flights is None:
                return  # until there is room
            self.accepted.append(self._waiting.popleft())
            self._transmit(flights)
        self._arm()

    def _give_up(self, sent: Sent) -> None:
        if sent in self._waiting:
            self._waiting.remove(sent)
            self.refused.append(sent)
            sent.error, sent.ended_at = self.core.no_room(), self._now()

    def _accept(self, sent: Sent) -> Sequence[Flight] | None:
        report = partial(self._report, sent)
        if sent.key is not None:
            keyed = Outgoing(sent.topic, 0, checksum(sent.body), sent.body, sent.deadline)
            keyed.key, keyed.report = sent.key, report
            return self._add(keyed, None)
        where = sent.topic if sent.partition is None else (sent.topic, sent.partition)
        if self.core.join(where, 0, sent.body, sent.deadline, report) is not None:
            self.joined += 1
            return ()
        gathered = GatheredBatch(where, sent.topic, 0, sent.body, sent.deadline, report)
        gathered.fixed = sent.partition
        return self._add(gathered, self.core.sticks_to(where) or self._router.route(gathered))

    def _add(self, outgoing: Outgoing, partition: TopicPartition | None) -> Sequence[Flight] | None:
        accepted = self.core.add(outgoing, partition)
        return None if accepted is None else accepted[1]

    def _report(self, sent: Sent, error: Exception | None, result: SendResult | None) -> None:
        assert sent.ended_at < 0, "a message ends once"
        sent.error, sent.stored, sent.ended_at = error, result, self._now()
        self.ended.append(sent)

    # --- what the core says -----------------------------------------------------------------------------------------

    def _do(self, actions: Actions) -> None:
        self._transmit(actions.flights)
        for outgoing, error in (*actions.late, *actions.ended):
            outgoing.fail(error)
        if actions.ended:
            self._transmit(self.core.forget(actions.ended))
            self._world.later(0, self._admit)
        self._arm()

    def _transmit(self, flights: Sequence[Flight]) -> None:
        for flight in flights:
            self._sender.transmit(flight)

    def _arm(self) -> None:
        wake_at, expire_at = self.core.wake_at, self.core.expire_at
        if wake_at < self._wake_armed:
            self._wake_armed = wake_at
            self._world.later(max(0.0, wake_at - self._now()), self._wake)
        if expire_at < self._look_armed:
            self._look_armed = expire_at
            self._world.later(max(0.0, expire_at - self._now()), self._expire)

    def _wake(self) -> None:
        self._wake_armed = math.inf
        self._do(self.core.wake(self._now()))

    def _expire(self) -> None:
        self._look_armed = math.inf
        self._do(self.core.expire(self._now()))


class Consumer:
    """Drives a ConsumerCore that owns its partitions from their beginning on, and polls whenever an answer has come."""

    def __init__(self, world: World, partitions: Sequence[TopicPartition]) -> None:
        self.consumed: dict[TopicPartition, list[Stored]] = {each: [] for each in partitions}
        self.client = Client(world, "consumer")
        self.asked_for_end = False
        self._world = world
        self._core = ConsumerCore("group", CONFIG, random=world.rng.random)
        self._core.claim(partitions, [0] * len(partitions), announced=True)
        self._serve()

    def _serve(self) -> None:
        while (cursor := self._core.next_wanting()) is not None:
            if (request := cursor.next_request(self._world.now)) is not None:
                self._ask(request)

    def _ask(self, request: Request) -> None:
        assert request.ask in (Ask.PULL, Ask.END), request
        topic, _, number = request.cursor.partition

        def build(opaque: int) -> Sequence[Buffer]:
            if request.ask is Ask.PULL:
                return self._core.codec.encode(request, self.client.speaks_frames)(opaque)
            return (encode_offset(topic, "group", number, INT64_MAX, opaque),)

        self.client.ask(build, partial(self._answered, request), PULL_SECONDS)

    def _answered(self, request: Request, reply: Reply | None, error: MetaqError | None) -> None:
        core, now = self._core, self._world.now
        if error is not None:
            pause = core.unanswered(request, error, now)
        elif request.ask is Ask.END:
            assert isinstance(reply, Result)
            self.asked_for_end = True
            pause = core.found(request, int(reply.text) if reply.code == Status.SUCCESS else 0, now)
        else:
            assert reply is not None
            pause = core.answered(request, reply, BROKER, now)
        if pause is not None:
            self._world.later(pause, self._want, request)
        self._poll()

    def _want(self, request: Request) -> None:
        self._core.want(request.cursor)
        self._serve()

    def _poll(self) -> None:
        self._core.acknowledge()
        for each in self._core.take(self._world.rng.randrange(1, 5)):
            self.consumed[each.partition].append(Stored(each.offset, each.id, each.payload))
        self._core.under_way = False
        if self._core.next_ready() is not None:
            self._world.later(0, self._poll)
        self._serve()
