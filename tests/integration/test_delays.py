"""Delayed messages of real brokers: on the command line, in moves, in broker sets; test_kills.py kills them."""

import json
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from metaq import Consumer, PartitionReader, Producer, SendResult, TopicPartition
from metaq.protocol.errors import MetaqError
from metaq.protocol.message_id import store_time_ms
from metaq.protocol.record import HEADER_BYTES, attribute_of, iter_headers
from tests.integration.client_cluster import running_brokers
from tests.integration.set_nodes import SetNodes
from tests.waiting import DEADLINE, eventually

TOPICS = {"t": 2}
SET_TOPICS = {"t": "numPartitions=2", "safe": "numPartitions=2\nunflushThreshold=0"}
SET_SETTINGS = {"unflush_threshold": 1000}


def test_a_consumer_gets_a_message_at_its_time(brokers, producer: Producer) -> None:
    with Consumer(brokers.connect, group="group", topics=["t"]) as consumer:
        consumer.poll(timeout=1.0)
        due = datetime.now(UTC) + timedelta(seconds=1.5)
        producer.send("t", b"at its time", deliver_at=due)
        producer.send("t", b"at once")
        gone = producer.send("t", b"never", delay=1.0)
        assert producer.cancel(gone)
        came: dict[bytes, datetime] = {}
        deadline = time.monotonic() + DEADLINE
        while len(came) < 2 and time.monotonic() < deadline:
            for message in consumer.poll(timeout=0.5):
                came[message.payload] = datetime.now(UTC)
        assert list(came) == [b"at once", b"at its time"]
        assert came[b"at its time"] >= due


def command(brokers, *words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "metaq", "delayed", *words, "--zk", brokers.connect]
    return subprocess.run(line, check=False, capture_output=True, text=True, timeout=DEADLINE)


def test_the_commands_list_count_and_cancel(brokers, producer: Producer) -> None:
    results = [producer.send("t", b"%d" % number, key=f"k{number}", delay=1000 + number) for number in range(4)]
    counted = command(brokers, "count", "--json")
    assert json.loads(counted.stdout) == [{"topic": "t", "count": 4, "late": 0, "why": None}], counted.stderr
    listed = json.loads(command(brokers, "list", "--topic", "t", "--limit", "3", "--json").stdout)
    assert [each["id"] for each in listed] == [result.message_id for result in results[:3]]
    shown = [(each["keys"], each["payload_start"]) for each in listed]
    assert shown == [([f"k{number}"], str(number)) for number in range(3)]
    first = listed[0]
    over = 1 << 22
    ids = [str(first["id"]), str(first["id"] + 1), str(over)]
    trial = command(brokers, "cancel", "--topic", "t", "--partition", first["partition"], *ids, "--dry-run")
    assert trial.stdout.splitlines() == [
        f"{ids[0]}: would be cancelled",
        f"{ids[1]}: no such message waits for this partition",
        f"{ids[2]}: its time is over: if there was such a message, it is delivered",
    ]
    assert (trial.returncode, trial.stderr) == (1, "metaq: 2 of 3 messages would not be cancelled\n")
    trial = command(brokers, "cancel", "--topic", "t", "--partition", first["partition"], ids[0], "--dry-run", "--json")
    assert (trial.returncode, json.loads(trial.stdout)) == (0, {ids[0]: "waiting"})
    elsewhere = f"0-{1 - int(first['partition'].partition('-')[2])}"
    trial = command(brokers, "cancel", "--topic", "t", "--partition", elsewhere, ids[0], "--dry-run")
    assert "no such message waits for this partition" in trial.stdout
    late = command(brokers, "cancel", "--topic", "t", "--partition", first["partition"], str(over), "--yes")
    assert late.stdout == f"{over}: its time is over: if there was such a message, it is delivered\n"
    assert (late.returncode, late.stderr) == (1, "metaq: 1 of 1 message is not cancelled\n")
    words = ("cancel", "--topic", "t", "--partition", first["partition"], str(first["id"]), "--yes")
    assert "cancelled" in command(brokers, *words).stdout
    other = command(brokers, *words[:-2], str(first["id"] + 1), "--yes")
    assert (other.returncode, "no such message" in other.stdout) == (1, True)
    assert json.loads(command(brokers, "count", "--json").stdout)[0]["count"] == 3


