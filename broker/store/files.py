"""The store's access to the file system. The store makes every call of the operating system that can fail or wait
through an object of the class `Files`, so tests can make each call fail.

`OpenFiles` limits the number of open descriptors, because ten thousand partitions must not need ten thousand
descriptors.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import mmap
import os
import resource
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple, Protocol

from metaq.protocol.arrays import np
from metaq.protocol.record import Buffer

from . import tuning

__all__ = [
    "REAL_FILES",
    "CachedOnly",
    "FailedSync",
    "FileStatus",
    "Files",
    "NotCached",
    "OpenFile",
    "OpenFiles",
    "Readable",
    "check_named",
    "default_open_limit",
    "may_exist",
    "naming",
    "opened",
    "read_exactly",
    "replace_file",
    "unused_name",
    "write_all",
]

_log = logging.getLogger(__name__)

_FILE_MODE = 0o600  # the files contain messages: no other user of the machine may read them
_DIRECTORY_MODE = 0o700
_MAX_BUFFERS = 1024  # IOV_MAX of Linux
_NO_NOWAIT = frozenset((errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS))

_libc = ctypes.CDLL(None, use_errno=True)  # syncfs(2), sync_file_range(2), mincore(2): missing in os
_SYNC_FILE_RANGE_WRITE = 2


class FailedSync(OSError):
    """Raised if a sync has failed. The data that it should have written may be lost, even if the cause was a full disk
    and space is freed later. In contrast, a write that fails because the disk is full loses no data
    (disk_space.no_room).
    """


@contextmanager
def _syncing(path: str | None = None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FailedSync(error.errno, error.strerror, *([] if path is None else [path])) from error


class NotCached(Exception):  # no error: a reason to come back
    """Raised in a block of `OpenFiles.cached_only`, where the thread that owns the store must not wait for the disk, if
    the requested data are not in the page cache.

    The caller calls `load()`, which reads the data into the cache, in a thread that may wait. Then the caller repeats
    the call that has raised this exception.
    """

    def __init__(self, files: Files, path: str, size: int, position: int) -> None:
        super().__init__(path, position)
        self._files = files
        self._path = path
        self._start = position - position % tuning.LOAD_BYTES
        self._size = position + size - self._start

    @property
    def place(self) -> tuple[str, int]:
        """Return the path of the file with the missing data, and the byte position in the file where `load` begins to
        read.
        """
        return self._path, self._start

    def load(self) -> None:
        """Read the data into the page cache. An OSError is ignored, because the caller gets the same error when it
        repeats its request.
        """
        with suppress(OSError), opened(self._files, self._path) as fd:
            for start in range(self._start, self._start + self._size, tuning.LOAD_BYTES):
                self._files.pread(fd, tuning.LOAD_BYTES, start)


class FileStatus(NamedTuple):
    """A file's size in bytes, the Unix time of its last modification in milliseconds, and its inode number."""

    size: int
    modified_ms: int
    inode: int = 0


class Readable(Protocol):
    """An object with the method that `read_exactly` needs."""

    def pread(self, fd: int, size: int, position: int) -> bytes: ...


