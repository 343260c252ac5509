"""Transactions of our client on real brokers, ours and the Java one: a commit is seen as one block, or nothing is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.javapeer import JavaBroker
from metaq import Consumer, Producer, ProducerConfig, TopicPartition, XaVote, Xid
from tests.integration.client_cluster import read_until_quiet, running_brokers
from tests.integration.java_peers import require_java
from tests.speaking import speaking
from tests.waiting import eventually

P0, P1 = TopicPartition("t", 0, 0), TopicPartition("t", 0, 1)
TOPICS = {"t": 2, "u": 1}
XID = Xid(3, b"global", b"branch")


@contextmanager
def java_cluster(chroot: str, directory: Path) -> Iterator[None]:
    require_java()
    with JavaBroker(directory / "java", chroot, TOPICS, {"unflushThreshold": 1}):
        yield


@contextmanager
def our_cluster(chroot: str, directory: Path) -> Iterator[None]:
    with running_brokers(chroot, directory, TOPICS):
        yield


@pytest.fixture(params=["java", "ours", "ours over text"])
def producer(request: pytest.FixtureRequest, chroot: str, tmp_path: Path) -> Iterator[Producer]:
    cluster = java_cluster if request.param == "java" else our_cluster
    protocol = "text" if request.param == "ours over text" else "auto"
    with cluster(chroot, tmp_path), Producer(chroot, config=speaking(protocol, ProducerConfig())) as producer:
        eventually(lambda: producer.partitions("t") and producer.partitions("u"), 20, "the registration")
        yield producer


@pytest.fixture
def consumer(producer: Producer, chroot: str) -> Iterator[Consumer]:
    with Consumer(chroot, group="g", topics=["t", "u"], start="earliest") as consumer:
        yield consumer


def payloads(consumer: Consumer, count: int) -> dict[TopicPartition, list[bytes]]:
    found: dict[TopicPartition, list[bytes]] = {}
    for message in read_until_quiet(consumer, count, 0.3):
        found.setdefault(message.partition, []).append(message.payload)
    return found


def test_a_commit_is_seen_as_one_block_and_a_rollback_is_not_seen(producer: Producer, consumer: Consumer) -> None:
    with producer.transaction() as transaction:
        sent = [transaction.send("t", b"%d" % number, attribute="a", partition=P1) for number in range(5)]
        sent += transaction.send_batch("t", [b"5", b"6"], partition=P1)
        transaction.send("u", b"other topic")
        producer.send("t", b"between", partition=P1)
    assert all(result.pending for result in sent)
    transaction = producer.transaction()
    transaction.send("t", b"dropped", partition=P1)
    transaction.rollback()
    producer.send("t", b"behind", partition=P1)
    expected = [b"between", *(b"%d" % number for number in range(7)), b"behind"]
    assert payloads(consumer, 10) == {P1: expected, TopicPartition("u", 0, 0): [b"other topic"]}


def test_xa_in_two_phases_by_another_process(producer: Producer, consumer: Consumer, chroot: str) -> None:
    xa = producer.xa(["t", "u"], qualifier="q")
    other, third = Xid(3, b"global", b""), Xid(3, b"global", b"3")
    for xid in (XID, other):
        with xa.start(xid) as branch:
            branch.send_batch("t", [b"1", b"2"], partition=P0)
            branch.send("u", b"3")
        assert xa.prepare(xid) is XaVote.OK
    with Producer(chroot) as restarted:
        found = restarted.xa(["t"], qualifier="q").recover()
        assert (set(found.xids), found.failures) == ({XID, other}, {})
        restarted.xa(["t"], qualifier="q").rollback(other)
        restarted.xa(["t"], qualifier="q").commit(XID)
    with xa.start(third) as branch:
        pass
    assert xa.prepare(third) is XaVote.READ_ONLY
    with xa.start(third) as branch:
        branch.send("t", b"one phase", partition=P0)
    xa.commit(third, one_phase=True)
    assert payloads(consumer, 4) == {P0: [b"1", b"2", b"one phase"], TopicPartition("u", 0, 0): [b"3"]}
