"""`metaq transactions` against a real broker with XA transactions that are really prepared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from metaq import Consumer, Producer, TopicPartition, XaVote, Xid
from metaq.protocol.errors import XaError
from metaq.protocol.transactions import XaCode
from tests.waiting import eventually

from .cli_helpers import Operator
from .client_cluster import Brokers, read, read_until_quiet

TOPICS = {"t": 1, "u": 1}

P0 = TopicPartition("t", 0, 0)
XIDS = [Xid(3, b"global", b"%d" % number) for number in range(3)]


@pytest.fixture
def producer(brokers: Brokers) -> Iterator[Producer]:
    with Producer(brokers.connect) as producer:
        eventually(lambda: producer.partitions("t") and producer.partitions("u"), 20, "the registration")
        yield producer


def key(xid: Xid) -> str:
    return f"XID:3:{b'global'.hex()}:{xid.bqual.hex()}:q"


def prepare(producer: Producer) -> Any:
    """XIDS, each with one message of its number to t and one to u."""
    xa = producer.xa(["t", "u"], qualifier="q")
    for number, xid in enumerate(XIDS):
        with xa.start(xid) as branch:
            branch.send("t", b"%d" % number, partition=P0)
            branch.send("u", b"%d" % number)
        assert xa.prepare(xid) is XaVote.OK
    return xa


def states(operator: Operator) -> list[tuple[str, str]]:
    return [(each["key"], each["state"]) for each in operator.json("transactions", "list")]


def test_an_operator_decides_what_is_prepared(brokers: Brokers, producer: Producer) -> None:
    operator, xa = Operator(brokers.connect), prepare(producer)
    first, second, third = map(key, XIDS)
    listed = operator.json("transactions", "list")
    assert [each["key"] for each in listed] == [first, second, third]
    assert {(each["state"], each["messages"], tuple(each["topics"])) for each in listed} == {
        ("prepared", 2, ("t", "u"))
    }
    table = operator.ran("transactions", "list", "--broker", "0")
    assert (table.code, [word for word in table.out.split() if word.startswith("XID")]) == (0, [first, second, third])

    assert "no decided transaction" in operator.refused("transactions", "forget", first, "--dry-run")
    assert "would commit" in operator.ran("transactions", "commit", first, "--dry-run").out
    assert [state for _, state in states(operator)] == ["prepared"] * 3
    assert operator.json("transactions", "commit", first, "--yes") == {"key": first, "action": "commit"}
    assert operator.ran("transactions", "rollback", second, "--yes").out == f"rollback: {second}\n"
    with Consumer(brokers.connect, group="g", topics=["t", "u"], start="earliest") as consumer:
        assert sorted((each.topic, each.payload) for each in read(consumer, 2)) == [("t", b"0"), ("u", b"0")]
        assert dict(states(operator)) == {first: "heuristic_commit", second: "heuristic_rollback", third: "prepared"}

        # the coordinator finds them, hears how they ended, and may forget; so may the operator
        assert set(xa.recover().xids) == set(XIDS)
        with pytest.raises(XaError) as told:
            xa.rollback(XIDS[0])
        assert told.value.code == XaCode.XA_HEURCOM
        assert "no decision" in operator.refused("transactions", "forget", third, "--yes")
        operator.json("transactions", "forget", first, "--yes")
        assert set(xa.recover().xids) == set(XIDS[1:])
        xa.forget(XIDS[1])
        assert states(operator) == [(third, "prepared")]
        assert "has not been started" in operator.refused("transactions", "commit", first, "--yes")
        xa.commit(XIDS[2])
        assert sorted(each.payload for each in read(consumer, 2)) == [b"2", b"2"]
        assert read_until_quiet(consumer, 0, 0.3) == []
    assert states(operator) == []


def test_a_decision_is_kept_when_the_broker_is_killed(brokers: Brokers, producer: Producer) -> None:
    operator = Operator(brokers.connect)
    prepare(producer)
    first, second, third = map(key, XIDS)
    operator.json("transactions", "commit", first, "--yes")
    operator.json("transactions", "rollback", second, "--yes")
    producer.close()
    brokers.running[0].kill()
    brokers.start()
    assert dict(states(operator)) == {first: "heuristic_commit", second: "heuristic_rollback", third: "prepared"}
    with Producer(brokers.connect) as other:
        eventually(lambda: other.partitions("t"), 20, "the registration")
        assert set(other.xa(["t"], qualifier="q").recover().xids) == set(XIDS)
    operator.json("transactions", "forget", first, "--yes")
    operator.json("transactions", "forget", second, "--yes")
    operator.json("transactions", "rollback", third, "--yes")
    operator.json("transactions", "forget", third, "--yes")
    assert states(operator) == []
    with Consumer(brokers.connect, group="g", topics=["t", "u"], start="earliest") as consumer:
        assert sorted((each.topic, each.payload) for each in read(consumer, 2)) == [("t", b"0"), ("u", b"0")]
        assert read_until_quiet(consumer, 0, 0.3) == []
