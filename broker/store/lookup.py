"""Find where messages begin in one partition: by byte offset, by number of messages, or by store time. The searches use
the partition's index units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial, update_wrapper
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np

from metaq.protocol.errors import StoreError
from metaq.protocol.limits import MAX_RECORD_BODY_BYTES
from metaq.protocol.message_id import UNKNOWN_ID
from metaq.protocol.record import HEADER_BYTES

from . import tuning
from .damage import Damaged, Sound, Soundness, place_by_units, place_by_walking
from .index import UNIT_DTYPE, Index, IndexDamaged, UnitArray
from .scan import scan_units
from .segment import Segment
from .segments import Segments

__all__ = ["Lookup"]


P = ParamSpec("P")
T = TypeVar("T")


def _despite_damage(question: Callable[Concatenate[Lookup, P], T]) -> Callable[Concatenate[Lookup, P], T]:
    """Decorate a query method of Lookup: if the query finds that a segment's index is damaged, drop this index and
    repeat the query. Each repetition has one index less to use, so the repetitions come to an end.
    """

    def ask(self: Lookup, /, *arguments: P.args, **more: P.kwargs) -> T:
        while True:
            try:
                return question(self, *arguments, **more)
            except IndexDamaged as damage:
                self._do_without(damage)

    update_wrapper(ask, question)
    return ask


GiveUp = Callable[[Segment, Index, IndexDamaged], bool]
"""give_up(segment, index, damage): drops the segment's index, which is damaged, plans its rebuild, and returns True.
Returns False if the index cannot be dropped now, or if it need not be dropped, because the segment has a new index or
no longer exists. Before the index of the last segment is dropped, a new last segment is created. Raises StoreError if
the new segment cannot be created.
"""


class Lookup:
    """Uses the indexes of a partition's segments to answer queries about positions in the partition. Only the thread
    that owns the store may use this object.

    If an index is damaged, the segment loses this index, and the query is answered as for a segment without an index.
    Methods that use an index raise StoreError if a damaged index cannot be dropped.
    """

    def __init__(self, segments: Segments, give_up: GiveUp) -> None:
        self._segments = segments
        self._give_up = give_up
        # ends of records in segments without an index, so that `examination` need not begin at the segment's start
        self._walked: frozenset[int] = frozenset()

    def forget(self) -> None:
        """Forget the remembered positions of records in segments without an index. Called after the log was cut,
        because new records with other positions can replace the removed ones.
        """
        self._walked = frozenset()

    def _do_without(self, damage: IndexDamaged) -> None:
        for segment in self._segments:
            index = segment.index
            if index is not None and index.path == damage.path and self._give_up(segment, index, damage):
                return
        raise StoreError(f"{damage}; it cannot be made again now")

    @_despite_damage
    def record_start(self, offset: int) -> int:
        """Return where the record that contains this byte starts. Return visible_end if offset >= visible_end, and
        first_offset if offset < first_offset.

        Damaged bytes belong to no record; for them, return where the next record starts or the segment ends. If the
        index of the segment is being rebuilt, return where the segment starts, because nothing better is known without
        reading the records.
        """
        segments = self._segments
        if offset >= segments.visible_end:
            return segments.visible_end
        if offset < segments.first_offset:
            return segments.first_offset
        segment, _ = segments.extent(offset, 1)
        if segment.index is None:
            return segment.first_offset
        found = self._unit_at(segment, segment.index, offset)
        return found.end if isinstance(found, Damaged) else found[1]

    def _unit_at(self, segment: Segment, index: Index, offset: int) -> Damaged | tuple[int, int]:
        """Return the number of the index unit whose record contains the byte at `offset`, and the record's byte offset.
        If the byte belongs to no record but to a gap between two records, which is damage, return the gap.
        """
        number = index.starting_before(offset + 1) - 1
        start, end = segment.first_offset, segment.first_offset
        if number >= 0:
            start, _, _, size, _ = index.unit(number)
            end = start + size
        if number >= 0 and offset < end:
            return number, start
        following = index.unit(number + 1)[0] if number + 1 < len(index) else segment.end
        return Damaged(end, min(following, self._segments.visible_end))

    @_despite_damage
    def examination(self, offset: int) -> Callable[[], Soundness]:
        """Return a function that checks, in a worker thread, whether the data at `offset` are damaged; first_offset <=
        offset < visible_end.

        The function returns the record with a right checksum that contains the byte at `offset`; if there is none, it
        returns the damaged range. The function raises OffsetOutOfRange if retention has removed the data, StoreError if
        the file cannot be read.
        """
        segment, _ = self._segments.extent(offset, 1)
        look = partial(self._segments.snapshot().look, segment)
        index = segment.index
        if index is None:
            start = max((each for each in self._walked if segment.first_offset <= each <= offset), default=None)
            start = segment.first_offset if start is None else start
            walk = partial(place_by_walking, first_offset=segment.first_offset, start=start, end=segment.end)
            return partial(look, partial(walk, offset=offset))
        found = self._unit_at(segment, index, offset)
        if isinstance(found, Damaged):
            return partial(Damaged, *found)
        units = index.units(found[0], min(len(index), found[0] + tuning.EXAMINED_UNITS))
        units = units[units["offset"] < self._segments.visible_end]
        return partial(look, partial(place_by_units, first_offset=segment.first_offset, units=units))

    def is_indexed(self, offset: int) -> bool:
        """Return whether `record_start` gives an exact result for this offset. If not, the caller can call
        `Snapshot.record_start` in a worker thread to get one.
        """
        return self._segments[max(0, self._segments.number_at(offset))].index is not None

    @_despite_damage
    def messages_behind(self, offset: int) -> int:
        """Return the number of readable messages that end behind this byte offset."""
        before = self._count_before(offset)
        return self._segments.message_count - before

    @_despite_damage
    def count_before(self, offset: int) -> int:
        """Return the number of messages between the partition's first_offset and this byte offset. A message that
        begins before `offset` but ends behind it is not counted. Messages of segments whose index is being rebuilt are
        not counted.
        """
        return self._count_before(offset)

    @_despite_damage
    def id_before(self, offset: int) -> int | None:
        """Return the id of the last readable message that ends at or before this byte offset. Return None if there is
        no such message, or if its id is unknown because an index is being rebuilt.
        """
        segments = self._segments
        number = segments.number_at(min(offset, segments.visible_end) - 1)
        if number < 0 or segments[number].index is None:
            return None
        before = self._count_before(offset)
        if not before:
            return None
        number = segments.number_with(before - 1)
        index = segments[number].index
        return None if index is None else index.unit(before - 1 - segments.count_before(number))[1]

    def other_id_before(self, offset: int, message_id: int) -> int:
        """Return the result of `id_before` if it is an id and differs from `message_id`. Otherwise, or if message_id is
        UNKNOWN_ID, return UNKNOWN_ID.
        """
        found = None if message_id == UNKNOWN_ID else self.id_before(offset)
        return UNKNOWN_ID if found is None or found == message_id else found

    def _count_before(self, offset: int) -> int:
        segments = self._segments
        if offset >= segments.visible_end:
            return segments.message_count
        number = segments.number_at(offset)
        if number < 0:
            return 0
        index = segments[number].index
        return segments.count_before(number) + (0 if index is None else index.ending_by(offset))

    @_despite_damage
    def offset_after(self, offset: int, messages: int, max_bytes: int) -> int:
        """Go forward from `offset`, where a message begins, by as many whole messages as possible: at most `messages`
        messages and at most `max_bytes` bytes. Return the byte offset that is reached. It is the beginning of a
        message, or visible_end. If the offset would be in a segment whose index is being rebuilt, return the end of
        this segment (at most visible_end) instead.
        """
        segments = self._segments
        message = min(self._count_before(offset) + messages, self._count_before(offset + max_bytes))
        if message >= segments.message_count:
            return segments.visible_end
        number = segments.number_with(message)
        index = segments[number].index
        if index is None:
            return min(segments[number].end, segments.visible_end)
        return index.unit(message - segments.count_before(number))[0]

    @_despite_damage
    def offset_at_time(self, time_ms: int) -> int:
        """Return the byte offset of the first readable record that was stored at `time_ms` (Unix ms) or later. Return
        visible_end if there is none.

        The result is exact for records of this broker. The store time of a Java broker's records is unknown. For such
        records, the search uses the latest time at which they can have been stored. If a segment's index is being
        rebuilt, the search assumes that all records of the segment were stored at `time_ms` or later.
        """
        visible_end = self._segments.visible_end
        for segment in self._segments:
            index = segment.index
            if segment.first_offset >= visible_end:
                break
            if index is None:
                return segment.first_offset
            count = len(index)
            if count and abs(index.unit(count - 1)[2]) >= time_ms:
                return min(index.unit(index.stored_before(time_ms))[0], visible_end)
        return visible_end

    @_despite_damage
    def units(self, offset: int, max_bytes: int, max_count: int = 1 << 20) -> UnitArray:
        """Return index units (UNIT_DTYPE) of the readable records that start at or after `offset` and end by offset +
        max_bytes.

        All units belong to the segment that contains `offset`, and their records are back to back. An index has no
        units for bytes that were known as damaged when it was made. So between two units there can be a gap. The result
        ends before the first gap behind `offset`. If `offset` itself is in a gap, the first returned record starts
        behind `offset`. If the first record is larger than max_bytes, its unit is returned alone. So a caller that
        reads piece by piece never gets stuck at a large record. The result is empty if `offset` is visible_end, or is
        inside the last record of a segment or inside damage behind that record. Raises OffsetOutOfRange and StoreError
        like `Segments.read`.

        If the segment's index is being rebuilt, this method reads the records one after the other: at most 4 MiB, or
        one record of MAX_RECORD_BODY_BYTES. In this case `offset` must be the start of a record. The result is empty if
        no record starts there, or if the record is damaged.
        """
        segment, length = self._segments.extent(offset, max_bytes)
        if not length:
            return np.empty(0, UNIT_DTYPE)
        index = segment.index
        if index is None:
            return self._walked_units(segment, offset, length, max_count)
        start = index.starting_before(offset)
        units = index.units_ending_by(start, offset + length, max_count)
        if not len(units):
            return index.units_ending_by(start, self._segments.visible_end, 1)  # larger than max_bytes
        return _without_gap(units)

    def units_between(self, offset: int, end: int, max_bytes: int, max_count: int = 1 << 20) -> Iterator[UnitArray]:
        """Yield index units of all readable records that start in [offset, end), in pieces. Waits for the disk.

        The result includes records behind damaged bytes, also in a segment without an index. offset: the byte offset
        where a record or a damaged range starts. max_bytes,
        max_count: the limits of each piece; see `units`. Damaged bytes are skipped and reported
        (`Segments.report_damage`). Raises OffsetOutOfRange, StoreError.
        """
        while offset < min(end, self._segments.visible_end):
            units = self.units(offset, max_bytes, max_count)
            if not len(units):
                place = self.examination(offset)()
                if isinstance(place, Damaged):
                    self._segments.report_damage(place)
                    offset = place.end
                    continue
                units = self._unit_of(place)
            yield units[units["offset"] < end]
            offset = int(units[-1]["offset"]) + int(units[-1]["size"])

    def _unit_of(self, place: Sound) -> UnitArray:
        """Make the index unit of a record that is larger than `_walked_units` can read. Only Java producers can have
        sent such a record.
        """
        segment, _ = self._segments.extent(place.start, 1)
        start = place.start - segment.first_offset
        scan = partial(scan_units, start=start, size=start + place.size, first_offset=segment.first_offset)
        return self._segments.snapshot().look(segment, scan).units

    def _walked_units(self, segment: Segment, offset: int, length: int, max_count: int) -> UnitArray:
        start = offset - segment.first_offset
        length = min(length, tuning.WALKED_BYTES)
        segment.data.require(length, start)
        files, fd = self._segments.files, segment.data.use()
        found = scan_units(files, fd, start, start + length, segment.first_offset)
        end = min(segment.size, self._segments.visible_end - segment.first_offset)
        if not len(found.units) and start + length < end:  # one record larger than max_bytes
            end = min(end, start + HEADER_BYTES + MAX_RECORD_BODY_BYTES)
            found = scan_units(files, fd, start, end, segment.first_offset, max_records=1)
        if len(found.units):
            known = self._walked if len(self._walked) < tuning.MAX_WALKED else frozenset[int]()
            self._walked = known | {segment.first_offset + found.end}
        return found.units[:max_count]


def _without_gap(units: UnitArray) -> UnitArray:
    """Return the units before the first gap between two of these units. To find out quickly whether there is a gap at
    all (usually there is none), the sum of the records' sizes is compared with the length of the range.
    """
    first, last = units[0], units[-1]
    if int(last["offset"]) + int(last["size"]) - int(first["offset"]) == int(units["size"].sum(dtype=np.int64)):
        return units
    joined = units["offset"][1:] == units["offset"][:-1] + units["size"][:-1]
    return units[: int(np.argmin(joined)) + 1]
