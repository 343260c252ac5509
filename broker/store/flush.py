"""When a partition's data goes to the disk, and who waits for it.

A `FlushPolicy` only answers questions; the `Flusher` runs one job at a time in a worker thread, and whatever is asked
for meanwhile shares the next one: that is the group commit. Partitions whose puts wait for the disk share a journal
(journal.py) in front of it, and use a job of their own only when few of them are busy, and for checkpoints.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from metaq.protocol.errors import LogReadOnly, MetaqError

from .segment import Segment
from .sync_job import DATA, INDEX, SyncJob

__all__ = [
    "DATA",
    "INDEX",
    "AsyncFlush",
    "FlushPolicy",
    "Flusher",
    "GroupCommit",
    "RunInThread",
    "VisibleCallback",
    "flush_policy",
]

_log = logging.getLogger(__name__)

VisibleCallback = Callable[[MetaqError | None], None]
RunInThread = Callable[[Callable[[], Any], Callable[[Any], None]], None]
"""run_in_thread(fn, done): runs fn in a worker thread, later calls done(result or exception) on the owning thread."""


class FlushPolicy(ABC):
    """When data is synced.

    waits: puts are answered, and readers see data, only after the sync. threshold_records: records that may be left
    unsynced after an append.
    """

    waits: bool
    threshold_records: int

    @property
    @abstractmethod
    def seconds(self) -> float:
        """How long data may wait to be synced."""

    @abstractmethod
    def due_after(self, seconds: float) -> bool:
        """Whether data that has waited this long must be synced."""


@dataclass(frozen=True, slots=True)
class AsyncFlush(FlushPolicy):
    """Sync in the background, at the threshold+1-th record or after the interval (storage.md §3)."""

    threshold_records: int
    interval_ms: int
    waits = False

    @property
    def seconds(self) -> float:
        return self.interval_ms / 1000

    def due_after(self, seconds: float) -> bool:
        return seconds * 1000 >= self.interval_ms


@dataclass(frozen=True, slots=True)
class GroupCommit(FlushPolicy):
    """Sync at once; everything appended while a sync runs shares the next. Nothing is left to be due by time."""

    waits = True
    threshold_records = 0
    seconds = float("inf")

    def due_after(self, seconds: float) -> bool:
        return False


def flush_policy(unflush_threshold: int, unflush_interval_ms: int) -> FlushPolicy:
    """The policy for 1.x's two settings: a threshold of 0 or less means group commit."""
    return GroupCommit() if unflush_threshold <= 0 else AsyncFlush(unflush_threshold, unflush_interval_ms)


class JobSource(Protocol):
    """The log, as its flusher sees it. Owning thread."""

    directory: str

    def make_job(self, kind: int, *, grouped: bool = False) -> SyncJob: ...
    def job_succeeded(self, job: SyncJob) -> None: ...
    def sync_failed(self, cause: str) -> None: ...


