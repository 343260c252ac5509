"""Which node of a broker set a consumer reads from."""

from metaq.client.connection import Endpoint
from metaq.client.consumer.nearest_nodes import AVOIDED_SECONDS, NearestNodes
from metaq.client.values import TopicPartition
from metaq.coordination.set_records import SetNode, SetState
from metaq.coordination.set_view import SetView

A, B, C = (Endpoint("127.0.0.1", port) for port in (1, 2, 3))
ZERO, ONE, ELSEWHERE = TopicPartition("t", 0, 0), TopicPartition("t", 0, 1), TopicPartition("t", 1, 0)


class Consumer(NearestNodes):
    """In the zone `west`; the set's nodes a, b and c are where the constants say."""

    def __init__(self, zone: str = "west") -> None:
        self.now = 0.0
        super().__init__(zone, lambda: self.now)

    def sees(self, zones: dict[str, str], *in_sync: str) -> bool:
        urls = {"a": str(A), "b": str(B), "c": str(C)}
        nodes = {name: SetNode(name, urls[name], zone, "i") for name, zone in zones.items()}
        return self.seen(0, SetView(SetState(1, "a", dict.fromkeys(in_sync, "i")), 1, nodes))

    def reads(self, partition: TopicPartition = ZERO, *down: Endpoint, leader: Endpoint | None = A) -> Endpoint | None:
        return self.choose(partition, leader, down)


ZONES = {"a": "east", "b": "west", "c": "west"}


def test_it_reads_from_the_leader_until_it_knows_the_set():
    consumer = Consumer()
    assert consumer.reads() == A
    consumer.sees(ZONES, "a", "b", "c")
    assert consumer.reads(ELSEWHERE, leader=C) == C


def test_the_nodes_of_its_zone_share_the_partitions():
    consumer = Consumer()
    assert consumer.sees(ZONES, "a", "b", "c")
    assert {consumer.reads(ZERO), consumer.reads(ONE)} == {B, C}
    assert consumer.reads(ZERO) == consumer.reads(ZERO)


def test_a_leader_in_its_zone_is_the_nearest():
    consumer = Consumer("east")
    consumer.sees(ZONES | {"b": "east"}, "a", "b")
    assert consumer.reads(ONE) == A


def test_only_nodes_that_are_in_sync_and_there_are_read():
    consumer = Consumer()
    consumer.sees(ZONES, "a", "c")
    assert consumer.reads(ZERO) == C
    consumer.sees({"a": "east", "b": "west"}, "a", "c")
    assert consumer.reads(ZERO) == A
    assert consumer.seen(0, SetView(None, -1)) is False
    assert consumer.reads(ZERO) == A


def test_without_a_node_in_its_zone_it_reads_from_the_leader():
    for zone in ("north", ""):
        consumer = Consumer(zone)
        assert not consumer.sees(ZONES | {"b": ""}, "a", "b", "c")
        assert consumer.reads() == A


def test_a_node_that_failed_is_avoided_for_a_while():
    consumer = Consumer()
    consumer.sees(ZONES, "a", "b", "c")
    first, second = consumer.reads(ZERO), consumer.reads(ONE)
    assert first is not None
    consumer.failed(first)
    assert consumer.reads(ZERO) == second
    assert consumer.reads(ZERO, B, C) == A
    consumer.now = AVOIDED_SECONDS
    assert consumer.reads(ZERO) == first


def test_what_changes_nothing_is_no_change():
    consumer = Consumer()
    assert consumer.sees(ZONES, "a", "b")
    assert not consumer.sees(ZONES, "b", "a")
    assert not consumer.sees(ZONES | {"a": "south"}, "a", "b")


def test_a_node_whose_address_no_client_can_use_is_not_read():
    consumer = Consumer()
    nodes = {"b": SetNode("b", "meta://nowhere:99999", "west", "i")}
    assert not consumer.seen(0, SetView(SetState(1, "a", {"b": "i"}), 1, nodes))
