"""Find stored messages by id and by key. A worker thread searches a snapshot of some partitions.

To find a key, it reads the segments' key files. A key file consists of blocks; each block lists hashes of the keys of a
range of records. Records with the right hash are read to check whether they have the key. At the end of a growing
segment, there are records that no block covers yet. These records are all read. The search returns the hashes of the
keys of these records together with its matches. The caller keeps the hashes and passes them to the next search, which
then need not read the same records. A search is allowed to read only a limited number of bytes. The bytes that it
leaves out are counted, so that the caller can report them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

import numpy as np

from metaq.protocol.errors import StoreError
from metaq.protocol.record import (
    ATTRIBUTE_FLAG,
    HEADER,
    HEADER_BYTES,
    PROPERTIES_FLAG,
    attribute_of,
    key_hash,
    keys_of_attribute,
)

from . import tuning
from .files import Files, opened, read_exactly
from .index import UNIT_BYTES, IndexDamaged, UnitArray
from .key_index import KeyBlock, entries_around, positions_of, read_blocks, scan_keys
from .searching import Budget, FoundMatches, KeyQuery, LogView, Match, Recent, SegmentView

__all__ = ["find_id", "find_key", "read_matches"]

_log = logging.getLogger(__name__)


def find_id(files: Files, logs: Sequence[LogView], message_id: int, limit: int, budget: Budget) -> FoundMatches:
    """Return at most `limit` messages that have this id. Several messages can have one id only if Java brokers have
    assigned it. Runs in a worker thread.
    """
    found = FoundMatches()
    for log in logs:
        for view in reversed(log.segments):
            if len(found.matches) >= limit:
                return found
            with _SearchedSegment(files, view, found, budget) as segment:
                if segment.usable and (number := _find_id_in(segment, message_id)) is not None:
                    found.matches.append(segment.match(log.partition, number))
    return found


def _find_id_in(segment: _SearchedSegment, message_id: int) -> int | None:
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
    """Return the messages that have the query's key, at most `query.limit` from each log: the oldest or the newest
    ones, as the query says. Runs in a worker thread.
    """
    found = FoundMatches()
    for log in logs:
        left = query.limit
        for view in log.segments if query.oldest_first else reversed(log.segments):
            with _SearchedSegment(files, view, found, budget) as segment:
                for match in _matches(segment, log.partition, query):
                    if not left:
                        found.more = True
                        break
                    found.matches.append(match)
                    left -= 1
            if found.more and not left:
                break
    return found


def _matches(segment: _SearchedSegment, partition: int, query: KeyQuery) -> Iterator[Match]:
    """Yield the segment's records that have the query's key, oldest first if `query.oldest_first` is set, else newest
    first.
    """
    if not segment.usable or not len(segment.reader):
        return
    first_offset = segment.segment.first_offset
    low, high = segment.range_of(query.begin_ms, query.end_ms)
    for start in _parts(segment, first_offset + low, first_offset + high, query.oldest_first):
        positions = segment.positions(start, key_hash(query.key), low, high)
        for position in positions if query.oldest_first else reversed(positions):
            has_key = segment.has_key(position, query.key)
            if has_key is None:
                segment.found.unsearched += high - low
                return
            if has_key:
                yield segment.match(partition, segment.reader.starting_before(first_offset + position))


def _parts(segment: _SearchedSegment, start: int, end: int, oldest_first: bool) -> list[int]:
    """Divide the segment into parts that can be searched for a key. For each part that overlaps bytes [start, end) of
    the partition, return the byte offset where the part begins. A part is the data that one block of the key file
    covers, or the data at the segment's end that no block covers.
    """
    if start >= end:
        return []
    parts = [block.start for block in segment.blocks if block.start < end and block.end > start]
    if segment.covered < end:
        parts.append(segment.covered)
    return parts if oldest_first else parts[::-1]


def read_matches(files: Files, matches: Sequence[Match], max_bytes: int) -> list[tuple[Match, bytes]]:
    """Read the records of these matches, in order, and return each match with its record's bytes. Stop before the
    records together exceed `max_bytes`, but return the first record even if it is larger. Runs in a worker thread.

    Records that retention has removed since the search are left out. Raises OSError.
    """
    records: list[tuple[Match, bytes]] = []
    for match in matches:
        if records and match.size > max_bytes:
            break
        with suppress(FileNotFoundError), opened(files, match.segment.path) as fd:
            data = read_exactly(files, fd, match.size, match.offset - match.segment.first_offset)
            records.append((match, data))
            max_bytes -= match.size
    return records


class _SearchedSegment:
    """One segment that a search reads. The object opens the segment's files when they are needed. Use the object as a
    context manager; inside the `with` block, `usable` says whether the segment can be searched, that is, whether its
    index can be read.

    If the segment cannot be read, the error is logged, and the segment's bytes are counted in `found` as not searched.
    A segment that retention has removed is treated as empty.
    """

    def __init__(self, files: Files, view: SegmentView, found: FoundMatches, budget: Budget) -> None:
        self.view = view
        self.segment = view.segment
        self.found = found
        self.usable = view.segment_index is not None
        self.reader = view.units
        self._files = files
        self._budget = budget
        self._fds: dict[str, int] = {}
        self._blocks: tuple[KeyBlock, ...] | None = None

    def __enter__(self) -> Self:
        if self.usable:
            try:
                self.reader.__enter__()
            except (OSError, StoreError, IndexDamaged) as error:
                self.usable = False
                self._cannot(error)
        else:
            self.found.unsearched += self._size
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.reader.__exit__(kind, error, trace)
        for fd in self._fds.values():
            self._files.close(fd)
        if isinstance(error, OSError | StoreError | IndexDamaged):
            self._cannot(error)
            return True
        return False

    @property
    def _size(self) -> int:
        return self.view.end - self.segment.first_offset

    def _cannot(self, error: Exception) -> None:
        try:
            self._files.status(self.segment.path)
        except FileNotFoundError:
            return  # retention took it
        except OSError as worse:
            error = worse
        if isinstance(error, IndexDamaged) and self.view.segment_index is not None:
            self.found.damaged.append((self.segment, self.view.segment_index, error))
        else:
            _log.error("%s cannot be searched: %s", self.segment.path, error)
        self.found.unsearched += self._size

    def _fd(self, path: str) -> int:
        if path not in self._fds:
            self._fds[path] = self._files.open(path, os.O_RDONLY)
        return self._fds[path]

    @property
    def blocks(self) -> tuple[KeyBlock, ...]:
        """The blocks of the segment's key file, which lists the records by the hashes of their keys. There are no
        blocks if the file does not exist.
        """
        if self._blocks is None:
            self._blocks = self._read_blocks()
        return self._blocks

    def _read_blocks(self) -> tuple[KeyBlock, ...]:
        segment, known = self.segment, self.view.keys
        if known is None:
            blocks = read_blocks(self._files, segment.keys_path, segment.path, segment.first_offset, self.view.end)
            self.found.learned.append((segment, blocks))
            return blocks
        try:
            if known:
                self._fd(segment.keys_path)
        except FileNotFoundError:
            self.found.lost.append(segment)
            return ()
        return known

    @property
    def covered(self) -> int:
        """The byte offset in the partition up to which the blocks of the key file cover the segment's data."""
        return self.blocks[-1].end if self.blocks else self.segment.first_offset

    # --- by id --------------------------------------------------------------------------------------------------------

    def find_id(self, message_id: int, start: int, end: int, *, ascending: bool) -> int | None:
        """Find a record that has this id and begins at a byte offset in [start, end), and return the position of the
        record's unit in the index. Return None if there is none, or if the budget does not allow the search. ascending:
        whether the ids are known to be sorted.
        """
        first = self.reader.starting_before(start) if start > self.segment.first_offset else 0
        last = self.reader.starting_before(min(end, self.view.end))  # a block may extend behind the readable data
        wanted = 0 if ascending else (last - first) * UNIT_BYTES
        if self._budget.take(wanted) < wanted:
            self.found.unsearched += end - start
            return None
        return self.reader.with_id(message_id, first, last, ascending=ascending)

    # --- by key -------------------------------------------------------------------------------------------------------

    def positions(self, start: int, hashed: int, low: int, high: int) -> list[int]:
        """Return the byte positions in the segment, in order, of all records in [low, high) that may have a key with
        this hash.

        Only one part of the segment (see `_parts`) is searched. start: the byte offset where this part begins: where
        the data of a block begin, or `covered` for the part that no block covers.
        """
        block = next((block for block in self.blocks if block.start == start), None)
        if block is not None:
            entries = entries_around(self._files, self._fd(self.segment.keys_path), block, hashed)
        else:
            low = max(low, self.covered - self.segment.first_offset)  # a block may have been written since it was read
            entries = self._recent().entries
        return positions_of(entries, hashed, low, high)

    def _recent(self) -> Recent:
        """Return the key entries (key hashes with positions) of the records that no block covers. Entries that were
        kept from earlier searches are used; only records behind the records of these entries are read.

        The newest records are read first. If the budget is too small to read all of them, the result lacks the oldest
        of these records, and the entries that were read now are not kept for later searches.
        """
        view, known = self.view, self.view.recent
        if known is None or not known.start <= self.covered <= known.end:
            known = Recent(self.covered, self.covered, np.empty(0, np.uint64))
        if known.end >= view.end:
            return known
        entries, reached = [known.entries], view.end
        for units in self._newest_first(known.end):
            entries.append(scan_keys(self._files, self._fd(self.segment.path), units, self.segment.first_offset))
            reached = int(units[0]["offset"])
        read = Recent(known.start, view.end, np.sort(np.concatenate(entries)))
        if reached > known.end:
            self.found.unsearched += reached - known.end
        else:
            self.found.recent.append((self.segment, read))
        return read

    def _newest_first(self, start: int) -> Iterator[UnitArray]:
        """Yield arrays with the index units of the records from byte offset `start` on. The array with the newest
        records comes first. The records' bytes are subtracted from the budget. When the budget is used up, the
        iteration ends, even if older records are left.
        """
        last = self.reader.starting_before(self.view.end)
        first = self.reader.starting_before(start)
        for units in self.reader.chunks_backwards(first, last):
            wanted = int(units[-1]["offset"]) + int(units[-1]["size"]) - int(units[0]["offset"])
            allowed = self._budget.take(wanted)
            if allowed < wanted:
                units = units[int(np.searchsorted(units["offset"], int(units[0]["offset"]) + wanted - allowed)) :]
                if len(units):
                    yield units
                return
            yield units

    def match(self, partition: int, number: int) -> Match:
        """Return a Match for the record whose unit is at position `number` of the segment's index."""
        offset, _, time_ms, size, _ = self.reader.unit(number)
        return Match(time_ms, partition, offset, size, self.segment)

    def has_key(self, position: int, key: str) -> bool | None:
        """Read the record at byte position `position` of the segment, and return whether it has `key`. Return None if
        the budget is too small to read the record.
        """
        if self._budget.take(tuning.CANDIDATE_BYTES) < tuning.CANDIDATE_BYTES:
            return None
        fd = self._fd(self.segment.path)
        data = read_exactly(self._files, fd, tuning.CANDIDATE_BYTES, position)
        if len(data) < HEADER_BYTES + 4:
            return False
        length, _, _, flag = HEADER.unpack_from(data)
        both = ATTRIBUTE_FLAG | PROPERTIES_FLAG
        announced = int.from_bytes(data[HEADER_BYTES : HEADER_BYTES + 4], "big", signed=True)
        if flag & both != both or not 0 <= announced <= length - 4:
            return False
        if (wanted := HEADER_BYTES + 4 + announced) > len(data):
            if self._budget.take(wanted) < wanted:
                return None
            data = read_exactly(self._files, fd, wanted, position)
        attribute = attribute_of(data[HEADER_BYTES:wanted], flag)
        return attribute is not None and any(key in keys for keys in keys_of_attribute(attribute))

    def range_of(self, begin_ms: int, end_ms: int) -> tuple[int, int]:
        """Return the range of byte positions in the segment, start and end, that contains the records stored from
        `begin_ms` to `end_ms` (Unix ms).
        """
        low, high = 0, self._size
        if begin_ms > 0:
            low = self._position(self.reader.stored_before(begin_ms))
        if end_ms < abs(self.reader.unit(len(self.reader) - 1)[2]):
            high = min(high, self._position(self.reader.stored_before(end_ms + 1)))
        return low, high

    def _position(self, number: int) -> int:
        return self.reader.unit(number)[0] - self.segment.first_offset if number < len(self.reader) else self._size
