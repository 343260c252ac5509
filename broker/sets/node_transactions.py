"""Manage the transaction log of a broker set's node. While the node leads, it writes its own transactions to the log.
While the node follows, the files of its transaction log are a copy of the files of the leader's transaction log
(docs/transactions.md).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

from twisted.internet import defer
from twisted.internet.defer import Deferred

from metaq.protocol.errors import MetaqError, NotLeader
from metaq.protocol.replication_stream import Lane, StreamEntry

from ..transactions.changes import LogChange
from . import tuning
from .host import TransactionHost
from .leader import Leader
from .transaction_mirror import NAME_PREFIX, WRITTEN, TransactionMirror

__all__ = ["SetTransactions"]

_log = logging.getLogger(__name__)


class SetTransactions:
    """Opens the node's transaction log when the node begins to lead and closes it afterwards. While the node follows,
    provides the TransactionMirror, which copies the leader's log. Its methods run on the reactor thread.
    """

    def __init__(
        self,
        broker: TransactionHost,
        refusal: Callable[[], MetaqError | None],
        on_failure: Callable[[MetaqError], None],
    ) -> None:
        """refusal: returns the error with which clients are refused now, or None. on_failure: called with the error
        when this node leads and cannot write its transaction log. Raises ConfigError, DirectoryInUse.
        """
        store = broker.store
        self._broker = broker
        self._on_failure = on_failure
        self._mirror = TransactionMirror(
            store.files, broker.transactions.directory, lambda: store.data_paths, broker.run_in_thread
        )
        broker.transactions.refusal = refusal
        broker.transactions.lock()

    async def mirror(self) -> TransactionMirror:
        """Wait until nothing else uses the log's files, and then return the TransactionMirror, with which a follower
        changes these files. Raises StoreError.
        """
        await self._mirror.ready()
        return self._mirror

    async def write_back(self) -> None:
        """Write data that are only in the page cache to the disk. Called before this node hands over and begins to
        follow. Later, when the node joins the new leader, it must sync all its data. The more data `write_back` has
        written, the less time this sync takes (TransactionMirror.write_back).
        """
        try:
            written: Deferred[None] = self._broker.in_thread(self._mirror.write_back)
            await written.addTimeout(tuning.WRITE_BACK_SECONDS, cast(Any, self._broker.reactor))
        except (OSError, defer.TimeoutError) as error:
            _log.warning("the hand-over may take long, because the disk is slow or fails: %r", error)

    async def prepare(self) -> None:
        """Wait until the transaction log can be opened. For that, the log's files must be complete, and all data of the
        partitions must be safe on this node's disk. Raises StoreError.
        """
        await self.mirror()
        safe: Deferred[None] = Deferred()
        ends = [(log, log.end_offset) for log in self._broker.store.logs()]
        self._broker.store.when_all_safe(ends, lambda errors: safe.callback(None))
        await safe

    def open(self, leader: Leader) -> None:
        """Open this node's transaction log and replay it: append the messages of committed transactions that the
        partitions lack. Call this method before `leader` starts, because these messages belong to the leader's first
        block. When it is called, all data of the partitions must be visible to readers. The call blocks.

        Raises StoreError, ConfigError.
        """
        self._broker.transactions.open(_LeaderCopies(leader, self._broker.config.broker_id, self._on_failure))
        for log in self._broker.store.logs():
            log.limit_visibility()  # for logs that the replay has created

    def close(self, why: str) -> None:
        """Stop writing the transaction log, because this node no longer leads. why: the reason, for error messages."""
        self._mirror.hold()  # a worker may still write
        idle = self._broker.transactions.abandon(f"this node leads no longer: {why}")
        idle.addCallback(lambda _: self._mirror.release())


class _LeaderCopies:
    """Passes each change of the leader's transaction log to the Leader as an entry of its next block."""

    def __init__(self, leader: Leader, broker_id: int, on_failure: Callable[[MetaqError], None]) -> None:
        self._leader = leader
        self._broker_id = broker_id
        self._on_failure = on_failure

    def replicate(self, changes: Sequence[LogChange], *, disk: bool, done: Callable[[str | None], None]) -> None:
        lane = Lane.DISK if disk else Lane.MEMORY
        entries = [_entry(change, lane) for change in changes]
        self._leader.replicate(entries, lane, lambda error: done(None if error is None else str(error)))

    def refusal_now(self) -> MetaqError | None:
        return None if self._leader.leads_now else NotLeader(self._broker_id)

    def failed(self, failure: MetaqError) -> None:
        self._on_failure(failure)


def _entry(change: LogChange, lane: Lane) -> StreamEntry:
    kind = WRITTEN if change.position >= 0 else change.position - 1
    return StreamEntry(NAME_PREFIX + change.name.encode(), max(change.position, 0), kind, lane, b"", change.data)