class Files:
    """The calls of the operating system that the store needs for files. Tests use subclasses that let calls fail.

    Every method may raise OSError. Any thread may call the methods.
    """

    def open(self, path: str, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC, _FILE_MODE)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        return os.pwritev(fd, buffers, position)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        return os.pread(fd, size, position)

    def is_cached(self, fd: int, position: int, size: int) -> bool:
        """Return whether the page cache has at least one of the `size` bytes from `position` on. Return True if this is
        unknown. The file must have these bytes.
        """
        start = position - position % mmap.ALLOCATIONGRANULARITY
        length = position + size - start
        with mmap.mmap(fd, length, mmap.MAP_SHARED, mmap.PROT_READ, offset=start) as mapped:
            pages = (ctypes.c_ubyte * -(-length // mmap.PAGESIZE))()
            address = np.frombuffer(mapped, np.uint8).ctypes.data
            if _libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(length), pages):
                return True
        return any(page & 1 for page in bytes(pages))

    def preadv_nowait(self, fd: int, buffer: memoryview, position: int) -> int:
        """Read from `position` into `buffer`, but only bytes that are in the page cache. Return the number of bytes
        read. Raises BlockingIOError if no bytes from `position` on are in the page cache. Raises OSError with
        EOPNOTSUPP if the file system cannot tell which bytes are in the page cache.
        """
        return os.preadv(fd, [buffer], position, os.RWF_NOWAIT)

    def advise(self, fd: int, position: int, size: int, advice: int) -> None:
        """Tell the kernel how the page cache should treat this range (os.POSIX_FADV_…). The advice is only a hint and
        has no effect where the system does not support it.
        """
        with suppress(OSError):
            os.posix_fadvise(fd, position, size, advice)

    def unused_memory_part(self) -> float:
        """Return which part of the machine's memory is unused, as a fraction from 0 to 1. Memory of the page cache
        counts as used.
        """
        return os.sysconf("SC_AVPHYS_PAGES") / os.sysconf("SC_PHYS_PAGES")

    def start_writeback(self, fd: int, position: int, size: int) -> None:
        """Tell the kernel to start writing dirty pages of this range to the disk. The call does not wait, and it does
        not make the data safe. The call is only a hint and has no effect where the system does not support it.
        """
        _libc.sync_file_range(fd, ctypes.c_int64(position), ctypes.c_int64(size), _SYNC_FILE_RANGE_WRITE)

    def fdatasync(self, fd: int) -> None:
        """Sync the file's data. Raises FailedSync if the sync fails, as all methods that sync do."""
        with _syncing():
            os.fdatasync(fd)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def fsync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with _syncing(path):
                os.fsync(fd)
        finally:
            os.close(fd)

    def sync_filesystem_of(self, fd: int) -> None:
        """Sync all files of the file system of `fd` with one call. Raises FailedSync if that fails, or if a write to
        this file system has failed since the last call with this descriptor.
        """
        if _libc.syncfs(fd):
            number = ctypes.get_errno()
            raise FailedSync(number, os.strerror(number))

    def status(self, path: str) -> FileStatus:
        found = os.stat(path)
        return FileStatus(found.st_size, found.st_mtime_ns // 1_000_000, found.st_ino)

    def space(self, path: str) -> tuple[int, int]:
        """Return how many more bytes this process can write to the file system of `path`, and the size of this file
        system in bytes.
        """
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize

    def device(self, file: int | str) -> int:
        """Return the number of the device (file system) that contains the file. file: a descriptor or a path."""
        return os.stat(file).st_dev

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def list_directory(self, path: str) -> list[str]:
        return os.listdir(path)

    def make_directory(self, path: str) -> None:
        os.makedirs(path, _DIRECTORY_MODE, exist_ok=True)

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        os.rmdir(path)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def lock(self, path: str) -> int:
        """Create a plain file if it does not exist, lock it, and return its descriptor. The lock ends when the
        descriptor is closed. Raises BlockingIOError if another process holds the lock.
        """
        fd = self.open(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        return fd


REAL_FILES = Files()


def read_exactly(files: Readable, fd: int, size: int, position: int) -> bytes:
    """Return `size` bytes from `position`, or fewer at the end of the file. One call of the operating system may return
    fewer bytes than requested (on Linux never more than 2 GiB), so this function repeats the call until it has all
    bytes.
    """
    data = files.pread(fd, size, position)
    if len(data) == size or not data:
        return data
    parts = [data]
    read = len(data)
    while read < size:
        data = files.pread(fd, size - read, position + read)
        if not data:
            break
        parts.append(data)
        read += len(data)
    return b"".join(parts)


def write_all(files: Files, fd: int, buffers: Sequence[Buffer], position: int) -> None:
    """Write all buffers back to back at `position`. Raises OSError; in this case a part of the bytes may have been
    written.
    """
    if len(buffers) > _MAX_BUFFERS:
        buffers = (b"".join(buffers),)
    size = len(buffers[0]) if len(buffers) == 1 else sum(map(len, buffers))
    written = files.pwritev(fd, buffers, position)
    if written < size:
        rest = memoryview(b"".join(buffers))[written:]
        while rest:
            written = files.pwritev(fd, (rest,), position + size - len(rest))
            rest = rest[written:]


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Add the file's name to an OSError raised in the `with` block, because an error of a call with a descriptor does
    not contain the name.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = path
        raise


@contextmanager
def opened(files: Files, path: str, flags: int = os.O_RDONLY) -> Iterator[int]:
    """Open a file descriptor for the `with` block. Like `naming`, add the file's name to an OSError raised in the
    block.
    """
    fd = files.open(path, flags)
    try:
        yield fd
    except OSError as error:
        if error.filename is None:
            error.filename = path
        raise
    finally:
        files.close(fd)


def replace_file(files: Files, path: str, data: bytes | Callable[[int], bytes]) -> None:
    """Replace a file and sync it. At every moment, either `path` is as it was before this call (the old file, or no
    file), or it has the complete new content. Blocks until the file is synced. Raises OSError.

    data: the new content, or a function that makes it from the inode number of the new file.
    """
    directory, name = os.path.split(path)
    temporary = os.path.join(directory, f".{name}.tmp")
    files.make_directory(directory)
    with opened(files, temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC) as fd:
        write_all(files, fd, [data if isinstance(data, bytes) else data(files.status(temporary).inode)], 0)
        files.fdatasync(fd)
    files.rename(temporary, path)
    files.fsync_directory(directory)


def unused_name(files: Files, path: str) -> str:
    """Return a path that no file has: `path` itself or, if a file with this path exists, `path` with a number appended.
    Recoveries and cuts keep data under such a path, so that they do not overwrite files that were kept earlier.
    """
    name, number = path, 1
    with suppress(FileNotFoundError):
        while files.status(name):
            number += 1
            name = f"{path}.{number}"
    return name


def check_named(files: Files, path: str) -> None:
    """Raise FailedSync if no file has this path any more. To be called after a sync of the file.

    The reason: if somebody deletes the file's directory or moves it away, the open file can still be written and
    synced. But the broker would not find the data at its next start.
    """
    if not may_exist(files, path):
        raise FailedSync(errno.ENOENT, "the file was deleted or moved away while the broker ran", path)


def may_exist(files: Files, path: str) -> bool:
    """Return whether the file exists, or True if this is unknown."""
    try:
        files.status(path)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def default_open_limit() -> int:
    """Return the default for the number of file descriptors that the store keeps open. The result is half of the
    process's soft limit for descriptors, but at most 2,048. The other half is left for connections.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2048 if soft == resource.RLIM_INFINITY else max(16, min(2048, soft // 2))


class OpenFile:
    """A file that is opened when it is used. `OpenFiles`, which has made this object, can close the file between two
    uses. Only the thread that owns the store may use this object.

    A descriptor that `use()` returns is valid until another file of the same `OpenFiles` is used. `pin()` keeps the
    descriptor open for as long as a worker thread needs it.
    """

    __slots__ = ("_table", "fd", "flags", "path", "pins", "recent")

    def __init__(self, table: OpenFiles, path: str, flags: int) -> None:
        self._table = table
        self.path = path
        self.flags = flags
        self.fd: int | None = None
        self.pins = 0
        self.recent = False

    def use(self) -> int:
        """Return the file's descriptor, and open the file first if it is not open. Raises OSError if that fails."""
        self.recent = True
        fd = self.fd
        return self._table.open(self) if fd is None else fd

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all buffers back to back at `position`. If the file was not open before, `OpenFiles.write` decides
        whether it is closed after the write. Raises the errors of the function `write_all`.
        """
        fd = self.fd
        if fd is None:
            self._table.write(self, buffers, position)
        else:
            self.recent = True
            write_all(self._table.files, fd, buffers, position)

    def pin(self) -> int:
        """Return the file's descriptor like `use`, and keep the descriptor open until `unpin` has been called as often
        as `pin`.
        """
        fd = self.use()
        self.pins += 1
        return fd

    def unpin(self) -> None:
        self.pins -= 1

    def close(self) -> None:
        """Close the descriptor if it is open. The next use opens the file again."""
        if self.fd is not None:
            self._table.forget(self)

    def read(self, size: int, position: int) -> Buffer:
        """Return `size` bytes from `position`, fewer only at the end of the file.

        The call waits for the disk if necessary. If waiting is not allowed (`OpenFiles.cached_only`) and the data are
        not in the page cache, the call raises NotCached instead.
        """
        fd = self.use()
        if not self._table.may_wait:
            data = self._table.read_cached(fd, size, position)
            if data is None:
                raise NotCached(self._table.files, self.path, size, position)
            return data
        return read_exactly(self._table.files, fd, size, position)

    def require(self, size: int, position: int) -> None:
        """Raise NotCached if waiting for the disk is not allowed now (`OpenFiles.cached_only`) and these bytes are not
        all in the page cache.
        """
        if not self._table.may_wait:
            self.read(size, position)

    def read_cached(self, size: int, position: int) -> Buffer | None:
        """Return `size` bytes from `position` if all of them are in the page cache, else None."""
        return self._table.read_cached(self.use(), size, position)


class CachedOnly:
    """A context manager. In its `with` block, files of one `OpenFiles` object are read only from the page cache."""

    def __init__(self, table: OpenFiles) -> None:
        self._table = table

    def __enter__(self) -> None:
        self._table.may_wait = False

    def __exit__(self, *ended: object) -> None:
        self._table.may_wait = True


class OpenFiles:
    """Keeps at most `limit` descriptors open. If one more is needed, the clock algorithm (which is similar to LRU but
    faster) chooses the descriptor to close.

    Pinned files are never closed, so more than `limit` descriptors may be open if all are pinned. Only the thread that
    owns the store may use this object.
    """

    def __init__(self, files: Files, limit: int) -> None:
        self.files = files
        self.limit = limit
        self.may_wait = True
        self.cached_only = CachedOnly(self)
        """A context manager. In its `with` block, `OpenFile.read` raises NotCached instead of waiting for the disk.
        The `with` blocks of this object must not be nested.
        """
        self._ring: deque[OpenFile] = deque()
        self._scratch = memoryview(bytearray(tuning.SCRATCH_BYTES))
        self._waiting_devices: set[int] = set()
        self._missed = 0

    def __len__(self) -> int:
        return len(self._ring)

    def file(self, path: str, flags: int = os.O_RDWR) -> OpenFile:
        """Return an OpenFile object for `path`. The file is opened at its first use. flags: the flags with which the
        file is opened.
        """
        return OpenFile(self, path, flags)

    def open(self, file: OpenFile) -> int:
        if len(self._ring) >= self.limit:
            self._evict()
        fd = self.files.open(file.path, file.flags)
        # even a read that must not wait starts the kernel's read-ahead, which would load cold data that nobody
        # requested, without a limit of the rate
        self.files.advise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        file.fd = fd
        self._ring.append(file)
        return fd

    def write(self, file: OpenFile, buffers: Sequence[Buffer], position: int) -> None:
        """Open a file that is not open, and write to it. The written file stays open if fewer than `limit` files are
        open, or if an open file that was not used lately can be closed instead.

        Otherwise the written file is closed after the write, and the other files stay open. The reason: suppose that
        more than `limit` files are written in rotation. If each write closed another file, every file would be closed
        before its next write.
        """
        if len(self._ring) < self.limit or self._has_idle():
            write_all(self.files, self.open(file), buffers, position)
            return
        with opened(self.files, file.path, file.flags) as fd:
            write_all(self.files, fd, buffers, position)

    def _has_idle(self) -> bool:
        """Return whether the open file that the clock algorithm examines next may be closed, because it was not used
        lately. Only one of MISSES_PER_STEP calls examines a file; the other calls return False. If the examined file
        must stay open, the next examination is that of the next file. That is enough to find unused files.
        """
        self._missed += 1
        if self._missed % tuning.MISSES_PER_STEP:
            return False
        file = self._ring[0]
        if file.recent or file.pins:
            file.recent = False
            self._ring.rotate(-1)
            return False
        return True

    def forget(self, file: OpenFile) -> None:
        if file.fd is None:
            return
        self._ring.remove(file)
        fd, file.fd = file.fd, None
        self.files.close(fd)

    def _evict(self) -> None:
        for _ in range(2 * len(self._ring)):  # the second round finds files that were recent in the first
            file = self._ring[0]
            if not file.pins and not file.recent:
                self.forget(file)
                return
            file.recent = False
            self._ring.rotate(-1)

    def read_cached(self, fd: int, size: int, position: int) -> Buffer | None:
        """Return `size` bytes from `position` if all of them are in the page cache, else None. If the file system
        cannot tell which data are in the page cache, read the data anyway, which can mean waiting for the disk.
        """
        if self._waiting_devices and self.files.device(fd) in self._waiting_devices:
            return read_exactly(self.files, fd, size, position)
        small = size <= tuning.SCRATCH_BYTES
        buffer = self._scratch[:size] if small else np.empty(size, np.uint8).data
        try:
            got = self.files.preadv_nowait(fd, buffer, position)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in _NO_NOWAIT:
                raise
            self._waiting_devices.add(self.files.device(fd))
            _log.warning(
                "file system of descriptor %d cannot read without waiting (%s): reads are done inline", fd, error
            )
            return read_exactly(self.files, fd, size, position)
        # a short read would end inside a record for ever if the rest never came into the cache
        if got != size:
            return None
        return bytes(buffer) if small else buffer
