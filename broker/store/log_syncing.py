"""What of one partition is safe and shown: waiting for syncs, the flusher's and the journal's side of the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from .files import OpenFiles
from .flush import DATA, INDEX, Flusher, FlushPolicy, RunInThread, VisibleCallback, call_safely
from .journal import Journal
from .log_lookup import LogLookup
from .segment import Segment
from .sync_job import SyncJob

__all__ = ["LogSyncing"]

_log = logging.getLogger(__name__)

_CHECKPOINT_SECONDS = 5.0
_JOURNALED_CHECKPOINT_SECONDS = 30.0
"""What the journal has is safe; a checkpoint only spares the next start work, and large appends bring one anyway."""


class LogSyncing(LogLookup):
    """Adds syncing and visibility to the readable log. Owning thread."""

    def __init__(
        self,
        directory: str,
        segments: Sequence[Segment],
        *,
        policy: FlushPolicy,
        open_files: OpenFiles,
        run_in_thread: RunInThread,
        journal: Journal | None,
        unsynced_directories: Sequence[str],
        on_dirty: Callable[[Any], None] | None,
        request_sync: Callable[[Any, int], None] | None,
    ) -> None:
        """journal: makes puts safe that wait for the disk; without one the partition's own file is synced.

        request_sync(log, kind): start a job soon that nobody waits for; without it is started at once.
        """
        super().__init__(segments, open_files)
        self.directory = directory
        self.read_only: str | None = None
        self.on_visible: Callable[[Any], None] | None = None
        self._policy = policy
        self._waits = policy.waits
        self._async_from: int | None = None  # group commit ends when everything before this offset is synced
        self._journal = journal
        self._journal_end = -1  # where the journal's entries of this partition end
        self._flusher = Flusher(self, run_in_thread)
        self._unsynced_directories = list(unsynced_directories)
        self._on_dirty = on_dirty
        self._request_sync = request_sync
        self._dirty = False
        self._dirty_since = self._checkpointed_at = float("-inf")
        self._unsynced_records = 0
        if self._unfinished():
            self._mark_dirty()

    def when_visible(self, end: int, callback: VisibleCallback) -> None:
        """Call `callback(None)` exactly once as soon as visible_end >= end: at once, or in order when the flush ends.

        `callback(LogReadOnly)` if the flush fails or has failed. end: a byte offset up to end_offset, of an append.
        """
        if self.visible_end >= end:
            callback(None)
        else:
            self._flusher.when_synced(end, callback)

    def flush(self) -> None:
        """Start a sync of everything appended; `when_visible` or `segments[-1].synced` tell when it is done."""
        self._flusher.request(DATA)

    def checkpoint(self) -> None:
        """Start a sync of the data and its index, so that recovery need not check what is there now."""
        self._flusher.request(DATA | INDEX)

    def close(self) -> None:
        """Sync data and index on this thread, answer everybody who waits, close the files. Nothing may follow."""
        if self._dirty or self._flusher.busy:
            self._flusher.finish()
        if self.read_only is None:
            self.read_only = "the store is closed"
        for segment in self._segments:
            segment.close()

    def _stop_waiting(self) -> None:
        if self._async_from is not None and self.visible_end >= self._async_from:
            self._async_from = None
            self._waits = False
            self._show(self.end_offset, self._written)

    def _sync_soon(self, kind: int) -> None:
        if self._request_sync is None:
            self._flusher.request(kind)
        else:
            self._request_sync(self, kind)

    def _turn_read_only(self, cause: str) -> None:
        self.read_only = cause
        _log.error("%s takes no more writes until the broker is restarted: %s", self.directory, cause)

    def _mark_dirty(self) -> None:
        self._dirty = True
        if self._on_dirty is not None:
            self._on_dirty(self)

    def _show(self, end: int, count: int) -> None:
        if end > self.visible_end:
            self.visible_end = end
            self._visible = count
            if self._flusher.waiters:
                self._flusher.answer(end)
            if self.on_visible is not None:
                call_safely(self.on_visible, self)

    # --- background jobs (for flush.py and the store) -----------------------------------------------------------------

    @property
    def flusher(self) -> Flusher:
        """For the store, which bounds how many run at once."""
        return self._flusher

    def due(self, now: float) -> int:
        """What a dirty log should have done at monotonic time `now` (seconds), as job bits; 0 for nothing yet."""
        if self._flusher.failure is not None:
            return 0
        if self._checkpointed_at == float("-inf"):
            self._checkpointed_at = now
        if self._dirty_since == float("-inf"):
            self._dirty_since = now
        if now - self._checkpointed_at >= self._checkpoint_seconds:
            self._checkpointed_at = self._dirty_since = now
            return DATA | INDEX
        if self._unsynced_records and not self._journaled and self._policy.due_after(now - self._dirty_since):
            self._dirty_since = now
            return DATA
        return 0

    def next_due(self, now: float) -> float:
        """When `due`, asked at `now`, should be asked again: nothing becomes due before. Monotonic seconds."""
        checkpoint = self._checkpointed_at + self._checkpoint_seconds
        if checkpoint <= now or self._journaled:
            return max(now, checkpoint)
        return min(checkpoint, self._dirty_since + self._policy.seconds)

    @property
    def _journaled(self) -> bool:
        """Whether puts are made safe by the journal, so that the partition's own files may wait."""
        return self._waits and self._journal is not None

    @property
    def _checkpoint_seconds(self) -> float:
        return _JOURNALED_CHECKPOINT_SECONDS if self._journaled else _CHECKPOINT_SECONDS

    @property
    def dirty(self) -> bool:
        """Whether something is not yet covered by a checkpoint."""
        return self._dirty

    def make_job(self, kind: int, *, grouped: bool = False) -> SyncJob:
        """For the flusher: a job over everything appended so far. grouped: to be run with others' jobs."""
        if kind & DATA:
            self._unsynced_records = 0
        directories = tuple(self._unsynced_directories) if kind & DATA else ()
        return SyncJob(
            self._files,
            kind,
            self.directory,
            self._unfinished(),
            directories,
            self.end_offset,
            self._written,
            grouped=grouped,
        )

    def job_succeeded(self, job: SyncJob) -> None:
        """For the flusher: the job's data is safe."""
        if not job.kind & DATA:
            return
        del self._unsynced_directories[: len(job.directories)]
        if self._waits:
            self._show(job.end, job.sequence)
            self._stop_waiting()
        if job.kind & INDEX and not self._unfinished():
            self._dirty = False
            self._checkpointed_at = self._dirty_since = float("-inf")

    def _unfinished(self) -> list[Segment]:
        """The segments that no checkpoint covers yet, oldest first: the last ones but for those without an index."""
        found = [] if self._active.finished else [self._active]
        for segment in self._segments[-2::-1]:
            if not segment.finished:
                found.append(segment)
            elif segment.index is not None:  # one that lost its index may be in front of others
                break
        return found[::-1]

    def sync_failed(self, cause: str) -> None:
        """For the flusher and the journal: never tried again, the kernel has forgotten what it could not write."""
        if self.read_only is None:
            self._turn_read_only(cause)
        self._flusher.fail(cause)

    @property
    def waits(self) -> bool:
        """Whether puts wait for the disk (group commit)."""
        return self._waits

    @property
    def unsynced_directories(self) -> Sequence[str]:
        """Directories in which names of this partition's files may not be on the disk."""
        return self._unsynced_directories

    def mark_synced(self) -> None:
        """For the store: all segments and `unsynced_directories` were synced, before the log is in use."""
        for segment in self._segments:
            segment.synced = segment.end
        self._unsynced_directories.clear()

    @property
    def synced_end(self) -> int:
        """Byte offset up to which the partition's own files are on the disk."""
        end = self.end_offset
        for segment in reversed(self._segments):
            if segment.synced == segment.end:
                if segment.size:
                    break
                continue
            end = segment.synced
        return end

    # --- for the journal ----------------------------------------------------------------------------------------------

    @property
    def syncing(self) -> bool:
        """Whether a sync of the partition's own files is under way, which may take long."""
        return self._flusher.syncing

    def sync_directly(self, end: int, run: RunInThread, callback: VisibleCallback) -> None:
        """For the journal: sync the partition's own file in its thread, then call back."""
        self._flusher.request(DATA, run)
        self.when_visible(end, callback)

    def journaled(self, end: int, sequence: int) -> None:
        """For the journal: what lies below `end`, the first `sequence` records of this log's count, is safe."""
        if self._flusher.failure is None:
            self._show(end, sequence)
            self._stop_waiting()
