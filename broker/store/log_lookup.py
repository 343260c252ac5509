"""Finding places in one partition by its index units: by count, by time, by offset."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable
from functools import update_wrapper
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np

from metaq.protocol.errors import StoreError

from .index import UNIT_DTYPE, Index, IndexDamaged, UnitArray
from .log_segments import LogSegments
from .scan import scan_units
from .segment import Segment

__all__ = ["LogLookup"]

P = ParamSpec("P")
T = TypeVar("T")


def _despite_damage(question: Callable[Concatenate[LogLookup, P], T]) -> Callable[Concatenate[LogLookup, P], T]:
    """Ask again without an index that turns out to be damaged; each time one segment less has one."""

    def ask(self: LogLookup, /, *arguments: P.args, **more: P.kwargs) -> T:
        while True:
            try:
                return question(self, *arguments, **more)
            except IndexDamaged as damage:
                self._give_up(damage)

    update_wrapper(ask, question)
    return ask


class LogLookup(LogSegments, ABC):
    """Adds the look-ups to the readable log. Owning thread.

    A damaged index is given up (`index_damaged`), and the question answered as for a segment that has none. Raises
    StoreError if that cannot be.
    """

    @abstractmethod
    def index_damaged(self, segment: Segment, index: Index, damage: IndexDamaged) -> bool:
        """Do without `index` of the segment, and have another made; False if that is not possible now, or not wanted
        any more, because the segment has another index or is gone. Raises StoreError if no other segment can go on.
        """

    def _give_up(self, damage: IndexDamaged) -> None:
        for segment in self._segments:
            index = segment.index
            if index is not None and index.path == damage.path and self.index_damaged(segment, index, damage):
                return
        raise StoreError(f"{damage}; it cannot be made again now")

    def segment_start(self, offset: int) -> int:
        """Where the segment with this byte starts; visible_end if offset is there or beyond, first_offset if below.

        Source: the 1.x `offset` command (wire.md §4), which asks for a safe place to start from.
        """
        if offset >= self.visible_end:
            return self.visible_end
        return self._starts[max(0, bisect_right(self._starts, offset) - 1)]

    @_despite_damage
    def messages_behind(self, offset: int) -> int:
        """Messages from this byte offset on: message_count - count_before."""
        before = self._count_before(offset)
        return self.message_count - before

    @_despite_damage
    def count_before(self, offset: int) -> int:
        """Messages wholly before this byte offset, counted from first_offset."""
        return self._count_before(offset)

    def _count_before(self, offset: int) -> int:
        if offset >= self.visible_end:
            return self.message_count
        number = bisect_right(self._starts, offset) - 1
        if number < 0:
            return 0
        index = self._segments[number].index
        return self._bases[number] - self._removed + (0 if index is None else index.ending_by(offset))

    @_despite_damage
    def offset_after(self, offset: int, messages: int, max_bytes: int) -> int:
        """How far at most `messages` whole messages and `max_bytes` bytes lead from where a message begins: byte offset
        of the next one, visible_end at most. A segment whose index is being rebuilt is taken whole.
        """
        number = min(self._count_before(offset) + messages, self._count_before(offset + max_bytes))
        if number >= self.message_count:
            return self.visible_end
        absolute = number + self._removed
        place = bisect_right(self._bases, absolute) - 1
        index = self._segments[place].index
        if index is None:
            return self._starts[place + 1] if place + 1 < len(self._starts) else self.visible_end
        return index.unit(absolute - self._bases[place])[0]

    @_despite_damage
    def offset_at_time(self, time_ms: int) -> int:
        """Byte offset of the first readable record stored at `time_ms` (Unix ms) or later, visible_end if none is.

        Exact for our records; a Java broker's are taken at the latest time they can have been stored. A segment whose
        index is being rebuilt is taken whole.
        """
        for segment in self._segments:
            index = segment.index
            if segment.first_offset >= self.visible_end:
                break
            if index is None:
                return segment.first_offset
            count = len(index)
            if count and abs(index.unit(count - 1)[2]) >= time_ms:
                return min(index.unit(index.stored_before(time_ms))[0], self.visible_end)
        return self.visible_end

    @_despite_damage
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
        end = min(segment.size, self.visible_end - segment.first_offset)
        if not len(found.units) and start + length < end:  # one record larger than max_bytes
            found = scan_units(self._files, fd, start, end, segment.first_offset, max_records=1)
        return found.units[:max_count]
