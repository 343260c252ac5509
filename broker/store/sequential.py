"""Read data in order that are not in the page cache: prefetch the next bytes, and drop pages from the page cache that
the reader has already read.

If data were not prefetched, a reader that is far behind would wait for the disk at each request. If pages were not
dropped, a reader that is far behind would push newer data out of the page cache, which readers at the partition's end
still need. A page is dropped only if it was not cached before this reader read it. Pages are dropped well behind the
reader, and never near the end of the partition. While the machine has spare memory, no pages are dropped, unless the
reader was made with spare_part=1.0.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from typing import NamedTuple

from . import tuning
from .files import Files, opened, read_exactly
from .segment import Segment
from .segments import Snapshot, find_segment

__all__ = ["SequentialReader"]


_PAGE_BYTES = 4096


class _Range(NamedTuple):
    """Byte offsets [start, stop) of a partition that were loaded into the page cache."""

    start: int
    stop: int


class SequentialReader:
    """Reads one partition on behalf of one client. Its methods run in worker threads, one at a time.

    The methods make few system calls, because each one disturbs the reactor thread: after a system call a worker thread
    waits for Python's interpreter lock, and when it gets the lock, the reactor thread has to stop.
    """

    def __init__(self, files: Files, spare_part: float = tuning.SPARE_MEMORY_PART) -> None:
        """spare_part: a fraction of the machine's memory, 0 … 1. No pages are dropped while a larger fraction of the
        memory is unused.
        """
        self._files = files
        self._spare_part = spare_part
        self._segment: Segment | None = None
        self._ahead = 0  # where the prefetched part of the segment ends
        self.is_ahead_cached = False
        """Whether the data of the last prefetch were already in the page cache. They are cached if other clients read
        the same data, or if the data were just written.
        """
        self._brought: deque[_Range] = deque()

    def read(self, log: Snapshot, offset: int, max_bytes: int, window: int = tuning.MAX_WINDOW_BYTES) -> bytes:
        """Read and return data like `Snapshot.read`. Also prefetch up to `window` bytes behind the returned data, and
        drop pages that this reader has read before.

        log: a snapshot of the partition. All calls must be for the same partition.
        """
        segment, length = log.extent(offset, max_bytes)
        if not length:
            return b""
        hot = log.visible_end - tuning.HOT_TAIL_BYTES
        if segment is not self._segment:
            self._leave(hot)
            self._segment = segment
        self._ahead = max(self._ahead, offset)
        end = offset + length

        def read(files: Files, fd: int) -> bytes:
            files.advise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # the kernel's read-ahead would load unknown pages
            self._fetch(fd, segment, end, offset)
            data = read_exactly(files, fd, length, offset - segment.first_offset)
            _, last = find_segment(log.segments, log.visible_end, offset)
            if self._fetch(fd, segment, min(end + window, last), end + window // 2):
                self._drop(fd, segment, min(end - window, hot))
            return data

        return log.look(segment, read)

    def _fetch(self, fd: int, segment: Segment, stop: int, needed: int) -> bool:
        """If the data up to byte offset `needed` are not prefetched yet, tell the kernel to read the data up to byte
        offset `stop`. Return whether the kernel was told to read.

        Returns before the data are in the page cache.
        """
        start = self._ahead
        if start >= min(stop, needed + 1):
            return False
        first, last = start - segment.first_offset, stop - segment.first_offset
        self.is_ahead_cached = self._is_cached(fd, first) and self._is_cached(fd, last - 1)
        if not self.is_ahead_cached:
            for position in range(first, last, tuning.ADVICE_BYTES):
                self._files.advise(fd, position, min(tuning.ADVICE_BYTES, last - position), os.POSIX_FADV_WILLNEED)
            self._brought.append(_Range(start, stop))
        self._ahead = stop
        return True

    def _is_cached(self, fd: int, position: int) -> bool:
        try:
            return self._files.preadv_nowait(fd, memoryview(bytearray(1)), position) == 1
        except OSError:  # missing or unknown: the pages count as loaded by this reader
            return False

    def _drop(self, fd: int, segment: Segment, before: int) -> None:
        """Drop pages from the page cache that this reader has loaded, up to byte offset `before`. Drop no pages while
        the machine has spare memory.
        """
        if self._brought and self._files.unused_memory_part() > self._spare_part:
            self._brought.clear()
            return
        while self._brought and self._brought[0].stop <= before:
            start, stop = (offset - segment.first_offset for offset in self._brought.popleft())
            start -= start % _PAGE_BYTES  # the kernel keeps pages that are named only in part
            self._files.advise(fd, start, stop - start, os.POSIX_FADV_DONTNEED)

    def _leave(self, hot: int) -> None:
        """Of the segment that was read last, drop the pages before byte offset `hot` that this reader has loaded.
        Called when the reader goes to another segment.
        """
        segment, self._segment = self._segment, None
        if segment is not None and self._brought:
            with suppress(OSError), opened(self._files, segment.path) as fd:  # if the file is gone, so are its pages
                self._drop(fd, segment, hot)
        self._brought.clear()
