"""All partitions of one broker: opening, creating, timers, retention, shutting down."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from metaq.protocol.errors import PartitionNotFound, StoreError

from .directories import PartitionDirectory, lock_data_path, lock_empty_path, partition_path, scan_data_paths
from .discard import discard
from .files import REAL_FILES, Files, OpenFiles, default_open_limit
from .flush import DATA, INDEX, FlushPolicy, RunInThread, flush_policy
from .index import Index
from .journal import Journal, JournalEntry, journal_number, read_journal
from .partition_log import PartitionLog
from .recovery import RebuiltIndex, Recovered, RecoveryReport, rebuild_index, recover_partition
from .replay import replay_partition
from .retention import Action, DeletePolicy, SegmentAge, count_expired
from .segment import Segment, SegmentFile, create_segment

__all__ = ["RemovedSegment", "Store", "TopicStoreConfig"]

_log = logging.getLogger(__name__)

_SYNCED_ONE_BY_ONE = 64
"""Recovered segments above which the whole file system is synced in one call, with what others wrote to it."""

_MAX_BACKGROUND_JOBS = 16
"""Timer-driven syncs under way at once; each keeps a descriptor open and a worker thread busy."""


@dataclass(frozen=True, slots=True)
class TopicStoreConfig:
    """What server.ini says about storing one topic (storage.md §9). unflush_threshold <= 0 means group commit."""

    max_segment_size: int
    unflush_threshold: int
    unflush_interval_ms: int
    delete_policy: DeletePolicy | None = None
    """None keeps everything."""

    @property
    def flush_policy(self) -> FlushPolicy:
        return flush_policy(self.unflush_threshold, self.unflush_interval_ms)


@dataclass(frozen=True, slots=True)
class RemovedSegment:
    """A segment that retention has taken out of a log; its file goes in the background."""

    topic: str
    partition: int
    first_offset: int
    size: int
    action: Action


class Store:
    """Lives on the owning (reactor) thread; disk syncs, retention and index rebuilding go through `run_in_thread`."""

    def __init__(
        self,
        data_paths: Sequence[str],
        config_for: Callable[[str], TopicStoreConfig],
        data_path_for: Callable[[str], str] | None = None,
        *,
        run_in_thread: RunInThread,
        files: Files = REAL_FILES,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        max_open_files: int | None = None,
    ) -> None:
        """data_paths: all directories to scan; new partitions go to data_path_for(topic), by default the first.

        clock: wall clock in seconds, for retention. monotonic: seconds, for intervals. max_open_files: descriptors kept
        open between uses, by default a share of the process's limit.
        """
        if not data_paths:
            raise ValueError("a store needs a data path")
        self.data_paths = list(dict.fromkeys(os.path.realpath(path) for path in data_paths))
        self.reports: list[RecoveryReport] = []
        self._config_for = config_for
        self._data_path_for = data_path_for or (lambda topic: self.data_paths[0])
        self._run_in_thread = run_in_thread
        self.files = files
        self._clock = clock
        self._monotonic = monotonic
        self._open_files = OpenFiles(files, default_open_limit() if max_open_files is None else max_open_files)
        self._journal = Journal(self.data_paths[0], files, run_in_thread, self._checkpoint_soon)
        self._logs: dict[tuple[str, int], PartitionLog] = {}
        self._locks: list[int] = []
        self._dirty: dict[PartitionLog, None] = {}  # dictionaries as ordered sets
        self._pending: dict[PartitionLog, int] = {}
        self._background: set[PartitionLog] = set()
        self._unindexed: list[tuple[PartitionLog, Segment]] = []
        self._closed = False

    # --- life ---------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Lock and scan the data directories and recover every partition; what had to be repaired is in `reports`.

        Indexes missing for closed segments are rebuilt in the background from then on. Raises DirectoryInUse,
        ConfigError, StoreError; nothing stays locked then.
        """
        try:
            for path in self.data_paths:
                self._locks.append(lock_data_path(self.files, path))
            self._recover()
        except BaseException:
            self._release()
            raise
        self._rebuild_next_index()

    def _recover(self) -> None:
        """Replay what an earlier life's journal has, recover every partition, sync it all, drop the journal."""
        entries, journal_paths = self._read_journal()
        found = {f"{each.topic}-{each.partition}": each for each in scan_data_paths(self.files, self.data_paths)}
        for name, of_partition in entries.items():
            directory = found.get(name) or self._directory_for(name)
            if added := replay_partition(self.files, directory.path, of_partition):
                _log.warning("%s: %d bytes came back from the journal", directory.path, added)
            found[name] = directory
        for entry in sorted(found.values()):
            recovered = recover_partition(self._open_files, entry.path)
            self._report(recovered.report)
            log = self._add(entry.topic, entry.partition, entry.path, recovered)
            self._unindexed += [(log, segment) for segment in recovered.unindexed]
        self._sync_recovered(journaled=bool(journal_paths))
        for path in journal_paths:
            self.files.unlink(path)
        if journal_paths:
            self._journal.start_after(journal_number(journal_paths[-1]))

    def _read_journal(self) -> tuple[dict[str, list[JournalEntry]], list[str]]:
        try:
            return read_journal(self.files, self.data_paths[0])
        except OSError as error:
            raise StoreError(f"the journal in {self.data_paths[0]} cannot be read: {error}") from error

    def _directory_for(self, name: str) -> PartitionDirectory:
        topic, _, number = name.rpartition("-")
        data_path = os.path.realpath(self._data_path_for(topic))
        return PartitionDirectory(topic, int(number), partition_path(data_path, topic, int(number)))

    def _sync_recovered(self, *, journaled: bool) -> None:
        """Wait until what was found is on the disk where readers may only see what cannot be lost.

        journaled: there is a journal to be dropped, which may have made any partition's puts safe.
        """
        logs = [log for log in self._logs.values() if journaled or log.waits]
        segments = [
            segment
            for log in logs
            for segment in log.segments
            if segment.synced < segment.end or (journaled and segment.index is None)
        ]
        try:
            if len(segments) > _SYNCED_ONE_BY_ONE:
                for path in self.data_paths:
                    self.files.sync_filesystem(path)
            else:
                self._sync_segments(segments)
        except OSError as error:
            raise StoreError(f"what was recovered cannot be synced: {error}") from error
        for log in logs:
            log.mark_synced()

    def _sync_segments(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            self.files.fdatasync(segment.data.use())
        directories = [os.path.dirname(segment.path) for segment in segments]
        for path in dict.fromkeys((*directories, *map(os.path.dirname, directories))):
            self.files.fsync_directory(path)

    def close(self) -> None:
        """Sync everything on this thread, waiting for the disk, answer all who wait, unlock. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self._journal.stop()
        for log in self._logs.values():
            log.close()
        self._journal.close()
        self._release()

    def _release(self) -> None:
        locks, self._locks = self._locks, []
        for fd in locks:
            self.files.close(fd)

    def _report(self, report: RecoveryReport) -> None:
        self.reports.append(report)
        if report.damage or report.missing_bytes:
            _log.error("recovered %s", report)
        elif report.notable:
            _log.warning("recovered %s", report)

    # --- data directories of a running broker -------------------------------------------------------------------------

    def unknown_paths(self, paths: Iterable[str], known: Iterable[str] | None = None) -> list[str]:
        """Those of `paths` that are none of `known`, by default of the store's own, as real paths."""
        others = set(self.data_paths if known is None else map(os.path.realpath, known))
        return [path for path in dict.fromkeys(map(os.path.realpath, paths)) if path not in others]

    def lock_empty_paths(self, paths: Iterable[str]) -> dict[str, int]:
        """Worker thread: path -> lock of each directory, made if needed.

        Raises ConfigError, DirectoryInUse; nothing stays locked then.
        """
        locks: dict[str, int] = {}
        try:
            for path in paths:
                locks[path] = lock_empty_path(self.files, path)
        except BaseException:
            for fd in locks.values():
                self.files.close(fd)
            raise
        return locks

    def adopt_paths(self, locks: Mapping[str, int]) -> None:
        """Use directories that `lock_empty_paths` has locked for new partitions."""
        self.data_paths += locks
        self._locks += locks.values()

    def has_partitions(self, path: str) -> bool:
        """Whether partitions lie in this one of `data_paths`."""
        return any(os.path.dirname(log.directory) == path for log in self._logs.values())

    # --- partitions ---------------------------------------------------------------------------------------------------

    def get(self, topic: str, partition: int) -> PartitionLog:
        """The log of a partition. Raises PartitionNotFound."""
        log = self._logs.get((topic, partition))
        if log is None:
            raise PartitionNotFound(topic, partition)
        return log

    def find(self, topic: str, partition: int) -> PartitionLog | None:
        """The log of a partition, None if there is none."""
        return self._logs.get((topic, partition))

    def get_or_create(self, topic: str, partition: int, first_offset: int = 0) -> PartitionLog:
        """The log of a partition; if there is none it is made, empty, to begin at byte `first_offset`.

        Raises InvalidName, StoreError.
        """
        log = self._logs.get((topic, partition))
        return self._create(topic, partition, first_offset) if log is None else log

    def logs(self) -> Iterable[PartitionLog]:
        """All logs, in no particular order."""
        return self._logs.values()

    @property
    def max_message_id(self) -> int:
        """Largest positive message id in any log, 0 if there is none: new ids must be larger. O(partitions)."""
        return max((log.max_message_id for log in self._logs.values()), default=0)

    def _create(self, topic: str, partition: int, first_offset: int) -> PartitionLog:
        data_path = os.path.realpath(self._data_path_for(topic))
        path = partition_path(data_path, topic, partition)
        try:
            self.files.make_directory(path)
            segment = create_segment(self._open_files, path, first_offset)
        except OSError as error:
            raise StoreError(f"partition directory {path} cannot be made: {error}") from error
        return self._add(topic, partition, path, Recovered([segment], [], RecoveryReport(path, 1), (data_path, path)))

    def _add(self, topic: str, partition: int, path: str, recovered: Recovered) -> PartitionLog:
        config = self._config_for(topic)
        log = PartitionLog(
            topic,
            partition,
            path,
            recovered.segments,
            policy=config.flush_policy,
            max_segment_size=config.max_segment_size,
            open_files=self._open_files,
            run_in_thread=self._run_in_thread,
            journal=self._journal,
            unsynced_directories=recovered.unsynced_directories,
            on_dirty=self._mark_dirty,
        )
        log.flusher.on_job_end = partial(self._job_ended, log)
        self._logs[topic, partition] = log
        return log

    def reconfigure(self) -> None:
        """Ask for every log's settings again. Retention asks whenever it runs, data paths only for new partitions."""
        for log in self._logs.values():
            config = self._config_for(log.topic)
            log.use(config.flush_policy, config.max_segment_size)

    # --- timers -------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Start the syncs and checkpoints whose time has come. To be called about four times a second."""
        now = self._monotonic()
        for log in list(self._dirty):
            if not log.dirty:
                del self._dirty[log]
            elif kind := log.due(now):
                self._pending[log] = self._pending.get(log, 0) | kind
        self._start_pending()
        self._journal.tick()

    def _checkpoint_soon(self, log: PartitionLog) -> None:
        self._pending[log] = DATA | INDEX

    def _mark_dirty(self, log: PartitionLog) -> None:
        self._dirty[log] = None

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

    # --- retention ----------------------------------------------------------------------------------------------------

    def apply_retention(self, is_due: Callable[[str], bool] = lambda topic: True) -> list[RemovedSegment]:
        """Take too old segments out of their logs at once and start deleting or archiving their files.

        is_due: whether a topic's turn has come (topics may have schedules of their own).
        Files that cannot be removed are logged and come back into the log, to be tried at the next run.
        """
        removed: list[RemovedSegment] = []
        for log in self._logs.values():
            policy = self._config_for(log.topic).delete_policy
            if policy is not None and is_due(log.topic):
                segments = log.remove_first(self._count_expired(log, policy))
                removed += [
                    RemovedSegment(log.topic, log.partition, segment.first_offset, segment.size, policy.action)
                    for segment in segments
                ]
                self._discard(log, segments, policy.action)
        return removed

    def _count_expired(self, log: PartitionLog, policy: DeletePolicy) -> int:
        ages = []
        for segment in log.segments[:-1]:
            if not segment.removable:
                break
            try:
                modified_ms = self.files.status(segment.path).modified_ms
            except OSError as error:
                _log.error("retention of %s stops at %s: %s", log.directory, segment.path, error)
                break
            ages.append(SegmentAge(segment.first_offset, modified_ms / 1000))
        return count_expired(ages, policy, self._clock())

    def _discard(self, log: PartitionLog, segments: Sequence[Segment], action: Action) -> None:
        if segments:
            paths = [segment.path for segment in segments]
            done = partial(self._discarded, log, segments)
            self._run_in_thread(partial(discard, self.files, log.directory, paths, action), done)

    def _discarded(
        self, log: PartitionLog, segments: Sequence[Segment], result: tuple[int, OSError | None] | BaseException
    ) -> None:
        if isinstance(result, BaseException):
            _log.error("retention of %s failed: %r", log.directory, result)
            return
        count, error = result
        if error is not None:
            _log.error(
                "retention of %s stopped after %d of %d segments: %s", log.directory, count, len(segments), error
            )
            log.restore_first(segments[count:])

    # --- rebuilding indexes -------------------------------------------------------------------------------------------

    @property
    def unindexed_segments(self) -> int:
        """Closed segments whose index is still to be rebuilt; their messages are not counted yet."""
        return len(self._unindexed)

    def _rebuild_next_index(self) -> None:
        if self._unindexed and not self._closed:
            log, segment = self._unindexed[0]
            self._run_in_thread(partial(self._rebuild, segment), partial(self._rebuilt, log, segment))

    def _rebuild(self, segment: Segment) -> RebuiltIndex:
        status = self.files.status(segment.path)
        file = SegmentFile(segment.path, segment.first_offset, segment.size, status.modified_ms)
        return rebuild_index(self.files, file)

    def _rebuilt(self, log: PartitionLog, segment: Segment, result: RebuiltIndex | BaseException) -> None:
        del self._unindexed[0]
        if isinstance(result, BaseException):
            _log.error("the index of %s cannot be rebuilt, its messages are not counted: %s", segment.path, result)
        else:
            for damage in result.damage:
                _log.error("%s is damaged in [%d, %d)", segment.path, damage.start, damage.end)
            log.adopt_index(segment, Index(self._open_files.file(segment.index_path), result.count, result.max_id))
        self._rebuild_next_index()
