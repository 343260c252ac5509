"""One of two brokers was killed and is still registered: what the other one has is shown, what is missing is said."""

import json
from collections.abc import Iterator

import pytest

from metaq import HalfOutcome, Producer, TopicPartition
from metaq.client.questions.cluster import Cluster
from metaq.coordination.servers.local_zookeeper import ZooKeeperProcess
from tests.zookeepers import zookeeper_process

from .cli_helpers import Operator, findings, start, stop
from .client_cluster import Brokers, running_brokers

ALIVE, DEAD = 0, 1
PARTITIONS = [TopicPartition("trades", broker, number) for broker in (ALIVE, DEAD) for number in (0, 1)]
sent: dict[TopicPartition, int] = {}
"""Ids of the messages."""
SESSION_SECONDS = 3600.0
"""The dead broker stays registered as long as the tests run."""


def _undecided(_message: object) -> HalfOutcome:
    return HalfOutcome.UNKNOWN


@pytest.fixture(scope="module")
def patient_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    directory = tmp_path_factory.mktemp("zookeeper")
    with zookeeper_process(directory, max_session_timeout_ms=int(SESSION_SECONDS * 1000)) as server:
        yield server


@pytest.fixture(scope="module")
def brokers(patient_zookeeper: ZooKeeperProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    connect = patient_zookeeper.connect_string
    directory = tmp_path_factory.mktemp("brokers")
    with running_brokers(connect, directory, {"trades": 2, "probes": 1}, 2, session_seconds=SESSION_SECONDS) as brokers:
        with Producer(connect) as producer:
            for each in PARTITIONS:
                sent[each] = producer.send("trades", f"on {each}".encode(), partition=each, keys=["all"]).message_id
                producer.send("trades", f"later on {each}".encode(), partition=each, delay=86_400)
                producer.send_in_transaction("trades", b"half", execute=_undecided, partition=each, group="bank")
        with Cluster(connect) as cluster:
            cluster.commit("audit", dict.fromkeys(PARTITIONS, 0))
        brokers.running[DEAD].kill()
        yield brokers


@pytest.fixture
def operator(brokers: Brokers) -> Operator:
    return Operator(brokers.connect)


def assert_says_what_is_missing(code: int, said: str) -> None:
    assert (code, said.count("\n")) == (1, 1), said
    assert "broker 1 does not answer" in said
    assert "trades 1-0, trades 1-1 missing" in said


def test_which_of_two_brokers_is_asked_must_be_said(operator: Operator) -> None:
    for command in (("stats",), ("reload",)):
        ran = operator.ran(*command)
        assert (ran.code, ran.err) == (2, f"metaq {command[0]}: --broker is missing: choose 0 or 1\n")
    assert operator.refused("stats", "--broker", "7") == (
        "metaq: broker 7 is not registered in ZooKeeper (registered: 0, 1)\n"
    )


def test_topics_describe_shows_the_living_brokers_partitions(operator: Operator) -> None:
    ran = operator.ran("topics", "describe", "trades", "--json")
    assert_says_what_is_missing(ran.code, ran.err)
    rows = json.loads(ran.out)["partitions"]
    assert [(row["partition"], row["messages"]) for row in rows] == [
        ("0-0", 1),
        ("0-1", 1),
        ("1-0", None),
        ("1-1", None),
    ]
    table = operator.ran("topics", "describe", "trades").out
    assert table.count("unknown") == 8


def test_groups_describe_shows_the_living_brokers_partitions(operator: Operator) -> None:
    ran = operator.ran("groups", "describe", "audit", "--json")
    assert_says_what_is_missing(ran.code, ran.err)
    rows = json.loads(ran.out)["partitions"]
    assert [(row["committed"], row["lag_messages"]) for row in rows] == [(0, 1), (0, 1), (0, None), (0, None)]
    assert [row["lag_seconds"] is None for row in rows] == [False, False, True, True]


def test_what_a_group_has_of_a_broker_that_left_for_good_is_deleted(operator: Operator) -> None:
    gone = [TopicPartition("trades", 7, number) for number in (0, 10)]
    with Cluster(operator.connect) as cluster:
        cluster.commit("sales", dict.fromkeys([*gone, *PARTITIONS, TopicPartition("trades", 70, 0)], 0))
        told = "the offsets of group sales of broker 7 (trades 7-0, trades 7-10)"
        ran = operator.ran("groups", "delete", "sales", "--broker", "7", "--dry-run")
        assert (ran.code, ran.out) == (0, f"would delete {told}\n")
        assert len(cluster.view.committed_partitions("sales", "trades")) == 7
        ran = operator.ran("groups", "delete", "sales", "--broker", "7", "--yes")
        assert (ran.code, ran.out) == (0, f"deleted {told}\n")
        assert cluster.view.committed_partitions("sales", "trades") == ["0-0", "0-1", "1-0", "1-1", "70-0"]
        cluster.delete_group("sales")
    for broker, said in (("1", "broker 1 is registered"), ("8", "group 'audit' has no offsets of broker 8")):
        assert said in operator.refused("groups", "delete", "audit", "--broker", broker, "--yes")


def test_consume_prints_the_living_brokers_messages(operator: Operator) -> None:
    ran = operator.ran("consume", "--topic", "trades")
    assert_says_what_is_missing(ran.code, ran.err)
    assert sorted(ran.out.splitlines()) == ["on 0-0", "on 0-1"]
    enough = operator.ran("consume", "--topic", "trades", "--count", "2")
    assert enough.code == 0


def test_consume_of_the_dead_brokers_partition_alone_fails(operator: Operator) -> None:
    ran = operator.ran("consume", "--topic", "trades", "--partition", "1-0")
    assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)


