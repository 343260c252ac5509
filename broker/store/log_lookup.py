"""Finding places in one partition by its index units: by count, by time, by offset."""

from __future__ import annotations

import os
from bisect import bisect_right

import numpy as np

from metaq.protocol.errors import OffsetOutOfRange, StoreError

from .files import Files
from .index import UNIT_DTYPE, UnitArray
from .log_segments import LogSegments
from .scan import find_record, scan_units
from .segment import Segment

__all__ = ["LogLookup"]

_WALKED_RECORDS = 1 << 16
"""Records looked at together on the way to one."""


class LogLookup(LogSegments):
    """Adds the look-ups to the readable log. Owning thread."""

    def segment_start(self, offset: int) -> int:
        """Where the segment with this byte starts; visible_end if offset is there or beyond, first_offset if below.

        Source: the 1.x `offset` command (wire.md §4), which asks for a safe place to start from.
        """
        if offset >= self.visible_end:
            return self.visible_end
        return self._starts[max(0, bisect_right(self._starts, offset) - 1)]

    def is_indexed(self, offset: int) -> bool:
        """Whether `record_start` can tell for this offset; else `walk_to_record` must."""
        return self._segment_of(offset).index is not None

    def record_start(self, offset: int) -> int:
        """Where the record begins that has the byte at `offset`; first_offset below it, visible_end there and beyond.

        For a segment without an index, where only walking can tell, it is the segment's start. O(log n) unit reads.
        """
        if not self.first_offset < offset < self.visible_end:
            return min(max(offset, self.first_offset), self.visible_end)
        segment = self._segment_of(offset)
        number = 0 if segment.index is None else segment.index.starting_before(offset + 1)
        if segment.index is None or not number:
            return segment.first_offset
        start, _, _, size, _ = segment.index.unit(number - 1)
        return start if offset < start + size else start + size

    def walk_to_record(self, offset: int) -> int:
        """The same from the data, from the segment's start on: up to 0.4 µs a record before it. Any thread.

        Behind damage it goes on at the next good record; inside, the damage's start is given. Raises OffsetOutOfRange,
        StoreError.
        """
        segment, _ = self.extent(offset, 1)
        try:
            fd = self._files.open(segment.path, os.O_RDONLY)
            try:
                return segment.first_offset + _walk(self._files, fd, segment.size, offset - segment.first_offset)
            finally:
                self._files.close(fd)
        except FileNotFoundError:
            if segment in self._segments:
                raise StoreError(f"{segment.path} is gone") from None
            raise OffsetOutOfRange(offset, self.first_offset, self.visible_end) from None  # retention was faster
        except OSError as error:
            raise StoreError(f"{segment.path} cannot be read: {error}") from error

    def _segment_of(self, offset: int) -> Segment:
        return self._segments[max(0, bisect_right(self._starts, offset) - 1)]

    def count_before(self, offset: int) -> int:
        """Messages wholly before this byte offset, counted from first_offset: lag = message_count - count_before."""
        if offset >= self.visible_end:
            return self.message_count
        number = bisect_right(self._starts, offset) - 1
        if number < 0:
            return 0
        index = self._segments[number].index
        return self._bases[number] - self._removed + (0 if index is None else index.ending_by(offset))

    def offset_after(self, offset: int, messages: int, max_bytes: int) -> int:
        """How far at most `messages` whole messages and `max_bytes` bytes lead from where a message begins: byte offset
        of the next one, visible_end at most. A segment whose index is being rebuilt is taken whole.
        """
        number = min(self.count_before(offset) + messages, self.count_before(offset + max_bytes))
        if number >= self.message_count:
            return self.visible_end
        absolute = number + self._removed
        place = bisect_right(self._bases, absolute) - 1
        index = self._segments[place].index
        if index is None:
            return self._starts[place + 1] if place + 1 < len(self._starts) else self.visible_end
        return index.unit(absolute - self._bases[place])[0]

    def offset_at_time(self, time_ms: int) -> int:
        """Byte offset of the first readable record stored at `time_ms` (Unix ms) or later, visible_end if none is.

        Exact for our records; a Java broker's are taken at the latest time they can have been stored. A segment whose
        index is being rebuilt is taken whole.
        """
        for segment in self._segments:
            index = segment.index
            if index is None:
                return segment.first_offset
            count = len(index)
            if count and abs(index.unit(count - 1)[2]) >= time_ms:
                return min(index.unit(index.stored_before(time_ms))[0], self.visible_end)
        return self.visible_end

    def units(self, offset: int, max_bytes: int, max_count: int = 1 << 20) -> UnitArray:
        """Index units (UNIT_DTYPE) of the readable records starting at or after `offset`, ending by offset + max_bytes.

        All of one segment, the one `offset` is in. The first one is given even if it is larger than max_bytes, so that
        a caller can always go on; empty only at visible_end or inside a segment's last record. Raises OffsetOutOfRange
        and StoreError like `read`.
        If the segment's index is being rebuilt the records are walked, so `offset` must be the start of one.
        """
        segment, length = self.extent(offset, max_bytes)
        if not length:
            return np.empty(0, UNIT_DTYPE)
        index = segment.index
        if index is None:
            return self._walked_units(segment, offset, length, max_count)
        start = index.starting_before(offset)
        units = index.units_ending_by(start, offset + length, max_count)
        return units if len(units) else index.units_ending_by(start, self.visible_end, 1)  # larger than max_bytes

    def _walked_units(self, segment: Segment, offset: int, length: int, max_count: int) -> UnitArray:
        start = offset - segment.first_offset
        segment.data.require(length, start)
        fd = segment.data.use()
        found = scan_units(self._files, fd, start, start + length, segment.first_offset)
        if not len(found.units) and start + length < segment.size:  # one record larger than max_bytes
            found = scan_units(self._files, fd, start, segment.size, segment.first_offset, max_records=1)
        return found.units[:max_count]


def _walk(files: Files, fd: int, size: int, target: int) -> int:
    """Position in the file of the record, or of the damage, that has the byte at `target`."""
    position = 0
    while position < target:
        scan = scan_units(files, fd, position, size, 0, max_records=_WALKED_RECORDS)
        if scan.end > target:
            starts = scan.units["offset"]
            return int(starts[np.searchsorted(starts, target, "right") - 1])
        if not len(scan.units):
            good = find_record(files, fd, position, size)
            if good is None or good > target:
                return position
            position = good
        else:
            position = scan.end
    return position
