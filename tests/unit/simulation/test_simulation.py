"""Producer, consumer and broker against each other in one thread: what holds whatever the wire does.

The broker's session, handlers and store are real, and so are the client's ClientStream and the ConsumerCore. Clock,
wire and producer are made up.
"""

import time
from collections.abc import Sequence

import pytest

from metaq.protocol.errors import RequestTimedOut
from metaq.protocol.record import HEADER_BYTES
from metaq.protocol.topic_partition import TopicPartition
from tests.unit.simulation.clients import SEND_SECONDS, Consumer, Producer, Stored
from tests.unit.simulation.world import Client, Faults, World

PARTITIONS = [TopicPartition("t", 0, 0), TopicPartition("t", 0, 1), TopicPartition("safe", 0, 0)]
MESSAGES = 25
CALM = Faults()
CUTS = Faults(cuts=0.02)
STALLS = Faults(stalls=0.02)
ALL = Faults(cuts=0.01, stalls=0.01)
VIRTUAL_SECONDS = 3600.0


@pytest.fixture
def world_of(tmp_path):
    worlds: list[World] = []

    def make(seed: int, faults: Faults, text: bool = False) -> World:
        worlds.append(World(tmp_path / str(len(worlds)), seed, faults, text))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


def run(world: World, kills: Sequence[int] = ()) -> tuple[Producer, Consumer]:
    """Until all messages are acknowledged, and the consumer has read what was acknowledged last. kills: the broker is
    killed when so many messages are acknowledged."""
    producer, consumer = Producer(world, PARTITIONS, MESSAGES), Consumer(world, PARTITIONS)
    for count in kills:
        world.run(lambda: sum(map(len, producer.acknowledged.values())) >= count, VIRTUAL_SECONDS)  # noqa: B023
        world.kill_broker()

    def is_over() -> bool:
        return producer.is_done and all(
            stored[-1] in consumer.consumed[partition] for partition, stored in producer.acknowledged.items()
        )

    world.run(is_over, VIRTUAL_SECONDS)
    return producer, consumer


def check(acknowledged: list[Stored], consumed: list[Stored]) -> None:
    """What holds for one partition, whatever went wrong."""
    assert len(acknowledged) == MESSAGES
    assert set(acknowledged) <= set(consumed), "what was acknowledged is stored where the broker said"
    in_order = list(dict.fromkeys(each.body for each in consumed))  # the first of those that were sent again counts
    assert in_order == [each.body for each in acknowledged]
    assert [each.offset for each in consumed] == ends_of(consumed), "nothing is left out, nothing comes twice"
    assert [each.message_id for each in consumed] == sorted({each.message_id for each in consumed})


@pytest.mark.parametrize("text", [False, True], ids=["frames", "text"])
@pytest.mark.parametrize("faults", [CALM, CUTS, STALLS, ALL], ids=["calm", "cuts", "stalls", "all"])
def test_what_was_acknowledged_is_stored_and_consumed_in_order(world_of, faults, text):
    world = world_of(1, faults, text)
    producer, consumer = run(world)
    for partition in PARTITIONS:
        acknowledged, consumed = producer.acknowledged[partition], consumer.consumed[partition]
        check(acknowledged, consumed)
        if faults == CALM:
            assert consumed == acknowledged
    happened = {what for _, what in world.history}
    assert ("the wire is cut" in happened) == (faults.cuts > 0)
    expired = producer.client.late + consumer.client.late
    assert bool(expired) == (faults.stalls > 0)
    assert all(late == pytest.approx(0.0, abs=1e-9) for late in expired), "requests end at their deadlines"


def ends_of(consumed: list[Stored]) -> list[int]:
    """Where each message begins if each begins where the one before it ends."""
    ends = [0]
    for each in consumed:
        ends.append(ends[-1] + HEADER_BYTES + len(each.body))
    return ends[:-1]


def test_a_message_whose_answer_is_lost_is_stored_twice_and_its_late_answer_is_dropped(world_of):
    world = world_of(1, Faults(stalls=0.1))
    producer, consumer = run(world)
    bodies = [each.body for partition in PARTITIONS for each in consumer.consumed[partition]]
    assert len(bodies) > len(set(bodies)) == MESSAGES * len(PARTITIONS)
    assert producer.client.late


@pytest.mark.parametrize("text", [False, True], ids=["frames", "text"])
def test_what_was_acknowledged_is_there_after_the_broker_was_killed(world_of, text):
    world = world_of(3, CALM, text)
    producer, consumer = run(world, kills=(10, 30, 60))
    for partition in PARTITIONS:
        check(producer.acknowledged[partition], consumer.consumed[partition])
    assert [what for _, what in world.history].count("the broker is killed") == 3


@pytest.mark.parametrize("text", [False, True], ids=["frames", "text"])
def test_a_consumer_that_nothing_came_to_for_a_minute_gets_what_comes_then(world_of, text):
    world = world_of(1, CALM, text)
    consumer = Consumer(world, PARTITIONS)
    for count, until in ((1, 60.0), (2, 120.0)):
        producer = Producer(world, PARTITIONS, 1)
        world.run(lambda: world.now > until, 61.0)  # noqa: B023
        assert [consumed[count - 1 :] for consumed in consumer.consumed.values()] == [*producer.acknowledged.values()]
    assert consumer.asked_for_end == text


def test_a_run_is_repeated_by_its_seed(world_of):
    histories = []
    for seed in (7, 7, 8):
        world = world_of(seed, ALL)
        run(world)
        histories.append(world.history)
    assert histories[0] == histories[1] != histories[2]


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
