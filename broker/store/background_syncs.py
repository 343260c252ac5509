"""Start the syncs and checkpoints of partition logs when they are due. A checkpoint is a sync of a log's data and
index, after which a start of the broker need not check these data. If only a few logs need a sync or checkpoint now,
each of them gets its own sync. If many logs need one, groups of logs share one sync of the whole file systems.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush

from . import tuning
from .durability import DATA, INDEX
from .file_systems import FileSystems
from .partition_log import PartitionLog
from .sync_job import SyncJob, run_together
from .worker_turns import RunInThread

__all__ = ["BackgroundSyncs"]

_log = logging.getLogger(__name__)

_Group = Sequence[tuple[PartitionLog, SyncJob]]


class BackgroundSyncs:
    """Keeps a list of the logs that have data not covered by a checkpoint, and starts the syncs and checkpoints that
    are due for these logs. Only the thread that owns the store may use this object. A call of `tick` takes a time
    proportional to the number of logs that have a job to start.
    """

    def __init__(
        self,
        file_systems: FileSystems,
        run_in_thread: RunInThread,
        on_sync_end: Callable[[PartitionLog], None] = lambda log: None,
    ) -> None:
        """on_sync_end: called when a sync or checkpoint of a log has ended or the log has failed, no matter which part
        of the broker had requested the job.
        """
        self.unit_limit = tuning.MAX_UNSTORED_UNITS
        """The maximum number of index units that each log keeps in memory before it writes them to its index file."""
        self._on_sync_end = on_sync_end
        self._file_systems = file_systems
        self._run_in_thread = run_in_thread
        self._dirty: dict[PartitionLog, int] = {}  # the number of its valid entry in the schedule
        self._fresh: deque[PartitionLog] = deque()  # dirty, but not scheduled yet
        self._schedule: list[tuple[float, int, PartitionLog]] = []  # a heap: when to look at each dirty log
        self._number = 0
        self._pending: dict[PartitionLog, int] = {}
        self._full: dict[PartitionLog, None] = {}  # logs with too many units in memory
        self._writing_units = False
        self._background: set[PartitionLog] = set()
        self._group_runs = False
        self._closed = False

    def mark_dirty(self, log: PartitionLog) -> None:
        """Record that the log has data that no checkpoint covers. Later calls of `tick` check which job is due for the
        log.
        """
        self._dirty[log] = 0
        self._fresh.append(log)

    def checkpoint_soon(self, log: PartitionLog) -> None:
        """Request a checkpoint of the log. One of the next calls of `tick` starts it, as soon as the maximum number of
        running background jobs allows one more.
        """
        self._pending[log] = DATA | INDEX

    def request(self, log: PartitionLog, kind: int) -> None:
        """Request a background job for the log; no put waits for this job. kind: what the job does, as the bits DATA
        and INDEX (durability.py). The job starts at once unless the maximum number of background jobs are running.

        A job that only writes index units does not wait for running syncs. If it waited, more and more units would be
        in memory while the disk is slow. For the same reason, if a checkpoint of a log is requested again before it has
        begun, the log's index units are written at once.
        """
        if kind == INDEX or self._pending.get(log) == kind == DATA | INDEX:
            self._full[log] = None
            self._write_units()
            return
        self._pending[log] = self._pending.get(log, 0) | kind
        self._start_pending()

    def tick(self, now: float) -> None:
        """Start the jobs that are due at monotonic time `now`, in seconds."""
        share = tuning.MAX_UNITS // max(1, len(self._dirty))
        self.unit_limit = min(tuning.MAX_UNSTORED_UNITS, max(tuning.LEAST_UNITS, share))
        for _ in range(tuning.LOOKED_AT_PER_TICK):
            if self._fresh:
                self._look_at(self._fresh.popleft(), 0, now)
            elif self._schedule and self._schedule[0][0] <= now:
                _, number, log = heappop(self._schedule)
                self._look_at(log, number, now)
            else:
                break
        self._start_pending()

    def _look_at(self, log: PartitionLog, number: int, now: float) -> None:
        if self._dirty.get(log) != number:
            return  # the log was clean in between and has another entry
        durability = log.durability
        if not durability.dirty or durability.failure is not None:
            del self._dirty[log]
            return
        if kind := durability.due(now):
            self._pending[log] = self._pending.get(log, 0) | kind
        self._number += 1
        self._dirty[log] = self._number
        heappush(self._schedule, (durability.next_due(now), self._number, log))

    def stop(self) -> None:
        """Start no more background jobs from now on."""
        self._closed = True

    def finish(self) -> None:
        """If more than GROUPED_FROM logs have data that no checkpoint covers, make one sync of the whole file systems
        and then the checkpoints of these logs, on this thread. For so many logs this takes less time than one sync for
        each log. For fewer logs, do nothing. To be called after `stop`. Blocks.
        """
        logs = [log for log in self._dirty if log.durability.dirty]
        if len(logs) > tuning.GROUPED_FROM:
            jobs = [(log, log.begin_last()) for log in logs]
            begun = [(log, job) for log, job in jobs if job is not None]
            run_together(self._file_systems.sync, [job for _, job in begun])
            for log, job in begun:
                log.end_last(job)

    # --- starting -----------------------------------------------------------------------------------------------------

    def _start_pending(self) -> None:
        while self._pending and len(self._background) < tuning.MAX_BACKGROUND_JOBS and not self._closed:
            if len(self._pending) > tuning.GROUPED_FROM:
                self._start_group()
                return
            log, kind = next(iter(self._pending.items()))
            del self._pending[log]
            if log.durability.failure is None:
                self._background.add(log)
                log.request(kind)

    def sync_ended(self, log: PartitionLog) -> None:
        """Called when a sync or checkpoint of the log has ended or the log has failed, no matter which part of the
        broker had requested the job. If it was a background job, start the next ones.
        """
        if log in self._background:
            self._background.discard(log)
            self._start_pending()
        self._on_sync_end(log)

    def _start_group(self) -> None:
        if self._group_runs:
            return
        logs = [log for log, _ in zip(self._pending, range(tuning.MAX_GROUP), strict=False)]
        if begun := _begin([(log, self._pending.pop(log)) for log in logs]):
            self._group_runs = True
            self._run(begun, self._group_ended)

    def _run(self, group: _Group, ended: Callable[[_Group, object], None]) -> None:
        run = partial(run_together, self._file_systems.sync, [job for _, job in group])
        self._run_in_thread(run, partial(ended, group))

    def _write_units(self) -> None:
        if self._writing_units or self._closed:
            return
        logs = [log for log, _ in zip(self._full, range(tuning.MAX_GROUP), strict=False)]
        for log in logs:
            del self._full[log]
        if begun := _begin([(log, INDEX) for log in logs]):  # a log that cannot begin now asks again
            self._writing_units = True
            self._run(begun, self._units_written)

    def _units_written(self, group: _Group, result: object) -> None:
        self._writing_units = False
        self._end_group(group, result)
        if self._full:
            self._write_units()

    def _group_ended(self, group: _Group, result: object) -> None:
        """Handle the end of a group of jobs that shared one sync. result: why the shared sync or the worker thread has
        failed, or None if neither has failed.
        """
        self._group_runs = False
        self._end_group(group, result)
        self._start_pending()

    def _end_group(self, group: _Group, result: object) -> None:
        for log, job in group:
            log.end(job, result)
            log.go_on()
        if isinstance(result, OSError) and not self._closed:
            self._fail_dirty(str(result))

    def _fail_dirty(self, cause: str) -> None:
        """Mark all logs that have data not covered by a checkpoint as failed. Called after a sync of whole file systems
        has failed: the kernel reports lost data only once and does not say which file has lost them.
        """
        _log.error("a sync of all partitions failed, those with unsynced data take no more writes: %s", cause)
        for log in list(self._dirty):
            if log.durability.dirty:
                log.sync_failed(cause)


def _begin(wanted: Sequence[tuple[PartitionLog, int]]) -> _Group:
    """For each log in `wanted`, begin a job if the log can begin one now. Return the logs whose jobs have begun, with
    the jobs. wanted: pairs of a log and the kind of its job (the bits DATA and INDEX).
    """
    jobs = [(log, log.begin(kind)) for log, kind in wanted]
    return [(log, job) for log, job in jobs if job is not None]
