"""Restore data that only the journal still has. The restored data are written behind the last good record of a segment.

A partition's own file may have lost any part of its unsynced data (power cut), or nothing (kill -9). The good records
of the file are trusted even if the journal differs. A Java broker, which does not know the journal, may have run in
between and written these records. The journal's data are added behind the good records only in two cases: the file ends
at that point, or the file lacks only the first bytes of the next record. If the file's bytes differ from a journal
entry at some offset, the entry's bytes behind that offset are not added. If a Java broker has written its own messages
in place of acknowledged messages, the loss is reported.
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
"""The position of the message id in a record, in bytes. Length and checksum stand before it; both are zero for an empty
message (record.HEADER).
"""

ReadSegment = Callable[[int, int], bytes]
"""read(size, byte offset in the partition): returns bytes of a segment."""


class Gap(NamedTuple):
    """Lost bytes [start, end) of a partition that were acknowledged.

    If `replaced` is False, neither the partition's files nor the journal have these bytes, although the journal
    continues behind them. If `replaced` is True, the journal has these bytes, but the files have other good records in
    their place or before them.
    """

    start: int
    end: int
    replaced: bool = False


class Continuation(NamedTuple):
    """The parts of the journal that continue a segment behind its good records.

    file: the segment. If the directory has lost its first segment, `file` describes a segment of size 0 that does not
    exist yet. end: the byte offset behind the good records. parts: the data to write from `end` on, in order. lost: the
    byte ranges that cannot be restored.
    """

    file: SegmentFile
    end: int
    parts: list[memoryview]
    lost: list[Gap]


def first_gap(end: int, entries: Sequence[JournalEntry]) -> tuple[int, Gap | None]:
    """Return the end of the data that the journal's entries add without a gap to a partition that ends at `end`. Also
    return the first gap, or None if there is no gap. All offsets are byte offsets.
    """
    for entry in entries:
        if entry.base > end:
            return end, Gap(end, entry.base)
        end = max(end, entry.end)
    return end, None


def replay_journal(files: Files, data_path: str, directory_for: Callable[[str], str]) -> JournalContents:
    """Add the journal's entries to every partition that lacks them, and report losses. Return the journal's contents.

    directory_for: returns the directory of partition `<topic>-<partition>`, which may not exist yet. The restored data
    are not synced, so the journal must be kept until they are synced. Raises StoreError. `continuations` says which
    data are restored.
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
    """Add the journal's entries to the segments of a partition directory. Return the number of restored bytes."""
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
    """Remove the journal's files, because the partitions now have their data. Keep damaged files under another name."""
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
    """Remove a segment's index if it does not describe the present content of the segment's file, and sync the removal.

    Otherwise the index would match the file again as soon as the file has its bytes back, and would declare these bytes
    as synced. But the bytes, and perhaps the name of a new file, are not on the disk yet. After another power cut, a
    start would treat bytes that were only partly written as damage to synced data.
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

    segments: the directory's segments, in order. If there is no segment, or the first segment is lost, the function
    acts as if there were an empty segment at the offset of the first entry. entries: this partition's entries, at least
    one, in offset order. The function changes no files. Raises OSError.
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
    """Return whether the first segment is missing because of a power cut, not because of retention.

    As long as neither the directory nor the segment's file was synced, a file system may lose the name of an older
    segment but keep the name of a newer one. If a checkpoint with units exists, the directory and the file were synced
    before it. If the name of the first segment was lost, the journal's entries reach up to the newer segment.
    """
    first = segments[0].first_offset
    if entries[0].base >= first or first_gap(entries[0].base, entries)[0] < first:
        return False
    known = (trusted_checkpoint(files, each) for each in segments)
    return not any(each is not None and each.units for each in known)


def _continuation(
    files: Files, file: SegmentFile, limit: int, entries: Sequence[JournalEntry], data: JournalData
) -> Continuation:
    """Return the journal's data that belong behind the good records of one segment. entries: the journal entries that
    begin in this segment. limit: the byte offset where the next segment begins.
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
    """Return the journal's data that belong behind the good records of the segment. checked: the range of byte offsets
    that was checked and has only good records. Data before this range were synced.
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
    """Compare journal entries with the checked records at the same offsets, from the last entry backwards. Return the
    entries that differ, newest first, up to the first entry that does not differ. The records may cover an entry wholly
    or only its beginning.

    Another broker only appends records. So if another broker has replaced any entry, then the last entry that the
    records cover differs from them.
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
    """Find the first record of the journal entry that differs in the segment's file. Return the record's byte offset if
    the file lacks nothing but the record's first bytes, else None.

    A power cut may destroy only the length and the checksum of a record, if they are at the end of one sector and the
    rest of the record is in the next sector. The record then looks like an empty message, but it still has its id, and
    no broker assigns an id twice. end: where the file's good records end.
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
    """Return whether a record of an entry begins at `position`, or `position` is at or before the first record."""
    return position <= 0 or position in {header.end for header in iter_headers(records)}