class Flusher:
    """Runs one partition's jobs and answers those who wait for them. Lives on the owning thread.

    Invariants: at most one job that syncs is under way, and beside it one that only writes index units, of those that
    the other does not write or has written; waiters are ordered as they came; each waiter is called exactly once; after
    a failed job no job runs again (an fsync is never repeated: the kernel has dropped the pages).
    """

    def __init__(self, source: JobSource, run_in_thread: RunInThread) -> None:
        self.failure: LogReadOnly | None = None
        self.on_sync_end: Callable[[], None] | None = None
        self._source = source
        self._run_in_thread = run_in_thread
        self._running: SyncJob | None = None
        self._writing_units: SyncJob | None = None
        self._wanted = 0
        self.waiters: deque[tuple[int, VisibleCallback]] = deque()

    @property
    def busy(self) -> bool:
        """Whether a job is under way."""
        return self._running is not None or self._writing_units is not None

    @property
    def syncing(self) -> bool:
        """Whether a job that syncs is under way, which may take long."""
        return self._running is not None

    def writes_index(self, segment: Segment) -> bool:
        """Whether a job under way may write the index file of this segment."""
        return any(job is not None and job.writes_index(segment) for job in (self._running, self._writing_units))

    def request(self, kind: int, run: RunInThread | None = None) -> None:
        """Have everything appended up to now covered by a job of this kind; nothing after a failure.

        INDEX alone is not asked for again if units are being written. run: the thread to use if the job can start at
        once.
        """
        job = self.begin(kind, grouped=False)
        if job is not None:
            self._run(job, run or self._run_in_thread)

    def when_synced(self, end: int, callback: VisibleCallback) -> None:
        """Call back once, when `answer` reaches `end` or a job fails."""
        if self.failure is not None:
            callback(self.failure)
        else:
            self.waiters.append((end, callback))

    def answer(self, synced_end: int) -> None:
        """Call the waiters whose data ends at or before `synced_end`, oldest first."""
        waiters = self.waiters
        while waiters and waiters[0][0] <= synced_end:
            call_safely(waiters.popleft()[1], None)

    def begin(self, kind: int, *, grouped: bool = True) -> SyncJob | None:
        """As `request`, but the caller runs the job, by default in a group, and calls `end` then.

        None after a failure, and if it cannot begin now: one that syncs follows those under way.
        """
        if kind == INDEX:
            return self._begin_units(grouped)
        self._wanted |= kind
        return self._begin_wanted(grouped)

    def settle_units(self) -> bool:
        """Let those index units leave memory that jobs under way have written; whether others may be written now."""
        return self._writing_units is None and (self._running is None or self._running.settle_units())

    def _begin_units(self, grouped: bool) -> SyncJob | None:
        if self.failure is not None or not self.settle_units():
            return None
        self._writing_units = self._source.make_job(INDEX, grouped=grouped)
        return self._writing_units

    def _begin_wanted(self, grouped: bool) -> SyncJob | None:
        if not self._wanted or self._running is not None or self.failure is not None:
            return None
        if self._wanted & INDEX and self._writing_units is not None:
            return None  # they would write the same units
        kind, self._wanted = self._wanted, 0
        self._running = self._source.make_job(kind, grouped=grouped)
        return self._running

    def finish(self) -> None:
        """Do what is left on this thread, waiting for the disk, and answer everybody. For shutdown."""
        job = self.begin_last()
        if job is not None:
            with suppress(OSError):  # the job keeps it, and `end_last` reports it
                job.run()
            self.end_last(job)

    def begin_last(self, *, grouped: bool = False) -> SyncJob | None:
        """The job that covers everything, for the caller to run and to hand to `end_last`; None after a failure.

        Jobs under way are awaited, or cancelled if they have not begun.
        """
        under_way = (self._running, self._writing_units)
        self._running = self._writing_units = None
        for job in under_way:
            if job is not None:
                job.cancel()
                self.end_last(job)
        if self.failure is not None:
            return None
        self._wanted = 0
        return self._source.make_job(DATA | INDEX, grouped=grouped)

    def end_last(self, job: SyncJob) -> None:
        """Answer everybody who waits for this job."""
        job.release()
        if job.error is not None:
            self._source.sync_failed(str(job.error))
        elif job.ran:
            job.apply()
            self._source.job_succeeded(job)

    def _run(self, job: SyncJob, run: RunInThread) -> None:
        run(job.run, partial(self.end, job))

    def end(self, job: SyncJob, result: object) -> None:
        """A job of `begin` has run; result: an exception that is not the job's own, or anything else."""
        if job is self._running:
            self._running = None
        elif job is self._writing_units:
            self._writing_units = None
        else:
            return  # finish() has settled it
        if isinstance(result, BaseException) and job.error is None:
            job.error = OSError(f"worker thread failed: {result!r}")
        self.end_last(job)
        following = self._begin_wanted(grouped=False)
        if following is not None:
            self._run(following, self._run_in_thread)
        if self.on_sync_end is not None and (job.kind & DATA or self.failure is not None):
            self.on_sync_end()

    def fail(self, cause: str) -> None:
        """Run no job any more and tell everybody who waits. Does nothing the second time."""
        if self.failure is not None:
            return
        self.failure = LogReadOnly(self._source.directory, cause)
        waiters, self.waiters = self.waiters, deque()
        for _, callback in waiters:
            call_safely(callback, self.failure)


def call_safely(callback: Callable[..., None], *arguments: object) -> None:
    """Call back; an exception is the callback's bug and must not keep the others from being called: it is logged."""
    try:
        callback(*arguments)
    except Exception:
        _log.exception("%r failed", callback)
