"""Exactly-once queries that are gone for good: what they leave in ZooKeeper and on brokers, listed and cleared away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from metaq.client.producer import Producer
from metaq.coordination.decided_batches import DecidedBatches
from metaq.coordination.session import ZkSession
from metaq.protocol.errors import ClientError
from metaq.protocol.limits import INT64_MAX

from .committing import Coordinator
from .decisions import qualifier

__all__ = ["WritingQuery", "forget_query", "writing_queries"]


class WritingQuery(NamedTuple):
    """A query that has written exactly once. batch: the last that was decided; pending: its transactions that are not
    known to be committed; topic: one that it wrote."""

    query: str
    batch: int
    pending: int
    topic: str


def writing_queries(session: ZkSession) -> Iterator[WritingQuery]:
    """All that have a node below spark/writes. Raises CoordinationUnavailable, CoordinationError for a damaged node."""
    store = DecidedBatches(session)
    for query_id in store.query_ids():
        decided = store.load(query_id).decided
        if decided is not None:
            yield WritingQuery(query_id, decided.batch, len(decided.pending), decided.topic)


def forget_query(session: ZkSession, producer: Producer, query_id: str) -> None:
    """Commit what was decided, roll back what was only prepared, remove the node. The query must not be running, and
    must not be started again from its checkpoint: it would write its last batch once more.

    Raises ClientError if there is no such query or a broker does not answer, XaError, CoordinationUnavailable.
    """
    store = DecidedBatches(session)
    decided = store.load(query_id).decided
    if decided is None:
        raise ClientError(f"no query {query_id} has written exactly once here: choose one that is listed")
    if decided.topic:
        xa = producer.xa([decided.topic], qualifier=qualifier(query_id))
        Coordinator(store, xa, query_id).abort(INT64_MAX)
    store.remove(query_id)
