"""The journal: one sequence of files to which the data of all partitions with group commit are written, so that one
sync makes puts to many partitions safe.

A put is written twice: to its partition's file, which need not be synced at once, and to the journal, which is synced.
All puts that arrive during one sync of the journal become safe by the next sync. So one sync serves puts of many
connections to many partitions, and the cost of an acknowledgement does not grow with the number of partitions.
Checkpoints sync the partitions' own files later. When checkpoints have synced the data of all entries of a journal file
in the partitions' own files, the journal file is removed. If the waiting puts belong to only one or two partitions, the
broker syncs these partitions' own files and does not write the puts to the journal, which saves the second write. For
the files' format see journal_format.py.

Invariants. The entries of one partition follow each other without a gap, in offset order. A journal file is removed
only when the data of all its entries are synced in the partitions' own files. If a partition has failed, the journal
files with its data are kept; newer journal files without its data can still be removed. After a failed write or sync of
the journal, nothing more is written to it. There is one exception: a write that failed because of a full disk and was
undone.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from metaq.protocol.errors import LogReadOnly, MetaqError
from metaq.protocol.record import Buffer

from . import tuning
from .disk_space import no_room
from .durability import DATA
from .files import Files, check_named, write_all
from .internal_logs import is_internal
from .journal_format import JOURNAL_DIRECTORY, JOURNAL_SUFFIX, encode_block
from .sync_job import SyncJob
from .worker_turns import RunInThread, call_safely

if TYPE_CHECKING:
    from .partition_log import PartitionLog

__all__ = ["Journal", "JournalStatus"]

_log = logging.getLogger(__name__)


class JournalStatus(NamedTuple):
    """The journal's status for operators. cause: why the journal failed. It is "" if it has not failed. waiting: the
    number of appends that wait for the next write of the journal.
    """

    cause: str
    files: int
    size_bytes: int
    waiting: int
    waiting_bytes: int


_Append: TypeAlias = "tuple[PartitionLog, int, int, int, Sequence[Buffer]]"
"""The arguments of one call of `Journal.add`: (log, base, end, count, data). A plain tuple, and not a class, saves
time, because one is created for every append.
"""

_Last: TypeAlias = "dict[PartitionLog, tuple[int, int]]"
"""For a group of appends, a dict from each log in the group to the `end` and `count` of the log's last append in the
group.
"""


class _NoRoom(Exception):
    """Raised if the disk is full, so that a group of appends could not be written. The journal then contains no part of
    the group.
    """


class _File:
    """A journal file. ends: for each partition with entries in the file, the byte offset in the partition where its
    last entry ends.
    """

    __slots__ = ("ends", "fd", "number", "path", "size")

    def __init__(self, number: int, path: str, fd: int) -> None:
        self.number = number
        self.path = path
        self.fd = fd
        self.size = 0
        self.ends: dict[PartitionLog, int] = {}


class Journal:
    """The journal of a store. The methods may be called only on the thread that owns the store. A worker thread writes
    and syncs one group of appends at a time.
    """

    def __init__(
        self,
        data_path: str,
        files: Files,
        run_in_thread: RunInThread,
        checkpoint: Callable[[PartitionLog], None],
        *,
        run_group: RunInThread | None = None,
        max_file_bytes: int = tuning.JOURNAL_FILE_BYTES,
        full_files: int = tuning.JOURNAL_FULL_FILES,
        with_messages: frozenset[str] = frozenset(),
    ) -> None:
        """checkpoint(log): requests a sync of the log's own files, and returns before the sync. Later calls of `tick`
        find out whether the sync is done.

        run_group: runs the writes and syncs of the journal in a thread; by default `run_in_thread`. Journal files are
        always removed with `run_in_thread`. with_messages: the internal topics whose InternalTopic.with_messages is
        True.
        """
        self.failure: LogReadOnly | None = None
        self.directory = os.path.join(data_path, JOURNAL_DIRECTORY)
        self._files = files
        self._run_in_thread = run_in_thread
        self._run_group = run_group or run_in_thread
        self._checkpoint = checkpoint
        self._max_file_bytes = max_file_bytes
        self._full_files = full_files
        self._with_messages = with_messages
        self._waiting: list[_Append] = []
        self._callbacks: list[Callable[[], None]] = []  # for those who wait until all of `_waiting` is settled
        self._running: list[Callable[[], None]] | None = None  # set while a group is written: its waiters
        self._held = 0
        self._direct = 0  # direct syncs under way
        self._file: _File | None = None
        self._full: list[_File] = []
        self._removing: set[int] = set()  # numbers of files that are being removed
        self._next_number = 0
        self._closed = False
        self._full_disk = False
        self._lock = threading.Lock()  # held while a group is written: close() waits for it

    def status(self) -> JournalStatus:
        """Return the present status. The numbers of waiting appends and bytes do not include appends that are being
        written now.
        """
        files = (*self._full, *((self._file,) if self._file else ()))
        return JournalStatus(
            "" if self.failure is None else self.failure.cause,
            len(files),
            sum(file.size for file in files),
            len(self._waiting),
            sum(end - base for _, base, end, _, _ in self._waiting),
        )

    # --- writing ------------------------------------------------------------------------------------------------------

    def add(self, log: PartitionLog, base: int, end: int, count: int, data: Sequence[Buffer]) -> None:
        """Make safe the bytes that the caller has appended to `log` at [base, end). This happens later, in one of two
        ways. Either the journal writes the bytes to its file, syncs the file, and calls the log's method `safe`; or it
        syncs the log's own files instead, and calls the log's method `end`.

        count: the log's own count of records up to `end`. data: the bytes, which must not change until they are safe.
        """
        self._waiting.append((log, base, end, count, data))
        if self._running is None and not self._held:
            self._start()

    def hold(self) -> None:
        """Begin no write until `release` was called as often as `hold`, so that the appends that arrive in between are
        written and synced together.
        """
        self._held += 1

    def release(self) -> None:
        """Cancel one call of `hold`. If no `hold` remains, begin to write the waiting appends."""
        self._held -= 1
        if self._running is None and not self._held:
            self._start()

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, as soon as none of the appends that were added so far is pending, that is, each is safe
        or has failed. If no append is pending now, call it at once. The callback can ask each log whether its append is
        safe or has failed.
        """
        if self._waiting:
            self._callbacks.append(callback)
        elif self._running is not None:
            self._running.append(callback)
        else:
            callback()

    def _start(self) -> None:
        """Begin to write the waiting appends as the next group, if there are any and writing is allowed."""
        while self._waiting and not self._closed and self.failure is None:
            waiting, callbacks = self._take_waiting()
            # a checkpoint has covered the others
            group = [each for each in waiting if each[0].durability.lacks(each[2])]
            if group:
                self._running = callbacks
                self._make_safe(group)
                return
            _call_all(callbacks)

    def _take_waiting(self) -> tuple[list[_Append], list[Callable[[], None]]]:
        waiting = self._waiting
        size = 0
        for number, (_, base, end, _, _) in enumerate(waiting):
            size += end - base
            if size > tuning.JOURNAL_GROUP_BYTES and number:
                self._waiting = waiting[number:]
                return waiting[:number], []
        callbacks, self._callbacks = self._callbacks, []
        self._waiting = []
        return waiting, callbacks

    def _make_safe(self, group: Sequence[_Append]) -> None:
        last: _Last = {log: (end, count) for log, _, end, count, _ in group}
        if (
            len(last) <= tuning.DIRECT_PARTITIONS
            and all(log.durability.may_sync for log in last)
            and self._is_direct(group)
        ):
            jobs = [(log, job) for log in last if (job := log.begin(DATA)) is not None]
            self._direct = len(jobs)
            for log, job in jobs:
                job.pin()
                self._run_group(job.run, partial(self._synced_directly, log, job))
        else:
            self._run_group(partial(self._write, group), partial(self._written, last))

    def _synced_directly(self, log: PartitionLog, job: SyncJob, result: object) -> None:
        """Handle the end of a sync of the log's own files, which the journal started because it did not write the group
        itself. When all such syncs of the group have ended, with or without success, begin the next group.
        """
        log.end(job, result)
        self._direct -= 1
        if not self._direct:
            self._group_ended()  # may need a sync of the log, which then also does the log's other requested work
        log.go_on()

    def _group_ended(self) -> None:
        callbacks, self._running = self._running, None
        if not self._held:
            self._start()  # first, so that the disk works while the answers are written
        if callbacks:
            _call_all(callbacks)

    def _write(self, group: Sequence[_Append]) -> None:
        """Write the group as one block to the journal file and sync the file. Runs in a worker thread. Do nothing if
        the journal is closed. Raises OSError, or _NoRoom if the disk is full, in which case the journal is unchanged.
        """
        with self._lock:
            if self._closed:
                return
            file = self._file or self._new_file()
            logs, bases, ends, _, data = zip(*group, strict=True)
            names = [log.journal_name for log in logs]
            block = encode_block(file.number, names, bases, ends, list(chain.from_iterable(data)))
            size = sum(map(len, block))
            try:
                write_all(self._files, file.fd, block, file.size)
            except OSError as error:
                if not no_room(error):
                    raise
                self._files.truncate(file.fd, file.size)
                raise _NoRoom(str(error)) from error
            self._files.fdatasync(file.fd)
            check_named(self._files, file.path)
            file.size += size

    def _new_file(self) -> _File:
        """Create the next journal file, and write later groups to it. This method sets `_file` in a worker thread; this
        is safe because the thread that owns the store does not use `_file` while a group is written.
        """
        self._files.make_directory(self.directory)
        path = os.path.join(self.directory, f"{self._next_number:020d}{JOURNAL_SUFFIX}")
        try:
            fd = self._files.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        except OSError as error:
            if no_room(error):
                raise _NoRoom(str(error)) from error
            raise
        self._file = file = _File(self._next_number, path, fd)
        self._next_number += 1
        self._files.fsync_directory(self.directory)
        self._files.fsync_directory(os.path.dirname(self.directory))
        return file

    def _written(self, last: _Last, result: object) -> None:
        if self._closed:
            return  # the logs' close has answered all waiters
        if isinstance(result, _NoRoom):
            self._do_without(last, result)
            return
        if isinstance(result, BaseException):
            self._fail(str(result), last)
            return
        if self._full_disk:
            self._full_disk = False
            _log.warning("the journal %s has room again", self.directory)
        file = self._file
        assert file is not None
        for log, (end, _) in last.items():
            file.ends[log] = end
        if file.size >= self._max_file_bytes:
            self._retire(file)
        for log, (end, count) in last.items():
            log.safe(end, count)
        self._group_ended()

    def _do_without(self, last: _Last, cause: _NoRoom) -> None:
        """Sync the partitions' own files instead of writing to the journal, because the disk is full. The data were
        appended to these files before, and have their disk space there, so nothing is lost.
        """
        if not self._full_disk:
            self._full_disk = True
            _log.warning("the journal %s has no room, partitions are synced one by one: %s", self.directory, cause)
        missing = len(last)

        def settled(_: MetaqError | None) -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                self._group_ended()

        for log, (end, _) in last.items():
            log.when_safe(end, settled)
            log.flush()

    def _fail(self, cause: str, last: _Last) -> None:
        self.failure = LogReadOnly(self.directory, cause)
        _log.error("the journal %s takes no more writes until the broker is restarted: %s", self.directory, cause)
        waiting, self._waiting = self._waiting, []
        for log in dict.fromkeys((*last, *(each[0] for each in waiting))):
            log.sync_failed(f"the journal failed: {cause}")
        self._answer_all()

    def _answer_all(self) -> None:
        """Call all callbacks that were passed to `when_settled` and not yet called. They ask the logs whether the data
        are safe.
        """
        callbacks, self._running, self._callbacks = [*(self._running or ()), *self._callbacks], None, []
        _call_all(callbacks)

    # --- truncation ---------------------------------------------------------------------------------------------------

    def _retire(self, file: _File) -> None:
        self._file = None
        self._full.append(file)
        needed = [
            logs for full in self._full if (logs := [log for log in full.ends if log.durability.read_only is None])
        ]
        if len(needed) >= self._full_files:
            for log in dict.fromkeys(chain.from_iterable(needed)):
                self._checkpoint(log)

    def _is_direct(self, group: Sequence[_Append]) -> bool:
        """Called if the group's appends belong to few partitions. Return whether to sync these partitions' own files
        instead of writing the group to the journal. Return False if the group has few bytes and some of them belong to
        an internal log: then one write to the journal costs less than syncs of several logs. Also return False if data
        of an internal log must be in the same journal block as messages of the group (InternalTopic.with_messages).
        """
        internal = {log.topic for log, *_ in group if is_internal(log.topic)}
        if not internal:
            return True
        if internal & self._with_messages and any(not is_internal(log.topic) for log, *_ in group):
            return False  # a block has both the messages and the rows, or neither
        return sum(end - base for _, base, end, _, _ in group) > tuning.SEQUENCES_DIRECT_BYTES

    def tick(self) -> None:
        """Remove the full journal files whose data are all synced in the partitions' own files by now. Call this
        several times a second.
        """
        kept = []
        for file in self._full:
            file.ends = {log: end for log, end in file.ends.items() if log.durability.synced_end < end}
            if file.ends:
                kept.append(file)
            else:
                self._removing.add(file.number)
                self._run_in_thread(partial(self._remove, file), partial(self._removed, file))
        self._full = kept

    def _removed(self, file: _File, result: object) -> None:
        self._removing.discard(file.number)
        if isinstance(result, BaseException):
            _log.error("journal file %s is not needed any more, but could not be removed: %s", file.path, result)

    def _remove(self, file: _File) -> None:
        self._files.close(file.fd)
        self._files.unlink(file.path)

    def turn_over(self) -> int | None:
        """Begin to remove all present journal files: request checkpoints of the partitions that have data in these
        files.

        After these checkpoints, `tick` removes the files. Later appends go to a new file. Return the number of this new
        file, for calls of `has_older`. If appends wait now, or a group of appends is being written, do nothing and
        return None. In this case, the caller must call this method again later.
        """
        if self._running is not None or self._waiting:
            return None
        if self._file is not None:
            self._full.append(self._file)
            self._file = None
        for log in dict.fromkeys(chain.from_iterable(file.ends for file in self._full)):
            self._checkpoint(log)
        return self._next_number

    def has_older(self, number: int) -> bool:
        """Return whether full journal files with a number lower than `number` exist."""
        return any(each < number for each in chain(self._removing, (file.number for file in self._full)))

    @property
    def stuck(self) -> str | None:
        """The reason why some journal files cannot be removed before a restart of the broker. It is None if all of them
        can be removed.
        """
        if self.failure is not None:
            return str(self.failure)
        failed = (log for file in self._full for log in file.ends if log.durability.failure is not None)
        return next((f"the journal is kept for {log.directory}: {log.read_only}" for log in failed), None)

    def check_gone(self, number: int) -> None:
        """Check that no journal file with a number lower than `number` exists, and sync the directory. Without this
        sync, removed files could exist again after a crash. Waits for the disk, so the caller runs it in a worker
        thread.

        Raises OSError, also if such a file exists.
        """
        if self._files.is_directory(self.directory):
            old = f"{number:020d}{JOURNAL_SUFFIX}"
            left = [each for each in self._files.list_directory(self.directory) if each.endswith(JOURNAL_SUFFIX)]
            if left and min(left) < old:
                raise FileExistsError(f"{os.path.join(self.directory, min(left))} could not be removed")
            self._files.fsync_directory(self.directory)

    def start_after(self, number: int) -> None:
        """Let the next journal file have the number `number` + 1. number: the highest number among the journal files
        that an earlier run of the broker has left.
        """
        self._next_number = number + 1

    def stop(self) -> None:
        """Begin no more writes, and wait until the present write ends. The caller then closes the logs, which syncs
        their data.
        """
        with self._lock:
            self._closed = True

    def close(self) -> None:
        """Remove all journal files. But if the data of any log are not synced, keep all journal files. To be called
        after `stop` and after the logs are closed.
        """
        files = [*self._full, *((self._file,) if self._file is not None else ())]
        synced = self.failure is None and all(
            log.durability.synced_end >= end for file in files for log, end in file.ends.items()
        )
        for file in files:
            if synced:
                self._remove(file)
            else:
                self._files.close(file.fd)
        self._file = None
        self._full.clear()
        self._waiting = []
        self._answer_all()


def _call_all(callbacks: Sequence[Callable[[], None]]) -> None:
    for callback in callbacks:
        call_safely(callback)
