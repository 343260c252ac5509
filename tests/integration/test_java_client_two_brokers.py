"""One application of the Java client in a cluster of a Java broker (0) and ours (1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from bench.javapeer import JavaBroker
from metaq.coordination.servers.local_zookeeper import ZooKeeperProcess
from tests.integration.coordination_helpers import make_chroot
from tests.integration.java_peers import require_java
from tests.integration.java_sides import ON_DISK_WHEN_ANSWERED, Application, OurBroker
from tests.waiting import eventually

TOPICS = dict.fromkeys(["spread", "pinned", "xa"], 2)
ALL = ["0-0", "0-1", "1-0", "1-1"]


@dataclass
class Pair:
    java: JavaBroker
    ours: OurBroker
    app: Application


@pytest.fixture(scope="module")
def pair(zookeeper: ZooKeeperProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    require_java()
    directory = tmp_path_factory.mktemp("pair")
    connect = f"{zookeeper.connect_string}/{directory.name}"
    make_chroot(connect)
    for name in ("java", "ours"):
        (directory / name).mkdir()
    ours = {**ON_DISK_WHEN_ANSWERED, "brokerId": 1}
    with (
        JavaBroker(directory / "java", connect, TOPICS, ON_DISK_WHEN_ANSWERED) as java_broker,
        OurBroker(directory / "ours", connect, TOPICS, ours) as our_broker,
        Application(connect, directory / "client.log") as app,
    ):
        yield Pair(java_broker, our_broker, app)
        java_broker.kill()  # nobody needs its clean stop, which takes seconds


def test_sends_reads_browsing_and_statistics_cover_both(pair: Pair) -> None:
    app = pair.app
    assert app.call("partitions", "spread")["partitions"] == ALL
    sender = app.producer("spreading", "spread")
    results = app.send_all(sender, "spread", *[str(number).encode() for number in range(8)])
    assert [result["partition"] for result in results] == [*ALL[1:], ALL[0]] * 2
    app.subscribe("spread", "spread", max_delay=100)
    received = app.taken("spread", 8)
    assert {message["id"]: message["partition"] for message in received} == {
        result["id"]: result["partition"] for result in results
    }
    assert pair.app.browsed("spread") == [b"3", b"7", b"0", b"4", b"1", b"5", b"2", b"6"]
    stats = app.call("stats")["brokers"]
    assert {int(port): values["broker_id"] for port, values in stats.items()} == {
        pair.java.port: "0",
        pair.ours.port: "1",
    }
    app.unsubscribe("spread")


def test_a_transaction_stays_on_the_broker_of_its_first_message(pair: Pair) -> None:
    sender = pair.app.producer("pinning", "pinned")
    brokers = set()
    for number in range(4):
        pair.app.call("begin", sender)
        results = pair.app.send_all(sender, "pinned", *[str(number).encode()] * 3)
        (broker,) = {result["partition"].split("-")[0] for result in results}
        brokers.add(broker)
        pair.app.call("commit", sender)
    eventually(lambda: len(pair.app.browsed("pinned")) == 12, 10, "all four transactions")
    assert brokers == {"0", "1"}


def test_a_coordinator_finds_what_is_in_doubt_on_either(pair: Pair) -> None:
    sender = pair.app.producer("coordinator", "xa", factory="xa")

    def xa(verb: str, branch: str) -> dict[str, object]:
        return pair.app.call("xa", sender, verb, branch)

    brokers: dict[str, str] = {}
    for number in range(30):  # a broker is drawn for each branch
        branch = f"branch-{number}"
        assert xa("start", branch) == {}
        brokers[branch] = pair.app.send(sender, "xa", branch.encode())["partition"].split("-")[0]
        xa("end", branch)
        assert xa("prepare", branch) == {"vote": 0}
        in_doubt = pair.app.call("xa", sender, "recover", "")["in_doubt"]
        assert [name.split(":")[1] for name in in_doubt] == [branch]
        assert xa("commit", branch) == {}
        if set(brokers.values()) == {"0", "1"}:
            break
    assert set(brokers.values()) == {"0", "1"}
    eventually(lambda: len(pair.app.browsed("xa")) == len(brokers), 10, "all branches")
    assert sorted(pair.app.browsed("xa")) == sorted(branch.encode() for branch in brokers)
