"""Let readers use the segments of one partition like one file: by byte offsets, record counts and snapshots. Segments
can be added and removed.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeVar, overload

from metaq.protocol.errors import OffsetOutOfRange, StoreError
from metaq.protocol.record import Buffer

from . import tuning
from .damage import Damaged, DamagedRanges, place_by_walking
from .files import Files, opened, read_exactly
from .index import Index, IndexDamaged
from .segment import Segment

__all__ = ["Segments", "Snapshot", "find_segment"]

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Segments(Sequence[Segment]):
    """The readable data of a partition, oldest segment first. Only the thread that owns the store may use this object;
    other threads read a `snapshot`.

    Invariants: The segments are contiguous. Only the last segment grows, and only the last segment may be empty.
    first_offset <= visible_end <= end_offset = end of the last segment, and none of these offsets becomes lower except
    in `replace` and `restore_first`. 0 <= message_count.
    """

    def __init__(self, segments: Sequence[Segment], files: Files) -> None:
        """segments: at least one segment; each must begin where the one before it ends. The last segment must be
        writable and have an index. (recovery.py makes these segments.)
        """
        self.files = files
        self._segments = list(segments)  # the list is replaced, never changed, so that snapshots can share it
        # the number of records that retention removed or whose index was lost; it is subtracted from the log's own
        # count, so that all other record numbers stay valid, also those in running syncs
        self._removed = 0
        self._relist()
        self.end_offset = self.visible_end = self.active.end
        self._visible = self.counted_to_end
        self.damage = DamagedRanges()
        """The ranges of damaged bytes that readers and rebuilds of indexes have found so far."""
        self.on_damage: Callable[[int, bool], None] | None = None
        """Called when damage is found. The first argument is the number of damaged bytes that were not known before.
        The second argument is True if no byte of the found range was known to be damaged before, and False if some of
        its bytes were.
        """

    @overload
    def __getitem__(self, number: int) -> Segment: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Segment]: ...
    def __getitem__(self, number: int | slice) -> Segment | Sequence[Segment]:
        return self._segments[number]

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    @property
    def first_offset(self) -> int:
        """The byte offset of the first byte that still exists."""
        return self._starts[0]

    @property
    def counted(self) -> int:
        """The log's own count of the records before `visible_end`. The count is set when the broker starts or the
        segments are replaced. Unlike `message_count`, it also includes records that retention has removed after that,
        and records of a segment that has lost its index after that.
        """
        return self._visible

    @property
    def counted_to_end(self) -> int:
        """The same count as `counted`, but of the records up to the end of the log, including those that readers cannot
        see yet.
        """
        return self._bases[-1] + self.active.count

    @property
    def message_count(self) -> int:
        """The number of readable messages. Messages of a segment whose index is missing are counted only after the
        index is rebuilt.
        """
        return max(self._visible, self._counted_from) - self._removed

    @property
    def size_bytes(self) -> int:
        """The number of readable bytes."""
        return self.visible_end - self.first_offset

    @property
    def synced_end(self) -> int:
        """All data before this byte offset are synced to the disk in the segments' files. The property takes time
        proportional to the number of unsynced segments.
        """
        end = self.end_offset
        for segment in reversed(self._segments):
            if segment.synced == segment.end:
                if segment.size:
                    break
                continue
            end = segment.synced
        return end

    def largest_id_below(self, limit: int) -> int:
        """Return the largest known message id below `limit`, or 0 if there is no positive one. For each segment, the
        method first looks at the largest id, which is kept in memory. Only if this id is not below `limit`, the method
        reads all units of the segment's index.
        """
        return max(_largest_id_below(segment.index, limit) for segment in self._segments)

    def unfinished(self) -> list[Segment]:
        """Return the segments that need a sync job, oldest first: those whose last checkpoint does not cover all data
        of the segment. A segment whose index is being rebuilt is left out if its data are synced.
        """
        found = [] if self.active.finished else [self.active]
        for segment in self._segments[-2::-1]:
            if not segment.finished:
                found.append(segment)
            elif segment.index is not None:  # one that lost its index may precede others
                break
        return found[::-1]

    # --- reading ------------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int) -> Buffer | None:
        """Return at most `max_bytes` stored bytes of one segment from `offset` on, up to visible_end. Return b"" if
        `offset` is visible_end. Return None if these bytes are not all in the page cache; in this case a worker thread
        should call `snapshot().read`. The result may end within a record. Raises OffsetOutOfRange(first, visible end),
        StoreError if the file cannot be read, ValueError for max_bytes <= 0.
        """
        segment, length = self.extent(offset, max_bytes)
        if not length:
            return b""
        try:
            return segment.data.read_cached(length, offset - segment.first_offset)
        except OSError as error:
            raise StoreError(f"{segment.path} cannot be read: {error}") from error

    def extent(self, offset: int, max_bytes: int) -> tuple[Segment, int]:
        """Return the segment that contains byte `offset`, and how many bytes can be read from `offset` on: at most
        `max_bytes`, and none behind the segment's end or behind visible_end. Raises OffsetOutOfRange. Raises ValueError
        if max_bytes <= 0.
        """
        return _extent(self._segments, self.visible_end, offset, max_bytes)

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the data that are readable now. Other threads may read it. The call takes the same time
        for any number of segments.
        """
        return Snapshot(self.files, self._segments, self.visible_end)

    def start_of(self, offset: int) -> int:
        """Return the byte offset where the segment that contains byte `offset` starts. Return visible_end if offset >=
        visible_end, and first_offset if offset < first_offset.

        Used for the `offset` command of metaq 1.x (wire.md §4). A client sends this command before it starts to read,
        to learn an offset at which a record certainly begins.
        """
        if offset >= self.visible_end:
            return self.visible_end
        return self._starts[max(0, bisect_right(self._starts, offset) - 1)]

    def number_at(self, offset: int) -> int:
        """Find the segment that contains byte `offset`, and return the segment's position in the list of segments.
        Return the last segment's position if `offset` is behind the end of the last segment, and -1 if `offset` is
        below first_offset.
        """
        return bisect_right(self._starts, offset) - 1

    def count_before(self, number: int) -> int:
        """Return the number of readable messages in the segments before the one at position `number` of the list."""
        return self._bases[number] - self._removed

    def number_with(self, message: int) -> int:
        """Find the segment that contains the readable message with the number `message`, counted from 0 (0 <= message <
        message_count). Return the segment's position in the list of segments.
        """
        return bisect_right(self._bases, message + self._removed) - 1

    def report_damage(self, found: Damaged) -> None:
        """Record damaged bytes that a reader or the rebuild of an index has found. If some of them were not known, log
        them and call `on_damage`.
        """
        if found.start >= self.first_offset and (new := self.damage.add(found)):
            _log.error(
                "%s is damaged in [%d, %d), %d bytes: consumers pass over them",
                self.extent(found.start, 1)[0].path,
                found.start,
                found.end,
                found.end - found.start,
            )
            if self.on_damage is not None:
                self.on_damage(new, new == found.end - found.start)

    # --- what the writer and durability tell --------------------------------------------------------------------------

    def grown(self, size: int, units: Buffer) -> int:
        """Record that `size` bytes with these index units were written behind the last record. Return how many index
        units of the last segment are not yet in the index file but only in memory.
        """
        self.active.size += size
        self.end_offset += size
        return self.active_index.extend(units)

    def show(self, end: int, count: int) -> None:
        """Set `visible_end` to the byte offset `end`, so that readers see the data before it. count: the log's own
        count of records up to `end`.
        """
        self.visible_end = end
        self._visible = count

    def add(self, segment: Segment) -> None:
        """Add a new, empty segment. From now on, records are appended to this segment."""
        self._segments = [*self._segments, segment]
        self._relist()

    def remove_empty_last(self) -> None:
        """Remove the last segment, which is empty, so that records are appended to the segment before it. The caller
        has already deleted the empty segment's file.
        """
        assert len(self._segments) > 1
        assert not self.active.size
        removed, self._segments = self.active, self._segments[:-1]
        self._relist()
        removed.removed = True
        removed.close()

    # --- what retention and the rebuilding of indexes do --------------------------------------------------------------

    def remove_first(self, count: int) -> list[Segment]:
        """Remove and return the first `count` segments, but never the last one. The caller then deletes the files."""
        count = min(count, len(self._segments) - 1)
        removed, self._segments = self._segments[:count], self._segments[count:]
        self._removed += sum(segment.count for segment in removed)
        self._relist()
        for segment in removed:
            segment.removed = True
            segment.close()
        self.damage.forget_before(self.first_offset)
        return removed

    def restore_first(self, segments: Sequence[Segment]) -> None:
        """Put back, at the beginning of the log, segments that `remove_first` has removed but whose files could not be
        deleted. The last of these segments must end where the log starts now.
        """
        self._segments = [*segments, *self._segments]
        self._removed -= sum(segment.count for segment in segments)
        for segment in segments:
            segment.removed = False
        self._relist()

    def replace(self, segments: Sequence[Segment], visible_end: int) -> None:
        """Replace all segments by the given ones, after the end of the partition was cut off on the disk. visible_end:
        the byte offset up to which readers may read. The log's own count starts again from 0.
        """
        for segment in self._segments:
            segment.removed = True
            segment.close()
        self._segments = list(segments)
        self._removed = 0
        self._relist()
        self.end_offset = self.active.end
        self.damage.forget_before(self.first_offset)
        self.damage.forget_from(self.end_offset)
        self.show(self.end_offset, self.counted_to_end)
        if visible_end < self.end_offset:
            number = max(0, self.number_at(visible_end))
            index = self._segments[number].index
            self.show(
                max(visible_end, self.first_offset),
                self._bases[number] + (0 if index is None else index.ending_by(visible_end)),
            )

    def adopt_index(self, segment: Segment, index: Index) -> None:
        """Let a closed, synced segment use its rebuilt index. Do nothing if the segment no longer belongs to the
        log.
        """
        if segment not in self._segments:
            return
        segment.index = index
        segment.checkpointed = segment.end
        self._removed -= len(index)
        self._relist()

    def drop_index(self, segment: Segment) -> None:
        """Stop using a closed segment's index. The segment's messages are not counted until `adopt_index` gives it a
        new index.
        """
        assert segment.index is not None
        assert segment is not self.active
        self._removed += len(segment.index)
        segment.index.file.close()
        segment.index = None
        self._relist()

    def close(self) -> None:
        """Close the files."""
        for segment in self._segments:
            segment.close()

    def _relist(self) -> None:
        self.active = self._segments[-1]
        assert self.active.index is not None
        self.active_index = self.active.index
        self._starts = [segment.first_offset for segment in self._segments]
        base = self._removed
        self._bases: list[int] = []
        self._counted_from = base  # behind the last uncounted record, which may not be visible yet
        for segment in self._segments:
            self._bases.append(base)
            base += segment.count
            if segment.index is None:
                self._counted_from = base


