"""What a task of an exactly-once write leaves behind: prepared transactions on brokers in memory."""

import threading
from collections.abc import Iterator

import pytest

from metaq import ConnectionConfig, Producer, ProducerConfig
from metaq.client.producer import partition_for_key
from metaq.protocol.errors import NoPartition, XaError
from metaq.protocol.frames import Frame
from metaq.protocol.statuses import RequestCode, ResponseCode
from metaq.spark_connector.columns import Rows
from metaq.spark_connector.exactly_once import BatchWrite, TaskTransactions, broker_of, qualifier, xid_of
from metaq.testing import FakeBroker, FakeCluster

WRITE = BatchWrite("query", 3)
KIB = 1024


@pytest.fixture
def brokers() -> Iterator[tuple[FakeBroker, FakeBroker]]:
    with FakeBroker({"t": 2, "u": 1}, 0) as first, FakeBroker({"t": 1}, 1) as second:
        yield first, second


@pytest.fixture
def producer(brokers: tuple[FakeBroker, FakeBroker]) -> Iterator[Producer]:
    with Producer(metadata=FakeCluster(brokers)) as producer:
        yield producer


def task(producer: Producer, max_bytes: int = 64 * KIB) -> TaskTransactions:
    return TaskTransactions(producer, WRITE, partition=0, attempt=0, messages=2, max_bytes=max_bytes)


def commit(producer: Producer, names: list[str]) -> None:
    xa = producer.xa(["t"], qualifier=qualifier(WRITE.query_id))
    for name in names:
        xa.commit(xid_of(WRITE, name))


def in_doubt(brokers: tuple[FakeBroker, FakeBroker]) -> list[int]:
    return [len(broker.transactions.prepared) for broker in brokers]


def test_rows_of_several_topics_and_keys_are_prepared_in_one_transaction_per_broker(brokers, producer):
    keys = [f"k{number}" for number in range(20)]
    transactions = task(producer)
    transactions.add(Rows("t", keys, [key.encode() for key in keys]))
    transactions.add(Rows("u", None, [b"plain"]))
    assert in_doubt(brokers) == [0, 0]
    transactions.finish()
    assert in_doubt(brokers) == [1, 1]
    assert [broker_of(name) for name in transactions.prepared] == [0, 1]
    assert [broker.bodies("t", 0) for broker in brokers] == [[], []]
    commit(producer, transactions.prepared)
    partitions = producer.partitions("t")
    for partition in partitions:
        expected = [key.encode() for key in keys if partition_for_key(key, partitions) == partition]
        assert brokers[partition.broker].bodies("t", partition.partition) == expected
    assert brokers[0].bodies("u", 0) == [b"plain"]


def test_rows_without_key_are_spread_over_the_partitions(brokers, producer):
    transactions = task(producer)
    transactions.add(Rows("t", None, [b"%d" % number for number in range(12)]))
    transactions.finish()
    commit(producer, transactions.prepared)
    sizes = [len(brokers[each.broker].bodies("t", each.partition)) for each in producer.partitions("t")]
    assert sizes == [4, 4, 4]


def test_memory_is_bounded_by_preparing_as_rows_come(brokers, producer):
    transactions = task(producer, max_bytes=10 * KIB)
    for _ in range(25):
        transactions.add(Rows("u", None, [bytes(KIB)]))
    assert len(transactions.prepared) == 2
    transactions.finish()
    assert len(transactions.prepared) == 3
    commit(producer, transactions.prepared)
    assert len(brokers[0].bodies("u", 0)) == 25


def test_a_task_without_rows_prepares_nothing(brokers, producer):
    transactions = task(producer)
    transactions.finish()
    assert transactions.prepared == []
    assert in_doubt(brokers) == [0, 0]


def test_a_task_that_fails_leaves_nothing_in_doubt(brokers, producer):
    transactions = task(producer, max_bytes=KIB)
    transactions.add(Rows("u", None, [bytes(KIB)]))
    assert in_doubt(brokers) == [1, 0]
    brokers[0].refuse = lambda request: (
        ResponseCode.SYSTEM_ERROR if isinstance(request, Frame) and request.code == RequestCode.SEND_BATCH else None
    )
    with pytest.raises(XaError):
        transactions.add(Rows("u", None, [bytes(KIB)]))
    transactions.roll_back()
    assert brokers[0].transactions.keys == []


def test_a_task_sends_the_rows_of_a_lost_transaction_again(brokers):
    """It failed with a broker that was stopped for longer than a request may take; other writes waited."""
    config = ProducerConfig(connection=ConnectionConfig(request_timeout_seconds=0.2))
    with Producer(metadata=FakeCluster(brokers), config=config) as producer:
        transactions = task(producer)
        transactions.add(Rows("u", None, [b"x"]))
        brokers[0].silent = True
        threading.Timer(0.5, setattr, (brokers[0], "silent", False)).start()
        transactions.finish()
        commit(producer, transactions.prepared)
    assert brokers[0].bodies("u", 0) == [b"x"]


def test_a_topic_that_nobody_publishes_fails_the_task(producer):
    with pytest.raises(NoPartition, match="'nowhere' is published by no registered broker"):
        task(producer).add(Rows("nowhere", None, [b"x"]))
