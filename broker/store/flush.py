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
    """When data is synced. `waits`: puts are answered, and readers see data, only after the sync."""

    waits: bool

    @property
    @abstractmethod
    def seconds(self) -> float:
        """How long data may wait to be synced."""

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

    @property
    def seconds(self) -> float:
        return self.interval_ms / 1000

    def due_after_append(self, unsynced_records: int) -> bool:
        return unsynced_records > self.threshold_records

    def due_after(self, seconds: float) -> bool:
        return seconds * 1000 >= self.interval_ms


@dataclass(frozen=True, slots=True)
class GroupCommit(FlushPolicy):
    """Sync at once; everything appended while a sync runs shares the next. Nothing is left to be due by time."""

    waits = True
    seconds = float("inf")

    def due_after_append(self, unsynced_records: int) -> bool:
        return True

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

    def request(self, kind: int, run: RunInThread | None = None) -> None:
        """Have everything appended up to now covered by a job of this kind; nothing after a failure.

        run: the thread to use if the job can start at once.
        """
        self._wanted |= kind
        if self._running is None and self.failure is None:
            self._start(run or self._run_in_thread)

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

    def begin(self, kind: int) -> SyncJob | None:
        """As `request`, but the caller runs the job in a group and calls `end` then.

        None if a job is under way, which one of this kind follows, and after a failure.
        """
        self._wanted |= kind
        if self._running is not None or self.failure is not None:
            return None
        kind, self._wanted = self._wanted, 0
        self._running = self._source.make_job(kind, grouped=True)
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

        A job under way is awaited, or cancelled if it has not begun.
        """
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            self.end_last(running)
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

    def _start(self, run: RunInThread) -> None:
        kind, self._wanted = self._wanted, 0
        job = self._running = self._source.make_job(kind)
        run(job.run, partial(self.end, job))

    def end(self, job: SyncJob, result: object) -> None:
        """A job of `begin` has run; result: an exception that is not the job's own, or anything else."""
        if self._running is not job:
            return  # finish() has settled it
        self._running = None
        if isinstance(result, BaseException) and job.error is None:
            job.error = OSError(f"worker thread failed: {result!r}")
        self.end_last(job)
        if self._wanted and self.failure is None and self._running is None:
            self._start(self._run_in_thread)
        if self.on_job_end is not None:
            self.on_job_end()

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
