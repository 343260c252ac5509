"""Syncs and checkpoints whose time has come: few of them by themselves, many in groups that share one sync."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush

from .file_systems import FileSystems
from .flush import DATA, INDEX, RunInThread
from .index import UnitLimit
from .partition_log import PartitionLog
from .sync_job import SyncJob, run_together

__all__ = ["BackgroundSyncs"]

_log = logging.getLogger(__name__)

_MAX_BACKGROUND_JOBS = 16
"""Timer-driven syncs under way at once; each keeps a descriptor open and a worker thread busy."""

_GROUPED_FROM = 64
"""Logs that wait for a sync above which they share one of the whole file system, with what others wrote to it."""

_MAX_GROUP = 128
"""Logs in a group: ending their jobs and making the next group's takes the owning thread some 3 ms."""

_MAX_UNITS = 3 << 20
"""Index units that all dirty logs together may hold in memory (96 MiB) before they write them out."""

_LEAST_UNITS = 256
"""What each of them may hold in any case: writing fewer costs more than they take."""

_LOOKED_AT_PER_TICK = 1024
"""Dirty logs whose time has come that one tick looks at, some 2 ms; the others wait for the next tick."""


_Group = Sequence[tuple[PartitionLog, SyncJob]]


class BackgroundSyncs:
    """The dirty logs of a store and what is to be done with them. Owning thread. A tick costs O(logs that are due)."""

    def __init__(
        self,
        file_systems: FileSystems,
        run_in_thread: RunInThread,
        on_sync_end: Callable[[PartitionLog], None] = lambda log: None,
    ) -> None:
        """on_sync_end: called after each sync or checkpoint of a log, whoever asked for it."""
        self._on_sync_end = on_sync_end
        self._file_systems = file_systems
        self._run_in_thread = run_in_thread
        self._dirty: dict[PartitionLog, int] = {}  # the number of its valid entry in the schedule
        self._fresh: deque[PartitionLog] = deque()  # dirty, and not scheduled yet
        self._schedule: list[tuple[float, int, PartitionLog]] = []  # a heap: when to look at each dirty log
        self._number = 0
        self._pending: dict[PartitionLog, int] = {}
        self._full: dict[PartitionLog, None] = {}  # have too many units in memory
        self._writing_units = False
        self.unit_limit = UnitLimit()
        self._background: set[PartitionLog] = set()
        self._group_runs = False
        self._closed = False

    def watch(self, log: PartitionLog) -> None:
        """Count the log's syncs."""
        log.flusher.on_sync_end = partial(self._sync_ended, log)

    def mark_dirty(self, log: PartitionLog) -> None:
        """The log has something that no checkpoint covers; it is asked from now on what it wants."""
        self._dirty[log] = 0
        self._fresh.append(log)

    def checkpoint_soon(self, log: PartitionLog) -> None:
        """Checkpoint the log when its turn comes."""
        self._pending[log] = DATA | INDEX

    def request(self, log: PartitionLog, kind: int) -> None:
        """Start a job of this kind, at once unless others are under way: nobody waits for it.

        Units alone are written without waiting behind syncs: memory must not grow while the disk is slow. So they are
        where a checkpoint was asked for before and still waits for its turn.
        """
        if kind == INDEX or self._pending.get(log) == kind == DATA | INDEX:
            self._full[log] = None
            self._write_units()
            return
        self._pending[log] = self._pending.get(log, 0) | kind
        self._start_pending()

    def tick(self, now: float) -> None:
        """Start what is due at monotonic time `now`, in seconds."""
        self.unit_limit.units = max(_LEAST_UNITS, _MAX_UNITS // max(1, len(self._dirty)))
        for _ in range(_LOOKED_AT_PER_TICK):
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
            return  # it was clean in between and has another entry
        if not log.dirty or log.flusher.failure is not None:
            del self._dirty[log]
            return
        if kind := log.due(now):
            self._pending[log] = self._pending.get(log, 0) | kind
        self._number += 1
        self._dirty[log] = self._number
        heappush(self._schedule, (log.next_due(now), self._number, log))

    def stop(self) -> None:
        """Begin nothing any more."""
        self._closed = True

    def finish(self) -> None:
        """After `stop`: sync all dirty logs on this thread, waiting for the disk, in a group if they are many."""
        logs = [log for log in self._dirty if log.dirty]
        if len(logs) > _GROUPED_FROM:
            jobs = [(log, log.flusher.begin_last(grouped=True)) for log in logs]
            begun = [(log, job) for log, job in jobs if job is not None]
            run_together(self._file_systems.sync, [job for _, job in begun])
            for log, job in begun:
                log.flusher.end_last(job)

    # --- starting -----------------------------------------------------------------------------------------------------

    def _start_pending(self) -> None:
        while self._pending and len(self._background) < _MAX_BACKGROUND_JOBS and not self._closed:
            if len(self._pending) > _GROUPED_FROM:
                self._start_group()
                return
            log, kind = next(iter(self._pending.items()))
            del self._pending[log]
            if log.flusher.failure is None:
                self._background.add(log)
                log.flusher.request(kind)

    def _sync_ended(self, log: PartitionLog) -> None:
        if log in self._background:
            self._background.discard(log)
            self._start_pending()
        self._on_sync_end(log)

    def _start_group(self) -> None:
        if self._group_runs:
            return
        logs = [log for log, _ in zip(self._pending, range(_MAX_GROUP), strict=False)]
        if begun := _begin([(log, self._pending.pop(log)) for log in logs]):
            self._group_runs = True
            self._run(begun, self._group_ended)

    def _run(self, group: _Group, ended: Callable[[_Group, object], None]) -> None:
        run = partial(run_together, self._file_systems.sync, [job for _, job in group])
        self._run_in_thread(run, partial(ended, group))

    def _write_units(self) -> None:
        if self._writing_units or self._closed:
            return
        logs = [log for log, _ in zip(self._full, range(_MAX_GROUP), strict=False)]
        for log in logs:
            del self._full[log]
        if begun := _begin([(log, INDEX) for log in logs]):  # who cannot now asks again
            self._writing_units = True
            self._run(begun, self._units_written)

    def _units_written(self, group: _Group, result: object) -> None:
        self._writing_units = False
        self._end_group(group, result)
        if self._full:
            self._write_units()

    def _group_ended(self, group: _Group, result: object) -> None:
        """result: None, the error of the sync they shared, or an exception that ended the worker."""
        self._group_runs = False
        self._end_group(group, result)
        self._start_pending()

    def _end_group(self, group: _Group, result: object) -> None:
        for log, job in group:
            log.flusher.end(job, result)
        if isinstance(result, OSError) and not self._closed:
            self._fail_dirty(str(result))

    def _fail_dirty(self, cause: str) -> None:
        """The kernel tells once that something was lost, and not of which file: nothing unsynced can be vouched for."""
        _log.error("a sync of all partitions failed, those with unsynced data take no more writes: %s", cause)
        for log in list(self._dirty):
            if log.dirty:
                log.sync_failed(cause)


def _begin(wanted: Sequence[tuple[PartitionLog, int]]) -> _Group:
    """Jobs of these kinds, of the logs that can begin one now."""
    jobs = [(log, log.flusher.begin(kind)) for log, kind in wanted]
    return [(log, job) for log, job in jobs if job is not None]
