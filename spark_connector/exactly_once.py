"""Write exactly once (exactlyOnce): this module names the transactions, runs the transactions of each Spark task, and
commits or rolls them back on the driver.

All transactions of a Spark query have the same qualifier (a part of an XA transaction's name), which no other
transaction has. So `recover` with this qualifier lists exactly the query's transactions. The rest of a transaction's
name is in the xid: gtrid `<query id>/<batch>`, bqual `<broker>.<partition>.<attempt>.<number>.<random>` (64 bytes at
most, each). The query id and the batch number come from Spark and are the same after a restart of the query. The random
part is different after a restart. So the tasks of a restarted query cannot give a new transaction the name of an old
transaction that an earlier run has neither committed nor rolled back.

Tasks send the messages in transactions and prepare these; the driver then decides whether to commit them. The decision
to commit is one write to ZooKeeper: after this write the batch's transactions must be committed, by this driver or, if
it is killed, by the driver of the query's next run. If a driver is killed before the decision, its transactions are
never committed: Spark runs the batch again, and the transactions of the killed driver are rolled back. If a driver is
killed after the decision, Spark runs the batch again. The second run commits the transactions that the decision names.
It rolls back the transactions that its own tasks have prepared, because they contain the same messages, which would be
delivered twice.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from metaq.client.producer import Producer
from metaq.client.producer.xa import Recovered, XaResource, Xid
from metaq.client.records.batches import split_batches
from metaq.client.records.results import TopicPartition
from metaq.coordination.offsets.decided_batches import DecidedBatch, Versioned
from metaq.coordination.runtime.backoff import Backoff
from metaq.protocol.errors import ClientError, MetaqError, NoPartition, XaError
from metaq.protocol.transactions import XaCode, XaVote

from .columns import PreparedItem, Rows, by_partition, size_of
from .planning import FAILOVER_SECONDS

__all__ = [
    "COMMIT_SECONDS",
    "BatchWrite",
    "Coordinator",
    "DecisionStore",
    "Resource",
    "TaskTransactions",
    "Verdicts",
    "batch_of",
    "branch_name",
    "broker_of",
    "judge",
    "qualifier",
    "xid_of",
]

log = logging.getLogger(__name__)

_FORMAT_ID = 0x6D717370
"""The format id in the xids of this connector: the characters "mqsp"."""


@dataclass(frozen=True, slots=True)
class BatchWrite:
    """The identity of a batch of a query. In the end consumers see either all messages of the batch or none. But the
    driver commits the batch at one broker after the other, so for a short time only some of the messages are visible.
    """

    query_id: str
    batch: int


class Verdicts(NamedTuple):
    """The result of `judge`: which transactions in doubt (prepared, but neither committed nor rolled back) to commit,
    and which to roll back. Transactions of a later batch than the one that is being finished are in neither list.
    """

    commit: tuple[Xid, ...]
    roll_back: tuple[Xid, ...]


def qualifier(query_id: str) -> str:
    """Return the qualifier of a query's transactions. With it a broker can list the transactions of this query."""
    return f"spark-{query_id}"


def branch_name(broker: int, partition: int, attempt: int, number: int, token: str) -> str:
    """Return the name of a transaction within its batch. partition, attempt: Spark's numbers for the task. number: the
    transaction's number within the task. token: 8 random characters.
    """
    return f"{broker}.{partition}.{attempt}.{number}.{token}"


def xid_of(write: BatchWrite, name: str) -> Xid:
    return Xid(_FORMAT_ID, f"{write.query_id}/{write.batch}".encode(), name.encode())


def broker_of(name: str) -> int:
    """Return the id of the broker of a transaction. name: the transaction's name within its batch."""
    return int(name.partition(".")[0])


def batch_of(xid: Xid) -> int:
    """Return the number of a transaction's batch."""
    return int(xid.gtrid.rpartition(b"/")[2])


