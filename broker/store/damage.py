"""Handle damaged bytes of a partition: remember the damaged ranges that were found, and check whether an offset has a
good record, that is, a record whose checksum matches.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from .files import Files, read_exactly
from .index import UNIT_DTYPE, UnitArray
from .scan import scan_bytes, walk

__all__ = ["Damaged", "DamagedRanges", "Sound", "Soundness", "place_by_units", "place_by_walking", "walk_segment"]

_MAX_RANGES = 1024


class Damaged(NamedTuple):
    """A range of bytes [start, end) of a partition that contains no good record. At byte offset `end`, a good record
    begins or the segment ends.
    """

    start: int
    end: int


class Sound(NamedTuple):
    """A good record that contains the byte at the examined offset. start: the byte offset where the record begins.
    size: the record's bytes, including its header.
    """

    start: int
    size: int


Soundness = Damaged | Sound
"""What was found at an examined offset: either a good record or damaged bytes."""


class DamagedRanges:
    """The damaged ranges of one partition that have been found so far, in order. Only the thread that owns the store
    may use this object.

    At most 1,024 ranges are kept. When there are more, the range with the lowest offset is removed; it is found again
    when somebody reads its bytes.
    """

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[Damaged]:
        return map(Damaged, self._starts, self._ends)

    def at(self, offset: int) -> Damaged | None:
        """Return the range that contains the byte at `offset`, or None if there is none."""
        number = bisect_right(self._starts, offset) - 1
        if number < 0 or offset >= self._ends[number]:
            return None
        return Damaged(self._starts[number], self._ends[number])

    def in_front(self, units: UnitArray) -> UnitArray:
        """Return the units in front of the next damaged range, that is, the first range that begins behind the
        beginning of the first unit's record. The units must be in the partition's order, and the first of them must not
        be in a damaged range.
        """
        number = bisect_right(self._starts, int(units[0]["offset"]))
        if number == len(self._starts):
            return units
        return units[: int(np.searchsorted(units["offset"], self._starts[number]))]

    def add(self, found: Damaged) -> int:
        """Add a damaged range, and merge it with the known ranges that overlap it. Return how many bytes were not known
        as damaged before.

        If the added range begins inside a known range, the result is one range that begins where the known range
        begins.
        """
        known = self.at(found.start)
        if known is not None:
            if found.end <= known.end:
                return 0
            found = Damaged(known.start, found.end)
        first, last = bisect_left(self._starts, found.start), bisect_left(self._starts, found.end)
        end = max(found.end, *self._ends[first:last]) if last > first else found.end
        before = sum(self._ends[first:last]) - sum(self._starts[first:last])
        self._ends[first:last] = [end]
        self._starts[first:last] = [found.start]
        if len(self._starts) > _MAX_RANGES:
            del self._starts[0], self._ends[0]
        return end - found.start - before

    def forget_before(self, offset: int) -> None:
        """Remove the ranges before `offset`, because retention has removed these bytes."""
        count = bisect_right(self._ends, offset)
        del self._starts[:count], self._ends[:count]

    def forget_from(self, offset: int) -> None:
        """Remove the ranges behind `offset`, because a cut has removed these bytes."""
        count = bisect_left(self._starts, offset)
        del self._starts[count:], self._ends[count:]
        if self._ends:
            self._ends[-1] = min(self._ends[-1], offset)


def place_by_units(files: Files, fd: int, first_offset: int, units: UnitArray) -> Soundness:
    """Check whether a good record is at the offset in the first of these index units. If not, return the damaged range
    that begins there. Any thread may call this. Raises OSError.

    fd, first_offset: the descriptor of the segment's data file, and the segment's first offset. To find the end of the
    damaged range, the function checks the records of these units in order: the range ends before the first good record,
    before the first gap between two records, or behind the last record, whichever comes first.
    """
    start = end = int(units[0]["offset"])
    for offset, _, _, size, _ in units.tolist():
        if offset != end:
            break
        if _is_good(files, fd, offset - first_offset, size):
            return Sound(offset, size) if offset == start else Damaged(start, offset)
        end = offset + size
    return Damaged(start, end)


def _is_good(files: Files, fd: int, position: int, size: int) -> bool:
    return scan_bytes(read_exactly(files, fd, size, position), 0, max_records=1).end == size


def place_by_walking(files: Files, fd: int, first_offset: int, start: int, end: int, offset: int) -> Soundness:
    """Check whether a good record contains the byte at `offset` in a segment without an index. If not, return the
    damaged range around it. Any thread may call this. Raises OSError.

    The records are checked one by one from the byte offset `start` on, where a record or a damaged range must begin;
    start <= offset < end. The function stops behind the record at `offset` or, if `offset` is damaged, at the next good
    record. At worst it reads all bytes of [start, end).
    """
    reached = start
    for units, position in walk(files, fd, start - first_offset, end - first_offset, first_offset):
        if offset < first_offset + position:
            if not len(units):
                return Damaged(reached, first_offset + position)
            unit = units[int(np.searchsorted(units["offset"], offset, "right")) - 1]
            return Sound(int(unit["offset"]), int(unit["size"]))
        reached = first_offset + position
    raise ValueError(f"offset {offset} is not in [{start}, {end})")


def walk_segment(files: Files, fd: int, first_offset: int, size: int) -> tuple[UnitArray, list[Damaged]]:
    """Return the units of all good records of a segment's first `size` bytes, and the damaged ranges between them.

    fd: the descriptor of the segment's data file. Any thread may call this. Raises OSError.
    """
    blocks, damage = [np.empty(0, UNIT_DTYPE)], []
    start = first_offset
    for units, position in walk(files, fd, 0, size, first_offset):
        blocks.append(units)
        if not len(units):
            damage.append(Damaged(start, first_offset + position))
        start = first_offset + position
    return np.concatenate(blocks), damage
