"""Delayed messages of real brokers: on the command line, in moves, in broker sets; test_kills.py kills them."""

from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

import pytest

from metaq import PartitionReader, Producer, SendResult, TopicPartition
from metaq.protocol.errors import MetaqError
from tests.integration.background import Repeating
from tests.integration.cli_helpers import Operator, start
from tests.integration.client_cluster import read, running_brokers
from tests.integration.set_nodes import SetNodes
from tests.waiting import DEADLINE, eventually

TOPICS = {"t": 2}
SET_TOPICS = {"t": "numPartitions=2", "safe": "numPartitions=2\nunflushThreshold=0"}
SET_SETTINGS = {"unflush_threshold": 1000}


def test_the_commands_list_count_and_cancel(brokers, producer: Producer) -> None:
    results = [producer.send("t", b"%d" % number, key=f"k{number}", delay=1000 + number) for number in range(4)]
    operator = Operator(brokers.connect)
    assert operator.json("delayed", "count") == [{"topic": "t", "count": 4, "late": 0, "why": None}]
    listed = operator.json("delayed", "list", "--topic", "t", "--limit", "3")
    assert [each["id"] for each in listed] == [result.message_id for result in results[:3]]
    shown = [(each["keys"], each["payload_start"]) for each in listed]
    assert shown == [([f"k{number}"], str(number)) for number in range(3)]
    first = listed[0]
    waiting, unknown, over = ids = [str(first["id"]), str(first["id"] + 1), str(1 << 22)]
    cancel = ("delayed", "cancel", "--topic", "t", "--partition")
    here, elsewhere = (*cancel, first["partition"]), (*cancel, f"0-{1 - int(first['partition'].partition('-')[2])}")
    told_of_over = f"{over}: its time is over: if there was such a message, it is delivered\n"
    assert operator.ran(*here, *ids, "--dry-run") == (
        1,
        f"{waiting}: would be cancelled\n{unknown}: no such message waits for this partition\n{told_of_over}",
        "metaq: 2 of 3 messages would not be cancelled\n",
    )
    assert operator.json(*here, waiting, "--dry-run") == {waiting: "waiting"}
    assert "no such message waits for this partition" in operator.ran(*elsewhere, waiting, "--dry-run").out
    assert operator.ran(*here, over, "--yes") == (1, told_of_over, "metaq: 1 of 1 message is not cancelled\n")
    assert "cancelled" in operator.ran(*here, waiting, "--yes").out
    other = operator.ran(*here, unknown, "--yes")
    assert (other.code, "no such message" in other.out) == (1, True)
    assert operator.json("delayed", "count")[0]["count"] == 3


def test_a_move_waits_for_delayed_messages_and_takes_no_more_of_them(chroot: str, tmp_path: Path) -> None:
    with running_brokers(chroot, tmp_path, {"t": 1}, count=2) as brokers, Producer(chroot) as producer:
        first, second = TopicPartition("t", 0, 0), TopicPartition("t", 1, 0)
        soon = producer.send("t", b"soon", delay=2.0, partition=first)
        result = producer.send("t", b"next month", delay=30 * 86400, partition=first)
        moving = start("partitions", "move", "-t", "t", "--from", "0", "--to", "1", "--zk", chroot)

        def waits_for() -> str:
            return "".join(str(each["waits_for"]) for each in Operator(chroot).json("partitions", "moves"))

        eventually(lambda: "1 for t-0" in waits_for(), what="the move to wait, with the first one delivered")
        assert soon.due is not None
        assert datetime.now(UTC) >= soon.due
        with pytest.raises(MetaqError):
            producer.send("t", b"refused", delay=5, partition=first, timeout=2.0)
        assert producer.send("t", b"elsewhere", delay=0.1).partition == second
        assert producer.send("t", b"ordinary", partition=first).offset > 0
        assert producer.cancel(result)
        moving.communicate(timeout=DEADLINE)
        assert moving.returncode == 0
        address = f"127.0.0.1:{brokers.running[1].port}"
        with PartitionReader(address, TopicPartition("t", 1, 1), start="earliest") as moved:
            assert [message.payload for message in read(moved, 2)] == [b"soon", b"ordinary"]


def test_a_new_leader_delivers_what_the_old_one_took_and_nothing_twice(nodes: SetNodes) -> None:
    acknowledged: dict[bytes, SendResult] = {}
    with Producer(nodes.connect) as producer:

        def send(number: int) -> None:
            payloads = [b"%d " % each for each in range(5 * number, 5 * number + 5)]
            topic = "safe" if number % 2 else "t"
            results = producer.send_batch(topic, payloads, timeout=60, delay=number % 8 / 4)
            acknowledged.update(zip(payloads, results, strict=True))

        with Repeating(send, 0.01) as sender:
            nodes.fail_over(sender, 20)
    assert sender.errors == []

    def found() -> dict[bytes, list[tuple[int, str]]]:
        places: defaultdict[bytes, list[tuple[int, str]]] = defaultdict(list)
        for payload, time_ms, place in nodes.delivered("b"):
            places[payload].append((time_ms, place))
        return places

    eventually(lambda: not acknowledged.keys() - found().keys(), what="all to be delivered")
    twice = {payload: places for payload, places in found().items() if len(places) > 1}
    assert twice == {}, [acknowledged.get(payload) for payload in twice]
    for payload, time_ms, _ in nodes.delivered("b"):
        if payload in acknowledged:
            due = acknowledged[payload].due
            assert due is not None
            assert time_ms >= round(due.timestamp() * 1000)
    eventually(lambda: nodes.segments("a") == nodes.segments("b"), what="the same bytes on both nodes")
