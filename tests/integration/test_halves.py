"""Transactions with check-back of real brokers: on the command line, in broker sets; test_kills.py kills them."""

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from metaq import Consumer, HalfOutcome, Message, Producer, ProducerConfig
from metaq.protocol.errors import MetaqError, TransactionTooLate
from metaq.protocol.record import HEADER_BYTES, attribute_of, iter_headers
from tests.integration.set_nodes import SetNodes, set_nodes
from tests.waiting import DEADLINE, eventually

TOPICS = {"t": 2}
SET_TOPICS = {"t": "numPartitions=2", "safe": "numPartitions=2\nunflushThreshold=0"}
BANK = ProducerConfig(producer_group="bank")


def said(outcome: bool | HalfOutcome, message: Message) -> bool | HalfOutcome:
    return outcome


def test_consumers_see_committed_messages_alone(brokers) -> None:
    with (
        Producer(brokers.connect, config=BANK) as producer,
        Consumer(brokers.connect, group="group", topics=["t"]) as consumer,
    ):
        consumer.poll(timeout=1.0)
        for number in range(30):
            outcome = (True, False, HalfOutcome.UNKNOWN)[number % 3]
            producer.send_in_transaction("t", b"%d" % number, execute=partial(said, outcome))
        producer.send("t", b"last", partition=producer.partitions("t")[0])
        producer.send("t", b"last", partition=producer.partitions("t")[1])
        came: list[bytes] = []
        deadline = time.monotonic() + DEADLINE
        while came.count(b"last") < 2 and time.monotonic() < deadline:
            came += [message.payload for message in consumer.poll(timeout=0.5)]
    assert sorted(came) == sorted([b"last"] * 2 + [b"%d" % number for number in range(0, 30, 3)])


def test_transactions_under_way_together_keep_their_outcomes(brokers) -> None:
    after = (None, 2.0, 30, None)  # with times of their first checks that share no batch
    with (
        Producer(brokers.connect, config=BANK) as producer,
        Consumer(brokers.connect, group="group", topics=["t"]) as consumer,
    ):
        send = producer.send_in_transaction_async
        futures = [
            send("t", b"%d" % number, execute=partial(said, number % 3 > 0), check_after=after[number % 4])
            for number in range(1200)
        ]
        results = [future.result(DEADLINE) for future in futures]
        outcomes = [each.outcome for each in results]
        assert outcomes == [HalfOutcome.COMMITTED if number % 3 else HalfOutcome.ROLLED_BACK for number in range(1200)]
        places: dict[object, bytes] = {}
        eventually(
            lambda: (
                places.update({(m.partition, m.offset): m.payload for m in consumer.poll(timeout=0.5)})
                or len(places) == 800
            ),
            what="the messages",
        )
    sent = [(number, each.sent) for number, each in enumerate(results)]
    assert places == {(each.partition, each.offset): b"%d" % number for number, each in sent if each is not None}


BEGINS = """
import sys, os
from metaq import Producer, ProducerConfig
with Producer(sys.argv[1], config=ProducerConfig(producer_group="bank")) as producer:
    producer.send_in_transaction("t", b"orphan", execute=lambda message: os._exit(9), check_after=0.5)
"""


def test_another_producer_answers_when_the_first_one_is_gone(brokers) -> None:
    begun = subprocess.run([sys.executable, "-c", BEGINS, brokers.connect], check=False, timeout=DEADLINE)
    assert begun.returncode == 9
    asked: list[bytes] = []

    def check(message: Message) -> bool:
        asked.append(message.payload)
        return True

    with Producer(brokers.connect, config=BANK) as producer:
        producer.check_transactions(check, ["t"])
        eventually(lambda: asked == [b"orphan"], what="the question")
        with Consumer(brokers.connect, group="group", topics=["t"]) as consumer:
            eventually(lambda: [m.payload for m in consumer.poll(timeout=0.5)] == [b"orphan"], what="the message")


def command(brokers, *words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "metaq", "halves", *words, "--zk", brokers.connect]
    return subprocess.run(line, check=False, capture_output=True, text=True, timeout=DEADLINE)


