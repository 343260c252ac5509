"""Bringing a partition directory back into use (storage.md §4), and saying exactly what had to be done.

Only the last segment can be torn: data before the checkpoint of its index is believed, what follows is checked by CRC.
- A torn record at the end, or a tail of zeros, was never finished: it is cut and its size reported.
- Bytes that fail the check with good records behind them are damage: everything from there on is first copied to
  `<segment>.damaged-<position>` and synced, then cut, and the range is reported. (1.x cuts without a word.)
- Closed segments are never changed. One whose index is missing or behind gets a new one in a worker thread.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from metaq.protocol.errors import StoreError
from metaq.protocol.record import HEADER, HEADER_BYTES

from .files import Files, OpenFiles, read_exactly
from .index import (
    UNIT_DTYPE,
    Checkpoint,
    Index,
    StoredCheckpoint,
    UnitArray,
    largest_id,
    read_checkpoint,
    replace_index,
    write_units,
)
from .scan import Scan, bound_java_times, find_record, is_zero, scan_units
from .segment import Segment, SegmentFile, check_contiguous, create_segment, segment_files

__all__ = [
    "Damage",
    "RebuiltIndex",
    "Recovered",
    "RecoveryReport",
    "rebuild_index",
    "recover_partition",
    "trusted_checkpoint",
]

_log = logging.getLogger(__name__)

_COPY_BYTES = 4 << 20

_UNITS_IN_MEMORY = 128
"""Units (4 KiB) of a recovered segment that wait in memory for the next checkpoint."""


class Damage(NamedTuple):
    """Bad bytes [start, end) of the partition, as byte offsets, with good records behind them.

    quarantine: file that has a copy of everything from `start` on if the log was cut there, else None.
    """

    start: int
    end: int
    quarantine: str | None


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What was found in one partition directory. Offsets and sizes in bytes."""

    directory: str
    segments: int
    checked_bytes: int = 0
    """Bytes that no checkpoint covered, read and checked."""
    cut_at: int | None = None
    """Byte offset where the last segment was cut, None if it was not."""
    cut_bytes: int = 0
    cut_reason: str = ""
    damage: tuple[Damage, ...] = ()
    missing_bytes: int = 0
    """Bytes below the checkpoint that are no longer in the last segment's file."""

    @property
    def notable(self) -> bool:
        """Whether an operator should read it."""
        return self.cut_at is not None or bool(self.damage) or self.missing_bytes > 0

    def __str__(self) -> str:
        parts = [f"{self.directory}: {self.segments} segments, {self.checked_bytes} bytes checked"]
        if self.missing_bytes:
            parts.append(f"{self.missing_bytes} bytes are missing that had been synced")
        parts += [
            f"damage in [{found.start}, {found.end})" + (f", copied to {found.quarantine}" if found.quarantine else "")
            for found in self.damage
        ]
        if self.cut_at is not None:
            parts.append(f"{self.cut_bytes} bytes cut at offset {self.cut_at}: {self.cut_reason}")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class Recovered:
    """Segments ready for a PartitionLog; those in `unindexed` still need `rebuild_index`."""

    segments: list[Segment]
    unindexed: list[Segment]
    report: RecoveryReport
    unsynced_directories: tuple[str, ...] = ()


def recover_partition(open_files: OpenFiles, directory: str) -> Recovered:
    """Open all segments of a directory, repair the last one; an empty directory gets its first segment.

    What was found may be in the page cache only: `synced` of the last segment tells. Owning thread, before the log is
    in use. Raises StoreError (gap, overlap, bad name, unreadable file).
    """
    try:
        found = _without_empty_after_gap(open_files.files, segment_files(open_files.files, directory))
        check_contiguous(found)
        if not found:
            return Recovered([create_segment(open_files, directory, 0)], [], RecoveryReport(directory, 1), (directory,))
        segments = [_open_closed(open_files, file) for file in found[:-1]]
        last, report = _recover_last(open_files, directory, len(found), found[-1])
    except OSError as error:
        raise StoreError(f"{directory} cannot be opened: {error}") from error
    unindexed = [segment for segment in segments if segment.index is None]
    return Recovered([*segments, last], unindexed, report)


