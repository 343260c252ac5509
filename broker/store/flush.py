"""When a partition's data goes to the disk, and who waits for it.

A `FlushPolicy` only answers questions; the `Flusher` runs one job at a time in a worker thread, and whatever is asked
for meanwhile shares the next one: that is the group commit. Partitions whose puts wait for the disk share a journal
(journal.py) in front of it, and use a job of their own only when few of them are busy, and for checkpoints.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from metaq.protocol.errors import LogReadOnly, MetaqError

from .files import Files
from .index import UNIT_BYTES, Checkpoint, largest_id, write_units
from .segment import Segment

__all__ = [
    "DATA",
    "INDEX",
    "AsyncFlush",
    "FlushPolicy",
    "Flusher",
    "GroupCommit",
    "RunInThread",
    "SyncJob",
    "VisibleCallback",
    "flush_policy",
]

_log = logging.getLogger(__name__)

VisibleCallback = Callable[[MetaqError | None], None]
RunInThread = Callable[[Callable[[], Any], Callable[[Any], None]], None]
"""run_in_thread(fn, done): runs fn in a worker thread, later calls done(result or exception) on the owning thread."""

# what a job does, as bits; plain integers because requests are made once per append
DATA = 1
"""Sync the data."""
INDEX = 2
"""Write the index units out; together with DATA: sync them too and move the checkpoint."""


class FlushPolicy(ABC):
    """When data is synced. `waits`: puts are answered, and readers see data, only after the sync."""

    waits: bool

    @abstractmethod
    def due_after_append(self, unsynced_records: int) -> bool:
        """Whether to start a sync now that so many records are not synced."""

    @abstractmethod
    def due_after(self, seconds: float) -> bool:
        """Whether data that has waited this long must be synced."""


@dataclass(frozen=True, slots=True)
class AsyncFlush(FlushPolicy):
    """Sync in the background, at the threshold+1-th record or after the interval (storage.md §3)."""

    threshold_records: int
    interval_ms: int
    waits = False

    def due_after_append(self, unsynced_records: int) -> bool:
        return unsynced_records > self.threshold_records

    def due_after(self, seconds: float) -> bool:
        return seconds * 1000 >= self.interval_ms


@dataclass(frozen=True, slots=True)
class GroupCommit(FlushPolicy):
    """Sync at once; everything appended while a sync runs shares the next."""

    waits = True

    def due_after_append(self, unsynced_records: int) -> bool:
        return True

    def due_after(self, seconds: float) -> bool:
        return True


def flush_policy(unflush_threshold: int, unflush_interval_ms: int) -> FlushPolicy:
    """The policy for 1.x's two settings: a threshold of 0 or less means group commit."""
    return GroupCommit() if unflush_threshold <= 0 else AsyncFlush(unflush_threshold, unflush_interval_ms)


class _Part:
    """One segment's share of a job: what it looked like when the job was made."""

    __slots__ = ("end", "fd", "segment", "stored", "units")

    def __init__(self, segment: Segment, kind: int) -> None:
        self.segment = segment
        self.end = segment.end
        self.fd = segment.data.pin() if kind & DATA and segment.synced < segment.end else None
        index = segment.index
        self.units = index.tail() if kind & INDEX and index is not None else b""
        self.stored = 0 if index is None else index.stored


