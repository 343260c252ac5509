"""A producer and a consumer on the core of a connection, as small as they can be to keep order and lose nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from metaq.protocol.client_stream import Reply
from metaq.protocol.errors import MetaqError
from metaq.protocol.frames import Frame, encode_frame
from metaq.protocol.pulls import PullReply, PullRequest
from metaq.protocol.record import Buffer, checksum, iter_headers
from metaq.protocol.sends import SendHeaders, SentReply
from metaq.protocol.statuses import RequestCode, ResponseCode, Status
from metaq.protocol.text import Result, Value, encode_get, encode_put, parse_put_result
from metaq.protocol.topic_partition import TopicPartition
from tests.unit.simulation.world import Client, World

__all__ = ["Consumer", "Producer", "Stored"]

SEND_SECONDS = 1.0
WAIT_MS = 500
PULL_SECONDS = 2.0
PULL_BYTES = 400
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
    """Reads each of its partitions from its beginning on, one pull at a time."""

    def __init__(self, world: World, partitions: Sequence[TopicPartition]) -> None:
        self.consumed: dict[TopicPartition, list[Stored]] = {each: [] for each in partitions}
        self.client = Client(world, "consumer")
        self._world = world
        for partition in partitions:
            self._pull(partition, 0)

    def _pull(self, partition: TopicPartition, offset: int) -> None:
        topic, _, number = partition

        def build(opaque: int) -> Sequence[Buffer]:
            if self.client.speaks_frames:
                request = PullRequest(topic, number, offset, PULL_BYTES, "group", wait_ms=WAIT_MS)
                return (encode_frame(RequestCode.PULL, opaque, request.to_ext()),)
            return (encode_get(topic, "group", number, offset, PULL_BYTES, opaque),)

        self.client.ask(build, partial(self._answered, partition, offset), PULL_SECONDS)

    def _answered(self, partition: TopicPartition, offset: int, reply: Reply | None, error: MetaqError | None) -> None:
        following, pause = offset, 0.0
        if isinstance(reply, Frame):
            if reply.code == ResponseCode.SUCCESS:
                self._take(partition, offset, reply.body)
            following = PullReply.from_ext(reply.ext).next_offset
        elif isinstance(reply, Value):
            following = self._take(partition, offset, reply.data)
        else:  # an error, or no data yet over the text protocol
            assert error is not None or (isinstance(reply, Result) and reply.code == Status.NOT_FOUND), reply
            pause = self._world.rng.uniform(0, RETRY_SECONDS)
        self._world.later(pause, self._pull, partition, following)

    def _take(self, partition: TopicPartition, offset: int, data: memoryview) -> int:
        """Where the next message begins."""
        for header in iter_headers(data):
            body = bytes(data[header.end - header.length : header.end])
            assert checksum(body) == header.checksum
            self.consumed[partition].append(Stored(offset + header.start, header.id, body))
        last = self.consumed[partition][-1:]
        return max((each.offset + 20 + len(each.body) for each in last), default=offset)