def test_a_move_waits_for_delayed_messages_and_takes_no_more_of_them(chroot: str, tmp_path: Path) -> None:
    with running_brokers(chroot, tmp_path, {"t": 1}, count=2) as brokers, Producer(chroot) as producer:
        first, second = TopicPartition("t", 0, 0), TopicPartition("t", 1, 0)
        soon = producer.send("t", b"soon", delay=2.0, partition=first)
        result = producer.send("t", b"next month", delay=30 * 86400, partition=first)
        words = ["partitions", "move", "-t", "t", "--from", "0", "--to", "1", "--zk", chroot]
        moving = subprocess.Popen([sys.executable, "-m", "metaq", *words], stderr=subprocess.PIPE, text=True)
        seen = [sys.executable, "-m", "metaq", "partitions", "moves", "--zk", chroot, "--json"]

        def waits_for() -> str:
            done = subprocess.run(seen, check=True, capture_output=True, text=True, timeout=DEADLINE)
            return "".join(str(each["waits_for"]) for each in json.loads(done.stdout))

        eventually(lambda: "1 for t-0" in waits_for(), what="the move to wait, with the first one delivered")
        assert soon.due is not None
        assert datetime.now(UTC) >= soon.due
        with pytest.raises(MetaqError):
            producer.send("t", b"refused", delay=5, partition=first, timeout=2.0)
        assert producer.send("t", b"elsewhere", delay=0.1).partition == second
        assert producer.send("t", b"ordinary", partition=first).offset > 0
        assert producer.cancel(result)
        assert moving.wait(DEADLINE) == 0
        assert moving.stderr is not None
        moving.stderr.close()
        reader = brokers.running[1].port
        with PartitionReader(f"127.0.0.1:{reader}", TopicPartition("t", 1, 1), start="earliest") as moved:
            got: list[bytes] = []

            def have_both() -> bool:
                got.extend(message.payload for message in moved.poll(timeout=0.2))
                return len(got) >= 2

            eventually(have_both, what="both messages")
        assert got == [b"soon", b"ordinary"]


# --- broker sets ------------------------------------------------------------------------------------------------------


class Sender(threading.Thread):
    """Sends delayed messages to both topics; knows what was acknowledged, and when it is due."""

    def __init__(self, connect: str) -> None:
        super().__init__(daemon=True)
        self.acknowledged: dict[bytes, SendResult] = {}
        self.errors: list[MetaqError] = []
        self.stopping = threading.Event()
        self._producer = Producer(connect)

    def run(self) -> None:
        number = 0
        while not self.stopping.is_set():
            payloads = [b"%d " % each for each in range(number, number + 5)]
            try:
                topic = "safe" if number % 10 else "t"
                results = self._producer.send_batch(topic, payloads, timeout=60, delay=(number % 40) / 20)
                self.acknowledged.update(zip(payloads, results, strict=True))
            except MetaqError as error:
                self.errors.append(error)
            number += 5
            time.sleep(0.01)
        self._producer.close()

    def wait_for(self, more: int) -> None:
        goal = len(self.acknowledged) + more
        eventually(lambda: len(self.acknowledged) >= goal, what=f"{more} more messages")


def delivered(segments: dict[str, bytes]) -> Iterator[tuple[bytes, int, str]]:
    """Payloads, when each was given to its partition, Unix ms, and where it lies."""
    for path, data in segments.items():
        for header in iter_headers(data):
            body = data[header.start + HEADER_BYTES : header.end]
            attribute = attribute_of(body, header.flag)
            assert attribute is not None
            yield body[4 + len(attribute) :], store_time_ms(header.id) or 0, f"{path}:{header.start}"


def test_a_new_leader_delivers_what_the_old_one_took_and_nothing_twice(nodes: SetNodes) -> None:
    sender = Sender(nodes.connect)
    sender.start()
    sender.wait_for(100)
    for name, other in (("a", "b"), ("b", "a"), ("a", "b")):
        assert nodes.leader == name
        nodes.kill(name)
        nodes.wait_for_leader(other)
        sender.wait_for(100)
        nodes.start(name)
        nodes.wait_in_sync("a", "b")
        sender.wait_for(50)
    sender.stopping.set()
    sender.join(DEADLINE)
    assert sender.errors == []

    def found() -> dict[bytes, list[tuple[int, str]]]:
        places: defaultdict[bytes, list[tuple[int, str]]] = defaultdict(list)
        for payload, time_ms, place in delivered(nodes.segments("b")):
            places[payload].append((time_ms, place))
        return places

    eventually(lambda: not sender.acknowledged.keys() - found().keys(), what="all to be delivered")
    twice = {payload: places for payload, places in found().items() if len(places) > 1}
    assert twice == {}, [sender.acknowledged.get(payload) for payload in twice]
    for payload, time_ms, _ in delivered(nodes.segments("b")):
        if payload in sender.acknowledged:
            due = sender.acknowledged[payload].due
            assert due is not None
            assert time_ms >= round(due.timestamp() * 1000)
    eventually(lambda: nodes.segments("a") == nodes.segments("b"), what="the same bytes on both nodes")