class SyncJob:
    """Work for one worker call, made and applied on the owning thread, run on a worker.

    It covers the data below `end`, which holds `sequence` records in the log's own count.
    """

    def __init__(
        self, files: Files, kind: int, segments: Sequence[Segment], directories: Sequence[str], end: int, sequence: int
    ) -> None:
        self.kind = kind
        self.end = end
        self.sequence = sequence
        self.directories = directories
        self.error: OSError | None = None
        self.ran = False
        self._files = files
        self._parts: list[_Part] = []
        self._lock = threading.Lock()
        self._cancelled = False
        try:
            for segment in segments:
                self._parts.append(_Part(segment, kind))
        except OSError as error:  # a file could not be opened: reported like a failed sync
            self.error = error

    def run(self) -> None:
        """Worker thread. Does nothing if the job was cancelled first. Raises the OSError that ended it."""
        with self._lock:
            if self._cancelled:
                return
            self.ran = True
            try:
                if self.error is None:
                    self._sync()
            except OSError as error:
                self.error = error
            if self.error is not None:
                raise self.error

    def cancel(self) -> None:
        """Make `run` do nothing from now on, waiting for it if it is under way."""
        with self._lock:
            self._cancelled = True

    def release(self) -> None:
        """Owning thread: let go of the descriptors."""
        for part in self._parts:
            if part.fd is not None:
                part.segment.data.unpin()

    def apply(self) -> None:
        """Owning thread, after a successful run: record in the segments what is on the disk now."""
        for part in self._parts:
            segment = part.segment
            if self.kind & DATA:
                segment.synced = max(segment.synced, part.end)
            if self.kind & INDEX and segment.index is not None:
                segment.index.mark_stored(len(part.units) // UNIT_BYTES, largest_id(part.units))
                if self.kind & DATA:
                    segment.checkpointed = part.end

    def _sync(self) -> None:
        if self.kind & DATA:
            for part in self._parts:
                if part.fd is not None:
                    self._files.fdatasync(part.fd)
            for directory in dict.fromkeys(self.directories):
                self._files.fsync_directory(directory)
        if self.kind & INDEX:
            for part in self._parts:
                self._write_index(part)

    def _write_index(self, part: _Part) -> None:
        index = part.segment.index
        if index is None:
            return
        checkpoint = None
        if self.kind & DATA:
            count = part.stored + len(part.units) // UNIT_BYTES
            max_id = max(index.max_stored_id, largest_id(part.units))
            checkpoint = Checkpoint(part.segment.first_offset, part.end, count, max_id)
        write_units(self._files, part.segment.index_path, part.stored, part.units, checkpoint)


class JobSource(Protocol):
    """The log, as its flusher sees it. Owning thread."""

    directory: str

    def make_job(self, kind: int) -> SyncJob: ...
    def job_succeeded(self, job: SyncJob) -> None: ...
    def sync_failed(self, cause: str) -> None: ...


class Flusher:
    """Runs one partition's jobs and answers those who wait for them. Lives on the owning thread.

    Invariants: at most one job is under way; waiters are ordered as they came; each waiter is called exactly once;
    after a failed job no job runs again (an fsync is never repeated: the kernel has dropped the pages).
    """

    def __init__(self, source: JobSource, run_in_thread: RunInThread) -> None:
        self.failure: LogReadOnly | None = None
        self.on_job_end: Callable[[], None] | None = None
        self._source = source
        self._run_in_thread = run_in_thread
        self._running: SyncJob | None = None
        self._wanted = 0
        self._waiters: deque[tuple[int, VisibleCallback]] = deque()

    @property
    def busy(self) -> bool:
        """Whether a job is under way."""
        return self._running is not None

    @property
    def writes_index(self) -> bool:
        """Whether the job under way writes index units out."""
        return self._running is not None and bool(self._running.kind & INDEX)

    def request(self, kind: int) -> None:
        """Have everything appended up to now covered by a job of this kind; nothing after a failure."""
        self._wanted |= kind
        if self._running is None and self.failure is None:
            self._start()

    def when_synced(self, end: int, callback: VisibleCallback) -> None:
        """Call back once, when `answer` reaches `end` or a job fails."""
        if self.failure is not None:
            callback(self.failure)
        else:
            self._waiters.append((end, callback))

    def answer(self, synced_end: int) -> None:
        """Call the waiters whose data ends at or before `synced_end`, oldest first."""
        waiters = self._waiters
        while waiters and waiters[0][0] <= synced_end:
            call_safely(waiters.popleft()[1], None)

    def finish(self) -> None:
        """Do what is left on this thread, waiting for the disk, and answer everybody. For shutdown."""
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            self._settle(running)
        if self.failure is None:
            self._wanted = 0
            job = self._source.make_job(DATA | INDEX)
            with suppress(OSError):  # the job keeps it, and _settle reports it
                job.run()
            self._settle(job)

    def _start(self) -> None:
        kind, self._wanted = self._wanted, 0
        job = self._running = self._source.make_job(kind)
        self._run_in_thread(job.run, partial(self._ended, job))

    def _ended(self, job: SyncJob, result: object) -> None:
        if self._running is not job:
            return  # finish() has settled it
        self._running = None
        if isinstance(result, BaseException) and job.error is None:
            job.error = OSError(f"worker thread failed: {result!r}")
        self._settle(job)
        if self._wanted and self.failure is None and self._running is None:
            self._start()
        if self.on_job_end is not None:
            self.on_job_end()

    def _settle(self, job: SyncJob) -> None:
        job.release()
        if job.error is not None:
            self._source.sync_failed(str(job.error))
        elif job.ran:
            job.apply()
            self._source.job_succeeded(job)

    def fail(self, cause: str) -> None:
        """Run no job any more and tell everybody who waits. Does nothing the second time."""
        if self.failure is not None:
            return
        self.failure = LogReadOnly(self._source.directory, cause)
        waiters, self._waiters = self._waiters, deque()
        for _, callback in waiters:
            call_safely(callback, self.failure)


def call_safely(callback: Callable[..., None], *arguments: object) -> None:
    """Call back; an exception is the callback's bug and must not keep the others from being called: it is logged."""
    try:
        callback(*arguments)
    except Exception:
        _log.exception("%r failed", callback)
