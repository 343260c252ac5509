"""The files of one segment while it is searched, and what is in them. Worker thread."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
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
    keys_of_attribute,
)

from . import tuning
from .files import Files, read_exactly
from .index import UNIT_BYTES, IndexDamaged, UnitArray
from .key_index import BlockEntries, KeyBlock, hash_bounds, position_of, read_blocks, scan_keys
from .search_values import Budget, FoundMatches, Match, Recent, SegmentView
from .unit_reader import UnitReader

__all__ = ["SearchedSegment"]

_log = logging.getLogger(__name__)


class SearchedSegment:
    """Opens what it needs when it is needed. Use as a context manager: inside, `usable` says whether there is anything.

    What cannot be read is logged and counted in `found` as not searched; a segment that retention has taken is empty.
    """

    def __init__(self, files: Files, view: SegmentView, found: FoundMatches, budget: Budget) -> None:
        self.view = view
        self.found = found
        self.usable = view.stored is not None
        self.reader = UnitReader(files, view.index_path, view.stored or 0, view.crc, view.tail)
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
        return self.view.end - self.view.first_offset

    def _cannot(self, error: Exception) -> None:
        try:
            self._files.status(self.view.path)
        except FileNotFoundError:
            return  # retention was faster
        except OSError as worse:
            error = worse
        if isinstance(error, IndexDamaged) and self.view.segment_index is not None:
            self.found.damaged.append((self.view.segment, self.view.segment_index, error))
        else:
            _log.error("%s cannot be searched: %s", self.view.path, error)
        self.found.unsearched += self._size

    def _fd(self, path: str) -> int:
        if path not in self._fds:
            self._fds[path] = self._files.open(path, os.O_RDONLY)
        return self._fds[path]

    @property
    def blocks(self) -> tuple[KeyBlock, ...]:
        """The blocks of its key file; none if that is missing."""
        if self._blocks is None:
            self._blocks = self._read_blocks()
        return self._blocks

    def _read_blocks(self) -> tuple[KeyBlock, ...]:
        view = self.view
        if view.keys is None:
            blocks = read_blocks(self._files, view.keys_path, view.path, view.first_offset, view.end)
            self.found.learned.append((view.segment, blocks))
            return blocks
        try:
            if view.keys:
                self._fd(view.keys_path)
        except FileNotFoundError:
            self.found.lost.append(view.segment)
            return ()
        return view.keys

    @property
    def covered(self) -> int:
        """Up to which byte of the partition its blocks go."""
        return self.blocks[-1].end if self.blocks else self.view.first_offset

    # --- by id --------------------------------------------------------------------------------------------------------

    def find_id(self, message_id: int, start: int, end: int, *, ascending: bool) -> int | None:
        """Number of the unit with this id of a record in [start, end). ascending: their ids are known to be sorted."""
        first = self.reader.starting_before(start) if start > self.view.first_offset else 0
        last = self.reader.starting_before(end)
        wanted = 0 if ascending else (last - first) * UNIT_BYTES
        if self._budget.take(wanted) < wanted:
            self.found.unsearched += end - start
            return None
        return self.reader.with_id(message_id, first, last, ascending=ascending)

    # --- by key -------------------------------------------------------------------------------------------------------

    def positions(self, start: int, hashed: int, low: int, high: int, *, oldest_first: bool) -> Iterator[int]:
        """Positions in [low, high) of records that may have a key with this hash.

        start: offset where the block that is searched begins, or `covered` for what no block covers.
        """
        block = next((block for block in self.blocks if block.start == start), None)
        if block is not None:
            entries = BlockEntries(self._files, self._fd(self.view.keys_path), block)
            numbers = entries.of_hash(hashed, low, high)
            for number in numbers if oldest_first else reversed(numbers):
                yield position_of(entries[number])
        else:
            low = max(low, self.covered - self.view.first_offset)  # a block may have been written since it was read
            recent = self._recent().entries
            first, last = recent.searchsorted(np.array(hash_bounds(hashed, low, high), np.uint64)).tolist()
            found = recent[first:last].tolist()
            yield from map(position_of, found if oldest_first else reversed(found))

    def _recent(self) -> Recent:
        """Entries of what no block covers: those kept from earlier searches, and those of what came since.

        The newest part comes first; if the budget does not allow for all of it, nothing is kept.
        """
        view, known = self.view, self.view.recent
        if known is None or not known.start <= self.covered <= known.end:
            known = Recent(self.covered, self.covered, np.empty(0, np.uint64))
        if known.end >= view.end:
            return known
        entries, reached = [known.entries], view.end
        for units in self._newest_first(known.end):
            entries.append(scan_keys(self._files, self._fd(view.path), units, view.first_offset))
            reached = int(units[0]["offset"])
        read = Recent(known.start, view.end, np.sort(np.concatenate(entries)))
        if reached > known.end:
            self.found.unsearched += reached - known.end
        else:
            self.found.recent.append((view.segment, read))
        return read

    def _newest_first(self, start: int) -> Iterator[UnitArray]:
        """Units of the records from `start` on, in pieces of which the last comes first, as far as the budget goes."""
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
        """The record of a unit."""
        offset, _, time_ms, size, _ = self.reader.unit(number)
        return Match(time_ms, partition, offset, size, self.view)

    def has_key(self, position: int, key: str) -> bool | None:
        """Whether the record at `position` of the segment has `key`; None if the budget does not allow to look."""
        if self._budget.take(tuning.CANDIDATE_BYTES) < tuning.CANDIDATE_BYTES:
            return None
        fd = self._fd(self.view.path)
        data = read_exactly(self._files, fd, tuning.CANDIDATE_BYTES, position)
        if len(data) < HEADER_BYTES + 4:
            return False
        length, _, _, flag = HEADER.unpack_from(data)
        wanted = ATTRIBUTE_FLAG | PROPERTIES_FLAG
        announced = int.from_bytes(data[HEADER_BYTES : HEADER_BYTES + 4], "big", signed=True)
        if flag & wanted != wanted or not 0 <= announced <= length - 4:
            return False
        if HEADER_BYTES + 4 + announced > len(data):
            data = read_exactly(self._files, fd, HEADER_BYTES + 4 + announced, position)
        attribute = attribute_of(data[HEADER_BYTES : HEADER_BYTES + 4 + announced], flag)
        return attribute is not None and key in keys_of_attribute(attribute)

    def range_of(self, begin_ms: int, end_ms: int) -> tuple[int, int]:
        """Positions between which records were stored at `begin_ms` … `end_ms` (Unix ms)."""
        low, high = 0, self._size
        if begin_ms > 0:
            low = self._position(self.reader.stored_before(begin_ms))
        if end_ms < abs(self.reader.unit(len(self.reader) - 1)[2]):
            high = min(high, self._position(self.reader.stored_before(end_ms + 1)))
        return low, high

    def _position(self, number: int) -> int:
        return self.reader.unit(number)[0] - self.view.first_offset if number < len(self.reader) else self._size
