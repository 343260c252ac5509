"""Prepare searches for messages by id and by key, and keep their results. This module has the part of a search that
runs on the thread that owns the store.

`Searching` makes snapshots of partitions. search.py searches them in a worker thread. `Searching` then keeps reusable
results.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from metaq.protocol.errors import StoreError
from metaq.protocol.limits import INT64_MAX

from . import tuning
from .files import Files
from .index import Index, IndexDamaged, UnitReader
from .key_building import KeyBuilding
from .key_index import Entries, KeyBlock
from .partition_log import PartitionLog
from .segment import Segment

__all__ = [
    "MAX_SEARCH_BYTES",
    "MAX_SEARCH_SECONDS",
    "Budget",
    "FoundMatches",
    "KeyQuery",
    "LogView",
    "Match",
    "Recent",
    "Searching",
    "SegmentView",
]

_log = logging.getLogger(__name__)

MAX_SEARCH_BYTES = 1 << 30
"""The maximum number of bytes of data and index units that one search reads."""

MAX_SEARCH_SECONDS = 5.0
"""The maximum duration of a search. After this many seconds, a search returns the matches found so far. Clients wait 10
s for an answer.
"""


class KeyQuery(NamedTuple):
    """A search for messages with `key` that were stored at `begin_ms` … `end_ms` (Unix ms). In each partition it finds
    the newest `limit` messages, or the oldest `limit` messages if oldest_first is set.
    """

    key: str
    limit: int
    begin_ms: int = 0
    end_ms: int = INT64_MAX
    oldest_first: bool = False


class Recent(NamedTuple):
    """Sorted key entries of the records in bytes [start, end) of a partition. No block of a key file covers these
    records. The entries are kept from earlier searches.
    """

    start: int
    end: int
    entries: Entries


class SegmentView(NamedTuple):
    """The state of a segment when the owning thread prepared a search. The segment is readable up to byte offset `end`.

    segment_index: only the owning thread may use it. While the index is being rebuilt, segment_index is None and
    `units` are empty. keys: the value of Segment.keys.
    """

    segment: Segment
    end: int
    segment_index: Index | None
    units: UnitReader
    keys: tuple[KeyBlock, ...] | None
    recent: Recent | None


class LogView(NamedTuple):
    """The readable segments of a partition, oldest first."""

    partition: int
    segments: list[SegmentView]


class Match(NamedTuple):
    """A record that matches a search. time_ms: the store time from the index; a negative number means that only an
    upper bound of the store time is known (index.py).
    """

    time_ms: int
    partition: int
    offset: int
    size: int
    segment: Segment


@dataclass(slots=True)
class FoundMatches:
    """The results of a search. unsearched: the number of bytes of data that the search left out."""

    matches: list[Match] = field(default_factory=list)
    unsearched: int = 0
    more: bool = False
    """Whether there are more matches than requested."""
    learned: list[tuple[Segment, tuple[KeyBlock, ...]]] = field(default_factory=list)
    """Segments whose key-file blocks were unknown before this search, each with its blocks."""
    damaged: list[tuple[Segment, Index, IndexDamaged]] = field(default_factory=list)
    """Segments with a damaged index."""
    lost: list[Segment] = field(default_factory=list)
    """Segments whose key file is gone."""
    recent: list[tuple[Segment, Recent]] = field(default_factory=list)


class Budget:
    """The number of bytes that a search may still read, and the time that it may still take. All steps of a search
    share one Budget and use it one after the other.
    """

    def __init__(
        self,
        bytes_left: int = MAX_SEARCH_BYTES,
        seconds: float = MAX_SEARCH_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bytes_left = bytes_left
        self._clock = clock
        self._deadline = clock() + seconds

    @property
    def spent(self) -> bool:
        """Whether the limits are reached, so that nothing more may be read."""
        return self._bytes_left <= 0 or self._clock() >= self._deadline

    def take(self, count: int) -> int:
        """Return how many of `count` bytes may be read, and subtract them from the budget."""
        allowed = 0 if self.spent else min(count, self._bytes_left)
        self._bytes_left -= allowed
        return allowed


class Searching:
    """Creates the views (snapshots of partitions) that search.py searches, and keeps results that later searches can
    use. Only the thread that owns the store may use this object.
    """

    def __init__(self, files: Files, building: KeyBuilding) -> None:
        self._files = files
        self._building = building
        self._recent: dict[Segment, Recent] = {}  # the most recently used one at the end
        self._kept = 0
        self._max_kept = tuning.MAX_RECENT_ENTRIES

    def view(self, log: PartitionLog) -> LogView:
        """Return a view, that is a snapshot, of the readable log. The call copies the index units that are only in
        memory, 2 MiB at most.
        """
        end = log.visible_end
        return LogView(log.partition, [self._view(each, end) for each in log.segments if each.first_offset < end])

    def _view(self, segment: Segment, visible_end: int) -> SegmentView:
        index = segment.index
        units = UnitReader(self._files, segment.index_path, 0, 0) if index is None else index.reader(self._files)
        end = min(segment.end, visible_end)
        return SegmentView(segment, end, index, units, segment.keys, self._recent.get(segment))

    def take_in(self, found: FoundMatches, logs: Sequence[PartitionLog]) -> None:
        """Keep the reusable results of a search in these logs."""
        for segment, blocks in found.learned:
            if segment.keys is None and not blocks:  # blocks are checked before they are trusted for ever
                segment.keys = blocks
        for segment in found.lost:
            segment.keys = None
        for segment, index, damage in found.damaged:
            for log in logs:
                if segment in log.segments:
                    _give_up(log, segment, index, damage)
        lost = set(found.lost)
        for log in logs if lost else ():
            if not lost.isdisjoint(log.segments):
                self._building.revisit(log)
        for segment, recent in found.recent:
            self._keep(segment, recent)

    def _keep(self, segment: Segment, recent: Recent) -> None:
        before = self._recent.pop(segment, None)
        if before is not None:
            self._kept -= len(before.entries)
        if len(recent.entries) > self._max_kept:
            return
        self._recent[segment] = recent
        self._kept += len(recent.entries)
        while self._kept > self._max_kept:
            oldest = next(iter(self._recent))
            self._kept -= len(self._recent.pop(oldest).entries)


def _give_up(log: PartitionLog, segment: Segment, index: Index, damage: IndexDamaged) -> None:
    try:
        log.index_damaged(segment, index, damage)
    except StoreError as error:  # the search is answered nevertheless
        _log.error("%s", error)
