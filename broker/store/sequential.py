"""Read a partition from front to back if its data are not in the page cache. The reader lets the kernel load the next
bytes in advance (prefetch), and drops from the page cache the pages that it has read.

Without the prefetch, a reader that is far behind the partition's end would wait for the disk at each request. If pages
were not dropped, the old data that this reader loads would replace newer data in the page cache, which readers at the
partition's end need. A reader drops only pages that were not cached before it read them. It drops pages only when it
has read far beyond them, and it never drops pages near the end of the partition. No pages are dropped while a larger
part of the machine's memory than the reader's `spare_part` is unused. So a reader with spare_part=1.0 always drops
pages.
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
    """Byte offsets [start, stop) of a partition whose data this reader has caused to be loaded into the page cache."""

    start: int
    stop: int


class SequentialReader:
    """Reads one partition for one client from front to back. Its methods run in worker threads, one at a time.

    The methods make few system calls, because after each call the worker thread takes Python's interpreter lock again,
    and while it has the lock, the reactor thread cannot run.
    """

    def __init__(self, files: Files, spare_part: float = tuning.SPARE_MEMORY_PART) -> None:
        """spare_part: a fraction from 0 to 1. While a larger fraction of the machine's memory is unused, no pages are
        dropped.
        """
        self._files = files
        self._spare_part = spare_part
        self._segment: Segment | None = None
        self._ahead = 0  # where the prefetched part of the segment ends
        self.is_ahead_cached = False
        """Whether the data that `read` last wanted to prefetch were in the page cache already, because other clients
        had read them or because they had just been written.
        """
        self._brought: deque[_Range] = deque()

    def read(self, log: Snapshot, offset: int, max_bytes: int, window: int = tuning.MAX_WINDOW_BYTES) -> bytes:
        """Return the same data as `Snapshot.read`. Also prefetch up to `window` bytes behind the returned data. Drop
        pages that this reader has loaded and that are more than `window` bytes before the end of the returned data.

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
        """Do nothing if the data up to byte offset `needed` were prefetched before. Otherwise extend the prefetched
        range to byte offset `stop`: tell the kernel to load the added data, unless they are in the page cache already.
        Return whether the prefetched range was extended to `stop`.

        The function does not wait until the data are in the page cache.
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
        """Drop from the page cache the pages before byte offset `before`, as far as this reader has caused their
        loading. Drop none while the machine has more unused memory than `spare_part`.
        """
        if self._brought and self._files.unused_memory_part() > self._spare_part:
            self._brought.clear()
            return
        while self._brought and self._brought[0].stop <= before:
            start, stop = (offset - segment.first_offset for offset in self._brought.popleft())
            start -= start % _PAGE_BYTES  # the kernel keeps pages that are named only in part
            self._files.advise(fd, start, stop - start, os.POSIX_FADV_DONTNEED)

    def _leave(self, hot: int) -> None:
        """Called when the reader begins to read another segment. From the segment that it has read before, drop those
        pages from the page cache that are before byte offset `hot` and whose loading this reader has caused.
        """
        segment, self._segment = self._segment, None
        if segment is not None and self._brought:
            with suppress(OSError), opened(self._files, segment.path) as fd:  # if the file is gone, so are its pages
                self._drop(fd, segment, hot)
        self._brought.clear()
