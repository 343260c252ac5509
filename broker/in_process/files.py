"""The files of a broker in a test: they are never synced, and a test can let them fail."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from metaq.protocol.record import Buffer

from ..store.files import Files

__all__ = ["UnsyncedFiles"]


class UnsyncedFiles(Files):
    """Files that are only written, not synced: they survive the end of the process, but not a power cut. Any thread may
    call the methods.
    """

    def __init__(self, clock: Callable[[], float], is_ahead: Callable[[], bool]) -> None:
        """clock: the broker's wall clock, in seconds since 1970. is_ahead: whether this clock is ahead of the kernel's,
        so that a written file must get its modification time from it.
        """
        self._clock = clock
        self._is_ahead = is_ahead
        self._lock = threading.Lock()
        self._descriptors: set[int] = set()
        self._dead = False
        self.failure: OSError | None = None
        """The error with which every write fails, or None."""

    def abandon(self) -> None:
        """Close all files as they are, and refuse every later call. Waits for a write that has begun."""
        with self._lock:
            self._dead = True
            for fd in self._descriptors:
                os.close(fd)

    @contextmanager
    def _changing(self, *, adds: bool = False) -> Iterator[None]:
        """adds: whether the change needs space on the disk."""
        with self._lock:
            self._check()
            if adds and self.failure is not None:
                raise OSError(self.failure.errno, self.failure.strerror)
            yield

    def _check(self) -> None:
        if self._dead:
            raise OSError(errno.EIO, "this broker was killed")

    def open(self, path: str, flags: int) -> int:
        with self._changing():
            fd = super().open(path, flags)
            self._descriptors.add(fd)
            return fd

    def close(self, fd: int) -> None:
        with self._lock:
            if not self._dead:  # otherwise the number may by now be that of another file
                self._descriptors.discard(fd)
                super().close(fd)

    def lock(self, path: str) -> int:
        with self._lock:
            self._check()
            fd = Files().lock(path)
            self._descriptors.add(fd)
            return fd

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        with self._changing(adds=True):
            written = super().pwritev(fd, buffers, position)
            if self._is_ahead():
                os.utime(fd, (self._clock(),) * 2)
            return written

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self._check()
        return super().pread(fd, size, position)

    def preadv_nowait(self, fd: int, buffer: memoryview, position: int) -> int:
        """Read from `position` into `buffer`, whether or not the data are in the page cache: what a test has written is
        there, and a file system in memory cannot tell.
        """
        self._check()
        return os.preadv(fd, [buffer], position)

    def truncate(self, fd: int, size: int) -> None:
        with self._changing():
            super().truncate(fd, size)

    def make_directory(self, path: str) -> None:
        with self._changing(adds=True):
            super().make_directory(path)

    def remove_directory(self, path: str) -> None:
        with self._changing():
            super().remove_directory(path)

    def rename(self, source: str, target: str) -> None:
        with self._changing():
            super().rename(source, target)

    def unlink(self, path: str) -> None:
        with self._changing():
            super().unlink(path)

    def start_writeback(self, fd: int, position: int, size: int) -> None:
        """Do nothing: the data need not reach a disk."""

    def fdatasync(self, fd: int) -> None:
        """Do nothing."""
        self._check()

    def fsync_directory(self, path: str) -> None:
        """Do nothing."""
        self._check()

    def sync_filesystem_of(self, fd: int) -> None:
        """Do nothing."""
        self._check()
