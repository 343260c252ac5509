"""The cores of producer, consumer and connection in one event loop: nothing in them needs a thread."""

import asyncio
import contextlib
import itertools
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from metaq.client.fetching.core import ConsumerCore
from metaq.client.fetching.cursor import Request
from metaq.client.producer.codec import FlightCodec
from metaq.client.producer.core import Actions, ProducerCore
from metaq.client.producer.outgoing import GatheredBatch, Outgoing
from metaq.client.producer.queues import Flight
from metaq.client.records.results import SendResult
from metaq.client.settings.config import ProducerConfig
from metaq.client.settings.consumer_config import ConsumerConfig
from metaq.client.transport.connection import Endpoint
from metaq.protocol.client_stream import ClientStream, Opening, Reply
from metaq.protocol.errors import BrokerUnavailable, MetaqError
from metaq.protocol.record import Buffer, checksum
from metaq.protocol.topic_partition import TopicPartition
from metaq.testing import FakeBroker

TOPICS = {"t": 2}
PARTITIONS = [TopicPartition("t", 0, 0), TopicPartition("t", 0, 1)]
MESSAGES = 2_000
CONFIG = ProducerConfig(max_buffered_messages=100)
REQUEST_SECONDS, DEADLINE = 20.0, 30.0
"""Far more than it takes."""


@dataclass(eq=False)
class Asked:
    """What a Link enters into its stream."""

    answer: asyncio.Future[Reply]
    deadline: float


class Link:
    """Drives a ClientStream on asyncio's streams, and connects again when the broker has closed the connection."""

    speaks_frames = takes_many = takes_sequences = True

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.connections = 0
        self._stream: ClientStream[Asked] | None = None

    async def run(self) -> None:
        while True:
            reader, self._writer = await asyncio.open_connection(*self.endpoint)
            try:
                await self._serve(reader)
            finally:
                self._writer.close()

    async def _serve(self, reader: asyncio.StreamReader) -> None:
        opening = Opening()
        self._writer.write(opening.request)
        while (version := opening.receive(await reader.read(1 << 16))) is None:
            pass
        self.connections += 1
        stream: ClientStream[Asked] = ClientStream(str(self.endpoint), version)
        self._stream = stream
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                stream.receive(data)
                self._settle(stream)
        self._stream = None
        stream.end(list(stream.pending), BrokerUnavailable("the connection has ended"))
        self._settle(stream)

    async def ask(self, build: Callable[[int], Sequence[Buffer]]) -> Reply:
        """Raises BrokerUnavailable, RequestTimedOut."""
        stream, loop = self._stream, asyncio.get_running_loop()
        if stream is None:
            raise BrokerUnavailable("no connection")
        opaque, asked = stream.new_opaque(), Asked(loop.create_future(), loop.time() + REQUEST_SECONDS)
        stream.pending[opaque] = asked
        self._writer.write(b"".join(build(opaque)))
        expiry = loop.call_at(asked.deadline, self._expire, stream, asked.deadline)
        try:
            return await asked.answer
        finally:
            expiry.cancel()

    def _expire(self, stream: ClientStream[Asked], deadline: float) -> None:
        stream.expire(deadline)
        self._settle(stream)

    def _settle(self, stream: ClientStream[Asked]) -> None:
        while stream.outcomes:
            asked, reply, error = stream.outcomes.popleft()
            if asked.answer.cancelled():
                continue
            if reply is not None:
                asked.answer.set_result(reply)
            else:
                assert error is not None
                asked.answer.set_exception(error)


