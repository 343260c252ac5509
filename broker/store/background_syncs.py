"""Syncs and checkpoints whose time has come, a bounded number of them at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from .flush import DATA, INDEX
from .partition_log import PartitionLog

__all__ = ["BackgroundSyncs"]

_MAX_BACKGROUND_JOBS = 16
"""Timer-driven syncs under way at once; each keeps a descriptor open and a worker thread busy."""


class BackgroundSyncs:
    """The dirty logs of a store and what is to be done with them. Owning thread."""

    def __init__(self, on_job_end: Callable[[PartitionLog], None] = lambda log: None) -> None:
        """on_job_end: called after each sync or checkpoint of a log, whoever asked for it."""
        self._on_job_end = on_job_end
        self._dirty: dict[PartitionLog, None] = {}  # dictionaries as ordered sets
        self._pending: dict[PartitionLog, int] = {}
        self._background: set[PartitionLog] = set()
        self._closed = False

    def watch(self, log: PartitionLog) -> None:
        """Count the log's jobs."""
        log.flusher.on_job_end = partial(self._job_ended, log)

    def mark_dirty(self, log: PartitionLog) -> None:
        """The log has something that no checkpoint covers; it is asked from now on what it wants."""
        self._dirty[log] = None

    def checkpoint_soon(self, log: PartitionLog) -> None:
        """Checkpoint the log when its turn comes."""
        self._pending[log] = DATA | INDEX

    def tick(self, now: float) -> None:
        """Start what is due at monotonic time `now`, in seconds."""
        for log in list(self._dirty):
            if not log.dirty:
                del self._dirty[log]
            elif kind := log.due(now):
                self._pending[log] = self._pending.get(log, 0) | kind
        self._start_pending()

    def stop(self) -> None:
        """Begin nothing any more."""
        self._closed = True

    def _start_pending(self) -> None:
        while self._pending and len(self._background) < _MAX_BACKGROUND_JOBS and not self._closed:
            log, kind = next(iter(self._pending.items()))
            del self._pending[log]
            if log.flusher.failure is None:
                self._background.add(log)
                log.flusher.request(kind)

    def _job_ended(self, log: PartitionLog) -> None:
        if log in self._background:
            self._background.discard(log)
            self._start_pending()
        self._on_job_end(log)