def test_the_commands_list_count_and_decide(brokers) -> None:
    with Producer(brokers.connect, config=BANK) as producer:
        place = producer.partitions("t")[0]
        results = [
            producer.send_in_transaction(
                "t",
                b"%d" % number * 300,
                key=f"transfer-{number}",
                properties={"n": number},
                execute=lambda message: HalfOutcome.UNKNOWN,
                check_after=0.1 if number else 1000,
                partition=place,
            )
            for number in range(4)
        ]
    ids = [result.half.message_id for result in results]

    def counted() -> list[dict[str, object]]:
        found: list[dict[str, object]] = json.loads(command(brokers, "count", "--json").stdout)
        return found

    bank = {"group": "bank", "waiting": None, "asked": 3, "parked": 0, "askers": 0}
    waiting = {"group": None, "waiting": 1, "asked": None, "parked": None, "askers": None}
    eventually(lambda: counted() == [waiting, bank], what="the counts")
    listed = json.loads(command(brokers, "list", "--topic", "t", "--state", "asked", "--json").stdout)
    assert [(each["id"], each["group"], each["asked"]) for each in listed] == [(each, "bank", 0) for each in ids[1:]]
    assert [(each["keys"], each["payload_start"]) for each in listed] == [
        ([f"transfer-{number}"], str(number) * 60) for number in (1, 2, 3)
    ]
    assert [each["id"] for each in json.loads(command(brokers, "list", "--json").stdout)] == [*ids[1:], ids[0]]
    where = ("--topic", "t", "--partition", listed[0]["partition"])
    shown = json.loads(command(brokers, "show", str(ids[1]), "--json").stdout)
    assert {name: shown[name] for name in ("id", "topic", "partition", "group", "state", "asked", "keys")} == {
        "id": ids[1],
        "topic": "t",
        "partition": str(place),
        "group": "bank",
        "state": "asked",
        "asked": 0,
        "keys": ["transfer-1"],
    }
    assert (shown["payload"], shown["properties"], shown["tag"]) == ("1" * 300, {"n": 1}, None)
    assert shown["taken"] < shown["first"]
    assert "offset" not in shown
    assert command(brokers, "show", str(ids[1]), "--raw").stdout == "1" * 300
    table = command(brokers, "show", str(ids[0])).stdout
    assert [each in table for each in (str(ids[0]), "waiting", "transfer-0", "n=0", "0" * 300)] == [True] * 5
    unknown = command(brokers, "show", str(ids[3] + 1))
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert f"no half message {ids[3] + 1} waits (asked brokers: 0): its transaction may be decided" in unknown.stderr
    assert command(brokers, "show", str(ids[1]), "--raw", "--json").returncode == 2
    assert "would commit 2" in command(brokers, "commit", *where, *map(str, ids[:2]), "--dry-run").stdout
    done = command(brokers, "commit", *where, *map(str, ids[:2]), "--yes")
    assert (done.returncode, done.stdout.count("committed")) == (0, 2), done.stderr
    done = command(brokers, "rollback", *where, str(ids[2]), "--yes", "--json")
    assert json.loads(done.stdout) == {str(ids[2]): "rolled-back"}
    late = command(brokers, "commit", *where, str(ids[2]), "--yes")
    assert (late.returncode, "rolled-back already" in late.stdout) == (1, True)
    with Consumer(brokers.connect, group="group", topics=["t"]) as consumer:
        came: list[bytes] = []

        def have_two() -> bool:
            came.extend(message.payload for message in consumer.poll(timeout=0.5))
            return len(came) == 2

        eventually(have_two, what="two")
    assert came == [b"0" * 300, b"1" * 300]


# --- broker sets ------------------------------------------------------------------------------------------------------


@pytest.fixture
def nodes(tmp_path: Path, chroot: str) -> Iterator[SetNodes]:
    with set_nodes(tmp_path, chroot, SET_TOPICS, unflush_threshold=1000) as nodes:
        yield nodes


class Bank(threading.Thread):
    """Does transactions on both topics, of which every third is told by a check alone; knows which are committed."""

    def __init__(self, connect: str) -> None:
        super().__init__(daemon=True)
        self.committed: set[bytes] = set()
        self.begun = 0
        self.errors: list[MetaqError] = []
        self.stopping = threading.Event()
        self.producer = Producer(connect, config=BANK)
        self.producer.check_transactions(lambda message: message.payload in self.committed, list(SET_TOPICS))

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                topic = "safe" if self.begun % 2 else "t"
                payload = b"%d" % self.begun
                self.producer.send_in_transaction(topic, payload, execute=self.execute, timeout=60, check_after=2)
            except MetaqError as error:
                self.errors.append(error)
            self.begun += 1
            time.sleep(0.005)

    def execute(self, message) -> bool | None:
        number = int(message.payload)
        if number % 5:
            self.committed.add(message.payload)
        return None if number % 3 == 0 else number % 5 != 0

    def wait_for(self, more: int) -> None:
        goal = self.begun + more
        eventually(lambda: self.begun >= goal, what=f"{more} more transactions")


def delivered(segments: dict[str, bytes]) -> Iterator[bytes]:
    for data in segments.values():
        for header in iter_headers(data):
            body = data[header.start + HEADER_BYTES : header.end]
            attribute = attribute_of(body, header.flag)
            assert attribute is not None
            yield body[4 + len(attribute) :]


def test_a_new_leader_goes_on_with_the_transactions_of_the_old_one(nodes: SetNodes) -> None:
    nodes.start("a", "b")
    nodes.wait_in_sync("a", "b")
    bank = Bank(nodes.connect)
    bank.start()
    bank.wait_for(50)
    for name, other in (("a", "b"), ("b", "a"), ("a", "b")):
        assert nodes.leader == name
        nodes.kill(name)
        nodes.wait_for_leader(other)
        bank.wait_for(50)
        nodes.start(name)
        nodes.wait_in_sync("a", "b")
        bank.wait_for(20)
    bank.stopping.set()
    bank.join(DEADLINE)
    assert [each for each in bank.errors if not isinstance(each, TransactionTooLate)] == []

    def found() -> Counter[bytes]:
        return Counter(delivered(nodes.segments("b")))

    eventually(lambda: not bank.committed - found().keys(), what="all that is committed to be delivered")
    bank.producer.close()
    assert sorted(found().keys() - bank.committed) == []
    assert [payload for payload, count in found().items() if count > 1] == []
    eventually(lambda: nodes.segments("a") == nodes.segments("b"), what="the same bytes on both nodes")


def test_outcome_is_unknown_and_not_lost_while_nobody_leads(nodes: SetNodes) -> None:
    nodes.start("a")
    nodes.wait_for_leader("a")
    with Producer(nodes.connect, config=BANK) as producer:
        eventually(lambda: producer.partitions("safe"), what="the topic, which its leader publishes")

        def execute(message) -> bool:
            nodes.kill("a")
            return True

        result = producer.send_in_transaction("safe", b"x", execute=execute, check=lambda message: True, timeout=2)
        assert result.outcome is HalfOutcome.UNKNOWN
        assert result.cause is not None
        nodes.start("a")
        nodes.wait_for_leader("a")
        eventually(lambda: list(delivered(nodes.segments("a"))) == [b"x"], what="the message")
