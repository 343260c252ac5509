"""Groups with strategy="zone" on real brokers and broker sets that stand in zones."""

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from metaq import Consumer, ConsumerConfig, Producer, TopicPartition
from metaq.coordination.brokers.cluster_view import ClusterView
from metaq.coordination.groups.assignment import range_assignment
from metaq.coordination.session.zk_session import ZkSession
from tests.integration.background import Repeating
from tests.integration.cli_helpers import Operator
from tests.integration.client_cluster import SHORT_SESSION_SECONDS, MemberProcess, running_brokers
from tests.integration.coordination_helpers import wait_for
from tests.integration.set_nodes import SetNodes, set_nodes
from tests.waiting import DEADLINE

TOPIC = "t"
SECTION = {TOPIC: "numPartitions=4"}
EAST = [f"0-{number}" for number in range(4)]
WEST = [f"1-{number}" for number in range(4)]
GROUP = "g"


@pytest.fixture
def sets(chroot: str, tmp_path: Path) -> Iterator[tuple[SetNodes, SetNodes]]:
    """Set 0 has the nodes a, which leads, in the east and b in the west; set 1 has c in the west."""
    for name in "01":
        (tmp_path / name).mkdir()
    with (
        set_nodes(tmp_path / "0", chroot, SECTION, {"a": "east", "b": "west"}) as zero,
        set_nodes(tmp_path / "1", chroot, SECTION, {"c": "west"}, broker_id=1) as one,
    ):
        zero.start("a", "b")
        one.start("c")
        zero.wait_in_sync("a", "b")
        one.wait_in_sync("c")
        assert zero.leader == "a"
        yield zero, one


class Shares:
    """Who owns what, as ZooKeeper shows it."""

    def __init__(self, session: ZkSession) -> None:
        self._view = ClusterView(session)

    def now(self) -> dict[str, list[str]]:
        shares: dict[str, list[str]] = {}
        for partition, owner in self._view.owners(GROUP, TOPIC).items():
            shares.setdefault(owner.removeprefix(f"{GROUP}_"), []).append(partition)
        return {owner: sorted(shares[owner]) for owner in sorted(shares)}

    def become(self, wanted: Mapping[str, list[str]]) -> None:
        wait_for(lambda: self.now() == wanted, f"{wanted}")


class Reader:
    """A member in a process of its own; `payloads` are those that it has read."""

    def __init__(self, connect: str, name: str, zone: str) -> None:
        self.payloads: list[str] = []
        self.process = MemberProcess(
            connect, GROUP, TOPIC, SHORT_SESSION_SECONDS, consumer_id=name, strategy="zone", zone=zone
        )
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.process.stdout is not None
        for line in self.process.process.stdout:
            if isinstance(said := json.loads(line), dict):
                self.payloads.append(said["payload"])

    def kill(self) -> None:
        self.process.process.kill()
        self._thread.join(DEADLINE)
        self.process.kill()


def test_a_zone_whose_consumers_die_is_read_by_the_others_until_they_are_back(sets, chroot: str, session: ZkSession):
    shares = Shares(session)
    readers = {name: Reader(chroot, name, zone) for name, zone in (("e1", "east"), ("e2", "east"), ("w1", "west"))}
    readers["w2"] = Reader(chroot, "w2", "west")
    everybody = list(readers.values())
    sent: list[str] = []
    at_home = {"e1": EAST[:2], "e2": EAST[2:], "w1": WEST[:2], "w2": WEST[2:]}
    try:
        with Producer(chroot) as producer:

            def send_to_all() -> None:
                for name in (*EAST, *WEST):
                    sent.append(f"{len(sent)} to {name}")
                    producer.send(TOPIC, sent[-1].encode(), partition=TopicPartition.parse(TOPIC, name))
                wait_for(
                    lambda: set(sent) == {payload for each in everybody for payload in each.payloads}, "all messages"
                )

            shares.become(at_home)
            send_to_all()
            assert not any("to 1-" in payload for name in ("e1", "e2") for payload in readers[name].payloads)
            for name in ("e1", "e2"):
                readers[name].kill()
            shares.become({"w1": [*EAST[:2], *WEST[:2]], "w2": [*EAST[2:], *WEST[2:]]})
            send_to_all()
            described = Operator(chroot).json("groups", "describe", GROUP)
            assert described["zones"] == {"g_w1": "west", "g_w2": "west"}
            across = {row["partition"]: (row["zone"], row["across_zones"]) for row in described["partitions"]}
            assert across == dict.fromkeys(EAST, ("east", True)) | dict.fromkeys(WEST, ("west", False))
            table = Operator(chroot).ran("groups", "describe", GROUP).out
            assert (table.count("east, read in west"), table.count("ZONE")) == (4, 1)
            for name in ("e1", "e2"):
                readers[name] = Reader(chroot, name, "east")
                everybody.append(readers[name])
            shares.become(at_home)
            send_to_all()
    finally:
        for each in readers.values():
            each.kill()


