"""Producer, consumer and broker against each other in one thread: what holds whatever the wire does.

The broker's session, handlers and store are real, and so are the client's ClientStream, its ProducerCore and its
ConsumerCore. Clock and wire are made up.
"""

import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from metaq.protocol.errors import RequestTimedOut
from metaq.protocol.record import HEADER_BYTES
from metaq.protocol.topic_partition import TopicPartition
from tests.unit.simulation.clients import SEND_SECONDS, Consumer, Producer, Sent, Stored
from tests.unit.simulation.world import Client, Faults, World

PARTITIONS = [TopicPartition("t", 0, 0), TopicPartition("t", 0, 1), TopicPartition("safe", 0, 0)]
MORE_PARTITIONS = [*PARTITIONS, TopicPartition("t", 0, 2)]
MESSAGES = 20
CALM = Faults()
CUTS = Faults(cuts=0.02)
STALLS = Faults(stalls=0.02)
ALL = Faults(cuts=0.01, stalls=0.01)
VIRTUAL_SECONDS = 3600.0
LOOK_SECONDS, TOGETHER_SECONDS = 0.25, 0.05  # as ProducerCore and GatheredBatch promise


class Source(NamedTuple):
    """Messages that keep their order among themselves, but for those that may go to any partition."""

    topic: str
    key: str | None = None
    partition: TopicPartition | None = None

    @property
    def keeps_order(self) -> bool:
        return self.key is not None or self.partition is not None

    def sent(self, producer: Producer) -> list[Sent]:
        return [each for each in producer.accepted if (each.topic, each.key, each.partition) == self]


ANYWHERE = Source("t")
SOURCES = [*(Source(each.topic, None, each) for each in PARTITIONS), *(Source("t", key) for key in "abc"), ANYWHERE]


@pytest.fixture
def world_of(tmp_path):
    worlds: list[World] = []

    def make(seed: int, faults: Faults, text: bool = False) -> World:
        worlds.append(World(tmp_path / str(len(worlds)), seed, faults, text))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


class Run:
    """A producer that is fed by all sources, now and then with several messages at once, and a consumer."""

    def __init__(self, world: World, patience: float = 10 * VIRTUAL_SECONDS) -> None:
        self.world = world
        self.producer = Producer(world, PARTITIONS)
        self.consumer = Consumer(world, MORE_PARTITIONS)
        self._patience = patience
        self._left = MESSAGES * len(SOURCES)
        for source in SOURCES:
            self._send(source, 0)

    def _send(self, source: Source, number: int) -> None:
        world = self.world
        body = b"%d of %s" % (number, repr(source[1:]).encode())
        self.producer.send(Sent(source.topic, body, world.now + self._patience, source.key, source.partition))
        self._left -= 1
        if number + 1 < MESSAGES:
            world.later(world.rng.choice((0.0, 0.0, 0.01, 0.1)), self._send, source, number + 1)

    def acknowledged(self, partition: TopicPartition) -> list[Stored]:
        stored = (each for each in self.producer.ended if each.stored is not None)
        return [each.as_stored for each in stored if each.stored is not None and each.stored.partition == partition]

    def until(self, count: int) -> None:
        """So many messages have ended."""
        self.world.run(lambda: len(self.producer.ended) >= count, VIRTUAL_SECONDS)

    def finish(self) -> None:
        """All messages have ended, and the consumer has read what was acknowledged last."""
        self.world.run(lambda: not self._left and self.producer.is_done, VIRTUAL_SECONDS)
        last = {each: self.acknowledged(each)[-1:] for each in MORE_PARTITIONS}
        consumed = self.consumer.consumed
        self.world.run(lambda: all(set(last[each]) <= set(consumed[each]) for each in last), VIRTUAL_SECONDS)

    def check(self) -> None:
        """What holds whatever went wrong."""
        producer = self.producer
        if not self.world.text:  # which has no place for the producer's numbers
            assert not self.stored_twice()
        assert len(producer.accepted) == len(producer.ended)
        assert len(producer.accepted) + len(producer.refused) == MESSAGES * len(SOURCES)
        anywhere = {each.body for each in ANYWHERE.sent(producer)}
        for partition in MORE_PARTITIONS:
            acknowledged, consumed = self.acknowledged(partition), self.consumer.consumed[partition]
            assert set(acknowledged) <= set(consumed), "what was acknowledged is stored where the broker said"
            # a batch that may go anywhere may have left some of its messages here, and is told of when all are stored
            bound = [each.offset for each in acknowledged if each.body not in anywhere]
            assert bound == sorted(bound)
            assert [each.offset for each in consumed] == begins(consumed), "nothing is left out, nothing comes twice"
            assert [each.message_id for each in consumed] == sorted({each.message_id for each in consumed})

    def stored_twice(self) -> list[bytes]:
        bodies = Counter(each.body for consumed in self.consumer.consumed.values() for each in consumed)
        return [body for body, count in bodies.items() if count > 1]

    def check_order(self) -> None:
        """Of each source, whose messages were all acknowledged."""
        ended, consumed = self.producer.ended, self.consumer.consumed
        everything = sorted((each for some in consumed.values() for each in some), key=lambda each: each.message_id)
        assert all(each.error is None for each in ended)
        for source in SOURCES:
            sent = source.sent(self.producer)
            bodies = {each.body for each in sent}
            assert len(bodies) == MESSAGES
            if source.partition is not None:
                assert {each.stored.partition for each in sent if each.stored is not None} == {source.partition}
            if source.keeps_order:
                assert [each for each in ended if each.body in bodies] == sent
                # the first of those that were sent again counts
                in_order = dict.fromkeys(each.body for each in everything if each.body in bodies)
                assert list(in_order) == [each.body for each in sent]


