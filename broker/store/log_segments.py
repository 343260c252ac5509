"""The segments of one partition as one readable log: byte ranges, counts, and changes of the list itself."""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections.abc import Callable, Sequence

from metaq.protocol.errors import OffsetOutOfRange, StoreError
from metaq.protocol.record import Buffer

from .damage import Damaged, DamagedRanges
from .files import OpenFiles, read_exactly
from .index import Index, IndexDamaged
from .segment import Segment

__all__ = ["LogSegments"]

_UNITS_READ = 1 << 16
_log = logging.getLogger(__name__)


class LogSegments:
    """What readers see of a partition. All methods belong to the owning thread unless they say otherwise."""

    def __init__(self, segments: Sequence[Segment], open_files: OpenFiles) -> None:
        """segments: at least one, contiguous, the last one writable and with an index (recovery.py makes them)."""
        self._open_files = open_files
        self._files = open_files.files
        self._segments: list[Segment] = list(segments)
        # what is to be taken from the log's own count: records that retention took away, and those of lost indexes;
        # so that the numbers of all others stay, which syncs under way have
        self._removed = 0
        self._relist()
        self.end_offset = self._active.end
        self._written = self._visible = self._bases[-1] + self._active.count
        self.visible_end = self.end_offset
        self.damage = DamagedRanges()
        """What readers, and the rebuilding of indexes, have found."""
        self.on_damage: Callable[[int, bool], None] | None = None
        """Called with how many bytes are newly known to be damaged, and whether they are a range by themselves."""

    @property
    def first_offset(self) -> int:
        """Byte offset of the first byte that is still there."""
        return self._starts[0]

    @property
    def message_count(self) -> int:
        """Readable messages. Those in segments whose index is being rebuilt are not counted until that is done."""
        return max(self._visible, self._counted_from) - self._removed

    @property
    def size_bytes(self) -> int:
        """Readable bytes."""
        return self.visible_end - self.first_offset

    def largest_id_below(self, limit: int) -> int:
        """Largest known message id below `limit`, 0 if there is no positive one. Reads an index only if it has more."""
        return max(_largest_id_below(segment.index, limit) for segment in self._segments)

    @property
    def segments(self) -> Sequence[Segment]:
        """The segments, oldest first; not to be changed."""
        return self._segments

    # --- reading ------------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int) -> Buffer | None:
        """At most `max_bytes` stored bytes from `offset` on, of one segment, up to visible_end; b"" there.

        None if they are not all in the page cache: call `read_blocking` in a worker thread. The last record may be cut.
        Raises OffsetOutOfRange(first, visible end), StoreError if the file cannot be read, ValueError for
        max_bytes <= 0.
        """
        segment, length = self.extent(offset, max_bytes)
        if not length:
            return b""
        try:
            return segment.data.read_cached(length, offset - segment.first_offset)
        except OSError as error:
            raise StoreError(f"{segment.path} cannot be read: {error}") from error

    def read_blocking(self, offset: int, max_bytes: int) -> bytes:
        """The same, waiting for the disk. Any thread: uses a descriptor of its own and one snapshot of the segments."""
        segment, length = self.extent(offset, max_bytes)
        if not length:
            return b""
        try:
            fd = self._files.open(segment.path, os.O_RDONLY)
            try:
                return read_exactly(self._files, fd, length, offset - segment.first_offset)
            finally:
                self._files.close(fd)
        except FileNotFoundError:
            if segment in self._segments:
                raise StoreError(f"{segment.path} is gone") from None
            raise OffsetOutOfRange(offset, self.first_offset, self.visible_end) from None  # retention was faster
        except OSError as error:
            raise StoreError(f"{segment.path} cannot be read: {error}") from error

    def extent(self, offset: int, max_bytes: int) -> tuple[Segment, int]:
        """The segment that has `offset` and how many readable bytes of it may be given. Any thread.

        Raises OffsetOutOfRange, ValueError.
        """
        if max_bytes <= 0:
            raise ValueError(f"max_bytes {max_bytes} must be positive")
        visible_end, segments = self.visible_end, self._segments  # in this order: other threads must not see beyond
        last = segments[-1]
        if offset >= last.first_offset:
            segment = last
        else:
            number = bisect_right(segments, offset, key=_first_offset) - 1
            segment = segments[max(0, number)]
        if not segments[0].first_offset <= offset <= visible_end:
            raise OffsetOutOfRange(offset, segments[0].first_offset, visible_end)
        return segment, min(max_bytes, min(segment.first_offset + segment.size, visible_end) - offset)

    def report_damage(self, found: Damaged) -> None:
        """Somebody has found damaged bytes: remember them, and say so if they were not known."""
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

    # --- changes of the list of segments ------------------------------------------------------------------------------

    def remove_first(self, count: int) -> list[Segment]:
        """Forget the first `count` segments, never the last one, and return them; the caller deletes the files."""
        count = min(count, len(self._segments) - 1)
        removed, self._segments = self._segments[:count], self._segments[count:]
        self._removed += sum(segment.count for segment in removed)
        self._relist()
        for segment in removed:
            segment.close()
        self.damage.forget_before(self.first_offset)
        return removed

    def restore_first(self, segments: Sequence[Segment]) -> None:
        """Take back segments that could not be deleted; they end where the log starts now."""
        self._segments = [*segments, *self._segments]
        self._removed -= sum(segment.count for segment in segments)
        self._relist()

    def adopt_index(self, segment: Segment, index: Index) -> None:
        """Give a closed segment that is synced the index that was rebuilt for it; ignored if the segment is gone."""
        if segment not in self._segments:
            return
        segment.index = index
        segment.checkpointed = segment.end
        self._removed -= len(index)
        self._relist()

    def _drop_index(self, segment: Segment) -> None:
        """Take a closed segment's index away: its messages are not counted until `adopt_index`."""
        assert segment.index is not None
        assert segment is not self._active
        self._removed += len(segment.index)
        segment.index.file.close()
        segment.index = None
        self._relist()

    def _relist(self) -> None:
        self._active = self._segments[-1]
        assert self._active.index is not None
        self._active_index = self._active.index
        self._starts = [segment.first_offset for segment in self._segments]
        base = self._removed
        self._bases = []
        self._counted_from = base  # behind the last record that is not counted, which may be not visible yet
        for segment in self._segments:
            self._bases.append(base)
            base += segment.count
            if segment.index is None:
                self._counted_from = base


def _first_offset(segment: Segment) -> int:
    return segment.first_offset


def _largest_id_below(index: Index | None, limit: int) -> int:
    if index is None:
        return 0
    if index.max_id < limit:
        return index.max_id
    largest = 0
    try:
        for start in range(0, len(index), _UNITS_READ):
            ids = index.units(start, min(len(index), start + _UNITS_READ))["id"]
            largest = max(largest, int(ids[ids < limit].max(initial=0)))
    except IndexDamaged as damage:  # whoever reads there has it made again; a start must not fail for it
        _log.warning("%s: ids behind it do not count", damage)
    return largest
