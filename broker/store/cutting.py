"""Cut off the ends of partitions while the store is in use: wait until a cut is possible, let a worker thread change
the files, and then let the log objects use the changed segments.

First, all data of these partitions are synced. The journal also begins a new file and deletes all older ones. Otherwise
the next start of the broker could restore the removed data from them. Then a worker thread changes the partitions'
files (cut_files.py) and opens them in the same way as a start of the broker does (recovery.py). Each call of `tick`
checks whether the next of these steps can begin.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from metaq.protocol.errors import StoreError

from .background_syncs import BackgroundSyncs
from .cut_files import Change, CutUnfinished, change_partition
from .durability import DATA, INDEX
from .files import OpenFiles
from .index_rebuilding import IndexRebuilding
from .journal import Journal
from .partition_log import PartitionLog
from .recovery import recover_partition
from .retention import Retention
from .segment import Segment
from .topic_config import TopicStoreConfig
from .worker_turns import RunInThread, call_safely

__all__ = ["CutsDone", "Cutting"]

_log = logging.getLogger(__name__)

CutsDone = Callable[[Mapping[PartitionLog, Sequence[str]], "StoreError | None"], None]
"""done(kept, error). kept: for each log that was cut, the paths of the files that contain the removed data. error: why
the other logs were not cut, or None if all logs were cut.
"""

_BEING_CUT = "its end is being cut off"


class _Request(NamedTuple):
    changes: dict[PartitionLog, Change]
    done: CutsDone


class _Cut(NamedTuple):
    """The result of one partition's cut."""

    log: PartitionLog
    kept: list[str]
    segments: list[Segment]


class _Made(NamedTuple):
    """The result of a request. cuts: the results of the logs that were cut. error: None if all logs were cut, else the
    error of the first log that could not be cut; the logs after it were not tried.
    """

    cuts: list[_Cut]
    error: StoreError | None


class Cutting:
    """Carries out one request for cuts at a time. Only the thread that owns the store may use this object; a worker
    thread (`run_in_thread`) changes the files.
    """

    def __init__(
        self,
        open_files: OpenFiles,
        run_in_thread: RunInThread,
        config_for: Callable[[str], TopicStoreConfig],
        journal: Journal,
        syncs: BackgroundSyncs,
        rebuilding: IndexRebuilding,
        retention: Retention,
        on_renewed: Callable[[PartitionLog], None],
    ) -> None:
        """on_renewed(log): called when the cut has replaced the log's segments."""
        self._open_files = open_files
        self._run_in_thread = run_in_thread
        self._config_for = config_for
        self._journal = journal
        self._syncs = syncs
        self._rebuilding = rebuilding
        self._retention = retention
        self._on_renewed = on_renewed
        self._waiting: deque[_Request] = deque()
        self._journal_number: int | None = None
        self._running = False
        self._closed = False
        self._lock = threading.Lock()  # held while files are changed: close() waits for it

    def start(self, changes: Mapping[PartitionLog, Change], done: CutsDone) -> None:
        """Begin to carry out these changes. If earlier requests are not finished, begin after them. The caller must not
        append to these logs until `done` is called.
        """
        self._waiting.append(_Request(dict(changes), done))
        self.tick()

    def tick(self) -> None:
        """Begin the next step of the oldest request if it can run now."""
        if not self._waiting or self._running or self._closed:
            return
        request = self._waiting[0]
        self._rebuilding.hold(True)
        try:
            ready = self._is_ready(request.changes)
        except StoreError as error:
            self._finish({}, error)
            return
        if ready and self._journal_number is not None:
            self._running = True
            for log in request.changes:
                log.durability.write_failed(_BEING_CUT)
            self._run_in_thread(partial(self._work, request.changes, self._journal_number), self._worked)

    def close(self) -> None:
        """Start no more cuts, wait until no file is being changed, and call `done` with an error for all waiting
        requests.
        """
        with self._lock:
            self._closed = True
        for request in self._waiting:
            call_safely(request.done, {}, StoreError("the store is closed"))
        self._waiting.clear()

    def _is_ready(self, logs: Mapping[PartitionLog, Change]) -> bool:
        """Return whether the logs can be cut now: the journal has no data of them, and all their data and indexes are
        synced. If not, request the missing syncs and the removal of the journal's files. Raises StoreError if the logs
        cannot be cut before a restart of the broker.
        """
        for log in logs:
            if log.read_only is not None:
                raise StoreError(f"{log.directory} cannot be cut before a restart: {log.read_only}")
        if stuck := self._journal.stuck:
            raise StoreError(f"nothing can be cut before a restart: {stuck}")
        if self._journal_number is None:
            self._journal_number = self._journal.turn_over()
            for log in logs:
                if not log.at_rest:
                    self._syncs.request(log, DATA | INDEX)
        return (
            self._journal_number is not None
            and not self._journal.has_older(self._journal_number)
            and not self._rebuilding.busy
            and all(log.at_rest and not self._retention.is_busy(log) for log in logs)
        )

    # --- in a worker thread -------------------------------------------------------------------------------------------

    def _work(self, changes: Mapping[PartitionLog, Change], journal_number: int) -> _Made:
        made = _Made([], None)
        with self._lock:
            if self._closed:
                return made
            try:
                self._journal.check_gone(journal_number)
            except OSError as error:
                return _Made([], StoreError(f"nothing can be cut: {error}"))
            for log, change in changes.items():
                try:
                    made.cuts.append(self._change(log, change))
                except StoreError as error:
                    return made._replace(error=error)
        return made

    def _change(self, log: PartitionLog, change: Change) -> _Cut:
        """Cut one partition on the disk as `change` describes, and open its files again. On failure, raises StoreError
        if nothing was changed, else CutUnfinished.
        """
        kept = change_partition(self._open_files.files, log.directory, change)
        try:
            found = recover_partition(self._open_files, log.directory, _no_sync)
        except StoreError as error:
            raise CutUnfinished(str(error)) from error
        return _Cut(log, kept, found.segments)

    # --- afterwards ---------------------------------------------------------------------------------------------------

    def _worked(self, result: _Made | BaseException) -> None:
        if self._closed:
            return
        if isinstance(result, BaseException):  # nobody knows what was done: no log is renewed
            result = _Made([], CutUnfinished(f"a cut can only be finished by the next start: {result!r}"))
            logs = []
        else:
            logs = list(self._waiting[0].changes)
        for log, _, segments in result.cuts:
            log.renew(segments, self._config_for(log.topic))
            self._on_renewed(log)
        untouched = logs[len(result.cuts) :]
        if isinstance(result.error, CutUnfinished):
            _log.error("%s", result.error)
            untouched = untouched[1:]
        for log in untouched:
            log.durability.write_again(_BEING_CUT)
        self._finish({log: kept for log, kept, _ in result.cuts}, result.error)

    def _finish(self, kept: Mapping[PartitionLog, Sequence[str]], error: StoreError | None) -> None:
        self._running = False
        self._journal_number = None
        request = self._waiting.popleft()
        self._rebuilding.hold(False)
        call_safely(request.done, kept, error)
        self.tick()


def _no_sync() -> None:
    """Do nothing. The recovery of a cut partition uses this function as its sync function, because all data were synced
    before the cut.
    """
