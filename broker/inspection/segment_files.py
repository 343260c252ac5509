"""Inspect one segment, its index and its key file. The records are checked one by one. Where bytes belong to no good
record ("bad bytes"), the check continues at the next good record, and the report gets the range and the kind of the bad
bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import numpy as np

from ..store.files import Files, opened, read_exactly
from ..store.index import HEADER_BYTES as INDEX_HEADER_BYTES
from ..store.index import Checkpoint, IndexDamaged, UnitArray, UnitReader, read_checkpoint
from ..store.key_index import ENTRY_BYTES, KeyBlock, read_blocks, scan_keys
from ..store.recovery import trusted_checkpoint
from ..store.scan import is_zero, walk
from ..store.segment import SegmentFile

__all__ = ["Bad", "BadRange", "IndexState", "KeysState", "SegmentReport", "inspect_keys", "inspect_segment"]

_PLACES = ["offset", "size"]


class Bad(Enum):
    """The kinds of bytes in a segment that do not belong to a good record."""

    DAMAGED = "damaged"
    """The bad bytes are followed by good records in the same segment."""
    ZEROS = "zeros"
    UNFINISHED = "unfinished"
    """The bad bytes reach to the end of the segment, and they are not all zero."""


class BadRange(NamedTuple):
    """A range of bad bytes, as byte offsets [start, end) in the partition."""

    start: int
    end: int
    kind: Bad


class IndexState(Enum):
    """The state of a segment's index. A metaq broker makes an index again from the records, unless the index is OK or
    MISLEADING (a broker does not notice that an index is misleading).
    """

    OK = "ok"
    BEHIND = "behind"
    """The index has units for only a part of the segment's records, has no checkpoint yet, or was written by a version
    of the broker that wrote no checksums.
    """
    MISSING = "missing"
    WRONG = "wrong"
    """The header or the last unit of the index does not fit this segment."""
    MISLEADING = "misleading"
    """The units of the index match their checksums, but not the records: they have other offsets or sizes than the good
    records, or other message ids.
    """
    DAMAGED = "damaged"
    """A block of units in the index does not match its checksum."""


@dataclass(slots=True)
class SegmentReport:
    """The result of the inspection of one segment. Sizes are in bytes."""

    file: SegmentFile
    checked_from: int
    """The byte offset in the segment file where the check of the records began."""
    index: IndexState
    index_damage: str = ""
    """A description of the damage if the index is DAMAGED; otherwise ""."""
    records: int | None = 0
    """The number of records, or None if they were not counted."""
    bad: list[BadRange] = field(default_factory=list)
    largest: int = 0
    """The size of the largest record that was read, including its header."""
    oversized: int = 0
    """The number of records that are larger than the `limit` of `inspect_segment`."""
    trusted_end: int = 0
    """A byte offset in the partition. A broker's start does not read the segment's records before this offset, because
    the index has a checkpoint there.
    """
    misplaced: bool = False
    """Whether a MISLEADING index has wrong offsets or sizes, and not only wrong message ids."""
    promised_end: int = 0
    """The offset in the partition up to which the records were synced to the disk, according to the index. The value is
    set even if a broker's start would not trust this index.
    """


def inspect_segment(
    files: Files,
    file: SegmentFile,
    *,
    last: bool,
    fast: bool,
    limit: int,
    advance: Callable[[int], None] = lambda count: None,
) -> SegmentReport:
    """Read a segment and its index, and check both. The files are not changed. Raises OSError.

    last: whether the segment is the partition's last one. fast: read only the last segment, and in it only the records
    after the index's checkpoint. limit: records with more bytes are counted in `SegmentReport.oversized`. advance:
    called repeatedly with the number of bytes that were read since the last call.
    """
    known = trusted_checkpoint(files, file)
    report = SegmentReport(file, 0, _index_state(files, file, known))
    report.trusted_end = report.promised_end = file.first_offset if known is None else known.end
    if known is None and (promised := read_checkpoint(files, file.index_path, file.first_offset)) is not None:
        report.promised_end = promised.checkpoint.end
    if fast:
        trusted = known.end - file.first_offset if known else 0
        report.records = known.units if known else None
        report.checked_from = trusted if last else file.size
    if report.checked_from < file.size:
        counted = _read(files, report, known, limit, advance)
        covered = known.units if known and report.checked_from else 0
        report.records = covered + counted
    return report


def _index_state(files: Files, file: SegmentFile, known: Checkpoint | None) -> IndexState:
    if known is not None:
        return IndexState.OK if known.end == file.end and known.crc is not None else IndexState.BEHIND
    try:
        with opened(files, file.index_path) as fd:
            try:
                header = files.pread(fd, INDEX_HEADER_BYTES, 0)
            except OSError:  # derived data that cannot be read are made again, like wrong data
                return IndexState.WRONG
    except FileNotFoundError:
        return IndexState.MISSING if file.size else IndexState.OK
    # units are written before the first checkpoint, the header is written with it
    return IndexState.WRONG if any(header) else IndexState.BEHIND


def _read(
    files: Files,
    report: SegmentReport,
    known: Checkpoint | None,
    limit: int,
    advance: Callable[[int], None],
) -> int:
    """Read the segment and fill the report. Return the number of good records from `checked_from` on."""
    file, count = report.file, 0
    checked = None if report.checked_from else _checked_index(files, report, known)
    index = None if checked is None else _IndexComparison(files, file, checked)
    with opened(files, file.path) as fd:
        position = report.checked_from
        for units, end in walk(files, fd, position, file.size, file.first_offset):
            if len(units):
                report.largest = max(report.largest, int(units["size"].max()))
                report.oversized += int((units["size"] > limit).sum())
                if index is not None and not index.agrees(units):
                    report.index = IndexState.MISLEADING
                    report.misplaced |= index.misplaced
                count += len(units)
            else:
                report.bad.append(_judge(files, fd, file, position, end))
            advance(end - position)
            position = end
    return count


def _checked_index(files: Files, report: SegmentReport, known: Checkpoint | None) -> Checkpoint | None:
    """Check the blocks of the index. If they are good, return the index's checkpoint; the caller compares the units
    before it with the records. Return None if the index has no checkpoint with checksums, so that nothing can be
    compared, or if a block is damaged. If a block is damaged, describe the damage in `report`.
    """
    file = report.file
    if known is None or known.crc is None:
        return None
    try:
        with UnitReader(files, file.index_path, known.units, known.crc) as reader:
            for _ in reader.chunks(0, known.units):
                pass
    except IndexDamaged as damage:
        if trusted_checkpoint(files, file) == known:  # otherwise a running broker has just made another
            report.index, report.index_damage = IndexState.DAMAGED, f"block {damage.block}: {damage.reason}"
        return None
    return known


def _judge(files: Files, fd: int, file: SegmentFile, start: int, end: int) -> BadRange:
    kind = Bad.DAMAGED
    if is_zero(files, fd, start, end):
        kind = Bad.ZEROS
    elif end == file.size:
        kind = Bad.UNFINISHED
    return BadRange(file.first_offset + start, file.first_offset + end, kind)


class _IndexComparison:
    """Compares the units of an index, up to its checkpoint, with the good records at the units' offsets. Units at
    offsets in bad bytes are not compared, because their records were damaged after the index was written.
    """

    def __init__(self, files: Files, file: SegmentFile, known: Checkpoint) -> None:
        self._files = files
        self._file = file
        self._known = known
        self.misplaced = False
        """Whether a unit of the index was found whose offset or size differs from its record."""

    def agrees(self, units: UnitArray) -> bool:
        """Return whether the units of the index for a sequence of adjacent good records are right. units: the units
        that the index should have for these records. Raises OSError.
        """
        units = units[units["offset"] < self._known.end]
        if not len(units):
            return True
        end = int(units[-1]["offset"]) + int(units[-1]["size"])
        try:
            with UnitReader(self._files, self._file.index_path, self._known.units, self._known.crc or 0) as reader:
                first, last = reader.starting_before(int(units[0]["offset"])), reader.starting_before(end)
                stored = reader.units(first, last)
        except IndexDamaged:  # it was good just before, so a running broker has made another
            return True
        same_places = len(stored) == len(units) and all((stored[name] == units[name]).all() for name in _PLACES)
        self.misplaced |= not same_places
        return same_places and bool((stored["id"] == units["id"]).all())


# --- the key file beside it -------------------------------------------------------------------------------------------


class KeysState(Enum):
    """The state of a segment's key file. Like an index, a key file contains nothing that is not in the records, so a
    metaq broker can make it again from the records.
    """

    OK = "ok"
    BEHIND = "behind"
    """Blocks are missing at the end of the key file, or its last block is incomplete. A broker adds the missing blocks.
    """
    MISSING = "missing"
    WRONG = "wrong"
    """The entries of the key file do not match the keys of the records."""


def inspect_keys(files: Files, file: SegmentFile, *, last: bool, fast: bool) -> KeysState:
    """Check a segment's key file and, unless `fast`, compare it with the keys of the records. Changes nothing. Raises
    OSError.

    last: whether the segment is the partition's last one; the key file of the last segment may be missing, because it
    is not complete yet. Records that the index does not cover are not compared.
    """
    try:
        size = files.status(file.keys_path).size
    except FileNotFoundError:
        return KeysState.OK if last else KeysState.MISSING
    blocks = read_blocks(files, file.keys_path, file.path, file.first_offset, file.end)
    if not fast and not _describes(files, file, blocks):
        return KeysState.WRONG
    torn = size > (blocks[-1].next_position if blocks else 0)
    complete = bool(blocks) and blocks[-1].end == file.end
    return KeysState.BEHIND if torn or not (complete or last) else KeysState.OK


def _describes(files: Files, file: SegmentFile, blocks: tuple[KeyBlock, ...]) -> bool:
    known = trusted_checkpoint(files, file)
    if known is None or known.crc is None:
        return True
    units = UnitReader(files, file.index_path, known.units, known.crc)
    try:
        with opened(files, file.path) as data, opened(files, file.keys_path) as keys, units as reader:
            return all(_is_right(files, file, block, reader, data, keys) for block in blocks if block.end <= known.end)
    except IndexDamaged:  # the index's state reports this
        return True


def _is_right(files: Files, file: SegmentFile, block: KeyBlock, reader: UnitReader, data: int, keys: int) -> bool:
    units = reader.units(reader.starting_before(block.start), reader.starting_before(block.end))
    expected = np.sort(scan_keys(files, data, units, file.first_offset, lambda seconds: None))
    stored = np.frombuffer(read_exactly(files, keys, block.entries * ENTRY_BYTES, block.position), "<u8")
    return bool(np.array_equal(stored, expected))