def _largest_id_below(index: Index | None, limit: int) -> int:
    if index is None:
        return 0
    if index.max_id < limit:
        return index.max_id
    largest = 0
    try:
        for start in range(0, len(index), tuning.UNITS_PER_READ):
            ids = index.units(start, min(len(index), start + tuning.UNITS_PER_READ))["id"]
            largest = max(largest, int(ids[ids < limit].max(initial=0)))
    except IndexDamaged as damage:  # a reader there lets it be rebuilt; a start must not fail because of it
        _log.warning("%s: ids behind it do not count", damage)
    return largest


# --- for other threads -----------------------------------------------------------------------------------------------


class Snapshot(NamedTuple):
    """The readable bytes of a partition at one moment. Any thread may use a snapshot, because a snapshot does not use
    the descriptors of the store's thread but opens its own.

    All methods raise OffsetOutOfRange(first, visible end) if the offset is outside the readable data or retention has
    removed the data. All methods raise StoreError if a file cannot be read.
    """

    files: Files
    segments: Sequence[Segment]
    visible_end: int

    def extent(self, offset: int, max_bytes: int) -> tuple[Segment, int]:
        """Return the segment that contains `offset`, and the number of its bytes from `offset` on that are readable in
        this snapshot, but at most `max_bytes`.
        """
        return _extent(self.segments, self.visible_end, offset, max_bytes)

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Return at most `max_bytes` stored bytes of one segment from `offset` on, up to visible_end. Return b"" if
        `offset` is visible_end. The result may end within a record.
        """
        segment, length = self.extent(offset, max_bytes)
        if not length:
            return b""
        return self.look(segment, partial(_read, size=length, position=offset - segment.first_offset))

    def record_start(self, offset: int) -> int:
        """Return the byte offset where the record that contains byte `offset` starts. The method reads all records of
        the segment up to this one, so it can take long.

        Damaged bytes are skipped up to the next good record. If the byte itself is damaged, return where the damaged
        range starts.
        """
        segment, end = find_segment(self.segments, self.visible_end, offset)
        first = segment.first_offset
        walk = partial(place_by_walking, first_offset=first, start=first, end=end, offset=offset)
        return self.look(segment, walk).start

    def look(self, segment: Segment, question: Callable[[Files, int], T]) -> T:
        """Open a segment's data file, call `question(files, descriptor)`, close the file, and return the result of the
        call.
        """
        try:
            with opened(self.files, segment.path) as fd:
                return question(self.files, fd)
        except FileNotFoundError:
            if segment.removed:
                raise self.out_of_range(segment.first_offset) from None
            raise StoreError(f"{segment.path} is gone") from None
        except OSError as error:
            raise StoreError(f"{segment.path} cannot be read: {error}") from error

    def out_of_range(self, offset: int) -> OffsetOutOfRange:
        """Return the error to raise if a reader asks for data at `offset` that retention has removed since the snapshot
        was made. The error contains the byte offset where the reader can continue.
        """
        kept = (segment.first_offset for segment in self.segments if not segment.removed)
        return OffsetOutOfRange(offset, next(kept, self.visible_end), self.visible_end)


def _read(files: Files, fd: int, size: int, position: int) -> bytes:
    return read_exactly(files, fd, size, position)


def find_segment(segments: Sequence[Segment], visible_end: int, offset: int) -> tuple[Segment, int]:
    """Return the segment that contains the byte at `offset`, and the byte offset where the readable part of this
    segment ends.

    Raises OffsetOutOfRange(first, visible end).
    """
    number = len(segments) - 1
    if offset < segments[number].first_offset:
        number = bisect_right(segments, offset, key=_first_offset) - 1
        if number >= 0:
            return segments[number], min(segments[number + 1].first_offset, visible_end)
    elif offset <= visible_end:
        return segments[number], visible_end
    raise OffsetOutOfRange(offset, segments[0].first_offset, visible_end)


def _first_offset(segment: Segment) -> int:
    return segment.first_offset


def _extent(segments: Sequence[Segment], visible_end: int, offset: int, max_bytes: int) -> tuple[Segment, int]:
    if max_bytes <= 0:
        raise ValueError(f"max_bytes {max_bytes} must be positive")
    segment, end = find_segment(segments, visible_end, offset)
    return segment, min(max_bytes, end - offset)
