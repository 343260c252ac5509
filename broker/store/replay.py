"""Giving partitions back what only the journal still has: the bytes behind the last good record of a segment.

A partition's own file may have lost any part of what was not synced yet (power cut), or nothing (kill -9). What is good
in it is believed, because another broker may have written it: a Java broker that ran in between knows no journal. The
journal only continues a file where the file stops, and never in the middle of an entry of which the file has other
bytes. Acknowledged messages in whose place that broker has put its own are told.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from metaq.protocol.errors import StoreError
from metaq.protocol.record import iter_headers

from .files import Files, naming, read_exactly, write_all
from .journal_format import JournalData, JournalEntry
from .recovery import trusted_checkpoint
from .scan import scan_units
from .segment import SegmentFile, data_name, segment_files

__all__ = ["Continuation", "Gap", "continuation", "first_gap", "replay_partition"]

_FOREVER = 1 << 63


class Gap(NamedTuple):
    """Acknowledged bytes [start, end) of a partition that are lost.

    Neither its files nor the journal have them, though the journal goes on behind them; or, `replaced`, the journal has
    them, and the files have other good records in their place or in front of them.
    """

    start: int
    end: int
    replaced: bool = False


class Continuation(NamedTuple):
    """parts: what the journal has behind the good records of a segment, in order. lost: what cannot be put back."""

    parts: list[memoryview]
    lost: list[Gap]


def first_gap(end: int, entries: Sequence[JournalEntry]) -> tuple[int, Gap | None]:
    """How far the entries continue a partition that ends at `end`, and what keeps them from going on. Byte offsets."""
    for entry in entries:
        if entry.base > end:
            return end, Gap(end, entry.base)
        end = max(end, entry.end)
    return end, None


def replay_partition(
    files: Files, directory: str, entries: Sequence[JournalEntry], data: JournalData
) -> tuple[int, list[Gap]]:
    """Continue the segments of a partition directory by the journal's entries: the bytes added, and what is lost.

    entries: of this partition, in offset order. A directory without a segment gets one at the first entry. What
    was added is not synced: the journal must stay until it is. Raises StoreError.
    """
    try:
        files.make_directory(directory)
        segments = segment_files(files, directory) or [_create(files, directory, entries[0].base)]
        ends = [after.first_offset for _, after in pairwise(segments)] + [_FOREVER]
        added, lost = 0, []
        for segment, limit in zip(segments, ends, strict=True):
            of_segment = [each for each in entries if segment.first_offset <= each.base < limit]
            more, lost_here = _continue_segment(files, segment, limit, of_segment, data)
            added += more
            lost += lost_here
        return added, lost
    except OSError as error:
        raise StoreError(f"{directory} cannot be recovered from the journal: {error}") from error


def _create(files: Files, directory: str, first_offset: int) -> SegmentFile:
    path = os.path.join(directory, data_name(first_offset))
    files.close(files.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
    return SegmentFile(path, first_offset, 0, 0)


def _continue_segment(
    files: Files, file: SegmentFile, limit: int, entries: Sequence[JournalEntry], data: JournalData
) -> tuple[int, list[Gap]]:
    known = trusted_checkpoint(files, file)
    start = 0 if known is None else known.end - file.first_offset
    if not entries or file.first_offset + start >= entries[-1].end:
        return 0, []
    fd = files.open(file.path, os.O_RDWR)
    try:
        with naming(file.path):
            good = scan_units(files, fd, start, min(file.size, limit - file.first_offset), file.first_offset).end
            checked = file.first_offset + start, file.first_offset + good
            parts, lost = continuation(files, fd, file.first_offset, checked, entries, data, limit)
            if parts:
                write_all(files, fd, parts, good)
    finally:
        files.close(fd)
    return sum(map(len, parts)), lost


def continuation(
    files: Files,
    fd: int,
    first_offset: int,
    checked: tuple[int, int],
    entries: Sequence[JournalEntry],
    data: JournalData,
    limit: int = _FOREVER,
) -> Continuation:
    """How the entries continue a segment that begins at byte `first_offset`, and what of them is lost.

    checked: the byte offsets between which its records were found good; what lies before was synced. entries: those
    that begin in the segment, in offset order. limit: byte offset where the next segment begins. Any thread. Raises
    OSError.
    """
    replaced = _replaced(files, fd, first_offset, checked, entries, data)
    lost = [Gap(replaced[-1].base, replaced[0].end, replaced=True)] if replaced else []
    end = checked[1]
    reached, gap = first_gap(end, entries)
    parts: list[memoryview] = []
    for entry in entries:
        if end < entry.end <= reached:
            records = memoryview(data.read(entry))
            if entry in replaced or entry.end > limit or not _is_boundary(records, end - entry.base):
                start = lost.pop().start if lost and lost[-1].end >= end else end
                return Continuation(parts, [*lost, Gap(start, entries[-1].end, replaced=True)])
            parts.append(records[max(0, end - entry.base) :])
            end = entry.end
    return Continuation(parts, [*lost, gap] if gap else lost)


def _replaced(
    files: Files,
    fd: int,
    first_offset: int,
    checked: tuple[int, int],
    entries: Sequence[JournalEntry],
    data: JournalData,
) -> list[JournalEntry]:
    """The last of the entries that the checked records cover, or begin, with other bytes; newest first.

    Another broker appends: where it has put anything into the place of an entry, the last one that is covered tells.
    """
    start, end = checked
    found: list[JournalEntry] = []
    for entry in reversed(entries):
        if entry.base >= end:
            continue
        if entry.base < start and entry.end <= end:
            break
        length = min(entry.end, end) - entry.base
        if read_exactly(files, fd, length, entry.base - first_offset) == data.read(entry)[:length]:
            break
        found.append(entry)
    return found


def _is_boundary(records: memoryview, position: int) -> bool:
    """Whether a record of an entry begins there; so it does in front of the first."""
    return position <= 0 or position in {header.end for header in iter_headers(records)}