class Polled(Repeating):
    """A member in this process, polled by a thread."""

    def __init__(self, connect: str, config: ConsumerConfig) -> None:
        super().__init__(self.poll, 0.0)
        self.payloads: list[bytes] = []
        self.revoked: list[list[str]] = []
        note = lambda partitions: self.revoked.append([str(each) for each in partitions])  # noqa: E731
        self.consumer = Consumer(connect, group=GROUP, topics=[TOPIC], config=config, on_revoked=note)
        self.start()

    def poll(self, _step: int) -> None:
        self.payloads += [bytes(each.payload) for each in self.consumer.poll(timeout=0.1)]

    def close(self) -> None:
        self.end()
        self.consumer.close()
        assert self.errors == []


def in_zone(name: str, zone: str, **options: object) -> ConsumerConfig:
    return ConsumerConfig(consumer_id=name, strategy="zone", zone=zone, **options)  # type: ignore[arg-type]


SETTLE = 6.0


def test_a_failover_moves_nothing_until_the_next_leader_has_stayed(sets, chroot, session, monkeypatch):
    """With read_from="nearest": what is read across zones comes from the member's own zone, if it has a node there."""
    monkeypatch.setattr("metaq.client.consumer.core.ZONE_SETTLE_SECONDS", SETTLE)
    shares, zero = Shares(session), sets[0]
    members = {
        name: Polled(chroot, in_zone(name, zone, read_from="nearest")) for name, zone in (("e", "east"), ("w", "west"))
    }
    at_home = {"e": EAST, "w": WEST}
    sent: list[bytes] = []
    try:
        with Producer(chroot) as producer:

            def comes_to(name: str) -> None:
                sent.append(b"%d" % len(sent))
                producer.send(TOPIC, sent[-1], partition=TopicPartition(TOPIC, 0, len(sent) % 4))
                wait_for(lambda: sent[-1] in members[name].payloads, "the message")

            shares.become(at_home)
            comes_to("e")
            for each in members.values():
                each.revoked.clear()
            zero.kill("a")
            zero.wait_for_leader("b")
            comes_to("e")  # from b, across zones
            assert shares.now() == at_home
            assert members["e"].revoked == []
            shares.become({"w": [*EAST, *WEST]})
            comes_to("w")
            assert (members["e"].revoked, members["w"].revoked) == ([EAST], [])
            zero.start("a")
            zero.wait_in_sync("a", "b")
            assert Operator(chroot).ran("brokers", "hand-over", "0", "--to", "a").code == 0
            comes_to("w")
            assert members["w"].revoked == []
            shares.become(at_home)
            comes_to("e")
            assert (members["e"].revoked, members["w"].revoked) == ([EAST], [EAST])
        received = sorted(payload for each in members.values() for payload in each.payloads)
        assert received == sorted(sent)
    finally:
        for each in members.values():
            each.close()


@pytest.fixture
def alone(chroot: str, tmp_path: Path) -> Iterator[None]:
    """Broker 0 in the east and broker 1 in the west, which are in no set."""
    with (
        running_brokers(chroot, tmp_path, {TOPIC: 4}, zone="east"),
        running_brokers(chroot, tmp_path, {TOPIC: 4}, 0, zone="west") as west,
    ):
        west.start(1)
        yield


@pytest.mark.usefixtures("alone")
def test_with_a_member_of_another_strategy_the_group_shares_as_range_until_it_has_gone(chroot, session, caplog):
    shares = Shares(session)
    members = [Polled(chroot, in_zone(name, zone)) for name, zone in (("a", "west"), ("b", "east"))]
    try:
        shares.become({"a": WEST, "b": EAST})
        members.append(Polled(chroot, ConsumerConfig(consumer_id="c")))
        names = ["a", "b", "c"]
        shares.become({name: sorted(range_assignment(name, names, [*EAST, *WEST])) for name in names})
        told = [each for each in caplog.messages if "g_c reads topic t without strategy='zone'" in each]
        assert len(told) == 2, "each member by zones says so once"
        members.pop().close()
        shares.become({"a": WEST, "b": EAST})
    finally:
        for each in members:
            each.close()
