"""A follower's copy of the transaction log: the leader's files, byte for byte.

The reactor thread writes received bytes to the files as soon as they arrive, as it does with the bytes of partitions.
So the order in which the leader sends transaction log records and messages is also the order in which they are written:
a message that follows a record reaches its partition's file only after the record is in the log's file. A worker thread
does all syncs and all operations that use file names, one job at a time, in order.

When this node joins a leader, a copy of the leader's whole folder `transactions` is made beside this node's old folder.
When the copy is on the disk, it replaces the old folder. Until then the old folder is kept, because it has all data
that were committed while this node was in sync. A folder with the name `.transactions.new` is always a complete copy.
If it exists when the node starts, the replacement was interrupted and is continued. Bytes that only the old folder has
are kept as `damaged-…` files.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from twisted.internet.defer import Deferred

from metaq.protocol.errors import DiskFull, MetaqError, RemoteProtocolError, StoreError
from metaq.protocol.replication_stream import StreamEntry

from ..store.disk_space import no_room
from ..store.file_systems import FileSystems
from ..store.files import Files, opened, read_exactly, write_all
from ..store.worker_turns import RunInThread, call_safely
from ..transactions.changes import REMOVED, REPLACED, LogChange, make_change
from ..transactions.checkpoints import STATE_NAME
from ..transactions.directory import CHECKPOINT_PREFIX, DAMAGED_PREFIX, REDO_PREFIX, keep_copy

__all__ = [
    "BEGIN",
    "END",
    "NAME_PREFIX",
    "SAME",
    "WRITTEN",
    "TransactionMirror",
    "log_bytes",
    "log_digest",
    "log_names",
]

NAME_PREFIX = b"\0transactions/"
"""The prefix of the names of transaction log entries in the stream. No partition's name begins with it."""

WRITTEN = -1
"""A value of an entry's segment field. An entry with this value tells the follower to write the entry's data at offset
`base` of the file. Two other values of the same field are REPLACED - 1 and REMOVED - 1 (transactions/changes.py): they
tell the follower to replace the file or to remove it.
"""
BEGIN, END = -4, -5
"""Two values of an entry's segment field, for entries without a file name. BEGIN is sent before the files of a copy,
and END after them.
"""
SAME = -6
"""A value of an entry's segment field. The leader sends an entry with this value instead of a copy if the follower's
files already have the same bytes as the leader's files.
"""

_MIRRORED = re.compile(f"(?:{REDO_PREFIX}|{CHECKPOINT_PREFIX})[0-9]{{1,18}}|{re.escape(STATE_NAME)}", re.ASCII)
_CHUNK_BYTES = 1 << 20


def is_mirrored(name: str) -> bool:
    """Return whether a file of the folder `transactions` belongs to the transaction log. All other files in it are not
    copied; they belong to this node alone.
    """
    return _MIRRORED.fullmatch(name) is not None


def log_bytes(files: Files, directory: str) -> int:
    """Return the total size of the log's files in bytes, or 0 if the folder does not exist. The call blocks. Raises
    OSError.
    """
    return sum(files.status(os.path.join(directory, name)).size for name in log_names(files, directory))


def log_digest(files: Files, directory: str) -> str:
    """Return a BLAKE2b-256 digest of the names and bytes of the log's files. The call blocks, and reads all files.
    Raises OSError.
    """
    whole = hashlib.blake2b(digest_size=32)
    for name in log_names(files, directory):
        found, position = hashlib.blake2b(name.encode() + b"\0"), 0
        with opened(files, os.path.join(directory, name)) as fd:
            while data := read_exactly(files, fd, _CHUNK_BYTES, position):
                found.update(data)
                position += len(data)
        whole.update(found.digest())
    return whole.hexdigest()


def log_names(files: Files, directory: str) -> list[str]:
    """Return the sorted names of the log's files in the folder. The call blocks. Raises OSError."""
    return sorted(filter(is_mirrored, files.list_directory(directory))) if files.is_directory(directory) else []


