"""Read a partition in order to copy it: read whole records with their index units, and verify every checksum.

Damaged bytes are returned unchanged and without index units, so that the copy can continue behind them.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from metaq.protocol.record import HEADER_BYTES, headers_at, matching_checksums

from .files import Files, read_exactly
from .index import IndexDamaged, UnitArray, UnitReader
from .scan import bound_java_times, find_record, scan_units
from .segment import Segment
from .segments import Segments, Snapshot, find_segment
from .sequential import SequentialReader

__all__ = ["CopiedPiece", "CopyReader"]


class CopiedPiece(NamedTuple):
    """A piece of a partition. base: the byte offset where the bytes `data` begin in the partition. segment: the first
    offset of the segment that contains them.

    units: the packed index units of the records in `data`. The records follow each other without gaps. If units is b"",
    the bytes are damaged, and the copy appends them with `PartitionLog.append_damaged`.
    """

    base: int
    segment: int
    data: bytes
    units: bytes

    @property
    def end(self) -> int:
        return self.base + len(self.data)


class CopyReader:
    """Reads a partition as it is when this object is made, including records that readers cannot see yet. At most one
    worker thread at a time may use this object.
    """

    def __init__(self, segments: Segments, start: int, piece_bytes: int) -> None:
        """Prepare to read the partition's present content. Called on the thread that owns the store. Index units that
        are not in the index files yet are copied in memory, at most 2 MiB per segment.

        start: byte offset of the first piece to read. piece_bytes: maximum size of a piece; a larger record is a piece
        by itself.
        """
        self.end = segments.end_offset
        """The byte offset where the partition ended when this object was made."""
        self._files = segments.files
        self._snapshot = Snapshot(segments.files, segments[:], self.end)
        self._piece_bytes = piece_bytes
        # nobody else needs the pages that a copy has read
        self._data = SequentialReader(segments.files, spare_part=1.0)
        self._readers: dict[Segment, UnitReader] = {
            each: each.index.reader(segments.files)
            for each in segments
            if each.index is not None and (each.end > start or each is segments.active)
        }

    def read(self, offset: int) -> CopiedPiece:
        """Return the piece that begins at `offset`. The offset must be below `end`, and it must be the end of a record
        or of another piece. Blocks.

        Raises OffsetOutOfRange if retention has removed the data, StoreError if the file cannot be read.
        """
        segment, end = find_segment(self._snapshot.segments, self.end, offset)
        return self._snapshot.look(segment, partial(self._read, segment=segment, offset=offset, end=end))

    def _read(self, files: Files, fd: int, *, segment: Segment, offset: int, end: int) -> CopiedPiece:
        first = segment.first_offset
        units = self._units(files, fd, segment, offset, end)
        if not len(units):
            damaged_end = end
            if segment not in self._readers:
                position = find_record(files, fd, offset - first, end - first)
                damaged_end = end if position is None else first + position
        else:
            damaged_end = int(units[0]["offset"])
        if offset < damaged_end:
            return self._damaged(files, fd, segment, offset, damaged_end)
        size = int(units[-1]["offset"]) + int(units[-1]["size"]) - offset
        data = self._data.read(self._snapshot, offset, size)
        good = _good(data, units, offset)
        if not good:
            return self._damaged(files, fd, segment, offset, offset + int(units[0]["size"]))
        units = units[:good]
        size = int(units[-1]["offset"]) + int(units[-1]["size"]) - offset
        return CopiedPiece(offset, first, data if size == len(data) else data[:size], units.tobytes())

    def _damaged(self, files: Files, fd: int, segment: Segment, offset: int, end: int) -> CopiedPiece:
        size = min(end - offset, self._piece_bytes)
        data = read_exactly(files, fd, size, offset - segment.first_offset)
        return CopiedPiece(offset, segment.first_offset, data, b"")

    def _units(self, files: Files, fd: int, segment: Segment, offset: int, end: int) -> UnitArray:
        """Return the index units of the next records from `offset` on: as many records as follow each other without a
        gap and fit into one piece of the copy, but at least one record. The result is empty only if no record is left.
        """
        reader = self._readers.get(segment)
        if reader is None:
            return self._scanned(files, fd, segment, offset, end)
        try:
            with reader:
                number = reader.starting_before(offset)
                stop = max(number + 1, reader.ending_by(min(end, offset + self._piece_bytes)))
                units = reader.units(number, stop)
        except IndexDamaged:  # a reader on the owning thread will also find it and have it rebuilt
            del self._readers[segment]
            return self._scanned(files, fd, segment, offset, end)
        ends = units["offset"] + units["size"]
        gaps = np.flatnonzero(units["offset"][1:] != ends[:-1])
        return units[: int(gaps[0]) + 1] if len(gaps) else units

    def _scanned(self, files: Files, fd: int, segment: Segment, offset: int, end: int) -> UnitArray:
        first = segment.first_offset
        start, stop = offset - first, min(end, offset + self._piece_bytes) - first
        units = scan_units(files, fd, start, stop, first).units
        if not len(units):  # perhaps one larger record
            units = scan_units(files, fd, start, end - first, first, max_records=1).units
        bound_java_times(units, files.status(segment.path).modified_ms)
        return units


def _good(data: bytes, units: UnitArray, base: int) -> int:
    """Return how many records at the beginning of `data` match both their units and their checksums. The count ends
    before the first record that does not match.
    """
    starts = units["offset"] - base
    sizes = units["size"].astype(np.int64)
    if len(data) < int(starts[-1] + sizes[-1]):  # somebody has truncated the file
        inside = int(np.searchsorted(starts + sizes, len(data), "right"))
        starts, sizes, units = starts[:inside], sizes[:inside], units[:inside]
    if not len(units):
        return 0
    headers = headers_at(data, starts)
    right = (headers["length"] + HEADER_BYTES == sizes) & (headers["id"] == units["id"])
    right &= matching_checksums(memoryview(data), starts + HEADER_BYTES, starts + sizes, headers["checksum"])
    return len(right) if right.all() else int(np.argmin(right))