def run(world: World, kills: Sequence[int] = ()) -> Run:
    """kills: the broker is killed when so many messages are acknowledged."""
    result = Run(world)
    for count in kills:
        result.until(count)
        world.kill_broker()
    result.finish()
    return result


def begins(consumed: list[Stored]) -> list[int]:
    """Where each message begins if each begins where the one before it ends."""
    ends = [0]
    for each in consumed:
        ends.append(ends[-1] + HEADER_BYTES + len(each.body))
    return ends[:-1]


@pytest.mark.parametrize("text", [False, True], ids=["frames", "text"])
@pytest.mark.parametrize("faults", [CALM, CUTS, STALLS, ALL], ids=["calm", "cuts", "stalls", "all"])
def test_what_was_acknowledged_is_stored_and_consumed_in_order(world_of, faults, text):
    world = world_of(1, faults, text)
    result = run(world)
    result.check()
    result.check_order()
    producer, consumer = result.producer, result.consumer
    if faults == CALM:
        assert all(consumer.consumed[each] == result.acknowledged(each) for each in MORE_PARTITIONS)
    assert 0 < producer.joined < len(producer.accepted), "some messages are gathered, and some go alone"
    happened = {what for _, what in world.history}
    assert ("the wire is cut" in happened) == (faults.cuts > 0)
    expired = producer.client.late + consumer.client.late
    assert bool(expired) == (faults.stalls > 0)
    assert all(late == pytest.approx(0.0, abs=1e-9) for late in expired), "requests end at their deadlines"


@pytest.mark.parametrize("text", [False, True], ids=["frames", "text"])
def test_a_message_whose_answer_is_lost_is_stored_twice_over_text_only(world_of, text):
    result = run(world_of(1, Faults(stalls=0.1), text))
    result.check()
    result.check_order()
    bodies = {each.body for consumed in result.consumer.consumed.values() for each in consumed}
    assert len(bodies) == MESSAGES * len(SOURCES)
    assert bool(result.stored_twice()) == text
    assert result.producer.client.late, "late answers are dropped"


@pytest.mark.parametrize("text", [False, True], ids=["frames", "text"])
def test_what_was_acknowledged_is_there_after_the_broker_was_killed(world_of, text):
    world = world_of(3, CALM, text)
    result = run(world, kills=(10, 40, 90))
    result.check()
    result.check_order()
    assert [what for _, what in world.history].count("the broker is killed") == 3


