"""Transactions with check-back of real brokers: on the command line, in broker sets; test_kills.py kills them."""

import subprocess
import sys
from collections import Counter
from functools import partial

from metaq import Consumer, HalfOutcome, Message, Producer, ProducerConfig
from metaq.protocol.errors import TransactionTooLate
from tests.integration.background import Repeating
from tests.integration.cli_helpers import Operator
from tests.integration.client_cluster import read
from tests.integration.set_nodes import SetNodes
from tests.waiting import DEADLINE, eventually

TOPICS = {"t": 2}
SET_TOPICS = {"t": "numPartitions=2", "safe": "numPartitions=2\nunflushThreshold=0"}
SET_SETTINGS = {"unflush_threshold": 1000}
BANK = ProducerConfig(producer_group="bank")


def said(outcome: bool | HalfOutcome, message: Message) -> bool | HalfOutcome:
    return outcome


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

    operator = Operator(brokers.connect)
    bank = {"group": "bank", "waiting": None, "asked": 3, "parked": 0, "askers": 0}
    waiting = {"group": None, "waiting": 1, "asked": None, "parked": None, "askers": None}
    eventually(lambda: operator.json("halves", "count") == [waiting, bank], what="the counts")
    listed = operator.json("halves", "list", "--topic", "t", "--state", "asked")
    assert [(each["id"], each["group"], each["asked"]) for each in listed] == [(each, "bank", 0) for each in ids[1:]]
    assert [(each["keys"], each["payload_start"]) for each in listed] == [
        ([f"transfer-{number}"], str(number) * 60) for number in (1, 2, 3)
    ]
    assert [each["id"] for each in operator.json("halves", "list")] == [*ids[1:], ids[0]]
    waits, asked, decided, unknown = (str(each) for each in (*ids[:3], ids[3] + 1))
    shown = operator.json("halves", "show", asked)
    assert shown.pop("taken") < shown["first"]
    assert "offset" not in shown
    told = {"id": ids[1], "topic": "t", "partition": str(place), "group": "bank", "state": "asked", "asked": 0}
    told |= {"keys": ["transfer-1"], "payload": "1" * 300, "properties": {"n": 1}, "tag": None}
    assert {name: shown[name] for name in told} == told
    assert operator.ran("halves", "show", asked, "--raw").out == "1" * 300
    table = operator.ran("halves", "show", waits).out
    assert [each in table for each in (waits, "waiting", "transfer-0", "n=0", "0" * 300)] == [True] * 5
    nothing = operator.refused("halves", "show", unknown)
    assert f"no half message {unknown} waits (asked brokers: 0): its transaction may be decided" in nothing
    assert operator.ran("halves", "show", asked, "--raw", "--json").code == 2
    where = ("--topic", "t", "--partition", listed[0]["partition"])
    commit = ("halves", "commit", *where)
    assert "would commit 2" in operator.ran(*commit, waits, asked, "--dry-run").out
    done = operator.ran(*commit, waits, asked, "--yes")
    assert (done.code, done.out.count("committed")) == (0, 2), done.err
    assert operator.json("halves", "rollback", *where, decided, "--yes") == {decided: "rolled-back"}
    late = operator.ran(*commit, decided, "--yes")
    assert (late.code, "rolled-back already" in late.out) == (1, True)
    with Consumer(brokers.connect, group="group", topics=["t"]) as consumer:
        assert [message.payload for message in read(consumer, 2)] == [b"0" * 300, b"1" * 300]


def test_a_new_leader_goes_on_with_the_transactions_of_the_old_one(nodes: SetNodes) -> None:
    """Every third outcome is told by a check alone."""
    committed: set[bytes] = set()

    def execute(message: Message) -> bool | None:
        number = int(message.payload)
        if number % 5:
            committed.add(message.payload)
        return None if number % 3 == 0 else number % 5 != 0

    def found() -> Counter[bytes]:
        return Counter(payload for payload, *_ in nodes.delivered("b"))

    with Producer(nodes.connect, config=BANK) as producer:
        producer.check_transactions(lambda message: message.payload in committed, list(SET_TOPICS))

        def transact(number: int) -> None:
            topic = "safe" if number % 2 else "t"
            producer.send_in_transaction(topic, b"%d" % number, execute=execute, timeout=60, check_after=2)

        with Repeating(transact) as bank:
            nodes.fail_over(bank, 50)
        assert [each for each in bank.errors if not isinstance(each, TransactionTooLate)] == []
        eventually(lambda: not committed - found().keys(), what="all that is committed to be delivered")
    assert sorted(found().keys() - committed) == []
    assert [payload for payload, count in found().items() if count > 1] == []
    eventually(lambda: nodes.segments("a") == nodes.segments("b"), what="the same bytes on both nodes")


def test_outcome_is_unknown_and_not_lost_while_nobody_leads(nodes: SetNodes) -> None:
    nodes.kill("b")
    nodes.wait_in_sync("a")
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
        eventually(lambda: [payload for payload, *_ in nodes.delivered("a")] == [b"x"], what="the message")
