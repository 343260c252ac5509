"""Finding stored messages by id and by key: what a worker thread does with a snapshot of some partitions.

Blocks of the key files narrow a search down to single records, whose own keys decide. What no block covers, the end of
a growing segment, is read; what was found there is handed back, so that the next search needs to read on only. A search
is bounded: what it has not looked at is counted, never passed over in silence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from metaq.protocol.record import key_hash

from .files import Files, opened, read_exactly
from .search_values import Budget, FoundMatches, KeyQuery, LogView, Match, SegmentView
from .searched_segment import SearchedSegment

__all__ = ["find_id", "find_key", "read_matches"]


def find_id(files: Files, logs: Sequence[LogView], message_id: int, limit: int, budget: Budget) -> FoundMatches:
    """The messages with this id, at most `limit`: one, unless Java brokers gave it. Worker thread."""
    found = FoundMatches()
    for log in logs:
        for view in reversed(log.segments):
            if len(found.matches) >= limit:
                return found
            with SearchedSegment(files, view, found, budget) as segment:
                if segment.usable and (number := _find_id_in(segment, message_id)) is not None:
                    found.matches.append(segment.match(log.partition, number))
    return found


def _find_id_in(segment: SearchedSegment, message_id: int) -> int | None:
    view, covered = segment.view, segment.covered
    if covered < view.end:
        number = segment.find_id(message_id, covered, view.end, ascending=False)
        if number is not None:
            return number
    for block in reversed(segment.blocks):
        if block.lowest_id <= message_id <= block.highest_id:
            number = segment.find_id(message_id, block.start, block.end, ascending=block.ascending)
            if number is not None:
                return number
    return None


def find_key(files: Files, logs: Sequence[LogView], query: KeyQuery, budget: Budget) -> FoundMatches:
    """The messages with a key, at most `limit` of each log, in the order asked for. Worker thread."""
    found = FoundMatches()
    for log in logs:
        left = query.limit
        for view in log.segments if query.oldest_first else reversed(log.segments):
            with SearchedSegment(files, view, found, budget) as segment:
                for match in _matches(segment, log.partition, query):
                    if not left:
                        found.more = True
                        break
                    found.matches.append(match)
                    left -= 1
            if found.more and not left:
                break
    return found


def _matches(segment: SearchedSegment, partition: int, query: KeyQuery) -> Iterator[Match]:
    """The records with the key, in the order asked for."""
    view = segment.view
    if not segment.usable or not len(segment.reader):
        return
    low, high = segment.range_of(query.begin_ms, query.end_ms)
    for start in _parts(segment, view.first_offset + low, view.first_offset + high, query.oldest_first):
        positions = segment.positions(start, key_hash(query.key), low, high, oldest_first=query.oldest_first)
        for position in positions:
            has_key = segment.has_key(position, query.key)
            if has_key is None:
                segment.found.unsearched += high - low
                return
            if has_key:
                yield segment.match(partition, segment.reader.starting_before(view.first_offset + position))


def _parts(segment: SearchedSegment, start: int, end: int, oldest_first: bool) -> list[int]:
    """Where the blocks begin that overlap bytes [start, end) of the partition, and what no block covers."""
    if start >= end:
        return []
    parts = [block.start for block in segment.blocks if block.start < end and block.end > start]
    if segment.covered < end:
        parts.append(segment.covered)
    return parts if oldest_first else parts[::-1]


def read_matches(files: Files, matches: Sequence[Match], max_bytes: int) -> list[tuple[Match, bytes]]:
    """The records of the matches as far as `max_bytes` go, the first one whole whatever its size. Worker thread.

    Without those that retention has taken meanwhile. Raises OSError.
    """
    records: list[tuple[Match, bytes]] = []
    for match in matches:
        if records and match.size > max_bytes:
            break
        data = _read(files, match.view, match)
        if data is not None:
            records.append((match, data))
            max_bytes -= match.size
    return records


def _read(files: Files, view: SegmentView, match: Match) -> bytes | None:
    try:
        with opened(files, view.path) as fd:
            return read_exactly(files, fd, match.size, match.offset - view.first_offset)
    except FileNotFoundError:
        return None
