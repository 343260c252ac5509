"""Prepare searches for messages by id and by key, and keep what makes later searches faster. A search runs in two
threads; this module has the part for the thread that owns the store.

`Searching` makes snapshots of partitions. search.py searches them in a worker thread. Afterwards `Searching` keeps the
reusable results.
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
"""The maximum duration of a search. After this many seconds, a search stops reading and returns the matches found so
far. The limit is below the 10 s for which clients wait for an answer.
"""


class KeyQuery(NamedTuple):
    """A search for messages with `key` that were stored at `begin_ms` … `end_ms` (Unix ms). From each partition it
    returns at most `limit` of these messages: the newest ones, or the oldest ones if oldest_first is set.
    """

    key: str
    limit: int
    begin_ms: int = 0
    end_ms: int = INT64_MAX
    oldest_first: bool = False


class Recent(NamedTuple):
    """The key entries (key hashes with positions) that a search has read from the records in bytes [start, end) of a
    partition, sorted. The search read these records themselves because no block of a key file covered them. The entries
    are kept so that later searches need not read the records again.
    """

    start: int
    end: int
    entries: Entries


class SegmentView(NamedTuple):
    """A snapshot of a segment, which the thread that owns the store makes for a search. The segment is readable up to
    byte offset `end`.

    segment_index: the segment's index object, which only the thread that owns the store may use. The search runs in
    another thread, so it reads the index units through `units`. If the segment had no index when the snapshot was made,
    segment_index is None and `units` is empty. keys: the value of Segment.keys.
    """

    segment: Segment
    end: int
    segment_index: Index | None
    units: UnitReader
    keys: tuple[KeyBlock, ...] | None
    recent: Recent | None


class LogView(NamedTuple):
    """A snapshot of a partition for a search: its readable segments, oldest first."""

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
    """Whether there are more matches than the limit allows to return."""
    learned: list[tuple[Segment, tuple[KeyBlock, ...]]] = field(default_factory=list)
    """Segments whose key file this search has read for the first time, each with the blocks of the file."""
    damaged: list[tuple[Segment, Index, IndexDamaged]] = field(default_factory=list)
    """Segments whose index the search found damaged, each with the index and the error."""
    lost: list[Segment] = field(default_factory=list)
    """Segments whose key file had been read earlier but was missing in this search."""
    recent: list[tuple[Segment, Recent]] = field(default_factory=list)


class Budget:
    """The number of bytes that a search may still read, and the time that it may still take. All reads of a search
    share one Budget; they run one after the other, so no lock is needed.
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
        """The caller wants to read `count` bytes. Return how many of them it is allowed to read, and subtract this
        number from the budget.
        """
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
        """Return a view of the log: a snapshot of the data that readers may see. The call copies the index units that
        are only in memory, 2 MiB at most.
        """
        end = log.visible_end
        return LogView(log.partition, [self._view(each, end) for each in log.segments if each.first_offset < end])

    def _view(self, segment: Segment, visible_end: int) -> SegmentView:
        index = segment.index
        units = UnitReader(self._files, segment.index_path, 0, 0) if index is None else index.reader(self._files)
        end = min(segment.end, visible_end)
        return SegmentView(segment, end, index, units, segment.keys, self._recent.get(segment))

    def take_in(self, found: FoundMatches, logs: Sequence[PartitionLog]) -> None:
        """Process the results of a search in these logs, except its matches: keep what the search has read from key
        files and records for later searches, and let the indexes that it found damaged and the key files that it found
        missing be rebuilt.
        """
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
