"""Manage all partitions of one broker: open and create them, append to several of them at once, start their background
work and retention, and close them.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import TypeVar

from metaq.protocol.errors import DiskFull, LogReadOnly, MetaqError, PartitionNotFound, StoreError
from metaq.protocol.message_id import foreign_from
from metaq.protocol.record import Buffer

from . import tuning
from .background_syncs import BackgroundSyncs
from .cut_files import Change
from .cutting import CutsDone, Cutting
from .directories import PartitionDirectory, lock_data_path, lock_empty_path, partition_path, scan_data_paths
from .disk_space import DiskSpace, no_room
from .file_systems import FileSystems
from .files import REAL_FILES, Files, OpenFiles, default_open_limit, naming
from .index_rebuilding import IndexRebuilding
from .internal_logs import NUMBERS, InternalTopics, is_internal, number_of
from .journal import Journal, JournalStatus
from .journal_format import journal_number
from .key_building import KeyBuilding
from .partition_log import AppendListener, PartitionLog, StoreServices
from .recovery import RecoveryReport, recover_partition
from .replay import drop_journal, replay_journal
from .retention import RemovedSegment, Retention
from .rewriting import PageCacheSync
from .searching import Searching
from .segment import Segment, create_segment, segment_files
from .topic_config import TopicStoreConfig
from .worker_turns import RunInThread, call_safely

__all__ = ["Append", "AppendListener", "RemovedSegment", "Store", "TopicStoreConfig"]

_log = logging.getLogger(__name__)

AllSafeCallback = Callable[[Sequence[MetaqError | None]], None]
"""callback(errors): `errors` has one entry for each log, in the order of `ends` in `when_all_safe`. The entry is None
if the log's data are safe on this node; otherwise it is the error because of which they cannot become safe.
"""


class Append:
    """An append for `Store.append_many`. The object contains the arguments of `PartitionLog.append`; `append_many` adds
    the result.

    data: buffers that together contain whole records; a record may be divided into several buffers. base, end: the byte
    offsets in the partition where the appended data begin and end. They are equal if the data were not appended.
    error: why the data were not appended, or why they are not safe.
    """

    __slots__ = ("base", "data", "end", "error", "log", "segment", "units")

    def __init__(
        self, log: PartitionLog, data: Sequence[Buffer] = (), units: Buffer = b"", segment: int | None = None
    ) -> None:
        self.log = log
        self.data = data
        self.units = units
        self.segment = segment
        self.base = self.end = 0
        self.error: MetaqError | None = None


A = TypeVar("A", bound=Append)


class Store:
    """Manages the partitions and internal logs of a broker. Only the reactor thread, which owns the store, may use this
    object. Disk syncs, retention and rebuilds of indexes run in worker threads (`run_in_thread`).
    """

    def __init__(
        self,
        data_paths: Sequence[str],
        config_for: Callable[[str], TopicStoreConfig],
        data_path_for: Callable[[str], str] | None = None,
        *,
        kinds: InternalTopics,
        run_in_thread: RunInThread,
        run_journal: RunInThread | None = None,
        files: Files = REAL_FILES,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        max_open_files: int | None = None,
        key_block_bytes: int = tuning.KEY_BLOCK_BYTES,
        disk_reserve: int | None = None,
    ) -> None:
        """data_paths: all directories to scan for partitions. New partitions are created in the data path
        data_path_for(topic), by default in the first data path.

        kinds: the internal topics. run_journal: runs the journal's writes and syncs in threads that do nothing else, so
        that puts do not wait for other work; by default `run_in_thread`. clock: returns the wall clock time in seconds.
        monotonic: returns the monotonic time in seconds, for intervals. max_open_files: how many file descriptors to
        keep open between uses, by default a part of the process's limit (default_open_limit). key_block_bytes: see
        key_building.py. disk_reserve: see DiskSpace.
        """
        if not data_paths:
            raise ValueError("a store needs a data path")
        self.data_paths = list(dict.fromkeys(os.path.realpath(path) for path in data_paths))
        self.reports: list[RecoveryReport] = []
        self.whole: set[str] = set()
        """The names (`<topic>-<partition>`) of the complete partitions and internal logs. "Complete" means that the log
        had files when the broker started, and that the recovery has not found any synced data missing.
        """
        self._config_for = config_for
        self._kinds = kinds
        self._data_path_for = data_path_for or (lambda topic: self.data_paths[0])
        self.files = files
        self._clock = clock
        self._monotonic = monotonic
        self._open_files = OpenFiles(files, default_open_limit() if max_open_files is None else max_open_files)
        self.cached_only = self._open_files.cached_only
        """A context manager. In its `with` block, reads and searches of the logs on this thread raise NotCached if the
        data are not in the page cache, instead of waiting for the disk.
        """
        self.key_building = KeyBuilding(files, run_in_thread, key_block_bytes)
        self.searching = Searching(files, self.key_building)
        self._file_systems = FileSystems(files)
        self._syncs = BackgroundSyncs(self._file_systems, run_in_thread, self._sync_ended)
        self._retention = Retention(files, config_for, run_in_thread, clock, lambda log: self._rebuilding.add(log))
        self._rebuilding = IndexRebuilding(
            self._open_files, run_in_thread, self.key_building.revisit, self._retention.tidy
        )
        self.space = DiskSpace(files, lambda: self.data_paths, run_in_thread, disk_reserve)
        self._journal = Journal(
            self.data_paths[0],
            files,
            run_in_thread,
            self._syncs.checkpoint_soon,
            run_group=run_journal,
            with_messages=frozenset(topic for topic, kind in kinds.items() if kind.with_messages),
        )
        self._shared = StoreServices(
            self._open_files,
            run_in_thread,
            self._journal,
            self._syncs,
            self._rebuilding.add,
        )
        self._cutting = Cutting(
            self._open_files,
            run_in_thread,
            config_for,
            self._journal,
            self._syncs,
            self._rebuilding,
            self._retention,
            self._renewed,
        )
        self._logs: dict[tuple[str, int], PartitionLog] = {}
        self._internal_logs: dict[tuple[str, int], PartitionLog] = {}
        self._locks: list[int] = []
        self._closed = False

    # --- life ---------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Lock and scan the data directories, recover every partition, and begin to rebuild missing indexes of closed
        segments in the background. Afterwards `reports` has, for each partition, a report of what was repaired. Raises
        DirectoryInUse, ConfigError, StoreError; after an error no directory is locked.
        """
        try:
            for path in self.data_paths:
                self._locks.append(lock_data_path(self.files, path))
            self._file_systems.add(self.data_paths)
            self._recover()
        except BaseException:
            self._release()
            raise
        self.space.look_now()
        self._rebuilding.start()
        self.key_building.start(self._logs.values())

    def _recover(self) -> None:
        """If the broker's earlier run has left a journal, write into the partitions the data that only the journal has.
        Then recover every partition, sync the recovered data, and remove the journal.
        """
        found = {f"{each.topic}-{each.partition}": each for each in scan_data_paths(self.files, self.data_paths)}
        for topic, number in product(self._kinds, NUMBERS):
            if self.files.is_directory(path := self._internal_path(topic, number)):
                found[f"{topic}-{number}"] = PartitionDirectory(topic, number, path)

        self.whole = set(found)

        def directory_for(name: str) -> str:
            directory = found.get(name)
            if directory is None or not segment_files(self.files, directory.path):
                self.whole.discard(name)
            directory = found[name] = directory or self._directory_for(name)
            return directory.path

        journal = replay_journal(self.files, self.data_paths[0], directory_for)
        sync = PageCacheSync(self._file_systems, [each.path for each in found.values()])
        for topic, kind in sorted(self._kinds.items(), key=lambda item: item[1].recovered is None):
            for number in NUMBERS:
                if (entry := found.pop(f"{topic}-{number}", None)) is not None:
                    self._recover_internal(entry, sync)
            if kind.recovered is not None:
                for log in self.internal_logs(topic):
                    kind.recovered(self.files, log.segments.snapshot(), log.first_offset, found)
        for entry in sorted(found.values()):
            recovered = recover_partition(self._open_files, entry.path, sync)
            self.reports.append(recovered.report)
            self._tell(entry, recovered.report)
            log = self._add(*entry, recovered.segments, recovered.unsynced_directories)
            self._rebuilding.add(log)
        self._sync_recovered(journaled=bool(journal.paths))
        drop_journal(self.files, journal)
        if journal.paths:
            self._journal.start_after(journal_number(journal.paths[-1]))

    def _recover_internal(self, entry: PartitionDirectory, sync: PageCacheSync) -> None:
        recovered = recover_partition(self._open_files, entry.path, sync)
        self._tell(entry, recovered.report)
        log = self._add_internal_log(entry, recovered.segments, recovered.unsynced_directories)
        self._rebuilding.add(log)

    def _tell(self, place: PartitionDirectory, report: RecoveryReport) -> None:
        if report.anew or report.missing_bytes:
            self.whole.discard(f"{place.topic}-{place.partition}")
        if report.damage or report.missing_bytes:
            _log.error("recovered %s", report)
        elif report.notable:
            _log.warning("recovered %s", report)

    def _sync_recovered(self, *, journaled: bool) -> None:
        """Sync the recovered data of all logs with group commit, because readers of these logs must only see data that
        cannot be lost.

        journaled: whether a journal of an earlier run will be removed next. If True, the data of all logs are synced,
        because some acknowledged data may until now have been safe only in that journal. Raises StoreError.
        """
        logs = [log for log in self.all_logs() if journaled or log.has_group_commit]
        segments = [
            segment for log in logs for segment in log.segments if segment.synced < segment.end or segment.index is None
        ]
        directories = dict.fromkeys(path for log in logs for path in log.unsynced_directories)
        try:
            if len(segments) + len(directories) > tuning.SYNCED_ONE_BY_ONE:
                places = dict.fromkeys(os.path.dirname(segment.path) for segment in segments)
                self._file_systems.sync([*places, *directories])
            else:
                for segment in segments:
                    with naming(segment.path):
                        self.files.fdatasync(segment.data.use())
                for path in directories:
                    with naming(path):
                        self.files.fsync_directory(path)
        except OSError as error:
            raise StoreError(f"what was recovered cannot be synced: {error}") from error
        for log in logs:
            log.mark_synced()

    def _directory_for(self, name: str) -> PartitionDirectory:
        topic, _, number = name.rpartition("-")
        if is_internal(topic):
            return PartitionDirectory(topic, int(number), self._internal_path(topic, int(number)))
        data_path = os.path.realpath(self._data_path_for(topic))
        return PartitionDirectory(topic, int(number), partition_path(data_path, topic, int(number)))

    def close(self) -> None:
        """Close the store: sync all data on this thread, call all callbacks that wait for safe data, and unlock the
        directories. The call blocks until all data are on the disk. A second call does nothing.
        """
        if self._closed:
            return
        self._closed = True
        self._cutting.close()
        self._syncs.stop()
        self._rebuilding.stop()
        self.key_building.stop()
        self._journal.stop()
        self._syncs.finish()
        for log in self.all_logs():
            log.close()
        self._journal.close()
        self._release()

    def _release(self) -> None:
        self._file_systems.close()
        locks, self._locks = self._locks, []
        for fd in locks:
            self.files.close(fd)

    # --- appending ----------------------------------------------------------------------------------------------------

    @property
    def on_append(self) -> AppendListener | None:
        """A function, or None, that is called after every append to any log, in the order of the appends, on the thread
        that owns the store (arguments: AppendListener). When the listener is called, no reader can see the appended
        data yet, and no callback that waits until these data are safe has been registered yet.

        Exceptions of the listener are logged. The listener must not append to a log. It must not use the buffers `data`
        after readers can see the records, because from then on the owner of the buffers is allowed to change them
        (`PartitionLog.append`).
        """
        return self._shared.on_append

    @on_append.setter
    def on_append(self, listener: AppendListener | None) -> None:
        self._shared.on_append = listener

    def append_many(self, appends: Iterable[A]) -> list[A]:
        """Call `log.append(data, units, segment)` for each append, in order, and return the appends. All appends share
        one sync of the journal.

        The next append is taken from the iterable only after the one before it was made. If an append fails, its
        `error` is set, and all later appends to the same partition in this call fail with the same error. Appends to
        other partitions are made. Raises ValueError if `PartitionLog.append` raises it for an append; the appends
        before this one were made in that case.
        """
        taken: list[A] = []
        failed: dict[PartitionLog, MetaqError] = {}
        self._journal.hold()
        try:
            for each in appends:
                taken.append(each)
                log = each.log
                if failed and log in failed:
                    each.error = failed[log]
                    continue
                try:
                    each.base = log.append(each.data, each.units, each.segment)
                    each.end = log.segments.end_offset
                except MetaqError as error:
                    failed[log] = each.error = error
        finally:
            self._journal.release()
        return taken

    def when_all_safe(self, ends: Sequence[tuple[PartitionLog, int]], callback: AllSafeCallback) -> None:
        """`ends` has pairs of a log and an offset. Call `callback` once, as soon as each log's data up to its offset
        are either safe on this node or can no longer become safe. Call `callback` at once if the data of all logs are
        safe already.

        "Safe" has the same meaning as in `PartitionLog.when_safe`. When the callback is called, it is possible that
        readers do not see all of the safe data yet. One callback for all logs is registered in the journal. Only if the
        journal does not make the data of a log safe, a callback is also registered in this log.
        """
        if all(log.durability.safe_end >= end for log, end in ends):
            callback([None] * len(ends))
        else:
            self._journal.when_settled(partial(_ask, ends, callback))

    def journal_status(self) -> JournalStatus:
        """Return the status of the journal, which all logs with group commit use."""
        return self._journal.status()

    # --- data directories of a running broker -------------------------------------------------------------------------

    def unknown_paths(self, paths: Iterable[str], known: Iterable[str] | None = None) -> list[str]:
        """Return those of `paths` that are not in `known` (default: the store's data paths). Symbolic links in both
        lists are resolved before the comparison, and the result has no symbolic links.
        """
        others = set(self.data_paths if known is None else map(os.path.realpath, known))
        return [path for path in dict.fromkeys(map(os.path.realpath, paths)) if path not in others]

    def lock_empty_paths(self, paths: Iterable[str]) -> dict[str, int]:
        """Create each of these new data directories if needed, and lock it. Return a dict from each path to its lock (a
        file descriptor). Called in a worker thread.

        Raises ConfigError, DirectoryInUse; after an error none of the directories is locked.
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
        """Add these directories, which `lock_empty_paths` has locked, to the data paths, so that new partitions can be
        created in them.
        """
        self.data_paths += locks
        self._locks += locks.values()

    def has_partitions(self, path: str) -> bool:
        """Return whether any partition of this store is in the data path `path`."""
        return any(os.path.dirname(log.directory) == path for log in self._logs.values())

    # --- partitions ---------------------------------------------------------------------------------------------------

    def get(self, topic: str, partition: int) -> PartitionLog:
        """Return the log of a partition. Raises PartitionNotFound."""
        log = self._logs.get((topic, partition))
        if log is None:
            raise PartitionNotFound(topic, partition)
        return log

    def find(self, topic: str, partition: int) -> PartitionLog | None:
        """Return the log of a partition, or None if there is none."""
        return self._logs.get((topic, partition))

    def get_or_create(self, topic: str, partition: int, first_offset: int = 0) -> PartitionLog:
        """Return the log of a partition. If there is none, create an empty one that begins at byte `first_offset`.

        Raises InvalidName, StoreError.
        """
        log = self._logs.get((topic, partition))
        return self._create(topic, partition, first_offset) if log is None else log

    def directory_for(self, topic: str, partition: int) -> str:
        """Return the directory of a partition. If the partition does not exist, return the directory in which it would
        be created. Raises InvalidName.
        """
        log = self._logs.get((topic, partition))
        if log is not None:
            return log.directory
        return partition_path(os.path.realpath(self._data_path_for(topic)), topic, partition)

    def find_named(self, name: str) -> PartitionLog | None:
        """Return the log of the partition `<topic>-<number>`, or the internal log with this name. Return None if there
        is none.
        """
        topic, _, number = name.rpartition("-")
        if is_internal(topic):
            return self._internal_logs.get((topic, int(number)))
        return self._logs.get((topic, int(number)))

    def logs(self) -> Iterable[PartitionLog]:
        """Return all partitions' logs, in no particular order."""
        return self._logs.values()

    def all_logs(self) -> Iterable[PartitionLog]:
        """Return the logs of all partitions and all internal logs."""
        return *self._internal_logs.values(), *self._logs.values()

    def first_failure(self) -> LogReadOnly | None:
        """If a log accepts no appends before a restart of the broker, because a write or sync has failed, return this
        log's error. Return None if there is no such log. Takes O(partitions).
        """
        failed = next((log for log in self.all_logs() if log.read_only is not None), None)
        return None if failed is None else LogReadOnly(failed.directory, str(failed.read_only))

    @property
    def max_message_id(self) -> int:
        """Return the largest message id in all logs, or 0 if there is none. The ids of new messages must be larger. Ids
        that only other software can have assigned (message_id.foreign_from) are left out.

        Takes O(partitions), and in addition O(messages) for segments that contain such an id.
        """
        limit = foreign_from(int(self._clock() * 1000))
        return max((log.segments.largest_id_below(limit) for log in self._logs.values()), default=0)

    def _create(self, topic: str, partition: int, first_offset: int) -> PartitionLog:
        path = self.directory_for(topic, partition)
        data_path = os.path.dirname(path)
        try:
            self.files.make_directory(path)
            segment = create_segment(self._open_files, path, first_offset)
        except OSError as error:
            raise _not_made(path, error) from error
        return self._add(topic, partition, path, [segment], (data_path, path))

    def _add(
        self, topic: str, partition: int, path: str, segments: Sequence[Segment], unsynced_directories: Sequence[str]
    ) -> PartitionLog:
        config = self._config_for(topic)
        log = PartitionLog(topic, partition, path, segments, config, self._shared, unsynced_directories)
        self._logs[topic, partition] = log
        return log

    # --- internal logs (internal_logs.py): no partitions, and never among `logs` --------------------------------------

    def internal_logs(self, topic: str) -> Sequence[PartitionLog]:
        """Return the existing logs of an internal topic."""
        return [log for (name, _), log in self._internal_logs.items() if name == topic]

    def followed_internal_logs(self, topic: str) -> Sequence[PartitionLog]:
        """Return the internal logs of a topic that can be read while this node is a follower. A log whose end is being
        cut off is left out, because during the cut its files can have less data than the log object assumes.
        """
        return [log for log in self.internal_logs(topic) if log.read_only is None]

    def all_internal_logs(self) -> Sequence[PartitionLog]:
        """Return the logs of all internal topics."""
        return tuple(self._internal_logs.values())

    def internal_log(self, topic: str, group_commit: bool) -> PartitionLog:
        """Return one of the topic's two internal logs: the log for partitions with group commit if `group_commit` is
        True, else the log for partitions with asynchronous flush. Create the log if it does not exist. Raises
        StoreError.
        """
        return self.numbered_internal_log(topic, number_of(group_commit))

    def numbered_internal_log(self, topic: str, number: int, first_offset: int = 0) -> PartitionLog:
        """Return the internal log of this topic with this number. If it does not exist, create it with `first_offset`
        as its first byte offset. Raises StoreError.
        """
        log = self._internal_logs.get((topic, number))
        return self._create_internal_log(topic, number, first_offset) if log is None else log

    def drop_internal_before(self, log: PartitionLog, offset: int) -> None:
        """Delete all segments of an internal log that end at or before byte offset `offset`."""
        self._retention.discard(log, sum(segment.end <= offset for segment in log.segments[:-1]))

    def _internal_path(self, topic: str, number: int) -> str:
        return self._kinds[topic].path(self.data_paths[0], number)

    def _create_internal_log(self, topic: str, number: int, first_offset: int) -> PartitionLog:
        if topic not in self._kinds or number not in NUMBERS:
            raise StoreError(f"there is no internal log {topic}-{number}: a newer broker may have it")
        path = self._internal_path(topic, number)
        parent = os.path.dirname(path)
        try:
            self.files.make_directory(parent)
            self.files.make_directory(path)
            segment = create_segment(self._open_files, path, first_offset)
        except OSError as error:
            raise _not_made(path, error) from error
        entry = PartitionDirectory(topic, number, path)
        return self._add_internal_log(entry, [segment], (self.data_paths[0], parent, path))

    def _add_internal_log(
        self, entry: PartitionDirectory, segments: Sequence[Segment], unsynced_directories: Sequence[str]
    ) -> PartitionLog:
        config = self._kinds[entry.topic].config(entry.partition)
        log = PartitionLog(*entry, segments, config, self._shared, unsynced_directories)
        self._internal_logs[entry.topic, entry.partition] = log
        return log

    def _sync_ended(self, log: PartitionLog) -> None:
        if not is_internal(log.topic):
            self.key_building.consider(log)

    def reconfigure(self) -> None:
        """Apply the present topic settings to every log. Called after the settings were changed. (Settings of retention
        and data paths need no such call, because they are read at each run of the retention and for each new
        partition.)
        """
        for log in self._logs.values():
            log.use(self._config_for(log.topic))

    # --- cutting ------------------------------------------------------------------------------------------------------

    def cut(self, ends: Mapping[PartitionLog, int], done: CutsDone) -> None:
        """Cut off all data behind byte offset `end` of each of these logs. Call `done` when the cuts are on the disk.

        The removed data are kept in files `<segment>.damaged-…` beside the segment, and their names are logged. After
        the cut, the log ends at `end`, and `visible_end` is lowered if it was behind `end`. If the broker crashes
        during a cut, its next start finds the log as it was either before or after the cut. Nothing may be appended to
        these logs before `done` is called. Before the cut, all partitions that have data in the journal are synced, so
        `tick` must be called several times until the cut is made. `done` is called at once if nothing is to be cut.

        done(kept, error). kept: for each log that was cut, the paths of the files that contain its removed data. error:
        why the other logs were not cut. It is None if all logs were cut. The error is a StoreError if no record of a
        log ends at `end`, or if a log cannot be synced or cut. The logs that come before the failed log in the order of
        `ends` are cut, and the logs that come after it are not. If the error is CutUnfinished, the failed log accepts
        no writes before a restart. The method itself raises StoreError if an end lies outside its log's data.
        """
        for log, end in ends.items():
            if not log.first_offset <= end <= log.end_offset:
                raise StoreError(f"{log.directory} has [{log.first_offset}, {log.end_offset}): no cut at {end}")
        self._cut({log: Change(end) for log, end in ends.items() if end < log.end_offset}, done)

    def begin_anew(self, first_offsets: Mapping[PartitionLog, int], done: CutsDone) -> None:
        """Remove all data of these logs, so that each log is empty and begins at its byte offset in `first_offsets`.
        The removed data are kept in files, and `done` gets two arguments, both as `cut` describes.

        Raises StoreError if a new first offset is within the log's present data or at their end.
        """
        for log, first_offset in first_offsets.items():
            first, end = log.first_offset, log.end_offset
            if first <= first_offset <= end:
                raise StoreError(f"{log.directory} has [{first}, {end}): it cannot begin anew at {first_offset}")
        self._cut({log: Change(log.first_offset, first) for log, first in first_offsets.items()}, done)

    def _cut(self, changes: Mapping[PartitionLog, Change], done: CutsDone) -> None:
        if changes:
            self._cutting.start(changes, done)
        else:
            done({}, None)

    def _renewed(self, log: PartitionLog) -> None:
        self._rebuilding.add(log)
        self.key_building.revisit(log)

    # --- timers -------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Start the timed work that is due: syncs, journal work, rebuilds of indexes, building of key files, and cuts.
        The owner of the store must call this about four times a second.
        """
        self._syncs.tick(self._monotonic())
        self._journal.tick()
        self._rebuilding.tick(self._monotonic())
        self.key_building.tick(self._monotonic())
        self._cutting.tick()

    def ends(self) -> dict[str, tuple[int, int, int]]:
        """Return a dict with an entry for each partition and each internal log. The key is `<topic>-<partition>`. The
        value has three byte offsets: the log's first byte, the log's end, and the beginning of the log's last segment.
        """
        found = ((log.journal_name, log.segments) for log in self.all_logs())
        return {name.decode(): (each.first_offset, each.end_offset, each.active.first_offset) for name, each in found}

    # --- retention ----------------------------------------------------------------------------------------------------

    def apply_retention(self, is_due: Callable[[str], bool] = lambda topic: True) -> list[RemovedSegment]:
        """Find the segments that are too old. Remove them from their logs at once, and start to delete or archive their
        files.

        is_due: returns whether retention is due for the named topic now. Each topic may have its own schedule. If files
        cannot be removed, the error is logged, and their segments belong to the log again; the next call tries again to
        remove them.
        """
        return self._retention.apply(self._logs.values(), is_due)

    def apply_size_limits(self) -> list[RemovedSegment]:
        """Remove the oldest segments of each topic that has more bytes than its policy allows. Everything else is as in
        `apply_retention`.
        """
        return self._retention.apply_sizes(self._logs.values())

    @property
    def retention_enabled(self) -> bool:
        """Whether `apply_retention` and `apply_size_limits` remove segments. True by default."""
        return self._retention.enabled

    @retention_enabled.setter
    def retention_enabled(self, enabled: bool) -> None:
        self._retention.enabled = enabled

    def drop_before(self, log: PartitionLog, first_offset: int) -> list[RemovedSegment]:
        """Remove from a log the segments that end at or before byte offset `first_offset`. Called on a follower when
        its leader has removed these segments. Their files are deleted or archived in the background, as this broker's
        own policy for the topic says; without a policy they are deleted.

        These segments stay: the last segment, a segment that readers do not see completely, and a segment that is not
        on the disk together with its index. All segments behind such a segment stay, too. While files of the log are
        being removed, the method does nothing and must be called again later.
        """
        return self._retention.drop_before(log, first_offset)

    # --- rebuilding indexes -------------------------------------------------------------------------------------------

    @property
    def unindexed_segments(self) -> int:
        """The number of closed segments whose index is missing and must be rebuilt. The messages of these segments are
        not included in message counts.
        """
        return len(self._rebuilding)


def _not_made(path: str, error: OSError) -> StoreError:
    if no_room(error):
        return DiskFull(path, f"it cannot be made: {error}")
    return StoreError(f"{path} cannot be made: {error}")


def _ask(ends: Sequence[tuple[PartitionLog, int]], callback: AllSafeCallback) -> None:
    """Call `callback` when each log's data up to its end offset are safe or can no longer become safe. This function is
    called when the journal has no pending write of these data. So if a log's data are not safe by now, either their
    sync has failed, or they wait for a sync of the log's own files. The log itself reports the result (`when_safe`).
    """
    errors: list[MetaqError | None] = [None] * len(ends)
    left = {number for number, (log, end) in enumerate(ends) if log.durability.safe_end < end}
    if not left:
        callback(errors)
        return

    def answered(number: int, error: MetaqError | None) -> None:
        errors[number] = error
        left.discard(number)
        if not left:
            call_safely(callback, errors)

    for number in sorted(left):
        log, end = ends[number]
        log.when_safe(end, partial(answered, number))
