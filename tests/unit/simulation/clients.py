"""Clients of the simulation: a producer as small as it can be to keep order, and the real core of a consumer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from metaq.client.config import ConsumerConfig
from metaq.client.connection import Endpoint
from metaq.client.consumer.core import ConsumerCore
from metaq.client.consumer.cursor import Ask, Request
from metaq.protocol.client_stream import Reply
from metaq.protocol.errors import MetaqError
from metaq.protocol.limits import INT64_MAX
from metaq.protocol.record import Buffer, checksum
from metaq.protocol.sends import SendHeaders, SentReply
from metaq.protocol.statuses import Status
from metaq.protocol.text import Result, encode_offset, encode_put, parse_put_result
from metaq.protocol.topic_partition import TopicPartition
from tests.unit.simulation.world import Client, World

__all__ = ["Consumer", "Producer", "Stored"]

SEND_SECONDS = 1.0
PULL_SECONDS = 2.0
CONFIG = ConsumerConfig(fetch_max_bytes=400, max_buffered_bytes=800, long_poll_ms=500)
RETRY_SECONDS = 0.1


class Stored(NamedTuple):
    """A message as it was acknowledged, or consumed."""

    offset: int
    message_id: int
    body: bytes


class Producer:
    """Sends messages to each of its partitions, one at a time, each until it is acknowledged."""

    def __init__(self, world: World, partitions: Sequence[TopicPartition], messages: int) -> None:
        self.acknowledged: dict[TopicPartition, list[Stored]] = {each: [] for each in partitions}
        self.client = Client(world, "producer")
        self._world = world
        self._messages = messages
        self._headers = SendHeaders()
        for partition in partitions:
            self._send(partition, 0)

    @property
    def is_done(self) -> bool:
        return all(len(stored) == self._messages for stored in self.acknowledged.values())

    def _send(self, partition: TopicPartition, number: int) -> None:
        body = b"%d of %s-%d" % (number, partition.topic.encode(), partition.partition)

        def build(opaque: int) -> Sequence[Buffer]:
            if self.client.speaks_frames:
                return self._headers.encode(opaque, partition, 0, checksum(body), len(body)), body
            return (encode_put(partition.topic, partition.partition, 0, checksum(body), opaque, body),)

        self.client.ask(build, partial(self._answered, partition, number, body), SEND_SECONDS)

    def _answered(
        self, partition: TopicPartition, number: int, body: bytes, reply: Reply | None, error: MetaqError | None
    ) -> None:
        if error is not None:
            self._world.later(self._world.rng.uniform(0, RETRY_SECONDS), self._send, partition, number)
            return
        if isinstance(reply, SentReply):
            message_id, offset = reply.message_id, reply.offset
        else:
            assert isinstance(reply, Result), reply
            assert reply.code == Status.SUCCESS, reply
            message_id, _, offset = parse_put_result(reply.text)
        self.acknowledged[partition].append(Stored(offset, message_id, body))
        if number + 1 < self._messages:
            self._send(partition, number + 1)


class Consumer:
    """Drives a ConsumerCore that owns its partitions from their beginning on, and polls whenever an answer has come."""

    def __init__(self, world: World, partitions: Sequence[TopicPartition]) -> None:
        self.consumed: dict[TopicPartition, list[Stored]] = {each: [] for each in partitions}
        self.client = Client(world, "consumer")
        self.asked_for_end = False
        self._world = world
        self._core = ConsumerCore("group", CONFIG)
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
            pause = core.answered(request, reply, Endpoint("broker", 8123), now)
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
