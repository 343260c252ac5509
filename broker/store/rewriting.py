"""Make sure that the data which the broker reads at its start are on the disk, or that the next sync writes them to the
disk.

If Linux fails to write changed pages of the page cache to the disk, it marks them as clean all the same. Reads still
return the data of these pages, although the disk does not have them, and a later sync writes nothing and succeeds. It
does not help to write the same bytes into these pages again: ext4 then wrongly assumes that the file's blocks on the
disk are already marked as written. So when the pages have left the page cache, reads of these blocks return zeros (seen
on Linux 6.18). For this reason, cached data are first dropped from the page cache and then read again from the disk. If
the bytes on the disk differ from those that were cached, the cached bytes are written again, into new pages.
"""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Callable, Sequence

from metaq.protocol.record import Buffer

from . import tuning
from .file_systems import FileSystems
from .files import Files, opened, read_exactly, write_all

__all__ = ["PageCacheSync", "Rewriter", "secure_file"]

_log = logging.getLogger(__name__)


class PageCacheSync:
    """A sync of file systems that the broker makes once at its start, before it drops pages from the page cache. The
    sync is necessary because Linux does not drop changed pages before they are written to the disk.
    """

    def __init__(self, file_systems: FileSystems, directories: Sequence[str]) -> None:
        """directories: all data directories that the broker reads at its start."""
        self._file_systems = file_systems
        self._directories = directories
        self._done = False

    def __call__(self) -> None:
        """Sync the file systems of the directories, but only on the first call. Blocks until the sync is done."""
        if self._done:
            return
        self._done = True
        try:
            self._file_systems.sync(self._directories)
        except OSError as error:  # perhaps an error of an earlier run; the disk is compared byte by byte anyway
            _log.warning("some data in the page cache could not be written: %s", error)


class Rewriter:
    """Reads one file from the beginning to the end; its method `pread` has the parameters of `Files.pread`. The caller
    checks the data and passes good data to `secure`. If these data came from the page cache, `secure` makes sure that
    the disk also has them or gets them with the next sync. Only one thread may use this object.
    """

    def __init__(self, files: Files, path: str, fd: int, sync: Callable[[], None]) -> None:
        """fd: the file's descriptor, open for reading and writing. sync: a PageCacheSync."""
        self.rewritten_bytes = 0
        """The number of bytes that differed on the disk from the page cache and were written again."""
        self.wrote = False
        """Whether bytes were written again, so that the file needs a sync."""
        self._files = files
        self._path = path
        self._fd = fd
        self._sync = sync
        self._looked_to = 0
        self._cached_to = 0
        files.advise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # the kernel must not cache data before they are checked

    def pread(self, fd: int, size: int, position: int) -> bytes:
        """Read bytes like Files.pread, and remember whether they were in the page cache before this call. If an earlier
        call has read the same bytes, what it has remembered about them stays unchanged, because the read itself has
        brought them into the page cache.
        """
        start, end = max(position, self._looked_to), position + size
        if start < end:
            if self._files.is_cached(fd, start, end - start):
                self._cached_to = end
            self._looked_to = end
        return self._files.pread(fd, size, position)

    def secure(self, position: int, data: Buffer) -> None:
        """If these bytes, which were just read, came from the page cache, compare them with the bytes on the disk. If
        the disk has other bytes, write the data again.

        Bytes that are written again are not synced. Raises OSError.
        """
        if position >= self._cached_to:
            return
        cached = bytes(memoryview(data)[: self._cached_to - position])
        self._sync()
        if self._drop(position, len(cached)):
            if read_exactly(self._files, self._fd, len(cached), position) == cached:
                return
            self.rewritten_bytes += len(cached)
        self.wrote = True
        write_all(self._files, self._fd, [cached], position)

    def _drop(self, position: int, size: int) -> bool:
        """Drop the pages with these bytes from the page cache. Return whether the bytes are no longer cached. On tmpfs
        the result is False, because tmpfs stores data only in the page cache.
        """
        start = position - position % mmap.PAGESIZE
        end = position + size
        self._files.advise(self._fd, start, end - start + -end % mmap.PAGESIZE, os.POSIX_FADV_DONTNEED)
        if not self._files.is_cached(self._fd, position, size):
            return True
        _log.info("%s: the page cache keeps bytes [%d, %d), which were written again", self._path, position, end)
        return False


def secure_file(files: Files, path: str, sync: Callable[[], None]) -> int:
    """Make sure that a file's bytes on the disk are the same as the bytes that reads return, which may come from the
    page cache. Bytes that differ on the disk are written again and synced; return their number. The call blocks until
    this is done.

    sync: a PageCacheSync. Raises OSError.
    """
    with opened(files, path, os.O_RDWR) as fd:
        rewriter = Rewriter(files, path, fd, sync)
        size = files.status(path).size
        for position in range(0, size, tuning.COPY_BYTES):
            rewriter.secure(position, rewriter.pread(fd, min(tuning.COPY_BYTES, size - position), position))
        if rewriter.wrote:
            files.fdatasync(fd)
        return rewriter.rewritten_bytes
