"""Making sure that what a start has read is what the disk has, or will get.

After a failed write-back Linux marks the pages clean: reads still find them, and a later sync writes nothing and
succeeds. Writing the same bytes into these pages again does not help either: ext4 then believes that it has converted
the blocks, which still read as zeros once the pages are gone (seen on 6.18). So what came out of the page cache is
taken out of it and read again. Where the disk has something else, the bytes are written anew, into fresh pages.
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
    """The one sync that a start needs before it can take pages out of the cache: dirty ones stay there."""

    def __init__(self, file_systems: FileSystems, directories: Sequence[str]) -> None:
        """directories: all that the start is going to read."""
        self._file_systems = file_systems
        self._directories = directories
        self._done = False

    def __call__(self) -> None:
        """Do it when it is needed for the first time. Blocks."""
        if self._done:
            return
        self._done = True
        try:
            self._file_systems.sync(self._directories)
        except OSError as error:  # perhaps of an earlier life; what is on the disk is compared byte by byte anyway
            _log.warning("not everything that is in the page cache could be written: %s", error)


class Rewriter:
    """Reads one file forwards in place of `Files`, and secures what was cached and turned out good. One thread."""

    def __init__(self, files: Files, path: str, fd: int, sync: Callable[[], None]) -> None:
        """fd: open for reading and writing. sync: PageCacheSync."""
        self.rewritten_bytes = 0
        """Bytes that the disk did not have."""
        self.wrote = False
        """Whether the file needs a sync."""
        self._files = files
        self._path = path
        self._fd = fd
        self._sync = sync
        self._looked_to = 0
        self._cached_to = 0
        files.advise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # the kernel must not cache what has not been looked at

    def pread(self, fd: int, size: int, position: int) -> bytes:
        """As Files.pread; bytes that an earlier call has read were looked at then."""
        start, end = max(position, self._looked_to), position + size
        if start < end:
            if self._files.is_cached(fd, start, end - start):
                self._cached_to = end
            self._looked_to = end
        return self._files.pread(fd, size, position)

    def secure(self, position: int, data: Buffer) -> None:
        """Compare these bytes, which were just read, with the disk if they were cached; write them if they differ.

        What was written is not synced. Raises OSError.
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
        """Whether these bytes are no longer in the page cache. On tmpfs they have no other place."""
        start = position - position % mmap.PAGESIZE
        end = position + size
        self._files.advise(self._fd, start, end - start + -end % mmap.PAGESIZE, os.POSIX_FADV_DONTNEED)
        if not self._files.is_cached(self._fd, position, size):
            return True
        _log.info("%s: the page cache keeps bytes [%d, %d), which were written again", self._path, position, end)
        return False


def secure_file(files: Files, path: str, sync: Callable[[], None]) -> int:
    """Have the disk keep all of a file that reads give; the number of bytes that it did not have. Blocks.

    sync: PageCacheSync. Raises OSError.
    """
    with opened(files, path, os.O_RDWR) as fd:
        rewriter = Rewriter(files, path, fd, sync)
        size = files.status(path).size
        for position in range(0, size, tuning.COPY_BYTES):
            rewriter.secure(position, rewriter.pread(fd, min(tuning.COPY_BYTES, size - position), position))
        if rewriter.wrote:
            files.fdatasync(fd)
        return rewriter.rewritten_bytes