def judge(decided: DecidedBatch | None, in_doubt: Iterable[Xid], batch: int) -> Verdicts:
    """Choose which of the transactions `in_doubt` to commit and which to roll back when the batch `batch` ends. The
    transactions to commit are those that the decision in ZooKeeper (`decided`) names. The transactions to roll back are
    all others of this batch and of earlier batches, because no later decision will name them.
    """
    commit, roll_back = [], []
    for xid in in_doubt:
        if decided is not None and batch_of(xid) == decided.batch and xid.bqual.decode() in decided.pending:
            commit.append(xid)
        elif batch_of(xid) <= batch:
            roll_back.append(xid)
    return Verdicts(tuple(commit), tuple(roll_back))


# --- in a task --------------------------------------------------------------------------------------------------------


_LOST = (XaCode.XAER_RMFAIL, XaCode.XAER_NOTA, XaCode.XA_RBROLLBACK, XaCode.XA_RBTIMEOUT)
"""XA error codes for a lost transaction: before the transaction was prepared, its broker or the leader of its broker
set failed or stopped answering. The task then sends the messages of the lost transaction again in a new transaction.
"""


class TaskTransactions:
    """The transactions of one attempt of one task. This object may be used by one thread only.

    Rows are collected up to `max_bytes`, then sent in one transaction per broker. A transaction is begun only when its
    rows are collected, and prepared right after they are sent. So even if Spark delivers rows slowly, no transaction
    exceeds the brokers' time limit.
    """

    def __init__(
        self, producer: Producer, write: BatchWrite, partition: int, attempt: int, *, messages: int, max_bytes: int
    ) -> None:
        """partition, attempt: Spark's numbers for the task. messages: maximum number of messages in one request."""
        self.prepared: list[str] = []
        """Names of prepared transactions."""
        self.topic = ""
        """The name of one of the topics to which this task has sent messages; "" before the first."""
        self._producer = producer
        self._write = write
        self._partition = partition
        self._attempt = attempt
        self._messages = messages
        self._max_bytes = max_bytes
        self._waiting: dict[TopicPartition, list[PreparedItem]] = defaultdict(list)
        self._bytes = 0
        self._turn = partition
        self._token = secrets.token_hex(4)
        self._number = 0
        self._xa: XaResource | None = None

    def add(self, rows: Rows) -> None:
        """Collect rows of one topic. If enough rows are collected, send them in transactions, and prepare the
        transactions. Raises NoPartition, XaError.
        """
        partitions = self._producer.partitions(rows.topic)
        if not partitions:
            raise NoPartition(f"topic {rows.topic!r} is published by no registered broker: start one that does")
        self.topic = rows.topic
        plain, keyed = by_partition(rows, partitions)
        for batch in split_batches(plain, self._messages, size_of=size_of):
            self._wait(partitions[self._turn % len(partitions)], batch)
            self._turn += 1
        for partition, (_, items) in keyed.items():
            assert partition is not None  # the topic has partitions
            for batch in split_batches(items, self._messages, size_of=size_of):
                self._wait(partition, batch)

    def finish(self) -> None:
        """Send the remaining collected rows in transactions, and prepare the transactions."""
        waiting, self._waiting, self._bytes = self._waiting, defaultdict(list), 0
        for broker in sorted({partition.broker for partition in waiting}):
            mine = {partition: items for partition, items in waiting.items() if partition.broker == broker}
            self._prepare(broker, mine)

    def roll_back(self) -> None:
        """Roll back those prepared transactions of this task whose brokers answer. The driver rolls back the others
        when it finishes the next batch.
        """
        for name in self.prepared:
            self._try_to_roll_back(name)

    def _wait(self, partition: TopicPartition, items: Sequence[PreparedItem]) -> None:
        self._waiting[partition] += items
        self._bytes += sum(map(size_of, items))
        if self._bytes >= self._max_bytes:
            self.finish()

    def _prepare(self, broker: int, waiting: dict[TopicPartition, list[PreparedItem]]) -> None:
        """Send the messages `waiting` to the broker in one transaction, and prepare the transaction. If the broker
        fails or does not answer, send them again in a new transaction, until FAILOVER_SECONDS are over.

        If the broker's answer was lost, the earlier transaction may be prepared, too. But the earlier transaction is
        never committed, because the driver commits only transactions for which the broker's answer to PREPARE has
        arrived.
        """
        backoff, deadline = Backoff(0.05, 0.5), time.monotonic() + FAILOVER_SECONDS
        while True:
            try:
                self._prepare_once(broker, waiting)
            except (XaError, NoPartition) as error:
                pause = backoff.next()
                lost = isinstance(error, NoPartition) or error.code in _LOST
                if not lost or time.monotonic() + pause > deadline:
                    raise
                log.warning("broker %d has lost a transaction, its rows are sent again: %s", broker, error)
                time.sleep(pause)
            else:
                return

    def _prepare_once(self, broker: int, waiting: dict[TopicPartition, list[PreparedItem]]) -> None:
        name = branch_name(broker, self._partition, self._attempt, self._number, self._token)
        self._number += 1
        xa, xid = self._resource(), xid_of(self._write, name)
        try:
            with xa.start(xid, broker=broker) as branch:
                for partition, items in waiting.items():
                    for batch in split_batches(items, self._messages, size_of=size_of):
                        branch.send_batch(partition.topic, batch, partition=partition)
            if xa.prepare(xid) is XaVote.OK:
                self.prepared.append(name)
        except MetaqError:
            self._try_to_roll_back(name)
            raise

    def _resource(self) -> XaResource:
        if self._xa is None:
            self._xa = self._producer.xa([self.topic], qualifier=qualifier(self._write.query_id))
        return self._xa

    def _try_to_roll_back(self, name: str) -> None:
        try:
            self._resource().rollback(xid_of(self._write, name))
        except MetaqError as error:
            batch = self._write.batch
            log.warning("transaction %s of batch %d is left to be rolled back later: %s", name, batch, error)


