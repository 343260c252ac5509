"""Exactly-once writes: how transactions are named, and which of those in doubt are committed. Pure.

All transactions of a query have one qualifier, so that `recover` lists them and no others. The xid says the rest:
gtrid `<query id>/<batch>`, bqual `<broker>.<partition>.<attempt>.<number>.<random>` (64 bytes at most, each). The query
id and the batch are Spark's and the same after a restart; the random part is not, so that a restarted driver's tasks
cannot meet a transaction that an earlier life has left.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from metaq.client.producer.xa import Xid
from metaq.coordination.decided_batches import DecidedBatch

__all__ = ["BatchWrite", "Verdicts", "batch_of", "branch_name", "broker_of", "judge", "qualifier", "xid_of"]

_FORMAT_ID = 0x6D717370
"""Of our xids: "mqsp"."""


@dataclass(frozen=True, slots=True)
class BatchWrite:
    """One batch of one query: what is seen all together or not at all (broker by broker, one after the other)."""

    query_id: str
    batch: int


class Verdicts(NamedTuple):
    """What becomes of transactions in doubt; those of later batches are left alone."""

    commit: tuple[Xid, ...]
    roll_back: tuple[Xid, ...]


def qualifier(query_id: str) -> str:
    """Under which brokers keep the transactions of a query."""
    return f"spark-{query_id}"


def branch_name(broker: int, partition: int, attempt: int, number: int, token: str) -> str:
    """The name of a transaction within its batch. number: within its task; token: random, 8 characters."""
    return f"{broker}.{partition}.{attempt}.{number}.{token}"


def xid_of(write: BatchWrite, name: str) -> Xid:
    return Xid(_FORMAT_ID, f"{write.query_id}/{write.batch}".encode(), name.encode())


def broker_of(name: str) -> int:
    """Id of the broker that has the transaction of this name."""
    return int(name.partition(".")[0])


def batch_of(xid: Xid) -> int:
    """The batch that a transaction belongs to."""
    return int(xid.gtrid.rpartition(b"/")[2])


def judge(decided: DecidedBatch | None, in_doubt: Iterable[Xid], batch: int) -> Verdicts:
    """While `batch` is being finished: a transaction that the decision names is committed, others of this batch and of
    earlier ones are rolled back, because no decision can name them any more."""
    commit, roll_back = [], []
    for xid in in_doubt:
        if decided is not None and batch_of(xid) == decided.batch and xid.bqual.decode() in decided.pending:
            commit.append(xid)
        elif batch_of(xid) <= batch:
            roll_back.append(xid)
    return Verdicts(tuple(commit), tuple(roll_back))