class TransactionMirror:
    """Writes the leader's changes to this node's copy of the transaction log. Its methods run on the reactor thread.
    Other code must wait for the Deferred of `ready` before it uses the folder, and must not use the folder any more
    when `take` is called next.
    """

    def __init__(
        self, files: Files, directory: str, data_paths: Callable[[], Sequence[str]], run_in_thread: RunInThread
    ) -> None:
        """directory: the folder `transactions`. data_paths: the partitions' data directories."""
        self._files = files
        self._run_in_thread = run_in_thread
        self._folder = _Folder(files, directory)
        self._file_systems = FileSystems(files)
        self._data_paths = data_paths
        self._place = directory
        self._descriptors: dict[str, int] = {}
        self._dirty: dict[int, None] = {}
        self._made = False  # whether new files' names may not be on the disk
        self._works: list[Callable[[], None]] = []
        self._held: list[StreamEntry] | None = None  # entries that arrive while a copy takes the old folder's place
        self._waiting: list[Callable[[MetaqError | None], None]] = []
        self._running = False
        self._failure: MetaqError | None = None

    def ready(self) -> Deferred[None]:
        """Return a Deferred that fires when no worker thread uses the files. Before it fires, an interrupted
        replacement is finished and an incomplete copy is deleted. Then the caller can begin a new copy, or open the
        files as a transaction log.

        The Deferred fails with StoreError if the disk fails.
        """
        deferred: Deferred[None] = Deferred()

        def settled(result: object) -> None:
            self.release()
            if isinstance(result, OSError):
                deferred.errback(StoreError(f"the transaction log {self._folder.path} cannot be used: {result}"))
            elif isinstance(result, BaseException):
                deferred.errback(result)
            else:
                deferred.callback(None)

        def idle(_: MetaqError | None) -> None:
            if self._running:  # another caller was called first and began a job
                self._waiting.append(idle)
                return
            self._failure = None
            self._place, self._held = self._folder.path, None
            descriptors, self._descriptors = self._descriptors, {}
            self._dirty.clear()
            for fd in descriptors.values():
                self._files.close(fd)
            self.hold()
            self._run_in_thread(self._folder.settle, settled)

        if self._running or self._works or self._dirty:
            self._waiting.append(idle)
            self._start()
        else:
            idle(None)
        return deferred

    def describe(self) -> tuple[int, str]:
        """Return log_bytes() and log_digest() of this node's files. Call this only after the Deferred of `ready` has
        fired and before the next `take`. The call blocks. Raises StoreError.
        """
        try:
            return log_bytes(self._files, self._place), log_digest(self._files, self._place)
        except OSError as error:
            raise StoreError(f"the transaction log {self._place} cannot be read: {error}") from error

    def hold(self) -> None:
        """Start no work on the files until `release` is called, because other code uses them. Do not call this while
        this node follows a leader, that is, from the moment when the Deferred of `ready` fires until the connection to
        the leader ends.
        """
        self._running = True

    def release(self) -> None:
        self._running = False
        self._start()

    # --- what the leader sends ----------------------------------------------------------------------------------------

    def take(self, entry: StreamEntry) -> None:
        """Make the change of the transaction log that an entry from the leader describes, either at once or later in a
        worker thread. Raises RemoteProtocolError, StoreError, DiskFull.
        """
        if self._failure is not None:
            raise self._failure
        try:
            if entry.segment == BEGIN:
                self._begin()
            elif entry.segment == END:
                self._end()
            elif entry.segment == SAME:
                self._keep()
            elif self._held is not None:
                self._held.append(entry)
            else:
                self._take(entry)
        except OSError as error:
            raise self._fail(error) from error

    def when_safe(self, done: Callable[[MetaqError | None], None]) -> None:
        """Call `done(None)` when all changes given to `take` so far are on the disk, or `done(error)` if they cannot be
        written or synced.
        """
        if self._failure is not None:
            done(self._failure)
            return
        self._waiting.append(done)
        self._start()

    def _take(self, entry: StreamEntry) -> None:
        name = entry.name[len(NAME_PREFIX) :].decode("ascii", "replace")
        if not is_mirrored(name):
            raise RemoteProtocolError(f"no file of the transaction log is called {name!r}")
        if entry.segment == WRITTEN:
            fd = self._descriptor(name)
            if any(map(len, entry.data)):
                write_all(self._files, fd, entry.data, entry.base)
                self._dirty[fd] = None
        elif entry.segment in (REPLACED - 1, REMOVED - 1):
            fd = self._descriptors.pop(name, -1)
            self._dirty.pop(fd, None)
            change = LogChange(name, entry.segment + 1, [bytes(each) for each in entry.data])
            self._works.append(partial(self._change, fd, change))
        else:
            raise RemoteProtocolError(f"the transaction log has no change of kind {entry.segment}")

    def _descriptor(self, name: str) -> int:
        fd = self._descriptors.get(name)
        if fd is None:
            self._files.make_directory(self._place)
            fd = self._descriptors[name] = self._files.open(os.path.join(self._place, name), os.O_RDWR | os.O_CREAT)
            self._made = True
        return fd

    def _begin(self) -> None:
        if self._descriptors or self._running or self._held is not None:
            raise RemoteProtocolError("a copy of the transaction log in the middle of the stream")
        self._place = self._folder.copy
        self._files.make_directory(self._place)

    def _keep(self) -> None:
        if self._descriptors or self._running or self._held is not None:
            raise RemoteProtocolError("a copy of the transaction log in the middle of the stream")
        self._held = []
        self._works.append(self._sync_all)
        self._start()

    def _end(self) -> None:
        if self._place != self._folder.copy:
            raise RemoteProtocolError("the end of a copy that has not begun")
        descriptors, self._descriptors = self._descriptors, {}
        self._dirty.clear()
        self._made = False
        self._held = []
        self._works.append(partial(self._exchange, list(descriptors.values())))
        self._start()

    # --- worker threads -----------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._running or not (self._waiting or self._works):
            return
        self._running = True
        works, self._works = self._works, []
        waiting, self._waiting = self._waiting, []
        dirty, self._dirty = list(self._dirty), {}
        made, self._made = self._made, False
        self._run_in_thread(partial(self._run, dirty, made, works), partial(self._ended, waiting))

    def _run(self, dirty: Iterable[int], made: bool, works: Sequence[Callable[[], None]]) -> None:
        for fd in dirty:
            self._files.fdatasync(fd)
        if made:
            self._files.fsync_directory(self._folder.path)
            self._files.fsync_directory(self._folder.parent)
        for work in works:
            work()

    def _ended(self, waiting: Sequence[Callable[[MetaqError | None], None]], result: object) -> None:
        self._running = False
        error: MetaqError | None = self._failure
        if isinstance(result, BaseException):
            error = self._fail(result)
        elif self._held is not None:
            held, self._held, self._place = self._held, None, self._folder.path
            try:
                for entry in held:
                    self._take(entry)
            except (OSError, MetaqError) as failed:
                error = self._fail(failed)
        for done in waiting:
            call_safely(done, error)
        self._start()

    def _fail(self, error: BaseException) -> MetaqError:
        """Record that the files cannot be trusted until a new copy is complete, call all waiting callbacks with the
        error, and return it: a DiskFull if `error` means that the disk is full, else a StoreError.
        """
        if isinstance(error, OSError) and no_room(error):
            self._failure = DiskFull(self._folder.path, str(error))
        else:
            self._failure = StoreError(f"the transaction log {self._folder.path} cannot be written: {error}")
        waiting, self._waiting = self._waiting, []
        self._works, self._dirty = [], {}
        for done in waiting:
            call_safely(done, self._failure)
        return self._failure

    def _change(self, fd: int, change: LogChange) -> None:
        """Sync the partitions, and then replace or remove a file of the log. The leader replaces or removes a file when
        it no longer needs the file's old records, because their messages are on the disk in the leader's partitions. In
        this node's partitions these messages may not be on the disk yet, and after the change a replay of the log
        cannot restore them. So the partitions are synced first.
        """
        if fd >= 0:
            self._files.close(fd)
        self._file_systems.sync(self._data_paths())
        self._files.make_directory(self._folder.path)
        make_change(self._files, self._folder.path, change)

    def write_back(self) -> None:
        """Sync the file systems of the partitions now, so that the sync at the end of the next copy has little to do.
        Raises OSError. The caller may ignore this error, because only the sync at the end of the copy decides whether
        the data are safe. That sync also reports errors of earlier writes, because its file descriptors stay open until
        then.
        """
        file_systems = FileSystems(self._files)
        try:
            file_systems.sync(self._data_paths())
        finally:
            file_systems.close()

    def _sync_all(self) -> None:
        """Sync the log's files and the partitions. Called when this node's log has the same bytes as the leader's, so
        that no copy is needed. The partitions must be synced, too: the leader removes messages from the log when they
        are on the disk in its own partitions, but in this node's partitions the same messages may be only in memory. A
        replay of the log could not restore them.
        """
        self._file_systems.sync(self._data_paths())
        for name in log_names(self._files, self._folder.path):
            with opened(self._files, os.path.join(self._folder.path, name)) as fd:
                self._files.fdatasync(fd)
        if self._files.is_directory(self._folder.path):
            self._files.fsync_directory(self._folder.path)
        self._files.fsync_directory(self._folder.parent)

    def _exchange(self, descriptors: Sequence[int]) -> None:
        try:
            self._file_systems.sync(self._data_paths())
            for fd in descriptors:
                self._files.fdatasync(fd)
        finally:
            for fd in descriptors:
                self._files.close(fd)
        self._folder.exchange()


