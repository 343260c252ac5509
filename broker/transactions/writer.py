"""Write the transaction log: records are queued on the reactor thread; worker threads write and sync them.

A job writes and syncs all queued records. Only one job runs at a time; the records of requests that arrive meanwhile
share the next job (group commit). The position of a record in its file is determined as soon as the record is queued.
After a failed write or sync, the writer writes nothing more, because nobody knows which records are on the disk. The
broker must be restarted; when it starts, it reads the log and so learns which records are there. If the disk is full,
the part of the job that was written is cut off again, and the job is repeated until there is room. In a broker set, a
job that has found the disk full is not repeated; another node becomes the leader.

In a broker set, the writer sends the records of each job to the other nodes when it creates the job, so that the disks
of all nodes work at the same time. It calls the callbacks of a job when this node and the other nodes have written the
job's records. The next job begins without waiting for the other nodes.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial

from metaq.protocol.errors import DiskFull, StoreError
from metaq.protocol.record import Buffer

from ..runtime.reactor import ReactorTime
from ..runtime.slices import SlicedWork
from ..store.disk_space import no_room
from ..store.files import Files, check_named, write_all
from ..store.worker_turns import RunInThread, call_safely
from .changes import REMOVED, LogChange, LogCopies, make_change
from .directory import REDO_PREFIX, RedoPosition

__all__ = ["MAX_REDO_BYTES", "RedoFile", "RedoWriter"]

_log = logging.getLogger(__name__)

MAX_REDO_BYTES = 64 << 20
"""If the newest file has more bytes than this, the records of the next new transaction go to a new file (as in 1.x)."""

_MAX_QUEUED_BYTES = 1 << 20
"""Records of puts (messages added to a transaction) stay in memory until the next prepare, commit or regular `flush`
(once a second) writes them to the disk, or until more than this many bytes are queued.
"""

OnWritten = Callable[[str | None], None]
"""The type of the callbacks of `when_written`. The writer calls them with None when the records are written, or with
the reason why the transaction log accepts no more writes.
"""


class RedoFile:
    """One file `redo.<n>`. The object is used on the reactor thread only; the exception is `fd`, which only the running
    job uses, in a worker thread.
    """

    def __init__(self, number: int, path: str, size: int = 0, *, exists: bool = False) -> None:
        self.number = number
        self.path = path
        self.name = f"{REDO_PREFIX}{number}"
        self.size = size
        """Size of the file in bytes, including records that are queued but not written yet."""
        self.unsettled: dict[Hashable, None] = {}
        """The transactions whose records a replay still needs: the open ones, and committed ones whose messages are not
        yet on the disk in their partitions.
        """
        self.busy_from = size
        """Byte position in the file where a replay may begin. A replay needs no record before this position: no
        transaction in `unsettled` has a record before it.
        """
        self.queued: list[Buffer] = []
        self.patches: list[tuple[int, bytes]] = []
        self.dirty = exists  # writes of an earlier process may not be on the disk
        self.new = not exists
        self.fd: int | None = None

    def hold(self, transaction: Hashable) -> None:
        """Add a transaction to `unsettled`, because its first record will be queued next."""
        if not self.unsettled:
            self.busy_from = self.size
        self.unsettled[transaction] = None


class _Part:
    """What a job writes to one redo file: new records, and changes of bytes that were written before."""

    def __init__(self, file: RedoFile) -> None:
        self.file = file
        self.data, file.queued = file.queued, []
        self.patches, file.patches = file.patches, []
        self.position = file.size - sum(map(len, self.data))


class _Job:
    """Writes to redo files and then syncs these files. A job is created on the reactor thread, and a worker thread runs
    it.
    """

    def __init__(self, files: Files, directory: str, parts: list[_Part], to_sync: list[RedoFile]) -> None:
        self.to_sync = to_sync
        self.waiters: list[OnWritten] = []
        self.works: list[tuple[LogChange, RedoFile | None]] = []
        """Changes of whole files that the job makes after its writes and syncs. Each item also has the redo file that
        the change removes, or None if the change removes none.
        """
        self.ended: list[Callable[[], None]] = []
        self.missing = 1
        """The job's callbacks are called when this number is 0. It counts the results that have not arrived: the result
        of this node's writes and, in a broker set, the result of all other nodes together.
        """
        self._files = files
        self._directory = directory
        self._parts = parts
        self._lock = threading.Lock()
        self._ran = False
        self._synced = False
        self._error: OSError | DiskFull | None = None

    def run(self) -> None:
        """Run the job once, on the first thread that calls this method; other calling threads wait. Raises the OSError
        that ended the job, or DiskFull. After DiskFull, the records that the job had written are cut off the files
        again, and the job can be repeated.
        """
        with self._lock:
            if not self._ran:
                self._ran = True
                try:
                    self._run()
                except OSError as error:
                    self._error = self._without_room(error) if no_room(error) else error
            if self._error is not None:
                raise self._error

    def again(self) -> None:
        """Allow `run` to repeat a job that has failed because the disk was full. It does no harm if some writes and
        syncs of the job are then done for the second time.
        """
        with self._lock:
            self._ran, self._error = False, None

    def _without_room(self, failure: OSError) -> OSError | DiskFull:
        """Clean up after a write of this job has failed because the disk is full, and return DiskFull. The records that
        this job has written are cut off the ends of the files. But if the job had already synced the records when the
        disk became full, the records stay in the files. If cutting off the records fails, return the OSError of the
        cut.
        """
        if not self._synced:
            try:
                for part in self._parts:
                    if part.data and part.file.fd is not None:
                        self._files.truncate(part.file.fd, part.position)
            except OSError as error:
                return error
        return DiskFull(self._directory, str(failure))

    def _run(self) -> None:
        for part in self._parts:
            fd = self._open(part.file)
            if part.data:
                write_all(self._files, fd, part.data, part.position)
            for position, data in part.patches:
                write_all(self._files, fd, [data], position)
        for file in self.to_sync:
            self._files.fdatasync(self._open(file))
            check_named(self._files, file.path)
        if any(file.new for file in self.to_sync):
            self._files.fsync_directory(self._directory)
            self._files.fsync_directory(os.path.dirname(self._directory))
        self._synced = True
        for change, removed in self.works:
            if removed is not None and removed.fd is not None:
                self._files.close(removed.fd)
                removed.fd = None
            make_change(self._files, self._directory, change)

    def changes(self) -> list[LogChange]:
        """Return all file changes of the job. For a file that is only synced, the list contains a change without
        bytes.
        """
        found = []
        for part in self._parts:
            if part.data:
                found.append(LogChange(part.file.name, part.position, part.data))
            found += [LogChange(part.file.name, position, [data]) for position, data in part.patches]
        written = {part.file for part in self._parts}
        found += [LogChange(file.name, file.size, ()) for file in self.to_sync if file not in written]
        return found + [change for change, _ in self.works]

    def _open(self, file: RedoFile) -> int:
        if file.fd is None:
            self._files.make_directory(self._directory)
            file.fd = self._files.open(file.path, os.O_RDWR | os.O_CREAT)
        return file.fd


class RedoWriter:
    """Writes the redo files of one broker. Its methods run on the reactor thread."""

    def __init__(
        self,
        files: Files,
        directory: str,
        run_in_thread: RunInThread,
        reactor: ReactorTime,
        *,
        sync: bool,
        redo_files: Sequence[RedoFile] = (),
        next_number: int = 1,
        copies: LogCopies | None = None,
    ) -> None:
        """sync: whether `when_written` waits until the records are also synced (flushTxLogAtCommit=1). redo_files: the
        existing files, in ascending order of their numbers.

        next_number: the lowest number that the next new file may have. copies: the other nodes of a broker set;
        `when_written` also waits until they have the records.
        """
        self.directory = directory
        self.failure: str | None = None
        self._files = files
        self._run_in_thread = run_in_thread
        self._sync = sync
        self._redo = {file.number: file for file in redo_files}
        self._next_number = max([next_number, *(number + 1 for number in self._redo)])
        self._current = redo_files[-1] if redo_files else self._new_file()
        self._queued_bytes = 0
        self._waiters: list[OnWritten] = []
        self._to_tell: deque[tuple[OnWritten, str | None]] = deque()  # waiters to be called, in order
        self._telling = SlicedWork(reactor)
        self._works: list[tuple[LogChange, RedoFile | None]] = []
        self._sync_wanted = False
        self._running: _Job | None = None
        self._copies = copies
        self._uncopied: deque[_Job] = deque()  # broker set: jobs whose waiters are not called yet, in order
        self._abandoned: Callable[[], None] | None = None
        self._tried_again = False
        self._full: tuple[_Job, DiskFull] | None = None  # the running job, if it waits for disk space

    # --- records ------------------------------------------------------------------------------------------------------

    def file_for(self, transaction: Hashable) -> RedoFile:
        """Return the redo file for the records of a new transaction. Call this method before the transaction's first
        record is queued. All records of one transaction go to the same file.
        """
        if self._current.size > MAX_REDO_BYTES:
            self._current = self._new_file()
            self._drop_settled()
        self._current.hold(transaction)
        return self._current

    def append(self, file: RedoFile, record: Sequence[Buffer]) -> int:
        """Queue a record for the file. Return the byte position in the file where the record ends."""
        file.queued += record
        size = sum(map(len, record))
        file.size += size
        self._queued_bytes += size
        if self._queued_bytes > _MAX_QUEUED_BYTES:
            self.flush()
        return file.size

    def patch(self, file: RedoFile, offset: int, data: bytes) -> None:
        """Overwrite bytes of a record that was written before: `data` is written at the byte position `offset` of the
        file.
        """
        file.patches.append((offset, data))

    def when_written(self, done: OnWritten) -> None:
        """Call `done` when all records queued before this call are written (and synced if so configured). The callbacks
        are called in the order in which they were given to `when_written`.
        """
        if self.failure is not None:
            done(self.failure)
            return
        self._waiters.append(done)
        self._sync_wanted |= self._sync
        self._start()

    def also(self, *changes: LogChange) -> None:
        """Make these changes, which replace or remove files, after the records queued so far are written. If a change
        fails with an OSError, the transaction log accepts no more writes, as after a failed write of records.
        """
        self._works += [(change, None) for change in changes]
        self.flush(sync=self._sync)

    def when_idle(self, done: Callable[[], None]) -> None:
        """Call `done` when the running job has ended and its data is in the files. If no job is running, call `done` at
        once.
        """
        if self._running is None:
            done()
        else:
            self._running.ended.append(done)

    @property
    def is_waited_for(self) -> bool:
        """Whether some callback that was passed to `when_written` has not been called yet. A callback must wait until
        this node and the other nodes have written the records queued before it, and until all earlier callbacks are
        called.
        """
        return bool(self._waiters or self._to_tell) or any(job.waiters for job in self._uncopied)

    def flush(self, *, sync: bool = False) -> None:
        """Start to write the queued records; nobody is told when they are written. If a job waits because the disk was
        full, repeat this job first. sync: whether to sync the files, too.
        """
        self._sync_wanted |= sync
        if self._full is not None:
            (job, _), self._full = self._full, None
            self._tried_again = True
            job.again()
            self._run_in_thread(job.run, lambda result: self._ended(job, result))
            return
        if self.failure is None and (
            self._works or self._waiters or any(_has_work(file, self._sync_wanted) for file in self._redo.values())
        ):
            self._start()

    def settle(self, file: RedoFile, transaction: Hashable) -> None:
        """Remove a transaction from `file.unsettled`, because a replay no longer needs its records. A file with no
        transaction in `unsettled` is deleted, unless it is the newest file.
        """
        file.unsettled.pop(transaction, None)
        if not file.unsettled and file is not self._current:
            self._drop_settled()

    @property
    def replay_from(self) -> RedoPosition:
        """The position in the transaction log where a replay may begin. It is `busy_from` in the oldest file with a
        transaction in `unsettled`. If no file has such a transaction, it is the end of the log.
        """
        for file in self._redo.values():
            if file.unsettled:
                return RedoPosition(file.number, file.busy_from)
        return RedoPosition(self._current.number, self._current.size)

    @property
    def has_unsettled(self) -> bool:
        return any(file.unsettled for file in self._redo.values())

    def finish(self) -> None:
        """Write and sync the queued records, and call the callbacks of `when_written`, before this method returns. Used
        when the broker shuts down.
        """
        running, self._running = self._running, None
        if self._full is not None:
            self._full[0].again()
            self._full = None
        if running is not None:  # its worker may never report: the reactor has stopped
            self._run_here(running)
        if self.failure is None:
            self._sync_wanted = True
            self._run_here(self._make_job())

    def close(self) -> None:
        """Write and sync the queued records, call the callbacks of `when_written` (as `finish` does), and close the
        files. No method may be called after this.
        """
        self.finish()
        for file in self._redo.values():
            if file.fd is not None:
                self._files.close(file.fd)
                file.fd = None

    def abandon(self, why: str, idle: Callable[[], None]) -> None:
        """Stop writing. Pass the reason `why` to all callbacks of `when_written` that were not called yet. No method
        may be called after this.

        idle: called when no worker thread uses the files any more and the files are closed.
        """
        self.failure = why
        self._abandoned = idle
        waiters = [done for job in self._uncopied for done in job.waiters] + self._waiters
        told = [*self._to_tell, *((done, why) for done in waiters)]
        self._to_tell.clear()
        self._uncopied.clear()
        self._waiters = []
        for done, failure in told:
            call_safely(done, failure)
        self.when_idle(self._forget)

    def _forget(self) -> None:
        for file in self._redo.values():
            if file.fd is not None:
                self._files.close(file.fd)
                file.fd = None
        idle, self._abandoned = self._abandoned, None
        if idle is not None:
            idle()

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def _run_here(self, job: _Job) -> None:
        try:
            job.run()
        except (OSError, DiskFull) as error:
            self._failed(job, error)
        else:
            self._succeeded(job)
        self._telling.finish()

    def _start(self) -> None:
        if self._running is None:
            job = self._running = self._make_job()
            self._run_in_thread(job.run, lambda result: self._ended(job, result))

    def _make_job(self) -> _Job:
        parts = [_Part(file) for file in self._redo.values() if file.queued or file.patches]
        for part in parts:
            part.file.dirty = True
        to_sync = [file for file in self._redo.values() if file.dirty] if self._sync_wanted else []
        job = _Job(self._files, self.directory, parts, to_sync)
        job.waiters, self._waiters = self._waiters, []
        job.works, self._works = self._works, []
        self._queued_bytes = 0
        self._sync_wanted = False
        if self._copies is not None:
            self._uncopied.append(job)
            job.missing += 1
            disk = bool(job.to_sync or job.works)
            self._copies.replicate(job.changes(), disk=disk, done=partial(self._copied, job))
        return job

    def _copied(self, job: _Job, why: str | None) -> None:
        if self._abandoned is not None or self.failure is not None:
            return
        if why is not None:
            self._failed(job, why)
            return
        self._done_once_more(job)

    def _done_once_more(self, job: _Job) -> None:
        """Record that either this node or the other nodes have finished a job. Then call the callbacks of the jobs that
        all nodes have finished, in the order of the jobs.
        """
        job.missing -= 1
        while self._uncopied and not self._uncopied[0].missing:
            self._tell(self._uncopied.popleft().waiters, None)

    def _tell(self, waiters: Iterable[OnWritten], why: str | None) -> None:
        """Call these callbacks, and serve other requests in between, because thousands of callbacks may wait for one
        sync. why: the argument of the callbacks.
        """
        self._to_tell.extend([(done, why) for done in waiters])
        if not self._telling:
            self._telling.add(self._tell_all())

    def _tell_all(self) -> Iterator[None]:
        while self._to_tell:
            call_safely(*self._to_tell.popleft())
            if self._to_tell and self._telling.is_over:
                yield

    def _ended(self, job: _Job, result: object) -> None:
        if self._running is not job:
            return  # finish() has already completed the job
        if isinstance(result, DiskFull) and self._copies is None and self.failure is None:
            self._wait_for_room(job, result)
            return
        self._running = None
        for ended in job.ended:
            call_safely(ended)
        if self.failure is not None:  # abandoned
            return
        if isinstance(result, BaseException):
            self._failed(job, result)
            if self._copies is not None and self.failure is not None:
                self._copies.failed(result if isinstance(result, DiskFull) else StoreError(self.failure))
        else:
            if self._tried_again:
                self._tried_again = False
                _log.warning("the transaction log %s has room again", self.directory)
            self._succeeded(job)
            if self._waiters or self._works or self._sync_wanted or self._queued_bytes > _MAX_QUEUED_BYTES:
                self._start()

    def _wait_for_room(self, job: _Job, full: DiskFull) -> None:
        """Keep a job that failed because the disk was full. Its callbacks are not called yet. Each later `flush` tries
        the job again.
        """
        if not self._tried_again:
            _log.warning("%s; records wait in memory until there is room", full)
        self._full = job, full

    @property
    def lacks_room(self) -> DiskFull | None:
        """While a job waits for disk space, this is the job's DiskFull error, and no more records should be queued. It
        is None if records may be queued.
        """
        return None if self._full is None else self._full[1]

    def _succeeded(self, job: _Job) -> None:
        for file in job.to_sync:
            file.dirty = file.new = False
        if self._copies is not None:
            self._done_once_more(job)
        else:
            self._tell(job.waiters, None)

    def _failed(self, job: _Job, cause: BaseException | str) -> None:
        self.failure = f"the transaction log {self.directory} cannot be written: {cause}"
        if isinstance(cause, DiskFull):
            _log.error("%s; transactions are refused until the log is opened again", self.failure)
        else:
            _log.critical("%s; transactions are refused until the broker is restarted", self.failure)
        jobs = list(self._uncopied) or [job]
        self._uncopied.clear()
        waiters = [done for each in jobs for done in each.waiters] + self._waiters
        self._waiters = []
        self._tell(waiters, self.failure)

    # --- files --------------------------------------------------------------------------------------------------------

    def _new_file(self) -> RedoFile:
        number = self._next_number
        self._next_number += 1
        file = self._redo[number] = RedoFile(number, os.path.join(self.directory, f"{REDO_PREFIX}{number}"))
        return file

    def _drop_settled(self) -> None:
        for file in list(self._redo.values()):
            if file is not self._current and not file.unsettled:
                del self._redo[file.number]
                self._works.append((LogChange(file.name, REMOVED), file))
                self.flush(sync=self._sync)


def _has_work(file: RedoFile, sync: bool) -> bool:
    return bool(file.queued or file.patches or (sync and file.dirty))