class Producer:
    """Drives a ProducerCore over one Link, and is its Routes: each topic has the PARTITIONS of the one broker.

    failures: requests that ended without an answer. joined: messages that joined an open batch.
    """

    avoids_any = False

    def __init__(self, link: Link, group: asyncio.TaskGroup) -> None:
        self.results: dict[bytes, SendResult] = {}
        self.all_told = asyncio.Event()
        self.failures = self.joined = 0
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._turns = itertools.cycle(PARTITIONS)
        self._room = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._core = ProducerCore(CONFIG, self, self._loop.time)
        self._codec = FlightCodec()
        self._group = group

    def route(self, outgoing: Outgoing) -> TopicPartition:
        return outgoing.fixed or next(self._turns)

    def partitions_for_keys(self, topic: str) -> Sequence[TopicPartition]:
        return PARTITIONS

    def is_away(self, outgoing: Outgoing) -> bool:
        return False

    def avoid(self, partition: TopicPartition, error: MetaqError, seconds: float) -> bool:
        return False  # there is no other

    def works(self, partition: TopicPartition) -> None:
        """There is none to choose."""

    async def send(self, body: bytes, key: str | None) -> None:
        """Waits for room."""
        deadline = self._loop.time() + DEADLINE
        told = partial(self._told, body)
        if key is None and self._core.join("t", 0, body, deadline, told) is not None:
            self.joined += 1
            return
        outgoing: Outgoing
        if key is None:
            outgoing = GatheredBatch("t", "t", 0, body, deadline, told)
        else:
            outgoing = Outgoing("t", 0, checksum(body), body, deadline)
            outgoing.key, outgoing.report = key, told
        partition = None if key is not None else self._core.sticks_to("t") or self.route(outgoing)
        while (accepted := self._core.add(outgoing, partition)) is None:
            self._room.clear()
            await self._room.wait()
        self._send_all(accepted[1])
        self._arm()

    def _told(self, body: bytes, error: Exception | None, result: SendResult | None) -> None:
        assert error is None, error
        assert result is not None
        assert body not in self.results
        self.results[body] = result
        if len(self.results) == MESSAGES:
            self.all_told.set()

    def _do(self, actions: Actions) -> None:
        self._send_all(actions.flights)
        for outgoing, error in (*actions.late, *actions.ended):
            outgoing.fail(error)
        self._send_all(self._core.forget(actions.ended))
        self._arm()

    def _send_all(self, flights: Sequence[Flight]) -> None:
        for flight in flights:
            self._group.create_task(self._send(flight))

    async def _send(self, flight: Flight) -> None:
        (request,) = self._codec.requests(flight.turns, self._link, time.monotonic())
        try:
            landing = request.read(0, await self._link.ask(lambda opaque: request.encode([opaque])), None)
        except MetaqError as error:
            self.failures += 1
            landing = request.read(0, None, error)
        assert landing is not None
        self._do(self._core.landed(flight, landing.stored, landing.failed))
        if landing.stored:
            landing.give()
            self._send_all(self._core.release(flight, landing.stored))
            self._room.set()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        when = min(self._core.wake_at, self._core.expire_at)
        self._timer = None if when == math.inf else self._loop.call_at(when, self._tick)

    def _tick(self) -> None:
        self._do(self._core.wake(self._loop.time()))
        self._do(self._core.expire(self._loop.time()))


class Consumer:
    """Drives a ConsumerCore over one Link."""

    def __init__(self, link: Link, group: asyncio.TaskGroup) -> None:
        self.consumed: dict[TopicPartition, list[tuple[int, bytes]]] = {each: [] for each in PARTITIONS}
        self.failures = 0
        self.arrived = asyncio.Event()
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._core = ConsumerCore("g", ConsumerConfig(fetch_max_bytes=4096))
        self._core.claim(PARTITIONS, [0, 0], announced=True)
        self._group = group
        self.serve()

    def serve(self) -> None:
        while (cursor := self._core.next_wanting()) is not None:
            if (request := cursor.next_request(self._loop.time())) is not None:
                self._group.create_task(self._pull(request))

    async def _pull(self, request: Request) -> None:
        try:
            reply = await self._link.ask(self._core.codec.encode(request, True))
        except MetaqError as error:
            self.failures += 1
            pause = self._core.unanswered(request, error, self._loop.time())
        else:
            pause = self._core.answered(request, reply, self._link.endpoint, self._loop.time())
        if pause is not None:
            self._loop.call_later(pause, self._want, request)
        self._poll()

    def _want(self, request: Request) -> None:
        self._core.want(request.cursor)
        self.serve()

    def _poll(self) -> None:
        while self._core.next_ready() is not None:
            self._core.acknowledge()
            for each in self._core.take(10):
                self.consumed[each.partition].append((each.offset, each.payload))
            self._core.under_way = False
        self.arrived.set()
        self.serve()


async def produce_and_consume(broker: FakeBroker) -> None:
    links = [Link(broker.endpoint), Link(broker.endpoint)]
    bodies = {b"%d" % number: None if number % 3 else f"key {number % 4}" for number in range(MESSAGES)}
    async with asyncio.timeout(DEADLINE), asyncio.TaskGroup() as group:
        for link in links:
            group.create_task(link.run())
        producer, consumer = Producer(links[0], group), Consumer(links[1], group)
        for number, (body, key) in enumerate(bodies.items()):
            await producer.send(body, key)
            if number == MESSAGES // 2:
                assert 0 < len(producer.results) < number, "some are acknowledged, and some under way"
                broker.drop_connections()
        await producer.all_told.wait()
        stored = {(each.partition, each.offset, body) for body, each in producer.results.items()}
        while not stored <= {(partition, *each) for partition, some in consumer.consumed.items() for each in some}:
            consumer.arrived.clear()
            await consumer.arrived.wait()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
    assert [link.connections for link in links] == [2, 2]
    assert producer.failures > 0
    assert consumer.failures > 0
    assert producer.joined > 0
    consumed = {partition: [body for _, body in some] for partition, some in consumer.consumed.items()}
    for partition, some in consumed.items():
        assert some == broker.bodies("t", partition.partition), "nothing is left out, nothing comes twice"
    for key in set(bodies.values()) - {None}:
        sent = [body for body, its_key in bodies.items() if its_key == key]
        in_order = dict.fromkeys(body for some in consumed.values() for body in some if bodies[body] == key)
        assert list(in_order) == sent  # the first of those that were sent again counts


def test_producer_and_consumer_run_in_one_event_loop_and_survive_a_dropped_connection(broker):
    threads = threading.active_count()
    asyncio.run(produce_and_consume(broker))
    assert threading.active_count() == threads
