"""Which node of a broker set a client asks: whom the others name as the leader, and the nearest one to read from."""

import pytest

from metaq import TopicPartition
from metaq.client.fetching.nearest_nodes import AVOIDED_SECONDS, NearestNodes
from metaq.client.transport.connection import Endpoint
from metaq.client.transport.redirects import TRUSTED_SECONDS, Redirects
from metaq.coordination.records.set_payloads import SetNode, SetState
from metaq.coordination.sets.set_view import SetView
from metaq.protocol.errors import NotLeader

A, B, C = (Endpoint("127.0.0.1", port) for port in (1, 2, 3))


class Led(Redirects):
    def __init__(self) -> None:
        self.now = 100.0
        super().__init__()

    def says(self, node: Endpoint, leader: Endpoint | None) -> float:
        return self.learn(NotLeader(0, "" if leader is None else str(leader), str(node)), self.now)

    def asked(self, endpoint: Endpoint, *down: Endpoint) -> Endpoint:
        return self.target(endpoint, down, self.now)


@pytest.fixture
def led() -> Led:
    return Led()


def test_the_node_that_was_named_is_asked_at_once(led):
    assert led.says(A, B) == 0.0
    assert (led.asked(A), led.asked(B)) == (B, B)
    assert led.says(A, B) == 0.0  # the answer to another request that was under way


def test_a_set_without_a_leader_is_asked_again_after_pauses_that_grow(led):
    pauses = []
    while led.now < 102.0:
        pauses.append(led.says(A, None))
        led.now += pauses[-1]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (0.01, 0.2)
    assert len(pauses) < 40
    assert led.asked(A) == A


def test_pauses_begin_anew_after_some_quiet(led):
    pauses = [led.says(A, None)]
    for quiet in (0.9, 1.1):
        led.now += quiet
        pauses.append(led.says(A, None))
    assert pauses == [0.01, 0.2, 0.01]


def test_nodes_that_point_at_each_other_make_no_busy_loop(led):
    node, requests = A, 0
    while led.now < 101.0:
        led.now += 0.001 + led.says(node, B if node == A else A)
        node = led.asked(node)
        requests += 1
    assert requests < 40


def test_what_a_node_said_is_forgotten_after_some_seconds_unless_it_is_gone(led):
    led.says(A, B)
    led.now += TRUSTED_SECONDS
    assert led.asked(A, A) == B  # nobody else is known
    assert [led.asked(A), led.asked(A)] == [A, A]


def test_what_a_node_said_does_not_count_any_more():
    """Once the named node cannot be reached, another has said something else, or the view has changed."""
    down, denied, changed = (Led() for _ in range(3))
    for led in (down, denied, changed):
        led.says(A, B)
    assert [down.asked(A, B), down.asked(A)] == [A, A]
    denied.says(B, A)
    assert [denied.asked(A), denied.asked(B)] == [A, A]
    changed.says(C, A)
    changed.moved([B], A, changed.now)
    assert (changed.asked(A), changed.asked(C)) == (A, C)


def test_a_new_leader_that_does_not_know_it_yet_does_not_lead_back_to_the_former_one(led):
    led.moved([A], B, led.now)
    assert (led.says(B, A), led.asked(B)) == (0.01, B)
    led.moved([B], A, led.now)  # it leads again
    assert (led.says(C, A), led.asked(C)) == (0.0, A)
    led.moved([A], B, led.now)
    led.now += TRUSTED_SECONDS
    assert led.says(C, A) == 0.0


def test_an_address_that_no_client_can_use_is_as_good_as_none(led):
    nowhere = NotLeader(0, "meta://nowhere:99999", str(A))
    assert (led.learn(nowhere, led.now), led.leader(nowhere)) == (0.01, None)
    assert (led.says(A, A), led.asked(A)) == (0.01, A)


# --- the nearest one --------------------------------------------------------------------------------------------------

ZERO, ONE, ELSEWHERE = TopicPartition("t", 0, 0), TopicPartition("t", 0, 1), TopicPartition("t", 1, 0)
ZONES = {"a": "east", "b": "west", "c": "west"}


class Consumer(NearestNodes):
    """In the zone `west`; the set's nodes a, b and c are where the constants say."""

    def __init__(self, zone: str = "west") -> None:
        self.now = 0.0
        super().__init__(zone)

    def sees(self, zones: dict[str, str], *in_sync: str, **urls: str) -> bool:
        urls = {"a": str(A), "b": str(B), "c": str(C)} | urls
        nodes = {name: SetNode(name, urls[name], zone, "i") for name, zone in zones.items()}
        return self.seen(0, SetView(SetState(1, "a", dict.fromkeys(in_sync, "i")), 1, nodes))

    def reads(self, partition: TopicPartition = ZERO, *down: Endpoint, leader: Endpoint | None = A) -> Endpoint | None:
        return self.choose(partition, leader, down, self.now)


@pytest.fixture
def consumer() -> Consumer:
    return Consumer()


def test_it_reads_from_the_leader_until_it_knows_the_set(consumer):
    assert consumer.reads() == A
    consumer.sees(ZONES, "a", "b", "c")
    assert consumer.reads(ELSEWHERE, leader=C) == C


def test_the_nodes_of_its_zone_share_the_partitions(consumer):
    assert consumer.sees(ZONES, "a", "b", "c")
    assert {consumer.reads(ZERO), consumer.reads(ONE)} == {B, C}
    assert consumer.reads(ZERO) == consumer.reads(ZERO)


def test_a_leader_in_its_zone_is_the_nearest():
    consumer = Consumer("east")
    consumer.sees(ZONES | {"b": "east"}, "a", "b")
    assert consumer.reads(ONE) == A


def test_only_nodes_that_are_in_sync_and_there_are_read(consumer):
    consumer.sees(ZONES, "a", "c")
    assert consumer.reads(ZERO) == C
    consumer.sees({"a": "east", "b": "west"}, "a", "c")
    assert consumer.reads(ZERO) == A
    assert consumer.seen(0, SetView(None, -1)) is False
    assert consumer.reads(ZERO) == A


@pytest.mark.parametrize("zone", ["north", ""])
def test_without_a_node_in_its_zone_it_reads_from_the_leader(zone):
    consumer = Consumer(zone)
    assert not consumer.sees(ZONES | {"b": ""}, "a", "b", "c")
    assert consumer.reads() == A


def test_a_node_that_failed_is_avoided_for_a_while(consumer):
    consumer.sees(ZONES, "a", "b", "c")
    first, second = consumer.reads(ZERO), consumer.reads(ONE)
    consumer.failed(first, consumer.now)
    assert (consumer.reads(ZERO), consumer.reads(ZERO, B, C)) == (second, A)
    consumer.now = AVOIDED_SECONDS
    assert consumer.reads(ZERO) == first is not None


def test_what_changes_nothing_is_no_change(consumer):
    assert consumer.sees(ZONES, "a", "b")
    assert not consumer.sees(ZONES, "b", "a")
    assert not consumer.sees(ZONES | {"a": "south"}, "a", "b")


def test_a_node_whose_address_no_client_can_use_is_not_read(consumer):
    assert not consumer.sees({"b": "west"}, "b", b="meta://nowhere:99999")
