"""Giving partitions back what only the journal still has: the bytes behind the last good record of a segment.

A partition's own file may have lost any part of what was not synced yet (power cut), or nothing (kill -9). What is good
in it is believed, because another broker may have written it: a Java broker that ran in between knows no journal. The
journal only continues a file where the file stops, and only if both agree about the record before.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from metaq.protocol.errors import StoreError
from metaq.protocol.record import iter_headers

from .files import Files, read_exactly, write_all
from .journal_format import JournalData, JournalEntry
from .recovery import trusted_checkpoint
from .scan import scan_units
from .segment import SegmentFile, data_name, segment_files

__all__ = ["Gap", "first_gap", "replay_partition"]

_FOREVER = 1 << 63


class Gap(NamedTuple):
    """Bytes [start, end) of a partition that neither its files nor the journal have, though the journal goes on behind
    them.
    """

    start: int
    end: int


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
    """Continue the segments of a partition directory by the journal's entries: the bytes that were added, and gaps.

    entries: of this partition, in offset order. A directory without a segment gets one at the first entry. What
    was added is not synced: the journal must stay until it is. Raises StoreError.
    """
    try:
        files.make_directory(directory)
        segments = segment_files(files, directory) or [_create(files, directory, entries[0].base)]
        ends = [after.first_offset for _, after in pairwise(segments)] + [_FOREVER]
        added, gaps = 0, []
        for segment, limit in zip(segments, ends, strict=True):
            of_segment = [each for each in entries if segment.first_offset <= each.base < limit]
            more, gap = _continue_segment(files, segment, limit, of_segment, data)
            added += more
            gaps += [gap] if gap else []
        return added, gaps
    except OSError as error:
        raise StoreError(f"{directory} cannot be recovered from the journal: {error}") from error


def _create(files: Files, directory: str, first_offset: int) -> SegmentFile:
    path = os.path.join(directory, data_name(first_offset))
    files.close(files.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
    return SegmentFile(path, first_offset, 0, 0)


def _continue_segment(
    files: Files, file: SegmentFile, limit: int, entries: Sequence[JournalEntry], data: JournalData
) -> tuple[int, Gap | None]:
    known = trusted_checkpoint(files, file)
    start = 0 if known is None else known.end - file.first_offset
    if not entries or file.first_offset + start >= entries[-1].end:
        return 0, None
    fd = files.open(file.path, os.O_RDWR)
    try:
        good = scan_units(files, fd, start, min(file.size, limit - file.first_offset), file.first_offset).end
        end = file.first_offset + good
        reached, gap = first_gap(end, entries)
        added = []
        for entry in entries:
            if end < entry.end <= reached:
                rest = _rest(files, fd, file, entry, end, data)
                if rest is None:
                    break
                added.append(rest)
                end = entry.end
        if added:
            write_all(files, fd, added, good)
    finally:
        files.close(fd)
    return end - file.first_offset - good, gap


def _rest(
    files: Files, fd: int, file: SegmentFile, entry: JournalEntry, end: int, data: JournalData
) -> memoryview | None:
    """The part of the entry behind `end`, None if it does not continue what the file has."""
    records = memoryview(data.read(entry))
    cut = end - entry.base
    if cut:  # in the middle of an entry, which only the first one can be
        boundaries = {header.end for header in iter_headers(records)}
        have = read_exactly(files, fd, cut, entry.base - file.first_offset)
        if cut not in boundaries or have != records[:cut]:
            return None
    return records[cut:]