def _without_empty_after_gap(files: Files, found: list[SegmentFile]) -> list[SegmentFile]:
    """Remove empty segments that start behind the end of the one before them; return the others.

    A power cut can keep the name of a new segment and lose the unsynced end of the one it followed. Nothing in it was
    ever acknowledged, and it would stop the start.
    """
    while len(found) > 1 and not found[-1].size and found[-2].end < found[-1].first_offset:
        files.unlink(found.pop().path)
    return found


def _open_closed(open_files: OpenFiles, file: SegmentFile) -> Segment:
    checkpoint = trusted_checkpoint(open_files.files, file)
    index = None
    if checkpoint is not None and checkpoint.end == file.end and checkpoint.crc is not None:
        handle = open_files.file(file.index_path)
        index = Index(handle, checkpoint.units, checkpoint.max_id, crc=checkpoint.crc)
    segment = Segment(file.path, file.first_offset, file.size, open_files.file(file.path), index)
    segment.synced = segment.checkpointed = file.end
    return segment


def _recover_last(
    open_files: OpenFiles, directory: str, count: int, file: SegmentFile
) -> tuple[Segment, RecoveryReport]:
    files = open_files.files
    found = read_checkpoint(files, file.index_path, file.first_offset)
    known = _believed(files, file, found)
    start = 0 if known is None else known.end - file.first_offset
    scan, reason, damage = _check_tail(files, directory, file, start)
    bound_java_times(scan.units, file.modified_ms)
    index = _index_of(open_files, file, known, scan.units)
    segment = Segment(file.path, file.first_offset, scan.end, open_files.file(file.path), index)
    segment.synced = segment.checkpointed = file.first_offset + start
    cut = file.size - scan.end
    report = RecoveryReport(
        directory,
        count,
        checked_bytes=file.size - start,
        cut_at=file.first_offset + scan.end if cut else None,
        cut_bytes=cut,
        cut_reason=reason,
        damage=(damage,) if damage else (),
        missing_bytes=0 if found is None else max(0, found.checkpoint.end - file.end),
    )
    return segment, report


def trusted_checkpoint(files: Files, file: SegmentFile) -> Checkpoint | None:
    """The checkpoint of a segment's index if it describes this very data, else None. Raises OSError.

    The last unit is compared with the record it points to: another broker may have cut and rewritten the file.
    """
    return _believed(files, file, read_checkpoint(files, file.index_path, file.first_offset))


def _believed(files: Files, file: SegmentFile, found: StoredCheckpoint | None) -> Checkpoint | None:
    if found is None or found.checkpoint.end > file.end:
        return None
    end = found.checkpoint.end
    if found.last_unit is None:
        return found.checkpoint if end == file.first_offset else None
    offset, message_id, _, size, _ = found.last_unit
    if offset + size != end:
        return None
    fd = files.open(file.path, os.O_RDONLY)
    try:
        header = files.pread(fd, HEADER_BYTES, offset - file.first_offset)
    finally:
        files.close(fd)
    if len(header) < HEADER_BYTES:
        return None
    length, _, stored_id, _ = HEADER.unpack(header)
    return found.checkpoint if (length, stored_id) == (size - HEADER_BYTES, message_id) else None


def _check_tail(files: Files, directory: str, file: SegmentFile, start: int) -> tuple[Scan, str, Damage | None]:
    """Check what is behind position `start`, cut what is not good; the good part, why it was cut, and the damage."""
    if start == file.size:
        return Scan(np.empty(0, UNIT_DTYPE), start), "", None
    fd = files.open(file.path, os.O_RDWR)
    try:
        scan = scan_units(files, fd, start, file.size, file.first_offset)
        reason, damage = _judge_tail(files, fd, file, scan.end)
        if reason:
            _cut(files, fd, directory, file, scan.end, damage)
    finally:
        files.close(fd)
    return scan, reason, damage


