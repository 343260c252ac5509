"""Exactly once: what the driver does at the end of a batch, and after one that it, or its predecessor, did not end.

The decision is one write to ZooKeeper: from then on the batch's transactions are committed, whoever has to do it.
A driver that is killed before it leaves transactions that nobody will commit: Spark runs the batch again, and they are
rolled back. One that is killed after it leaves some that are committed when Spark runs the batch again; what that run
has prepared is rolled back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from metaq.client.producer.xa import Recovered, Xid
from metaq.coordination.backoff import Backoff
from metaq.coordination.decided_batches import DecidedBatch, Versioned
from metaq.protocol.errors import ClientError, XaError
from metaq.protocol.transactions import XaCode

from .decisions import BatchWrite, broker_of, judge, xid_of

__all__ = ["COMMIT_SECONDS", "Coordinator", "DecisionStore", "Resource"]

log = logging.getLogger(__name__)

COMMIT_SECONDS = 60.0
"""How long a decided batch waits for brokers that do not answer, before the query fails (it goes on when restarted)."""

_COMPLETED_BY_OPERATOR = (XaCode.XA_HEURCOM, XaCode.XA_HEURRB, XaCode.XA_HEURMIX, XaCode.XA_HEURHAZ)


class Resource(Protocol):
    """What is needed of an XaResource."""

    def commit(self, xid: Xid) -> None: ...
    def rollback(self, xid: Xid) -> None: ...
    def forget(self, xid: Xid) -> None: ...
    def recover(self) -> Recovered: ...
    def recover_from(self, broker: int) -> Sequence[Xid]: ...


class DecisionStore(Protocol):
    """What is needed of DecidedBatches."""

    def load(self, query_id: str) -> Versioned: ...
    def replace(self, query_id: str, found: Versioned, decided: DecidedBatch) -> Versioned | None: ...


class Coordinator:
    """Ends batches of one query. One thread.

    Raises CoordinationUnavailable, ClientError (its text says what to do) and XaError; the query then fails, and
    `commit` of the same batch by its next run finds out what became of it.
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
        """Make `prepared`, by name, visible, and nothing else of this batch; False if an earlier run had decided it, so
        that `prepared` is rolled back. topic: one that was written."""
        found = self._complete(self._store.load(self._query_id))
        ours = _last(found) < batch
        if ours and prepared:
            found = self._complete(self._replace(found, DecidedBatch(batch, tuple(prepared), topic)))
        if not ours:
            log.info("batch %d of query %s was decided before: its rows are not written again", batch, self._query_id)
        self._clear(found, batch)
        return ours

    def abort(self, batch: int) -> None:
        """Drop what tasks have prepared, unless the batch was decided: then complete it."""
        found = self._complete(self._store.load(self._query_id))
        if _last(found) < batch:
            # a decision under way, whose answer was lost, must not arrive after this
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
        """Commit what is decided and may not be committed yet, and note that it is."""
        decided = found.decided
        if decided is None or not decided.pending:
            return found
        for broker in sorted(set(map(broker_of, decided.pending))):
            self._complete_on(broker, decided)
        return self._replace(found, DecidedBatch(decided.batch, (), decided.topic))

    def _complete_on(self, broker: int, decided: DecidedBatch) -> None:
        """One that its broker does not have in doubt any more was committed: nobody rolls a decided one back."""
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
                return  # committed meanwhile, by the driver before this one
            if error.code not in _COMPLETED_BY_OPERATOR:
                raise
            self._xa.forget(xid)
            if error.code != XaCode.XA_HEURCOM:
                raise ClientError(
                    f"an operator has completed transaction {xid.bqual.decode()} of query {self._query_id} by hand, "
                    f"and not by a commit ({error}): its rows are missing in the topic; start the query again to go on"
                ) from error

    def _clear(self, found: Versioned, batch: int) -> None:
        """Roll back what no decision will name: of attempts that failed or were killed. What stays goes later."""
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
    """The last decided batch; -1 if there is none."""
    return -1 if found.decided is None else found.decided.batch
