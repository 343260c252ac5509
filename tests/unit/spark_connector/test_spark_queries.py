"""Clearing away what an exactly-once query has left: what was decided is committed, the rest rolled back."""

from types import SimpleNamespace
from typing import Any

import pytest

from metaq.client.producer.xa import Recovered
from metaq.coordination.offsets.decided_batches import DecidedBatch, Versioned
from metaq.protocol.errors import ClientError
from metaq.spark_connector import job
from metaq.spark_connector.exactly_once import BatchWrite, xid_of
from metaq.spark_connector.job import WritingQuery, forget_query, writing_queries

SESSION: Any = None
"""Only handed on."""
DECIDED, LEFT = "0.0.0.0.decided", "0.1.0.0.left"


class Store:
    """The nodes of queries."""

    def __init__(self, **nodes: DecidedBatch) -> None:
        self.nodes = dict(nodes)

    def query_ids(self):
        return sorted(self.nodes)

    def load(self, query_id):
        return Versioned(self.nodes[query_id], 0) if query_id in self.nodes else Versioned(None, None)

    def replace(self, query_id, found, decided):
        self.nodes[query_id] = decided
        return Versioned(decided, 1)

    def remove(self, query_id):
        del self.nodes[query_id]


class Broker:
    """What is in doubt on the one broker, and what became of it."""

    def __init__(self, *xids) -> None:
        self.in_doubt = set(xids)
        self.committed: list = []
        self.rolled_back: list = []

    def recover(self):
        return Recovered(tuple(self.in_doubt), {})

    def recover_from(self, broker):
        return tuple(self.in_doubt)

    def commit(self, xid):
        self.in_doubt.remove(xid)
        self.committed.append(xid)

    def rollback(self, xid):
        self.in_doubt.remove(xid)
        self.rolled_back.append(xid)


@pytest.fixture
def store(monkeypatch):
    nodes = Store(busy=DecidedBatch(7, (DECIDED,), "t"), empty=DecidedBatch(0))
    monkeypatch.setattr(job, "DecidedBatches", lambda session: nodes)
    return nodes


def forget(query_id, broker=None):
    asked = []

    def xa(topics, qualifier):
        asked.append((topics, qualifier))
        return broker

    producer: Any = SimpleNamespace(xa=xa)
    forget_query(SESSION, producer, query_id)
    return asked


def test_queries_are_listed_with_what_is_pending(store):
    assert list(writing_queries(SESSION)) == [WritingQuery("busy", 7, 1, "t"), WritingQuery("empty", 0, 0, "")]


def test_what_was_decided_is_committed_and_the_rest_rolled_back(store):
    decided, left = xid_of(BatchWrite("busy", 7), DECIDED), xid_of(BatchWrite("busy", 8), LEFT)
    broker = Broker(decided, left)
    assert forget("busy", broker) == [(["t"], "spark-busy")]
    assert (broker.committed, broker.rolled_back) == ([decided], [left])
    assert store.query_ids() == ["empty"]


def test_a_query_without_rows_needs_no_broker(store):
    assert forget("empty") == []
    assert store.query_ids() == ["busy"]


def test_an_unknown_query_is_an_error(store):
    with pytest.raises(ClientError, match="no query other has written exactly once here"):
        forget("other")
