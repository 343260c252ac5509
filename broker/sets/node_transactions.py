"""Manage the transaction log of a broker set's node. The log is open while the node leads. While the node follows, the
log is a copy of the leader's log (docs/transactions.md).
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
    """Opens and closes the node's transaction log, and lets it mirror the leader's log. Its methods run on the reactor
    thread.
    """

    def __init__(
        self,
        broker: TransactionHost,
        refusal: Callable[[], MetaqError | None],
        on_failure: Callable[[MetaqError], None],
    ) -> None:
        """refusal: returns why clients are not served now. on_failure: called when this node leads and cannot write its
        log. Raises ConfigError, DirectoryInUse.
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
        """Return the TransactionMirror, which a follower uses. Wait until nothing else uses the log's files. Raises
        StoreError.
        """
        await self._mirror.ready()
        return self._mirror

    async def write_back(self) -> None:
        """Write data that are only in the page cache to the disk, before this node begins to follow. The leader then
        waits less for this node's sync later (TransactionMirror.write_back).
        """
        try:
            written: Deferred[None] = self._broker.in_thread(self._mirror.write_back)
            await written.addTimeout(tuning.WRITE_BACK_SECONDS, cast(Any, self._broker.reactor))
        except (OSError, defer.TimeoutError) as error:
            _log.warning("the hand-over may take long, because the disk is slow or fails: %r", error)

    async def prepare(self) -> None:
        """Wait until the transaction log can be opened. The log can be opened when its files are complete and all data
        of the partitions are safe, so that a replay finds these data. Raises StoreError.
        """
        await self.mirror()
        safe: Deferred[None] = Deferred()
        ends = [(log, log.end_offset) for log in self._broker.store.logs()]
        self._broker.store.when_all_safe(ends, lambda errors: safe.callback(None))
        await safe

    def open(self, leader: Leader) -> None:
        """Replay the transaction log. Call this method before `leader` starts, because the replay's appends belong to
        the leader's first block. The call blocks. All data of the partitions must be visible to readers.

        Raises StoreError, ConfigError.
        """
        self._broker.transactions.open(_LeaderCopies(leader, self._broker.config.broker_id, self._on_failure))
        for log in self._broker.store.logs():
            log.limit_visibility()  # for logs that the replay has created

    def close(self, why: str) -> None:
        """Stop writing the log, because this node no longer leads."""
        self._mirror.hold()  # a worker may still write
        idle = self._broker.transactions.abandon(f"this node leads no longer: {why}")
        idle.addCallback(lambda _: self._mirror.release())


class _LeaderCopies:
    """Turns changes of the transaction log into entries of the leader's blocks."""

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