@pytest.mark.parametrize("faults", [CALM, ALL], ids=["calm", "all"])
def test_messages_of_a_key_keep_their_order_when_the_key_moves_to_another_partition(world_of, faults):
    result = Run(world_of(2, faults))
    for count in range(10, 110, 10):
        result.until(count)
        result.producer.partitions_are(MORE_PARTITIONS if count % 20 else PARTITIONS)
    result.finish()
    result.check()
    result.check_order()
    assert any(
        len({each.stored.partition for each in Source("t", key).sent(result.producer) if each.stored}) > 1
        for key in "abc"
    )


@pytest.mark.parametrize("text", [False, True], ids=["frames", "text"])
def test_a_consumer_that_nothing_came_to_for_a_minute_gets_what_comes_then(world_of, text):
    world = world_of(1, CALM, text)
    consumer, producer = Consumer(world, PARTITIONS), Producer(world, PARTITIONS)
    for until in (60.0, 120.0):
        for each in PARTITIONS:
            producer.send(Sent(each.topic, b"%d" % until, world.now + 30.0, partition=each))
        world.run(lambda: world.now > until, 61.0)  # noqa: B023
        for each in PARTITIONS:
            sent = Source(each.topic, None, each).sent(producer)
            assert consumer.consumed[each] == [message.as_stored for message in sent]
    assert consumer.asked_for_end == text


def test_a_run_is_repeated_by_its_seed(world_of):
    runs = [run(world_of(seed, ALL)) for seed in (7, 7, 8)]
    histories = [each.world.history for each in runs]
    assert histories[0] == histories[1] != histories[2]
    assert runs[0].producer.ended == runs[1].producer.ended != runs[2].producer.ended


@pytest.mark.parametrize("text", [False, True], ids=["frames", "text"])
def test_a_message_ends_at_its_deadline_whatever_the_wire_does(world_of, text):
    """One that joined a batch may end as much earlier as the first message of its batch does."""
    result = Run(world_of(5, Faults(cuts=0.03, stalls=0.03), text), patience=3.0)
    result.finish()
    result.check()
    expired = [each for each in result.producer.ended if each.error is not None]
    assert 0 < len(expired) < len(result.producer.ended)
    for each in expired:
        assert isinstance(each.error, RequestTimedOut)
        assert -TOGETHER_SECONDS - 1e-9 <= each.ended_at - each.deadline <= LOOK_SECONDS + 1e-9


def test_a_message_ends_exactly_at_its_deadline_by_the_virtual_clock_without_waiting(world_of):
    world = world_of(1, Faults(stalls=1.0, stall_seconds=60.0))
    producer = Producer(world, PARTITIONS)

    def send() -> list[Sent]:
        began = world.now
        sent = [
            Sent(each.topic, b"x", began + seconds, partition=each)
            for seconds in (3 * SEND_SECONDS, SEND_SECONDS / 2, 2 * SEND_SECONDS)
            for each in PARTITIONS
        ]
        for message in sent:
            producer.send(message)
        world.run(lambda: producer.is_done, 1000.0)
        return sent

    real = time.monotonic()
    unconnected = send()
    world.run(lambda: producer.client.speaks_frames, 1000.0)
    under_way = send()
    for each in unconnected + under_way:
        assert isinstance(each.error, RequestTimedOut)
        assert each.ended_at == pytest.approx(each.deadline, abs=1e-9)
    assert producer.core.buffered_bytes == 0
    assert time.monotonic() - real < world.now / 10


def test_a_request_ends_at_its_deadline_by_the_virtual_clock_without_waiting(world_of):
    world = world_of(1, Faults(stalls=1.0, stall_seconds=60.0))
    client, ended = Client(world, "client"), list[tuple[float, object]]()
    world.run(lambda: client.speaks_frames, 1000.0)
    began = world.now

    def ask(timeout: float) -> None:
        client.ask(
            lambda opaque: (b"version %d\r\n" % opaque,),
            lambda reply, error: ended.append((world.now - began, type(error))),
            timeout,
        )

    real = time.monotonic()
    for timeout in (3 * SEND_SECONDS, SEND_SECONDS):
        ask(timeout)
    world.run(lambda: len(ended) == 2, 1000.0)
    assert [seconds for seconds, _ in ended] == pytest.approx([SEND_SECONDS, 3 * SEND_SECONDS])
    assert [kind for _, kind in ended] == [RequestTimedOut, RequestTimedOut]
    assert time.monotonic() - real < 1.0
