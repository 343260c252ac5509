"""The whole transaction log: the writer of the redo files, the checkpoint files and the saved decisions of operators.
This module also determines when the data of all these files are written to the disk.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred

from metaq.protocol.errors import ConfigError, DiskFull, LogReadOnly, StoreError

from ..configuration.transaction_settings import FlushTxLog, TransactionConfig
from ..runtime.reactor import ReactorTime
from ..store.directories import lock_data_path
from ..store.files import REAL_FILES, Files
from ..store.partition_log import PartitionLog
from ..store.worker_turns import RunInThread
from ..writing.writing import Writing
from .changes import LogCopies
from .checkpoints import STATE_NAME, Checkpoints, Heuristic, SavedState, read_state, state_change, write_state
from .commands import Operation, StoredPut
from .commit import Committer, Settled
from .directory import DAMAGED_PREFIX, DIRECTORY, RedoPosition, keep_copy, read_file
from .open_transactions import OpenTransaction
from .recovery import Logs, Replayed, replay
from .redo import add_content, sealed_operation_record, sealed_put_record
from .refusals import log_failed
from .writer import RedoWriter

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["TransactionLog"]

_log = logging.getLogger(__name__)

_TICK_SECONDS = 1.0
_STATE_BYTES = 8 << 20
"""Each time the log has grown by this many bytes, the position where a replay may begin is saved in metaq.json. So a
starting broker has to replay only the records after the last saved position, which does not take long.
"""


class TransactionLog:
    """The transaction log in the directory `<dataLogPath>/transactions`. Call its methods only on the reactor thread;
    worker threads do the work that blocks.
    """

    def __init__(
        self,
        config: TransactionConfig,
        data_paths: Sequence[str],
        *,
        run_in_thread: RunInThread,
        reactor: ReactorTime,
        now_ms: Callable[[], int],
        writing: Writing,
        files: Files = REAL_FILES,
    ) -> None:
        """data_paths: the data directories that the store has already locked. now_ms: returns the time in Unix
        milliseconds.
        """
        self.directory = os.path.join(os.path.realpath(config.log_path), DIRECTORY)
        self._config = config
        self._data_paths = data_paths
        self._run_in_thread = run_in_thread
        self._reactor = reactor
        self._now_ms = now_ms
        self._files = files
        self._writing = writing
        self._heuristics: dict[str, Heuristic] = {}
        self._lock: int | None = None
        self._saved = RedoPosition(0, 0)
        self._ticked = self._checkpointed = 0.0

    # --- life ---------------------------------------------------------------------------------------------------------

    def open(self, logs: Logs, copies: LogCopies | None = None) -> Replayed:
        """Lock, read and replay the log; see recovery.replay. copies: the object that sends the log's changes to the
        other nodes of a broker set. It is None if there are no other nodes.

        Raises StoreError, ConfigError, DirectoryInUse. After an error, the directory is locked only if it was locked
        before the call.
        """
        was_locked = self._lock is not None
        self.lock()
        try:
            state = self._read(logs, copies)
        except BaseException as error:
            if not was_locked:
                self.unlock()
            if isinstance(error, OSError):
                raise StoreError(f"the transaction log {self.directory} cannot be read: {error}") from error
            raise
        self._ticked = self._checkpointed = self._reactor.seconds()
        return state

    def _read(self, logs: Logs, copies: LogCopies | None) -> Replayed:
        files = self._files
        exists = files.is_directory(self.directory)
        state = read_state(files, self.directory) if exists else SavedState()
        if state.damage is not None:
            self._keep_state(state)
        self._heuristics = dict(state.heuristics)
        self._checkpoints = Checkpoints(files, self.directory, self._config.max_checkpoints)
        replayed = Replayed()
        if exists:
            self._checkpoints.open()
            replayed = replay(
                files, self.directory, state.replay_from, logs, self._now_ms, partial(self._decide, state)
            )
        last = self._checkpoints.last
        saved = state.replay_from
        self._writer = RedoWriter(
            files,
            self.directory,
            self._run_in_thread,
            self._reactor,
            sync=self._config.flush is FlushTxLog.AT_COMMIT,
            redo_files=replayed.files,
            # a Java broker ignores files with a lower number than its last checkpoint names
            next_number=1 + max(0 if last is None else last.number, 0 if saved is None else saved.number - 1, 0),
            copies=copies,
        )
        self._committer = Committer(self._writer, self._writing, self._reactor, self._now_ms, self.settle)
        for transaction, ends in replayed.committed.items():
            self._committer.wait_for_disk(transaction, ends)
        self._saved = saved or self._writer.replay_from
        if replayed.late:
            _log.warning("%d messages that came after their transaction was prepared are dropped", replayed.late)
        return replayed

    def _keep_state(self, state: SavedState) -> None:
        path = os.path.join(self.directory, STATE_NAME)
        copy = keep_copy(
            self._files, self.directory, f"{DAMAGED_PREFIX}{STATE_NAME}", read_file(self._files, path) or b""
        )
        _log.error(
            "%s; the log is replayed from its beginning, and %d decisions of operators can be read; a copy is in %s",
            state.damage,
            len(state.heuristics),
            copy,
        )
        write_state(self._files, self.directory, SavedState(None, state.heuristics))

    def _decide(self, state: SavedState, decisions: Mapping[str, Heuristic]) -> None:
        """Save the decisions that the replay made on damaged prepared transactions. The decisions are on the disk when
        this method returns. Raises OSError.
        """
        self._heuristics.update(decisions)
        write_state(self._files, self.directory, SavedState(state.replay_from, dict(self._heuristics)))

    def close(self) -> None:
        """Write and sync all records, save the position where a replay may begin, and unlock the directory. Blocks."""
        self._committer.finish_records()
        self._writer.finish()
        self._committer.finish()
        self._checkpoint()
        self._writer.close()
        self.unlock()

    def abandon(self, why: str) -> Deferred[None]:
        """Stop writing, as if the broker had died; the directory stays locked. Each request that waits for the log
        fails with the reason `why`, and its client does not learn whether the transaction was committed. The returned
        Deferred fires when no worker thread uses the files any more; then the log may be opened again.
        """
        deferred: Deferred[None] = Deferred()
        self._committer.abandon(why)
        self._writer.abandon(why, lambda: deferred.callback(None))
        return deferred

    def promised(self, log: PartitionLog) -> bool:
        """Whether a running commit still has messages to append to this partition. Call this only while the log is
        open.
        """
        return self._committer.promised(log)

    def when_idle(self, done: Callable[[], None]) -> None:
        """Call `done` when this node's log files contain all changes that this node sent to the other nodes (`copies`)
        before this call. The log must be open when this method is called.
        """
        self._writer.when_idle(done)

    @property
    def is_waited_for(self) -> bool:
        """Whether a prepare, commit or rollback waits until its record is written, or a commit waits until its messages
        are appended. Use this only while the log is open.
        """
        return self._writer.is_waited_for or self._committer.is_busy

    def lock(self) -> None:
        """Lock the directory unless it is locked. Raises ConfigError, DirectoryInUse."""
        path = os.path.realpath(self._config.log_path)
        if self._lock is not None or path in self._data_paths:
            return  # locked already, by this log or by the store
        try:
            self._lock = lock_data_path(self._files, path)
        except ConfigError as error:
            raise ConfigError("dataLogPath", path, str(error)) from error

    def unlock(self) -> None:
        """Unlock the directory if it is locked."""
        if self._lock is not None:
            self._files.close(self._lock)
            self._lock = None

    def check(self, logs: Iterable[PartitionLog]) -> None:
        """Raise an error if a commit with messages for these partitions cannot be accepted now. The error is
        LogReadOnly; in a broker set it may also be NotLeader or NotEnoughReplicas.
        """
        copies = self._writing.copies
        for log in logs:
            if (cause := log.durability.read_only) is not None:
                raise LogReadOnly(log.directory, cause)
            if copies is not None:
                copies.check(log)

    # --- records ------------------------------------------------------------------------------------------------------

    @property
    def failure(self) -> str | None:
        """The reason why the log accepts no more writes until the broker is restarted. It is None if it accepts
        writes.
        """
        return self._writer.failure

    @property
    def lacks_room(self) -> DiskFull | None:
        """The disk-full error that keeps the log from accepting messages now. It is None if the log accepts messages.
        It is also None if the log has failed and accepts nothing until the broker restarts; see `failure`.
        """
        return self._writer.lacks_room

    def append_put(self, transaction: OpenTransaction, put: StoredPut) -> None:
        """Queue the record of a message for writing. With the first message of a transaction, this method also chooses
        the redo file for all records of the transaction.
        """
        if transaction.file is None:
            transaction.file = self._writer.file_for(transaction)
        record, crc = sealed_put_record(put, transaction.file.size)
        transaction.content = add_content(transaction.content, crc)
        self._writer.append(transaction.file, record)

    def append_operation(self, transaction: OpenTransaction, operation: Operation) -> None:
        """Queue the record of the preparation or the rollback of a transaction that has messages."""
        file = transaction.file
        assert file is not None
        messages, content = transaction.messages, transaction.content
        self._writer.append(file, sealed_operation_record(operation, file.size, messages, content))

    def written(self, key: str) -> Deferred[None]:
        """Return a Deferred that fires when all queued records are written, and also synced if the setting
        flushTxLogAtCommit requires it. If the log can no longer be written, the Deferred fails with
        refusals.log_failed(key, …).
        """
        deferred: Deferred[None] = Deferred()

        def done(failure: str | None) -> None:
            if failure is None:
                deferred.callback(None)
            else:
                deferred.errback(log_failed(key, failure))

        self._writer.when_written(done)
        return deferred

    def commit(self, transaction: OpenTransaction, was_prepared: bool, settled: Settled) -> None:
        """Commit a transaction; see Committer.commit."""
        self._committer.commit(transaction, was_prepared, settled)

    def is_recording(self, key: str) -> bool:
        """Return whether the transaction with this key is being committed and its commit record is not queued yet; see
        Committer.is_recording.
        """
        return self._committer.is_recording(key)

    def settle(self, transaction: OpenTransaction) -> None:
        """Record that a replay no longer needs the records of this transaction. Their redo file can be deleted when a
        replay needs no other records in it.
        """
        assert transaction.file is not None
        self._writer.settle(transaction.file, transaction)

    # --- decisions of operators ---------------------------------------------------------------------------------------

    @property
    def heuristics(self) -> Mapping[str, Heuristic]:
        """The operators' decisions by transaction key. Each decision is kept until the transaction coordinator sends a
        FORGET request for the transaction.
        """
        return self._heuristics

    def set_heuristic(self, key: str, decision: Heuristic | None) -> Deferred[None]:
        """Save an operator's decision on the transaction, or delete the saved decision if `decision` is None. Return a
        Deferred that fires when the change is on the disk.
        """
        if decision is None:
            self._heuristics.pop(key, None)
        else:
            self._heuristics[key] = decision
        self._save_state(self._saved)
        return self.written(key)

    # --- by the clock -------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Do the work that is due: write the queued records once a second, and the checkpoints at their times."""
        now = self._reactor.seconds()
        if now - self._ticked < _TICK_SECONDS or self.failure is not None:
            return
        self._ticked = now
        if self._writer.lacks_room is not None:
            self._writer.flush()
            return
        self._committer.settle()
        self._writer.flush(sync=self._config.flush is FlushTxLog.EVERY_SECOND)
        position = self._writer.replay_from
        if now - self._checkpointed >= self._config.checkpoint_interval_ms / 1000:
            self._checkpointed = now
            self._checkpoint()
        elif position.number > self._saved.number or position.offset - self._saved.offset > _STATE_BYTES:
            self._save_state(position)

    def _checkpoint(self) -> None:
        """Save the position where this broker may begin a replay. Also write a checkpoint file with this position for
        Java brokers, unless the newest checkpoint file has the position already. If there is no checkpoint file yet,
        write one only if a replay still needs the records of some transaction.
        """
        position = self._writer.replay_from
        if position != self._saved:
            self._save_state(position)
        last = self._checkpoints.last
        if position != last and (last is not None or self._writer.has_unsettled):
            self._writer.also(*self._checkpoints.next(position))

    def _save_state(self, position: RedoPosition) -> None:
        self._saved = position
        state = SavedState(position, dict(self._heuristics))
        self._writer.also(state_change(state))