def test_find_shows_what_the_living_broker_has(operator: Operator) -> None:
    ran = operator.ran("find", "--topic", "trades", "--key", "all", "--json")
    assert (ran.code, ran.err.count("\n")) == (1, 1), ran.err
    assert "broker 1 does not answer" in ran.err
    assert [each["payload"] for each in json.loads(ran.out)["messages"]] == ["on 0-1", "on 0-0"]
    alive, dead = PARTITIONS[0], PARTITIONS[2]
    found = operator.ran("find", "--topic", "trades", "--id", str(sent[alive]))
    assert (found.code, "on 0-0" in found.out) == (0, True)
    assert operator.ran("find", "--topic", "trades", "--id", str(sent[dead])).code == 1


@pytest.mark.parametrize("kind", ["delayed", "halves"])
def test_what_waits_at_the_living_broker_is_listed_and_counted(operator: Operator, kind: str) -> None:
    for more in ((), ("--topic", "trades")):
        ran = operator.ran(kind, "list", *more, "--json")
        assert (ran.code, ran.err.count("\n")) == (1, 1), ran.err
        assert "the data of these brokers is missing: broker 1: " in ran.err
        assert sorted(each["partition"] for each in json.loads(ran.out)) == ["0-0", "0-1"]
    ran = operator.ran(kind, "count", "--json")
    assert (ran.code, "broker 1: " in ran.err) == (1, True)
    counts = [number for row in json.loads(ran.out) for number in row.values() if isinstance(number, int)]
    assert sum(counts) == 2, ran.out
    assert operator.ran(kind, "list", "--broker", "0").code == 0
    assert operator.ran(kind, "list", "--broker", "1").code == 1


def test_a_half_message_is_shown_if_the_living_broker_has_it(operator: Operator) -> None:
    found = json.loads(operator.ran("halves", "list", "--json").out)
    shown = operator.ran("halves", "show", str(found[0]["id"]), "--json")
    assert (shown.code, json.loads(shown.out)["partition"]) == (0, found[0]["partition"])
    elsewhere = operator.ran("halves", "show", "1")
    assert (elsewhere.code, elsewhere.out) == (1, "")
    assert "the data of these brokers is missing: broker 1: " in elsewhere.err
    other = operator.ran("halves", "list", "--group", "bamk")
    assert "did you mean 'bank'?" in other.err
    assert (other.code, "broker 1: " in other.err) == (1, True)


def test_consume_begins_at_a_message_of_the_living_broker(operator: Operator) -> None:
    ran = operator.ran("consume", "--topic", "trades", "--from", f"id:{sent[PARTITIONS[1]]}")
    assert_says_what_is_missing(ran.code, ran.err)
    assert ran.out.splitlines() == ["on 0-1"]


def test_the_monitor_gives_one_alarm_for_one_cause_and_calls_unknown_what_it_hides(operator: Operator) -> None:
    ran = operator.ran("monitor", "--probe-topic", "probes", "--min-memory", "0", "--group", "audit", "--json")
    assert ran.code == 1
    found = findings(json.loads(ran.out))
    assert [(each["level"], each["what"]) for each in found if each["level"] != "ok"] == [
        ("alarm", "broker 1"),
        ("alarm", "group audit"),  # nobody reads what waits on broker 0
        ("unknown", "probe probes 1-0"),
        ("unknown", "group audit"),
    ]
    assert "2 messages" in found[1]["text"]
    assert "unknown messages, unknown bytes, unknown seconds in trades 1-0, trades 1-1" in found[3]["text"]


def test_a_following_reader_goes_on_with_the_broker_that_comes_back(brokers: Brokers, operator: Operator) -> None:
    reader = start("consume", "--topic", "trades", "--follow", env={"METAQ_ZK": operator.connect})
    try:
        assert reader.stdout is not None
        assert reader.stderr is not None
        assert {reader.stdout.readline() for _ in range(2)} == {b"on 0-0\n", b"on 0-1\n"}
        assert b"broker 1 does not answer" in reader.stderr.readline()
        brokers.start(DEAD)
        assert {reader.stdout.readline() for _ in range(2)} == {b"on 1-0\n", b"on 1-1\n"}
    finally:
        stop(reader)
        brokers.running[DEAD].kill()