def _index_of(open_files: OpenFiles, file: SegmentFile, known: Checkpoint | None, units: UnitArray) -> Index:
    """The index of a recovered segment: units that the checkpoint does not cover go to its file when they are many.

    Ten thousand partitions would hold hundreds of MB of them in memory. They are not synced: what the header promises
    stays true, and the next checkpoint covers them.
    """
    if known is not None and known.crc is None:
        units = np.concatenate([_covered_units(open_files.files, file, known), units])
        known = None
    stored, max_id, crc = (0, 0, 0) if known is None else (known.units, known.max_id, known.crc or 0)
    handle = open_files.file(file.index_path)
    if len(units) > _UNITS_IN_MEMORY:
        try:
            crc = write_units(open_files.files, file.index_path, stored, units.tobytes(), crc)
        except OSError as error:  # a full disk must not keep the broker from serving: memory has room for them
            _log.warning("%s cannot be written, %d units stay in memory: %s", file.index_path, len(units), error)
        else:
            return Index(handle, stored + len(units), max(max_id, largest_id(units)), crc=crc)
    return Index(handle, stored, max_id, units.tobytes(), crc)


def _covered_units(files: Files, file: SegmentFile, known: Checkpoint) -> UnitArray:
    """Units of the data below a checkpoint, made again; damage there is passed over, as in a closed segment."""
    fd = files.open(file.path, os.O_RDONLY)
    try:
        units, damage = _scan_all(files, fd, file._replace(size=known.end - file.first_offset))
    finally:
        files.close(fd)
    for each in damage:
        _log.error("%s is damaged in [%d, %d)", file.path, each.start, each.end)
    bound_java_times(units, file.modified_ms)
    return units


def _judge_tail(files: Files, fd: int, file: SegmentFile, position: int) -> tuple[str, Damage | None]:
    """Why the file is not good from `position` on ("" if it ends there), and whether that is damage."""
    if position == file.size:
        return "", None
    if is_zero(files, fd, position, file.size):
        return "a tail of zeros", None
    good = find_record(files, fd, position, file.size)
    if good is None:
        return "an unfinished record", None
    start = file.first_offset + position
    return "damaged", Damage(start, file.first_offset + good, f"{file.path}.damaged-{start}")


def _cut(files: Files, fd: int, directory: str, file: SegmentFile, position: int, damage: Damage | None) -> None:
    if damage is not None and damage.quarantine is not None:
        _copy(files, fd, position, file.size, damage.quarantine)
        files.fsync_directory(directory)
    files.truncate(fd, position)
    files.fdatasync(fd)


def _copy(files: Files, source: int, start: int, end: int, path: str) -> None:
    target = files.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        position = start
        while position < end:
            data = read_exactly(files, source, min(_COPY_BYTES, end - position), position)
            position += files.pwritev(target, [data], position - start)
        files.fdatasync(target)
    finally:
        files.close(target)


# --- closed segments --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RebuiltIndex:
    """Result of `rebuild_index`: the index file has `count` units; crc: as of an Index."""

    count: int
    max_id: int
    crc: int
    damage: tuple[Damage, ...]


def rebuild_index(files: Files, file: SegmentFile) -> RebuiltIndex:
    """Walk a closed, synced segment and put a synced index in its place. Any thread; changes nothing but that file.

    Damaged ranges are passed over and reported: their records are not indexed. Raises OSError.
    """
    fd = files.open(file.path, os.O_RDONLY)
    try:
        units, damage = _scan_all(files, fd, file)
    finally:
        files.close(fd)
    bound_java_times(units, file.modified_ms)
    made = replace_index(files, file.index_path, units, file.first_offset, file.end)
    return RebuiltIndex(made.units, made.max_id, made.crc or 0, tuple(damage))


def _scan_all(files: Files, fd: int, file: SegmentFile) -> tuple[UnitArray, list[Damage]]:
    blocks, damage = [np.empty(0, UNIT_DTYPE)], []
    position = 0
    while position < file.size:
        scan = scan_units(files, fd, position, file.size, file.first_offset)
        blocks.append(scan.units)
        position = scan.end
        if position < file.size:
            good = find_record(files, fd, position, file.size)
            end = file.size if good is None else good
            damage.append(Damage(file.first_offset + position, file.first_offset + end, None))
            position = end
    return np.concatenate(blocks), damage
