"""Commands for operators against a real ZooKeeper, a real broker of ours and a real Java broker."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from bench.javapeer import JavaBroker, JavaClient
from metaq import Producer, TopicPartition
from metaq.client.questions.cluster import Cluster
from metaq.coordination.offsets.offset_store import Offset
from metaq.coordination.records.paths import Paths
from metaq.coordination.session.zk_session import ZkSession
from tests.broker_process import RunningBroker, server_ini
from tests.integration.cli_helpers import Operator
from tests.waiting import eventually

from .cli_helpers import findings, run
from .client_cluster import SHORT_SESSION_SECONDS, Brokers, running_brokers
from .coordination_helpers import make_chroot
from .java_peers import received, require_java

TOPICS = {"orders": 2, "trades": 4}


def send(connect: str, topic: str, partition: int, *payloads: bytes) -> None:
    with Producer(connect) as producer:
        for payload in payloads:
            producer.send(topic, payload, partition=TopicPartition(topic, 0, partition))


def values(rows: Sequence[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in rows]


def test_a_running_broker_of_ours(brokers: Brokers, operator: Operator) -> None:
    send(operator.connect, "trades", 0, b"one", b"two")
    system = operator.json("stats", "--broker", "0")
    assert (system["broker_id"], system["port"]) == (0, brokers.running[0].port)
    assert values(operator.json("stats", "offsets"), "topic", "part", "max_offset") == [("trades", 0, 46)]
    address = f"127.0.0.1:{brokers.running[0].port}"
    assert "[topic=trades]" in operator.ran("stats", "--server", address, "config").out

    close = ("partitions", "close", "--topic", "trades", "--start", "1", "--end", "2")
    assert operator.ran(*close, "--dry-run").out == f"would close trades-1, trades-2 on meta://{address}\n"
    assert operator.json(*close) == {"topic": "trades", "closed": [1, 2]}
    assert operator.json("partitions", "open", "--topic", "trades") == {"topic": "trades", "opened": [1, 2]}
    beyond = operator.refused("partitions", "close", "--topic", "trades", "--start", "1", "--end", "9")
    assert "--end=9: " in beyond
    assert beyond.endswith("wrong partition 9: there are 4, from 0 to 3\n")
    assert "nothing" in operator.refused("partitions", "close", "--topic", "nothing", "--start", "0", "--end", "0")

    assert operator.json("reload")["changed"] is False
    ini = brokers.running[0].ini
    ini.write_text(f"{ini.read_text()}\n[topic=more]\nnumPartitions=1\nacceptPublish=false\n")
    assert operator.json("reload")["addedTopics"] == ["more"]
    listed = values(operator.json("topics", "list"), "topic", "partitions")
    assert listed == [("more", 1), ("orders", 2), ("trades", 4)]  # to read from counts as well
    assert operator.json("replication", "status")["role"] == "master"
    assert "no part in replication" in operator.refused("replication", "restart")
    assert operator.json("transactions", "list") == []
    assert operator.ran("transactions", "rollback", "XID:1:00:00:q", "--yes").code == 1

    checked = operator.json("check", str(brokers.running[0].directory / "data"))
    assert (checked["in_use"], checked["damaged"]) == (True, False)
    assert values(checked["partitions"], "name", "records") == [("trades-0", 2)]


def test_offsets_are_shown_copied_whole_and_skipped_to_the_end(brokers: Brokers, operator: Operator) -> None:
    send(operator.connect, "orders", 0, b"read", b"unread")
    negative = Offset(-5_468_000_000_000_000_031, 24)
    with Cluster(operator.connect) as cluster:
        cluster.commit("audit", {TopicPartition("orders", 0, n): negative for n in (0, 1)})
        cluster.commit("audit", {TopicPartition("orders", 7, 3): 1})
        cluster.commit("other", {TopicPartition("orders", 0, 1): 99})
    shown = operator.json("offsets", "show", "--topic", "orders", "--group", "audit", "--partition", "0-1")
    assert values(shown, "partition", "offset", "message_id") == [("0-1", 24, negative.message_id)]
    assert "no such offset" in operator.refused("offsets", "show", "--group", "audit", "--partition", "0-3")

    between = ("--from-broker", "0", "--to-broker", "7", "--start", "0", "--end", "1", "--target-start", "2")
    copy = ("offsets", "copy", "--topic", "orders", *between)
    planned = [
        ("audit", "7-2", "would be copied"),
        ("audit", "7-3", "there already"),
        ("other", "7-3", "would be copied"),
    ]
    assert values(operator.json(*copy, "--dry-run"), "group", "target", "result") == planned
    assert len(operator.json("offsets", "show")) == 4
    operator.json(*copy)
    with Cluster(operator.connect) as cluster:
        found = [cluster.committed("audit", TopicPartition("orders", 7, n)) for n in (2, 3)]
        assert found == [negative, Offset(-1, 1)]
        assert cluster.committed("other", TopicPartition("orders", 7, 3)) == Offset(-1, 99)

    skip = ("offsets", "skip", "audit", "--topic", "orders", "--partition", "0-0")
    assert operator.json(*skip, "--dry-run")["partitions"] == [{"partition": "0-0", "from": 24, "to": 50}]
    assert operator.json("offsets", "show", "-g", "audit", "-p", "0-0")[0]["offset"] == 24
    zookeeper = KazooClient(operator.connect)
    zookeeper.start()
    owner = Paths().owner("audit", "orders", "0-0")
    zookeeper.create(owner, b"G_reader", makepath=True)
    assert "0-0 by G_reader" in operator.refused(*skip)
    zookeeper.delete(owner)
    zookeeper.stop()
    zookeeper.close()
    operator.json(*skip)
    assert operator.json("offsets", "show", "-g", "audit", "-p", "0-0")[0]["offset"] == 50
    seek = ("offsets", "seek", "audit", "--topic", "orders", "--to", "earliest", "--partition", "0-0")
    assert operator.json(*seek, "--dry-run")["partitions"] == [{"partition": "0-0", "offset": 0}]
    assert operator.json("offsets", "show", "-g", "audit", "-p", "0-0")[0]["offset"] == 50


def test_a_running_java_broker_and_its_directory(operator: Operator, tmp_path: Path) -> None:
    require_java()
    make_chroot(operator.connect)
    with JavaBroker(tmp_path, operator.connect, {"trades": 2}, {"unflushThreshold": 0}) as broker:
        address = f"127.0.0.1:{broker.port}"
        with JavaClient(operator.connect, tmp_path / "client.log") as client:
            for number in range(6):
                client.put("trades", b"%d" % number)
            client.join("trades", "readers")
            assert len(received(client, "readers", 6)) == 6
            client.leave("readers")
        assert operator.json("stats", "--broker", "0")["cmd_put"] == 6
        topics = operator.json("stats", "topics", "--server", address)
        assert values(topics, "topic", "partitions", "message_count", "accept_publish") == [("trades", 2, 6, "true")]
        assert {row["max_offset"] for row in operator.json("stats", "offsets")} == {63}
        assert operator.json("stats", "realtime").keys() >= {"realtime_put", "realtime_put_failed"}
        assert operator.json("stats", "trades")["message_count"] == 6
        assert "brokerId" in operator.ran("stats", "config").out
        for command in (("reload",), ("replication", "status"), ("partitions", "open", "--topic", "trades")):
            assert "JMX port" in operator.refused(*command)

        shown = operator.json("offsets", "show", "--group", "readers")
        assert values(shown, "partition", "offset") == [("0-0", 63), ("0-1", 63)]
        assert all(row["message_id"] < -1 for row in shown)
        copied = operator.json(
            "offsets", "copy", "-t", "trades", "--from-broker", "0", "--to-broker", "3", "--start", "0", "--end", "1"
        )
        assert values(copied, "target", "result") == [("3-0", "copied"), ("3-1", "copied")]
        with Cluster(operator.connect) as cluster:
            partitions = [TopicPartition("trades", broker_id, 1) for broker_id in (0, 3)]
            source, target = cluster.committed_many("readers", partitions)
        assert source == target
        data = broker.data
        running = operator.json("check", str(data))
        assert values(running["partitions"], "name", "records") == [("trades-0", 3), ("trades-1", 3)]

    with (data / "trades-1" / f"{0:020d}.meta").open("r+b") as segment:
        segment.seek(20)
        segment.write(b"X")
    ran = operator.ran("check", str(data), "--json")
    assert ran.code == 1
    damaged = json.loads(ran.out)
    assert values(damaged["partitions"], "name", "records") == [("trades-0", 3), ("trades-1", 2)]
    assert damaged["partitions"][1]["bad"] == [{"start": 0, "end": 21, "kind": "damaged"}]

    move = f"partitions renumber --data-dir {data} -t trades --start 0 --end 0 --offset 5 --yes"
    assert operator.json(*move.split())["moved"] == [{"from": str(data / "trades-0"), "to": str(data / "trades-5")}]
    with JavaBroker(tmp_path, operator.connect, {"trades": 6}, {"unflushThreshold": 0}):
        send(operator.connect, "trades", 5, b"goes on", b"and on")
        (moved,) = (row for row in operator.json("stats", "offsets") if row["part"] == 5)
    assert moved["max_offset"] == 63 + 27 + 26


def test_the_monitor_finds_a_healthy_cluster_a_lagging_group_and_a_dead_broker(
    brokers: Brokers, operator: Operator
) -> None:
    look = ("monitor", "--probe-topic", "trades", "--min-memory", "0")
    healthy = findings(operator.json(*look))
    assert {each["level"] for each in healthy} == {"ok"}
    assert any("read back in" in each["text"] for each in healthy)
    with Cluster(operator.connect) as cluster:
        cluster.commit("audit", {TopicPartition("trades", 0, 0): 0})
    lagging = operator.ran(*look, "--max-lag", "10")
    assert lagging.code == 1
    assert "alarm group audit: no live member, and messages are waiting: 2 messages" in lagging.out
    assert "'audti' has no members and no offsets: did you mean 'audit'?" in operator.refused(*look, "--group", "audti")
    assert "did you mean 'trades'?" in operator.refused("monitor", "--probe-topic", "trade")
    brokers.running[0].kill()
    dead = operator.ran(*look)
    assert dead.code == 1
    assert "alarm" in dead.out


def test_an_empty_chroot_is_told_from_a_cluster_without_topics_or_groups(chroot: str) -> None:
    for command in (("brokers", "list"), ("groups", "list"), ("topics", "list")):
        ran = run(*command, "--json", env={"METAQ_ZK": chroot})
        assert (ran.code, ran.out) == (0, "[]\n")
        assert ran.err == f"metaq: no broker is registered at {chroot}: start one, or name another --zk\n"


def test_a_dead_broker_whose_session_has_ended_is_missed_by_every_tool(
    chroot: str, tmp_path: Path, operator: Operator
) -> None:
    with (
        running_brokers(chroot, tmp_path, TOPICS, session_seconds=SHORT_SESSION_SECONDS) as brokers,
        Cluster(operator.connect) as cluster,
    ):
        send(operator.connect, "trades", 0, b"waiting")
        cluster.commit("audit", {TopicPartition("trades", 0, 0): 0})
        brokers.running[0].kill()
        eventually(lambda: not cluster.view.brokers())
    look = operator.ran("monitor", "--min-memory", "0")
    assert look.code == 1
    assert (
        "alarm broker 0: is not registered, so what waits there is unknown; groups with offsets on it: audit: "
        "start it, or --ignore-broker 0 if it is out of service for good" in look.out
    )
    assert "unknown group audit: lag unknown without broker 0: unknown messages" in look.out
    (row,) = operator.json("brokers", "list")
    assert (row["broker"], row["role"], row["address"], row["partitions"]) == (0, "gone", None, None)
    absent = "metaq: broker 0 is not registered in ZooKeeper now; data that only it has is not shown"
    topics = operator.ran("topics", "list")
    assert (topics.code, topics.err.strip()) == (0, absent)
    for command in (
        ("topics", "describe", "trades"),
        ("find", "--topic", "trades", "--key", "k"),
        ("consume", "--topic", "trades", "--from", "earliest"),
    ):
        ran = operator.ran(*command)
        assert (ran.code, ran.err.splitlines()[0]) == (1, absent)
    group = operator.ran("groups", "describe", "audit")
    assert group.code == 1
    assert "broker 0 is not registered in ZooKeeper: trades 0-0 missing: start that broker" in group.err
    assert "trades" in group.out


def test_offsets_on_a_broker_that_is_gone_are_not_moved_and_that_is_told(brokers: Brokers, operator: Operator) -> None:
    gone = TopicPartition("trades", 9, 0)
    with Cluster(operator.connect) as cluster:
        cluster.commit("halved", {TopicPartition("trades", 0, 0): 0, gone: 77})
        for command in (
            ("groups", "seek", "halved", "--topic", "trades", "--to", "latest"),
            ("offsets", "skip", "halved", "--topic", "trades"),
        ):
            for option in ((), ("--dry-run",)):
                ran = operator.ran(*command, *option)
                assert ran.code == 1
                assert "0-0" in ran.out
                assert ran.err.count("\n") == 1
                assert "broker 9 is not registered in ZooKeeper: the offsets of 'halved' in trades 9-0 stay" in ran.err
        assert operator.ran(*command, "--partition", "0-0").code == 0
        (there,) = cluster.committed_many("halved", [gone])
        assert there is not None
        assert there.offset == 77


def test_a_broker_that_is_absent_is_told_by_whatever_looks_at_or_moves_a_group(
    brokers: Brokers, operator: Operator
) -> None:
    """It may have partitions that the group has never read, of which ZooKeeper knows nothing."""
    absent = "metaq: broker 9 is not registered in ZooKeeper now; data that only it has is"
    with Cluster(operator.connect) as cluster:
        cluster.commit("partial", {TopicPartition("trades", 0, 0): 0})
    with ZkSession(operator.connect) as session:
        path = session.paths.broker(9)
        session.nodes.ensure([path])
        try:
            seek = operator.ran("groups", "seek", "partial", "--topic", "trades", "--to", "latest", "--dry-run")
            describe = operator.ran("groups", "describe", "partial")
            consume = operator.ran("consume", "--topic", "trades", "--group", "partial", "--timeout", "0.1")
        finally:
            session.zk.delete(path)
    assert (seek.code, seek.err.strip()) == (0, f"{absent} left as it is")
    assert (describe.code, describe.err.strip()) == (0, f"{absent} not shown")
    assert (consume.code, consume.err.strip()) == (0, f"{absent} not shown")


def test_the_monitor_is_not_green_while_messages_wait_for_a_group_without_members(
    brokers: Brokers, operator: Operator
) -> None:
    for partition in range(4):
        send(operator.connect, "trades", partition, b"waiting", b"too")
    look = ("monitor", "--min-memory", "0")
    with Cluster(operator.connect) as cluster:
        cluster.commit("audit", {TopicPartition("trades", 0, 0): 0})
    ran = operator.ran(*look, "--json")
    (alarm,) = (each for each in findings(json.loads(ran.out)) if each["level"] != "ok")
    assert ran.code == 1
    assert alarm["level"] == "alarm"
    # also what is in partitions of which no offset was ever committed
    assert "8 messages, 200 bytes, " in alarm["text"]
    assert "trades 0-0, trades 0-1, trades 0-2, trades 0-3" in alarm["text"]
    assert operator.ran(*look, "--ignore-group", "audit").code == 0
    with Cluster(operator.connect) as cluster:
        cluster.commit("audit", {TopicPartition("trades", 9, 0): 0})
    gone = operator.ran(*look)
    assert gone.code == 1
    assert "alarm broker 9: is not registered, so what waits there is unknown; groups with offsets on it: audit" in (
        gone.out
    )
    assert operator.ran(*look, "--ignore-group", "audit").code == 0
    out_of_service = operator.ran(*look, "--ignore-broker", "9")
    assert "broker 9" not in out_of_service.out
    assert "no live member, and messages are waiting" in out_of_service.out


def test_a_damaged_message_hides_none_that_find_looks_for(brokers: Brokers, operator: Operator) -> None:
    partition = TopicPartition("trades", 0, 2)
    with Producer(operator.connect) as producer:
        good, bad = (producer.send("trades", text, key="k", partition=partition) for text in (b"good", b"bad"))
    (segment,) = brokers.running[0].directory.glob("data/trades-2/*.meta")
    with segment.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"D")
    search = ("find", "--topic", "trades", "--key", "k")
    ran = operator.ran(*search)
    assert (ran.code, str(good.message_id) in ran.out, str(bad.message_id) in ran.out) == (1, True, False)
    assert f"damaged, not shown: topic trades, partition 0-2: record at byte {bad.offset}" in ran.err
    found = json.loads(operator.ran(*search, "--json").out)
    assert [each["id"] for each in found["messages"]] == [good.message_id]
    assert [(each["partition"], each["offset"]) for each in found["damaged"]] == [("0-2", bad.offset)]


def test_the_lag_of_a_group_is_told_in_bytes_messages_and_seconds(brokers: Brokers, operator: Operator) -> None:
    send(operator.connect, "trades", 0, b"read", b"unread")
    with Cluster(operator.connect) as cluster:
        cluster.commit("audit", {TopicPartition("trades", 0, 0): 24, TopicPartition("trades", 0, 1): 999})
    first, beyond, *_ = operator.json("groups", "describe", "audit")["partitions"]
    assert (first["lag_bytes"], first["lag_messages"]) == (26, 1)
    assert 0 <= first["lag_seconds"] < 1000
    # nobody knows how far an offset is behind that the partition does not reach
    assert (beyond["lag_bytes"], beyond["lag_messages"], beyond["lag_seconds"]) == (None, None, None)


def test_a_closed_partition_hides_none_of_the_others(brokers: Brokers, operator: Operator) -> None:
    for partition in (0, 1):
        send(operator.connect, "orders", partition, b"one")
    with Cluster(operator.connect) as cluster:
        cluster.commit("audit", {TopicPartition("orders", 0, 0): 0})
    assert operator.ran("partitions", "close", "--topic", "orders", "--start", "1", "--end", "1").code == 0
    rows = operator.json("topics", "describe", "orders")["partitions"]
    assert values(rows, "messages", "closed") == [(1, False), (None, True)]
    rows = operator.json("groups", "describe", "audit")["partitions"]
    assert values(rows, "lag_messages", "closed") == [(1, False), (None, True)]
    assert "warning group audit: closed by an operator" in operator.ran("monitor", "--min-memory", "0").out
    ran = operator.ran("consume", "--topic", "orders")
    assert (ran.code, ran.out, ran.err) == (
        1,
        "one\n",
        "metaq: orders 0-1 was closed by an operator, and is left out\n",
    )


def test_a_group_that_nobody_needs_is_deleted(brokers: Brokers, operator: Operator) -> None:
    with Cluster(operator.connect) as cluster:
        cluster.commit("audit", {TopicPartition("trades", 0, number): 0 for number in range(3)})
        cluster.commit("other", {TopicPartition("trades", 0, 0): 0})
    offsets = "group audit and its offsets (trades: 3)"
    assert operator.ran("groups", "delete", "audit", "--dry-run").out == f"would delete {offsets}\n"
    assert "there is no group 'audti': did you mean 'audit'?" in operator.refused("groups", "delete", "audti", "--yes")
    assert "add --yes" in operator.ran("groups", "delete", "audit").err
    assert values(operator.json("groups", "list"), "group") == [("audit",), ("other",)]
    assert operator.ran("groups", "delete", "audit", "--yes").out == f"deleted {offsets}\n"
    assert values(operator.json("groups", "list"), "group") == [("other",)]


def test_what_a_tool_is_to_change_has_to_exist(brokers: Brokers, operator: Operator, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("one\n")
    send(operator.connect, "trades", 0, b"one")
    with Cluster(operator.connect) as cluster:
        cluster.commit("audit", {TopicPartition("trades", 0, 0): 0})
    for seek in ("groups", "offsets"):
        said = operator.refused(seek, "seek", "audti", "--topic", "trades", "--to", "earliest")
        assert "group 'audti' has no members and no offsets: did you mean 'audit'?" in said
        said = operator.refused(seek, "seek", "audit", "--topic", "orders", "--to", "earliest")
        assert (
            "group 'audit' has no offsets of topic 'orders', it reads trades: new=True or --new gives it some" in said
        )
    assert "did you mean 'audit'" in operator.refused("offsets", "skip", "audti", "--topic", "trades")
    for action in ("commit", "rollback", "complete", "forget"):
        said = operator.refused("transactions", action, "garbage", "--broker", "0", "--dry-run")
        assert "transaction 'garbage'" in said
    for command in (
        ("produce", "--topic", "trade", str(lines)),
        ("produce", "--topic", "trade", os.devnull),
        ("bench", "produce", "--topic", "trade", "--count", "1"),
        ("bench", "consume", "--topic", "trade"),
        ("find", "--topic", "trade", "--key", "k"),
        ("stats", "trade"),
        ("offsets", "show", "--topic", "trade"),
        ("partitions", "open", "--topic", "trade"),
        ("partitions", "close", "--topic", "trade", "--start", "0", "--end", "0"),
        ("partitions", "close", "--topic", "trade", "--start", "0", "--end", "0", "--dry-run"),
    ):
        assert "did you mean 'trades'?" in operator.refused(*command)
    assert "did you mean 'audit'?" in operator.refused("offsets", "show", "--group", "audti")
    misspelt = operator.refused("consume", "--topic", "trade", "--group", "readers", "--timeout", "1")
    assert "topic 'trade' is published by no live broker: did you mean 'trades'?" in misspelt
    assert operator.json("groups", "list") == [{"group": "audit", "members": 0, "topics": ["trades"]}]


LOOK = ("monitor", "--min-memory", "0")


def test_a_broker_without_room_and_a_server_of_zookeeper_that_is_down_are_alarms(tmp_path: Path, chroot: str) -> None:
    ini = server_ini(tmp_path / "data", {"t": "numPartitions=1"}, zookeeper=f"zk.zkConnect={chroot}")
    with RunningBroker(tmp_path, ini):
        operator = Operator(chroot)
        green = operator.ran(*LOOK)
        assert green.code == 0, green.out
        assert f"ok    broker 0: {tmp_path}/data has " in green.out
        servers, _, below = chroot.partition("/")
        one_down = Operator(f"{servers},127.0.0.1:1/{below}").ran(*LOOK)
        assert one_down.code == 1
        assert "alarm zookeeper: nothing listens at 127.0.0.1:1: start ZooKeeper there" in one_down.out
        assert "answers, 1 of 2 servers" in one_down.out
    command = ("-m", "metaq", "broker", "--disk-reserve", "1000t", "-f")
    with RunningBroker(tmp_path, ini, module=command):
        full = operator.ran(*LOOK)
    assert full.code == 1
    assert f"alarm broker 0: refuses messages for want of room: {tmp_path}/data has " in full.out
