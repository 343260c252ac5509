"""Restore data that a partition's own files have lost but the journal still has, when the broker starts. The restored
data are written into the segment, behind its last good record.

After a power cut, any part of the unsynced data of a partition's own file may be lost; after kill -9, nothing is lost.
Good records of the file are kept even if the journal has other bytes at these offsets. A Java broker, which does not
know the journal, may have run after the journal was written, and may have written these records. The journal's data are
added behind the good records. If a journal entry begins before their end and ends behind it, the first part of the
entry is compared with the good records at the same offsets. The rest of the entry is added only if they are equal.
There is one exception: if the power cut has destroyed only the first bytes of a record in the file, the journal's data
are added from this record on. If a Java broker has written its own messages in place of acknowledged messages, the loss
is reported.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from metaq.protocol.errors import StoreError
from metaq.protocol.record import HEADER_BYTES, iter_headers

from .files import Files, opened, read_exactly, unused_name, write_all
from .journal_format import DAMAGED_SUFFIX, JournalContents, JournalData, JournalEntry, read_journal
from .recovery import trusted_checkpoint
from .scan import scan_units
from .segment import SegmentFile, data_name, segment_files

__all__ = ["Continuation", "Gap", "continuations", "drop_journal", "first_gap", "replay_journal"]

_log = logging.getLogger(__name__)

_FOREVER = 1 << 63
_ID_AT = 8
"""The position of the message id in a record, in bytes (record.HEADER). Before it are the record's length and checksum.
In the record of an empty message both are zero.
"""

ReadSegment = Callable[[int, int], bytes]
"""read(size, offset): returns `size` bytes of a segment from this byte offset in the partition on."""


class Gap(NamedTuple):
    """Bytes [start, end) of a partition that were acknowledged to producers and are lost.

    If `replaced` is False, neither the partition's files nor the journal have these bytes, although the journal
    continues behind them. If `replaced` is True, the journal has these bytes, but they cannot be restored: the files
    have good records of other messages, either at these offsets or directly before them, where the journal has other
    records.
    """

    start: int
    end: int
    replaced: bool = False


class Continuation(NamedTuple):
    """The data from the journal that are to be written into one segment, behind its good records.

    file: the segment. If the directory has lost its first segment, `file` describes a segment of size 0 that does not
    exist yet. end: the byte offset behind the good records. parts: the data to write from `end` on, in order. lost: the
    byte ranges with acknowledged data that cannot be restored.
    """

    file: SegmentFile
    end: int
    parts: list[memoryview]
    lost: list[Gap]


def first_gap(end: int, entries: Sequence[JournalEntry]) -> tuple[int, Gap | None]:
    """For a partition whose good data end at byte offset `end`, return the byte offset up to which the journal's
    entries continue the data without a gap. Also return the first gap, or None if there is no gap.
    """
    for entry in entries:
        if entry.base > end:
            return end, Gap(end, entry.base)
        end = max(end, entry.end)
    return end, None


def replay_journal(files: Files, data_path: str, directory_for: Callable[[str], str]) -> JournalContents:
    """Write the journal's data into every partition whose own files lack them, and log which acknowledged data are
    lost. Return the journal's contents.

    directory_for: returns the directory of partition `<topic>-<partition>`, which may not exist yet. The restored data
    are not synced, so the journal must be kept until they are synced. Raises StoreError. `continuations` decides which
    data are written.
    """
    try:
        journal = read_journal(files, data_path)
    except OSError as error:
        raise StoreError(f"the journal in {data_path} cannot be read: {error}") from error
    _report_gaps(journal)
    data = JournalData(files)
    total = partitions = 0
    try:
        for name, entries in journal.entries.items():
            if added := _replay_partition(files, directory_for(name), entries, data):
                total += added
                partitions += 1
    finally:
        data.close()
    if total:
        _log.warning("%d bytes of %d partitions came back from the journal", total, partitions)
    return journal


def _replay_partition(files: Files, directory: str, entries: Sequence[JournalEntry], data: JournalData) -> int:
    """Write into the segments of a partition directory the journal's data that the directory lacks. Return the number
    of restored bytes.
    """
    added = 0
    try:
        files.make_directory(directory)
        for each in continuations(files, directory, segment_files(files, directory), entries, data):
            if each.parts:
                _write(files, directory, each)
                added += sum(map(len, each.parts))
            _report_lost(directory, each.lost)
    except OSError as error:
        raise StoreError(f"{directory} cannot be recovered from the journal: {error}") from error
    if added:
        _log.info("%s: %d bytes came back from the journal", directory, added)
    return added


def _report_gaps(journal: JournalContents) -> None:
    """Log which parts of the journal could not be read."""
    for gap in journal.gaps:
        if gap.damaged:
            _log.error(
                "%s is damaged in [%d, %d): puts that were only there are lost; the file is kept", gap.path, *gap[1:3]
            )
        else:
            _log.warning(
                "%s: the last %d bytes are no whole block: a write that was never finished, or damage",
                gap.path,
                gap.end - gap.start,
            )


def _report_lost(directory: str, lost: Iterable[Gap]) -> None:
    """Log which acknowledged bytes of a partition the journal could not restore."""
    for gap in lost:
        if gap.replaced:
            why = (
                "other records are in their place, or in front of them: after a power cut another broker, which does "
                "not read the journal, must not be the first to start"
            )
        else:
            why = "and what the journal has behind them cannot be put back"
        _log.error("%s: acknowledged bytes [%d, %d) are lost, %s", directory, gap.start, gap.end, why)


def drop_journal(files: Files, journal: JournalContents) -> None:
    """Remove the journal's files after the partitions' own files have all their data. Damaged journal files are not
    removed but renamed.
    """
    damaged = journal.damaged_paths
    for path in journal.paths:
        try:
            if path in damaged:
                kept = unused_name(files, path + DAMAGED_SUFFIX)
                files.rename(path, kept)
                _log.error("%s is kept as %s: delete it when nobody needs it", path, kept)
            else:
                files.unlink(path)
        except OSError as error:  # another replay of the file changes nothing
            _log.error("%s is not needed any more, but could not be removed: %s: remove it by hand", path, error)


def _write(files: Files, directory: str, found: Continuation) -> None:
    if not found.file.size or trusted_checkpoint(files, found.file) is None:
        _forget_index(files, directory, found.file)
    with opened(files, found.file.path, os.O_RDWR | os.O_CREAT) as fd:
        write_all(files, fd, found.parts, found.end - found.file.first_offset)


def _forget_index(files: Files, directory: str, file: SegmentFile) -> None:
    """Remove a segment's index if it exists, and sync the removal. Called before the segment gets data from the
    journal, if the index does not describe the present content of the segment's file.

    If the index stayed, it would match the file again after the lost bytes are restored, and its checkpoint would say
    that these bytes are synced. But they, and perhaps the name of a new file, are not on the disk yet. After another
    power cut they might be only partly written, and the next start would take this for damage to synced data.
    """
    try:
        files.unlink(file.index_path)
    except FileNotFoundError:
        return
    files.fsync_directory(directory)


def continuations(
    files: Files,
    directory: str,
    segments: Sequence[SegmentFile],
    entries: Sequence[JournalEntry],
    data: JournalData,
) -> Iterator[Continuation]:
    """Yield, for each segment of a partition, the journal's data that belong behind the segment's good records.
    Segments without journal entries are left out.

    segments: the directory's segments, in order. If there is no segment, or the first one is lost (`_first_is_lost`),
    the function adds an empty segment that begins at the first entry's offset. entries: this partition's entries, at
    least one, in offset order. The function changes no files. Raises OSError.
    """
    if not segments or _first_is_lost(files, segments, entries):
        base = entries[0].base
        segments = [SegmentFile(os.path.join(directory, data_name(base)), base, 0, 0), *segments]
    ends = [after.first_offset for _, after in pairwise(segments)] + [_FOREVER]
    for file, limit in zip(segments, ends, strict=True):
        of_segment = [each for each in entries if file.first_offset <= each.base < limit]
        if of_segment:
            yield _continuation(files, file, limit, of_segment, data)


def _first_is_lost(files: Files, segments: Sequence[SegmentFile], entries: Sequence[JournalEntry]) -> bool:
    """Return whether a segment in front of `segments` is missing because of a power cut, not because retention has
    removed it.

    A file system may lose the name of an older segment in a power cut but keep the name of a newer one, if neither the
    directory nor the older segment's file was synced before. The segment was lost in this way if two conditions hold:
    the journal has entries for offsets before `segments`, without a gap up to the first of `segments`, and no segment
    has a checkpoint with units. Before such a checkpoint is written, the directory and the files of earlier segments
    are synced.
    """
    first = segments[0].first_offset
    if entries[0].base >= first or first_gap(entries[0].base, entries)[0] < first:
        return False
    known = (trusted_checkpoint(files, each) for each in segments)
    return not any(each is not None and each.units for each in known)


def _continuation(
    files: Files, file: SegmentFile, limit: int, entries: Sequence[JournalEntry], data: JournalData
) -> Continuation:
    """Check the unsynced records of one segment, and return the journal's data that belong behind its good records.
    entries: the journal entries that begin in this segment, at least one. limit: the byte offset where the next segment
    begins, or _FOREVER if there is none.
    """
    if not file.size:
        return _continue(file, lambda size, offset: b"", (file.first_offset, file.first_offset), limit, entries, data)
    known = trusted_checkpoint(files, file)
    start = file.first_offset if known is None else known.end
    if start >= entries[-1].end:
        return Continuation(file, file.end, [], [])
    with opened(files, file.path) as fd:
        stop = min(file.end, limit) - file.first_offset
        good = scan_units(files, fd, start - file.first_offset, stop, file.first_offset).end

        def read(size: int, offset: int) -> bytes:
            return read_exactly(files, fd, size, offset - file.first_offset)

        return _continue(file, read, (start, file.first_offset + good), limit, entries, data)


def _continue(
    file: SegmentFile,
    read: ReadSegment,
    checked: tuple[int, int],
    limit: int,
    entries: Sequence[JournalEntry],
    data: JournalData,
) -> Continuation:
    """Return the journal's data that belong behind the good records of a segment that was already checked. checked: the
    range of byte offsets that was checked, which has only good records; data before it were synced. The other
    parameters are as in `_continuation`.
    """
    replaced = _replaced(read, checked, entries, data)
    if replaced and (torn := _torn_header(read, checked[1], replaced[-1], data)) is not None and torn >= checked[0]:
        return _continue(file, read, (checked[0], torn), limit, entries, data)
    lost = [Gap(replaced[-1].base, replaced[0].end, replaced=True)] if replaced else []
    start = end = checked[1]
    reached, gap = first_gap(end, entries)
    parts: list[memoryview] = []
    for entry in entries:
        if end < entry.end <= reached:
            records = memoryview(data.read(entry))
            if entry in replaced or entry.end > limit or not _is_boundary(records, end - entry.base):
                lost_from = lost.pop().start if lost and lost[-1].end >= end else end
                return Continuation(file, start, parts, [*lost, Gap(lost_from, entries[-1].end, replaced=True)])
            parts.append(records[max(0, end - entry.base) :])
            end = entry.end
    return Continuation(file, start, parts, [*lost, gap] if gap else lost)


def _replaced(
    read: ReadSegment, checked: tuple[int, int], entries: Sequence[JournalEntry], data: JournalData
) -> list[JournalEntry]:
    """Find the journal entries in whose place the segment has other records. Compare the entries with the checked
    records at the same offsets, from the last entry backwards, and stop at the first entry that is equal. Return the
    entries that differ, newest first. If the records end within an entry, only its beginning is compared.

    If an entry is equal, all entries before it are in the segment, too: another broker only appends records, so if it
    had replaced an earlier entry, all records behind that would be its own.
    """
    start, end = checked
    found: list[JournalEntry] = []
    for entry in reversed(entries):
        if entry.base >= end:
            continue
        if entry.base < start and entry.end <= end:
            break
        length = min(entry.end, end) - entry.base
        if read(length, entry.base) == data.read(entry)[:length]:
            break
        found.append(entry)
    return found


def _torn_header(read: ReadSegment, end: int, entry: JournalEntry, data: JournalData) -> int | None:
    """Find, in a journal entry, the first record whose bytes differ from the bytes in the segment's file. If a power
    cut has destroyed only the first bytes of this record in the file, return the record's byte offset, else None.

    This can happen if the length and the checksum of a record are at the end of one disk sector and the rest of the
    record is in the next sector. The record then looks like an empty message, but it still has its id, and no broker
    assigns an id twice. end: where the file's good records end.
    """
    records = memoryview(data.read(entry))
    there = read(min(entry.end, end) - entry.base, entry.base)
    for header in iter_headers(records):
        found, expected = there[header.start : header.end], records[header.start : header.end]
        if found != expected:
            torn = bytes(_ID_AT) + expected[_ID_AT:HEADER_BYTES]
            return entry.base + header.start if found[:HEADER_BYTES] == torn else None
    return None


def _is_boundary(records: memoryview, position: int) -> bool:
    """Return whether the journal entry with these bytes (`records`) can be split at `position`. The result is True if a
    record ends at `position`, or if `position` is at or before the entry's beginning.
    """
    return position <= 0 or position in {header.end for header in iter_headers(records)}
