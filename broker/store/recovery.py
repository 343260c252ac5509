"""Check and repair a partition directory when the broker starts (storage.md §4), and report exactly what was repaired.

Data that the partition's newest checkpoint covers were synced and are trusted. The CRCs of all data behind that
checkpoint, in the same segment and in later ones, are checked, because a power cut can have destroyed any part of these
data. The rules are:
- An incomplete record or zeros at the end of the file come from a write that a crash has interrupted. These bytes are
  cut off, and their number is reported.
- Bytes that fail the check but have good records behind them are damage. All data of the segment from the first damaged
  byte on are copied to `<segment>.damaged-<position>`, and the copy is synced. Only then are they cut off from the
  segment, and the damaged range is reported. (metaq 1.x cuts without a report.)
- If a segment ends before the next segment begins, all later segments are removed from the log and kept as
  `<segment>.damaged-<first offset>`.
- If checked data came from the page cache, they are compared with the bytes on the disk, and written again if the disk
  has other bytes (rewriting.py).
- Before all this, if a crash has interrupted a cut of the log's end (`Store.cut`), the cut is finished (cut_files.py).
- Segments before the one with the newest checkpoint are never changed. If the index of such a segment is missing or
  does not cover the whole segment, a worker thread makes a new index.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from metaq.protocol.errors import StoreError
from metaq.protocol.record import HEADER, HEADER_BYTES

from . import tuning
from .cut_files import finish_cut, keep_copy, set_aside
from .damage import walk_segment
from .files import Files, OpenFiles, opened, read_exactly, unused_name
from .index import (
    UNIT_DTYPE,
    Checkpoint,
    Index,
    IndexDamaged,
    StoredCheckpoint,
    Unit,
    UnitArray,
    UnitReader,
    largest_id,
    order_times,
    read_checkpoint,
    write_units,
)
from .rewriting import Rewriter
from .scan import Scan, bound_java_times, find_record, is_zero, scan_bytes, scan_units
from .segment import Segment, SegmentFile, check_contiguous, create_segment, segment_files

__all__ = [
    "PartitionDamage",
    "RecoveredPartition",
    "RecoveryReport",
    "first_unsafe",
    "recover_partition",
    "trusted_checkpoint",
]

_log = logging.getLogger(__name__)


_WRITTEN_BACK_MS = 10 * 60 * 1000
"""Concerns segments without a checkpoint. The recovery compares the last change of such a segment with the newest
change of any segment of the partition. If it is more than this many milliseconds earlier, the segment's data are
assumed to be on the disk, because the kernel writes changed data to the disk after 30 seconds. Segments without a
checkpoint come from a Java broker; this broker makes checkpoints at least every 30 seconds. Without this rule, the
first start of this broker in a Java broker's directory would have to read all segments.
"""


class PartitionDamage(NamedTuple):
    """Damaged bytes [start, end) of the partition, as byte offsets, with good records behind them.

    The log was cut at `start`. quarantine: the path of the file to which all data of the segment from `start` on were
    copied before.
    """

    start: int
    end: int
    quarantine: str


@dataclass(slots=True)
class RecoveryReport:
    """A report about one partition directory: what the recovery found and repaired. Offsets and sizes are in bytes."""

    directory: str
    segments: int = 1
    anew: bool = False
    """Whether the directory had no segment, so that the recovery created the first one."""
    checked_bytes: int = 0
    """The number of bytes that no checkpoint covered, and that were therefore read and checked."""
    cut_at: int | None = None
    """The byte offset where the last segment was cut. It is None if the segment was not cut."""
    cut_bytes: int = 0
    cut_reason: str = ""
    damage: tuple[PartitionDamage, ...] = ()
    missing_bytes: int = 0
    """How many bytes the segments' files lack at their ends, although checkpoints say that these bytes were synced.
    """
    set_aside: tuple[str, ...] = ()
    """The paths under which the files of removed segments are kept. These segments were removed from the log because
    they lie behind the offset where the log was cut.
    """

    rewritten_bytes: int = 0
    """The number of bytes that were only in the page cache after a failed write, and were written again."""

    @property
    def notable(self) -> bool:
        """Whether an operator should read the report, because data were cut off, damaged, missing or written again."""
        cut = self.cut_at is not None or bool(self.set_aside)
        return cut or bool(self.damage) or self.missing_bytes > 0 or self.rewritten_bytes > 0

    def __str__(self) -> str:
        parts = [f"{self.directory}: {self.segments} segments, {self.checked_bytes} bytes checked"]
        if self.missing_bytes:
            parts.append(f"{self.missing_bytes} bytes are missing that had been synced")
        if self.rewritten_bytes:
            parts.append(f"{self.rewritten_bytes} bytes that had not reached the disk were written again")
        parts += [f"damage in [{found.start}, {found.end}), copied to {found.quarantine}" for found in self.damage]
        if self.cut_at is not None:
            parts.append(f"{self.cut_bytes} bytes cut at offset {self.cut_at}: {self.cut_reason}")
        parts += [f"the segment behind the cut is kept as {path}" for path in self.set_aside]
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class RecoveredPartition:
    """The segments of a recovered directory, ready for a PartitionLog. Missing indexes must still be rebuilt.
    unsynced_directories: to be passed to PartitionLog as the argument with this name.
    """

    segments: list[Segment]
    report: RecoveryReport
    unsynced_directories: tuple[str, ...] = ()


def recover_partition(open_files: OpenFiles, directory: str, sync: Callable[[], None]) -> RecoveredPartition:
    """Open all segments of a directory, and repair data that no checkpoint covers. An empty directory gets its first
    segment.

    sync: a PageCacheSync. Cuts are synced. Bytes that were written again (rewriting.py) and the name of a new file are
    not synced. The attribute `synced` of each segment says up to where the segment is known to be synced. Called on the
    thread that owns the store, before the log is used. Raises StoreError in three cases: segments before the newest
    checkpoint have a gap or an overlap, a file name is bad, or a file cannot be read.
    """
    try:
        finish_cut(open_files.files, directory)
        found = segment_files(open_files.files, directory)
        if not found:
            first = create_segment(open_files, directory, 0)
            return RecoveredPartition([first], RecoveryReport(directory, anew=True), _names(directory))
        stored = [read_checkpoint(open_files.files, file.index_path, file.first_offset) for file in found]
        known = [_believed(open_files.files, file, each) for file, each in zip(found, stored, strict=True)]
        first_unsafe = _first_unsafe(found, known)
        check_contiguous(found[: first_unsafe + 1])
        segments = [_open_closed(open_files, *each) for each in zip(found[:first_unsafe], known, strict=False)]
        tail = _Tail(open_files, directory, sync)
        tail.recover(found[first_unsafe:], known[first_unsafe:], _last_time(stored[first_unsafe]))
    except OSError as error:
        raise StoreError(f"{directory} cannot be opened: {error}") from error
    segments += tail.segments
    report = tail.report
    report.segments = len(segments)
    report.missing_bytes = sum(
        max(0, each.checkpoint.end - file.end) for file, each in zip(found, stored, strict=True) if each
    )
    new_names = None in known[first_unsafe:] or report.set_aside
    return RecoveredPartition(segments, report, _names(directory) if new_names else ())


def _last_time(stored: StoredCheckpoint | None) -> int:
    """Return the store time (Unix ms) of the last record that a checkpoint covers, or 0 if there is none."""
    return 0 if stored is None or stored.last_unit is None else abs(stored.last_unit[2])


def _names(directory: str) -> tuple[str, ...]:
    """Return the directories that must be synced after new files were created in a partition's directory, so that their
    names are on the disk: this directory and its parent.
    """
    return directory, os.path.dirname(directory)


def first_unsafe(files: Files, found: Sequence[SegmentFile]) -> int:
    """Return the position in `found` of the first segment that a start of the broker checks, and cuts if necessary.
    found: the partition's segments, at least one. Raises OSError.
    """
    return _first_unsafe(found, [trusted_checkpoint(files, file) for file in found])


def _first_unsafe(found: Sequence[SegmentFile], known: Sequence[Checkpoint | None]) -> int:
    """Return the position in `found` of the first segment that is perhaps not completely on the disk.

    All segments before the one with the newest checkpoint are on the disk, because a checkpoint is written only after
    all earlier segments are synced. Segments without a checkpoint are assumed to be on the disk if their files are old
    enough (_WRITTEN_BACK_MS).
    """
    checkpointed = max((number for number, each in enumerate(known) if each is not None and each.units), default=0)
    recent = max(file.modified_ms for file in found) - _WRITTEN_BACK_MS
    for number in range(len(found) - 1, checkpointed, -1):
        if found[number - 1].modified_ms < recent:
            return number
    return checkpointed


def _open_closed(open_files: OpenFiles, file: SegmentFile, known: Checkpoint | None) -> Segment:
    index = None
    if known is not None and known.end == file.end and known.crc is not None:
        index = Index(open_files.file(file.index_path), known.units, known.max_id, crc=known.crc)
    segment = Segment(file.path, file.first_offset, file.size, open_files.file(file.path), index)
    segment.synced = segment.checkpointed = file.end
    return segment


class _Tail:
    """Checks and repairs the last segments of a partition, from the first one that is perhaps not completely on the
    disk (`_first_unsafe`). They are checked in order, up to the first segment that ends before the next one begins.
    """

    def __init__(self, open_files: OpenFiles, directory: str, sync: Callable[[], None]) -> None:
        self.segments: list[Segment] = []
        self.report = RecoveryReport(directory)
        """What this object found and repaired. `recover_partition` fills in the fields `segments` and `missing_bytes`,
        which concern the whole partition.
        """
        self._sync = sync
        self._last_time_ms = 0
        self._open_files = open_files
        self._files = open_files.files
        self._directory = directory

    def recover(self, found: Sequence[SegmentFile], known: Sequence[Checkpoint | None], last_time_ms: int) -> None:
        """Check and repair the segments. found: the segments, at least one; the last one that is kept becomes the
        active segment, to which the log appends. known: for each segment its trusted checkpoint or None. last_time_ms:
        the store time (Unix ms) of the last record before the checked ones, 0 if unknown. Raises OSError, StoreError.
        """
        self._last_time_ms = last_time_ms
        for number, (file, checkpoint) in enumerate(zip(found, known, strict=True)):
            following = found[number + 1 :]
            if following and following[0].first_offset < file.end:
                check_contiguous([file, following[0]])
            self._recover_segment(file, checkpoint)
            if following and self.segments[-1].end < following[0].first_offset:
                self._set_following_aside(following)
                return

    def _recover_segment(self, file: SegmentFile, known: Checkpoint | None) -> None:
        start = 0 if known is None else known.end - file.first_offset
        scan = self._check(file, start)
        bound_java_times(scan.units, file.modified_ms)
        if len(scan.units):
            order_times(scan.units, self._last_time_ms)
            self._last_time_ms = abs(int(scan.units[-1]["time_ms"]))
        index = _index_of(self._open_files, file, known, scan.units)
        segment = Segment(file.path, file.first_offset, scan.end, self._open_files.file(file.path), index)
        segment.synced = segment.checkpointed = file.first_offset + start
        self.segments.append(segment)
        self.report.checked_bytes += file.size - start

    def _check(self, file: SegmentFile, start: int) -> Scan:
        """Check the data of a segment behind byte position `start`, and cut off all data from the first bad record
        on.
        """
        if start == file.size:
            return Scan(np.empty(0, UNIT_DTYPE), start)
        with opened(self._files, file.path, os.O_RDWR) as fd:
            rewriter = Rewriter(self._files, file.path, fd, self._sync)
            scan = scan_units(rewriter, fd, start, file.size, file.first_offset, checked=rewriter.secure)
            self.report.rewritten_bytes += rewriter.rewritten_bytes
            if scan.end < file.size:
                self._cut(fd, file, scan.end)
        return scan

    def _cut(self, fd: int, file: SegmentFile, position: int) -> None:
        report = self.report
        report.cut_reason, damage = _judge_tail(self._files, fd, file, position)
        report.cut_at, report.cut_bytes = file.first_offset + position, file.size - position
        if damage is not None:
            report.damage = (damage,)
            keep_copy(self._files, fd, position, file.size, damage.quarantine)
            self._files.fsync_directory(self._directory)
        self._files.truncate(fd, position)
        self._files.fdatasync(fd)

    def _set_following_aside(self, following: Sequence[SegmentFile]) -> None:
        """Rename the files of the segments in `following`, so that they no longer belong to the log but their data are
        kept. Called if the log now ends before the first of these segments begins, so that there is a gap.

        After a power cut, a new segment may exist although the unsynced end of the segment before it is lost.
        """
        report = self.report
        for file in following:
            kept = set_aside(self._files, file)
            if kept is not None:
                report.set_aside += (kept,)
                report.cut_bytes += file.size
        if report.set_aside:
            report.cut_at = self.segments[-1].end
            gap = f"no data is left up to the next segment at {following[0].first_offset}"
            report.cut_reason = f"{report.cut_reason}, and {gap}" if report.cut_reason else gap
        self._files.fsync_directory(self._directory)


def trusted_checkpoint(files: Files, file: SegmentFile) -> Checkpoint | None:
    """Return the checkpoint of a segment's index if the index describes exactly the data in the segment's file, else
    None. Raises OSError.

    After the checkpoint, a Java broker, which does not know this index, may have cut the file and written other
    records. So an index unit is compared with the record that it describes.
    """
    return _believed(files, file, read_checkpoint(files, file.index_path, file.first_offset))


def _believed(files: Files, file: SegmentFile, found: StoredCheckpoint | None) -> Checkpoint | None:
    if found is None or found.checkpoint.end > file.end:
        return None
    end = found.checkpoint.end
    # a rebuilt index also covers damage at its end, behind the last unit; its checksum vouches for that
    may_end_earlier = found.checkpoint.crc is not None
    if found.last_unit is None:
        return found.checkpoint if end == file.first_offset or may_end_earlier else None
    offset, _, _, size, _ = found.last_unit
    if offset + size != end and not (may_end_earlier and offset + size < end):
        return None
    try:
        with opened(files, file.path) as fd:
            return found.checkpoint if _describes(files, fd, file, found.checkpoint, found.last_unit) else None
    except IndexDamaged as damage:
        _log.warning("%s", damage)
        return None


def _describes(files: Files, fd: int, file: SegmentFile, known: Checkpoint, last_unit: Unit) -> bool:
    """Return whether the segment still has the records that the index units describe. To decide this, compare the last
    readable record with its unit.

    They differ if another broker has cut the file at the beginning of a record and then appended other records. The
    result is also True if the index has a checksum but the file has no good record at any unit's offset. Then the file
    is damaged; with False, the recovery would check these synced data and cut them off. Raises IndexDamaged, OSError,
    StoreError.
    """
    same = _has_record(files, fd, file, last_unit)
    if same is None and known.crc is not None:
        with UnitReader(files, file.index_path, known.units, known.crc) as units:
            earlier = (_has_record(files, fd, file, units.unit(number)) for number in range(known.units - 2, -1, -1))
            same = next((each for each in earlier if each is not None), True)
    return same is True


def _has_record(files: Files, fd: int, file: SegmentFile, unit: Unit) -> bool | None:
    """Return whether the record header at the unit's offset has the size and id that the unit says. Return None if it
    does not, and there is no good record at that offset.
    """
    offset, message_id, _, size, _ = unit
    position = offset - file.first_offset
    header = files.pread(fd, HEADER_BYTES, position)
    if len(header) < HEADER_BYTES:
        return None
    length, _, stored_id, _ = HEADER.unpack(header)
    if (length, stored_id) == (size - HEADER_BYTES, message_id):
        return True
    if length < 0 or position + HEADER_BYTES + length > file.size:
        return None
    record = read_exactly(files, fd, HEADER_BYTES + length, position)
    return False if scan_bytes(record, offset, max_records=1).end else None


def _index_of(open_files: OpenFiles, file: SegmentFile, known: Checkpoint | None, units: UnitArray) -> Index:
    """Return the index of a recovered segment. If many units of the index are not covered by the checkpoint, write
    these units to the index file.

    In memory, such units of ten thousand partitions would need hundreds of MB. The written units need no sync: until
    the next checkpoint, the header of the index file covers only older units.
    """
    vouched = None
    if known is not None and known.crc is None:
        units = np.concatenate([_covered_units(open_files.files, file, known), units])
        order_times(units)
    if known is not None and (known.crc is None or not known.units):
        vouched = (file.first_offset, known.end) if known.end > file.first_offset else None
        known = None
    stored, max_id, crc = (0, 0, 0) if known is None else (known.units, known.max_id, known.crc or 0)
    handle = open_files.file(file.index_path)
    if len(units) > tuning.UNITS_IN_MEMORY:
        data = units.tobytes()
        try:
            crc = write_units(open_files.files, file.index_path, stored, data, crc, vouched)
        except OSError as error:  # a full disk must not stop the broker: memory has room for them
            _log.warning("%s cannot be written, %d units stay in memory: %s", file.index_path, len(units), error)
        else:
            return Index(handle, stored + len(units), max(max_id, largest_id(units)), crc=crc)
    return Index(handle, stored, max_id, units.tobytes(), crc, vouched)


def _covered_units(files: Files, file: SegmentFile, known: Checkpoint) -> UnitArray:
    """Read the data that a checkpoint covers, and return new index units for them. Damaged ranges are skipped and
    logged, not cut off, as in a closed segment.
    """
    with opened(files, file.path) as fd:
        units, damage = walk_segment(files, fd, file.first_offset, known.end - file.first_offset)
    for each in damage:
        _log.error("%s is damaged in [%d, %d)", file.path, each.start, each.end)
    bound_java_times(units, file.modified_ms)
    return units


def _judge_tail(files: Files, fd: int, file: SegmentFile, position: int) -> tuple[str, PartitionDamage | None]:
    """Find out why the file has no good record at byte position `position`, which must be before the file's end. Return
    the reason as a text, and a PartitionDamage. The PartitionDamage is None if no good record follows: then the bytes
    are the rest of an interrupted write.
    """
    if is_zero(files, fd, position, file.size):
        return "a tail of zeros", None
    good = find_record(files, fd, position, file.size)
    if good is None:
        return "an unfinished record", None
    start = file.first_offset + position
    return "damaged", PartitionDamage(
        start, file.first_offset + good, unused_name(files, f"{file.path}.damaged-{start}")
    )