# --- on the driver ----------------------------------------------------------------------------------------------------

COMMIT_SECONDS = 60.0
"""If brokers do not answer when the driver commits the transactions of a decided batch, the driver tries again for this
number of seconds, and then the query fails. After a restart, the query continues to commit this batch.
"""

_COMPLETED_BY_OPERATOR = (XaCode.XA_HEURCOM, XaCode.XA_HEURRB, XaCode.XA_HEURMIX, XaCode.XA_HEURHAZ)


class Resource(Protocol):
    """The methods of an XaResource that a Coordinator calls."""

    def commit(self, xid: Xid) -> None: ...
    def rollback(self, xid: Xid) -> None: ...
    def forget(self, xid: Xid) -> None: ...
    def recover(self) -> Recovered: ...
    def recover_from(self, broker: int) -> Sequence[Xid]: ...


class DecisionStore(Protocol):
    """The methods of DecidedBatches that a Coordinator calls."""

    def load(self, query_id: str) -> Versioned: ...
    def replace(self, query_id: str, found: Versioned, decided: DecidedBatch) -> Versioned | None: ...


class Coordinator:
    """Commits or rolls back the batches of one query, on the driver. This object may be used by one thread only.

    Its methods raise CoordinationUnavailable, ClientError (the text says what to do) and XaError. After such an error
    the query fails. In the query's next run, Spark calls `commit` for the same batch again, and `commit` finds out
    whether the batch was decided.
    """

    def __init__(
        self,
        store: DecisionStore,
        xa: Resource,
        query_id: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._xa = xa
        self._query_id = query_id
        self._clock = clock
        self._sleep = sleep

    def commit(self, batch: int, prepared: Sequence[str], topic: str) -> bool:
        """Commit the transactions with the names `prepared`, and roll back all other transactions of this batch. Return
        True if that is done. Return False if an earlier run of the query has already decided the batch; then the
        transactions `prepared` are also rolled back.
        topic: one of the written topics.
        """
        found = self._complete(self._store.load(self._query_id))
        ours = _last(found) < batch
        if ours and prepared:
            found = self._complete(self._replace(found, DecidedBatch(batch, tuple(prepared), topic)))
        if not ours:
            log.info("batch %d of query %s was decided before: its rows are not written again", batch, self._query_id)
        self._clear(found, batch)
        return ours

    def abort(self, batch: int) -> None:
        """Roll back the transactions that the tasks of the batch have prepared. But if ZooKeeper already has the
        decision to commit the batch, commit those of its transactions that are not committed yet.
        """
        found = self._complete(self._store.load(self._query_id))
        if _last(found) < batch:
            # A pending decision, whose answer was lost, must not take effect after this.
            found = self._replace(found, found.decided or DecidedBatch(batch - 1))
        self._clear(found, batch)

    # --- steps ------------------------------------------------------------------------------------------------------

    def _replace(self, found: Versioned, decided: DecidedBatch) -> Versioned:
        replaced = self._store.replace(self._query_id, found, decided)
        if replaced is None:
            raise ClientError(
                f"another driver writes batch {decided.batch} of query {self._query_id}: stop one of the two"
            )
        return replaced

    def _complete(self, found: Versioned) -> Versioned:
        """Commit those transactions of the last decision that are perhaps not committed yet, and record in ZooKeeper
        that they are committed.
        """
        decided = found.decided
        if decided is None or not decided.pending:
            return found
        for broker in sorted(set(map(broker_of, decided.pending))):
            self._complete_on(broker, decided)
        return self._replace(found, DecidedBatch(decided.batch, (), decided.topic))

    def _complete_on(self, broker: int, decided: DecidedBatch) -> None:
        """Commit the decided transactions on one broker. If the broker no longer lists a decided transaction as in
        doubt, it has been committed, because no code rolls a decided transaction back.
        """
        names = [name for name in decided.pending if broker_of(name) == broker]
        wanted = {xid_of(BatchWrite(self._query_id, decided.batch), name) for name in names}
        backoff, deadline = Backoff(0.05, 2.0), self._clock() + COMMIT_SECONDS
        while True:
            try:
                for xid in wanted.intersection(self._xa.recover_from(broker)):
                    self._commit(xid)
                return
            except XaError as error:
                if error.code != XaCode.XAER_RMFAIL:
                    raise
                pause = backoff.next()
                if self._clock() + pause > deadline:
                    raise ClientError(
                        f"batch {decided.batch} of query {self._query_id} is decided, but broker {broker} does not "
                        f"commit it ({error}): start the broker, then the query, which will go on from here"
                    ) from error
                self._sleep(pause)

    def _commit(self, xid: Xid) -> None:
        try:
            self._xa.commit(xid)
        except XaError as error:
            if error.code == XaCode.XAER_NOTA:
                return  # committed meanwhile, by the previous driver
            if error.code not in _COMPLETED_BY_OPERATOR:
                raise
            self._xa.forget(xid)
            if error.code != XaCode.XA_HEURCOM:
                raise ClientError(
                    f"an operator has completed transaction {xid.bqual.decode()} of query {self._query_id} by hand, "
                    f"and not by a commit ({error}): its rows are missing in the topic; start the query again to go on"
                ) from error

    def _clear(self, found: Versioned, batch: int) -> None:
        """Roll back the prepared transactions of this batch and of earlier batches, except transactions that a decision
        names. If an attempt of a task fails or is killed, it leaves behind prepared transactions that are in no
        decision. If a broker does not answer now, a later call rolls back the transactions on this broker.
        """
        recovered = self._xa.recover()
        for broker, failure in recovered.failures.items():
            log.warning("broker %d may keep transactions of query %s: %s", broker, self._query_id, failure)
        for xid in judge(found.decided, recovered.xids, batch).roll_back:
            try:
                self._xa.rollback(xid)
            except XaError as error:
                log.warning("transaction %s is left to be rolled back later: %s", xid.bqual.decode(), error)
                if error.code in _COMPLETED_BY_OPERATOR:
                    self._xa.forget(xid)


def _last(found: Versioned) -> int:
    """Return the number of the last decided batch, or -1 if no batch was decided."""
    return -1 if found.decided is None else found.decided.batch
