"""Commands about delayed and half messages, dead letters, shared groups: names, dry runs, what they say."""

import json
import threading

import pytest

from metaq import (
    DeadLetters,
    HalfOutcome,
    Producer,
    ProducerConfig,
    Retry,
    SharedConfig,
    SharedConsumer,
    SharedMessage,
    TopicPartition,
)
from metaq.client.questions.cluster import Cluster
from metaq.protocol.printable import has_control
from tests.waiting import eventually

from .cli_helpers import Operator

TOPICS = {"trades": 2}
pytestmark = pytest.mark.usefixtures("brokers")


def test_a_group_without_dead_letters_must_be_one_that_is_known(operator: Operator, producer: Producer) -> None:
    producer.send("trades", b"one")
    with SharedConsumer(operator.connect, group="thumbnails", topics=["trades"]) as consumer:
        assert consumer.poll(20.0)
    with Cluster(operator.connect) as cluster:
        cluster.commit("audit", dict.fromkeys(cluster.partitions("trades"), 0))
    producer.send("%RETRY%mailer", b"by hand")
    for group in ("thumbnails", "audit", "mailer"):
        assert operator.json("dead-letters", "list", "--group", group) == []
    for command in (("list",), ("show", "0-0:0"), ("redrive", "--dry-run"), ("drop", "--yes")):
        said = operator.refused("dead-letters", *command, "--group", "thumbnials")
        assert said == "metaq: there is no group 'thumbnials': did you mean 'thumbnails'?\n"
    assert "did you mean 'audit'?" in operator.refused("dead-letters", "list", "--group", "audti")
    assert "did you mean 'mailer'?" in operator.refused("dead-letters", "list", "--group", "mialer")


def test_a_topic_for_which_nothing_waits_must_be_one_that_is_known(operator: Operator) -> None:
    for command in (("delayed", "count"), ("delayed", "list"), ("halves", "list")):
        assert operator.json(*command, "--topic", "trades") == []
        assert "did you mean 'trades'?" in operator.refused(*command, "--topic", "trade")
        assert operator.json(*command, "--topic", "%REPLY%") == []
        assert "there is no group 'nobody'" in operator.refused(*command, "--topic", "%RETRY%nobody")


def test_a_producer_group_without_half_messages_is_told_with_the_nearest_that_has_some(operator: Operator) -> None:
    with Producer(operator.connect, config=ProducerConfig(producer_group="bank")) as producer:
        producer.send_in_transaction("trades", b"half", execute=lambda message: HalfOutcome.UNKNOWN, check_after=1000)
    assert [each["group"] for each in operator.json("halves", "list", "--group", "bank")] == ["bank"]
    ran = operator.ran("halves", "list", "--group", "bnak", "--json")
    assert (ran.code, json.loads(ran.out)) == (0, [])
    assert ran.err == "metaq: no such half message of group 'bnak' waits: did you mean 'bank'?\n"
    ran = operator.ran("halves", "list", "--group", "bank", "--state", "parked")
    assert (ran.code, ran.err) == (0, "metaq: no such half message of group 'bank' waits\n")


def test_a_shared_group_is_told_as_what_it_is(operator: Operator, producer: Producer) -> None:
    producer.send("trades", b"poison")
    for command in (("groups", "describe", "g"), ("groups", "seek", "g", "--topic", "trades", "--to", "latest")):
        assert "group 'g' has no members and no offsets" in operator.refused(*command)
    with SharedConsumer(operator.connect, group="g", topics=["trades"]) as consumer:
        retry = Retry(attempts=1)
        threading.Thread(target=lambda: consumer.run(fail, retry=retry), daemon=True).start()
        with DeadLetters(operator.connect, group="g") as letters:
            eventually(letters.count, what="a dead letter")
    for command in (("groups", "describe", "g"), ("groups", "seek", "g", "--topic", "trades", "--to", "latest")):
        assert operator.refused(*command) == "metaq: group 'g' is a shared group: see `metaq shared describe g`\n"
    dead = "warning group g: 1 dead letter: see `metaq dead-letters list --group g`"
    for chosen in ((), ("--group", "g")):
        told = operator.ran("monitor", "--min-memory", "0", *chosen).out
        assert dead in told
        assert "left, 0 of them leased: see `metaq shared describe g`" in told
        assert told.count("group g: shared group") == 1
    assert "group g:" not in operator.ran("monitor", "--min-memory", "0", "--ignore-group", "g").out
    assert "did you mean" not in operator.refused("monitor", "--group", "nobody")


def fail(message: SharedMessage) -> None:
    raise ValueError("it cannot be read")


def test_a_shared_group_is_described_in_few_words_and_forgotten_after_a_dry_run(
    operator: Operator, producer: Producer
) -> None:
    producer.send("trades", b"one", partition=TopicPartition("trades", 0, 0))
    with SharedConsumer(
        operator.connect, group="g", topics=["trades"], config=SharedConfig(lease_seconds=0.2)
    ) as consumer:
        assert consumer.poll(20.0)
        assert "has 1 live member (" in operator.refused("shared", "delete", "g", "--dry-run")
    eventually(lambda: not operator.json("shared", "describe", "g")["members"], what="that the member has left")
    described = operator.ran("shared", "describe", "g").out
    assert "OLDEST S" in described
    assert operator.ran("shared", "delete", "g", "--dry-run").out == (
        "would forget group g, which has 1 message left, on 2 partitions\n"
    )
    assert operator.json("shared", "list") != []
    assert operator.ran("shared", "delete", "g", "--yes").out == "forgot group g on 2 partitions\n"
    assert operator.json("shared", "list") == []
    assert "there is no shared group 'g'" in operator.refused("shared", "delete", "g", "--dry-run")


def test_no_terminal_obeys_what_clients_have_chosen(operator: Operator, producer: Producer) -> None:
    evil = "\x1b[2J\x9b31m\u202e"
    producer.send("trades", evil.encode(), key=evil, tag=evil, delay=600)
    with Producer(operator.connect, config=ProducerConfig(producer_group="bank")) as half:
        half.send_in_transaction("trades", evil.encode(), key=evil, execute=lambda message: HalfOutcome.UNKNOWN)

    def fail_evil(message: SharedMessage) -> None:
        raise ValueError(evil)

    producer.send("trades", evil.encode(), key=evil, tag=evil)
    with SharedConsumer(operator.connect, group="g", topics=["trades"]) as consumer:
        threading.Thread(target=lambda: consumer.run(fail_evil, retry=Retry(attempts=1)), daemon=True).start()
        with DeadLetters(operator.connect, group="g") as letters:
            eventually(letters.count, what="a dead letter")
    name = operator.json("dead-letters", "list", "--group", "g")[0]["name"]
    half_id = operator.json("halves", "list")[0]["id"]
    for command in (
        ("delayed", "list"),
        ("halves", "list"),
        ("halves", "show", str(half_id)),
        ("dead-letters", "list", "--group", "g"),
        ("dead-letters", "show", "--group", "g", name),
        ("find", "--topic", "trades", "--key", evil),
    ):
        told = operator.ran(*command)
        assert told.code == 0, told.err
        assert r"\x1b[2J\x9b31m\u202e" in told.out, command
        assert not has_control(told.out + told.err), command