class _Folder:
    """The folder of the transaction log, and the temporary folders beside it. Used by worker threads, one at a time.
    Every method may wait for the disk and may raise OSError.
    """

    def __init__(self, files: Files, path: str) -> None:
        self.path = path
        self.parent, name = os.path.split(path)
        self.copy = os.path.join(self.parent, f".{name}.copy")
        self._new = os.path.join(self.parent, f".{name}.new")
        self._old = os.path.join(self.parent, f".{name}.old")
        self._files = files

    def settle(self) -> None:
        """If the replacement of the old folder was interrupted, finish it. If a copy was interrupted, delete it."""
        files = self._files
        self._drop_old()
        if files.is_directory(self._new):
            if files.is_directory(self.path):
                files.rename(self.path, self._old)
            files.rename(self._new, self.path)
            files.fsync_directory(self.parent)
            self._drop_old()
        self._remove(self.copy)

    def exchange(self) -> None:
        """Replace the old folder with the copy, whose files are on the disk."""
        if self._files.is_directory(self.path):
            self._keep_different()
        self._files.fsync_directory(self.copy)
        self._files.rename(self.copy, self._new)
        self._files.fsync_directory(self.parent)
        self.settle()

    def _keep_different(self) -> None:
        for name in self._files.list_directory(self.path):
            if name.startswith(REDO_PREFIX) and is_mirrored(name):
                found = self._different(name)
                if found is not None:
                    start, data = found
                    keep_copy(self._files, self.copy, f"{DAMAGED_PREFIX}{name}-{start}", data)

    def _different(self, name: str) -> tuple[int, bytes] | None:
        """Return the first offset where the old file differs from the new file, and the old file's bytes from there on.

        Return None if the old file has no bytes that differ, or if there is no new file because the leader has removed
        it.
        """
        files = self._files
        old_path, new_path = os.path.join(self.path, name), os.path.join(self.copy, name)
        try:
            new_size = files.status(new_path).size
        except FileNotFoundError:
            return None
        size = files.status(old_path).size
        with opened(files, old_path) as old, opened(files, new_path) as new:
            for start in range(0, size, _CHUNK_BYTES):
                ours = read_exactly(files, old, _CHUNK_BYTES, start)
                theirs = read_exactly(files, new, _CHUNK_BYTES, start) if start < new_size else b""
                if not theirs.startswith(ours):
                    same = _same_bytes(ours, theirs)
                    return start + same, read_exactly(files, old, size, start + same)
        return None

    def _drop_old(self) -> None:
        """Move the files that belong to this node alone from the old folder to the new one, and then remove the old
        folder.
        """
        files = self._files
        if not files.is_directory(self._old) or not files.is_directory(self.path):
            return
        for name in files.list_directory(self._old):
            target = os.path.join(self.path, name)
            if not is_mirrored(name) and not name.startswith(".") and name not in files.list_directory(self.path):
                files.rename(os.path.join(self._old, name), target)
        files.fsync_directory(self.path)
        self._remove(self._old)

    def _remove(self, directory: str) -> None:
        if self._files.is_directory(directory):
            for name in self._files.list_directory(directory):
                self._files.unlink(os.path.join(directory, name))
            self._files.remove_directory(directory)


def _same_bytes(first: bytes, second: bytes) -> int:
    """Return the number of bytes at the beginning that both values have in common."""
    same, end = 0, min(len(first), len(second))
    while same < end:
        middle = (same + end + 1) // 2
        if first[same:middle] == second[same:middle]:
            same = middle
        else:
            end = middle - 1
    return same
