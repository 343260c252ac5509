"""What a search for messages is given and gives: snapshots of partitions, bounds, matches."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from metaq.protocol.limits import INT64_MAX

from .index import Index, IndexDamaged
from .key_index import Entries, KeyBlock
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
    "SegmentView",
]

MAX_SEARCH_BYTES = 1 << 30
"""Data and index units that one search reads."""

MAX_SEARCH_SECONDS = 5.0
"""After how long a search ends with what it has found; clients wait 10 s for an answer."""


class KeyQuery(NamedTuple):
    """Messages with `key` stored at `begin_ms` … `end_ms` (Unix ms), in each partition the last or first `limit`."""

    key: str
    limit: int
    begin_ms: int = 0
    end_ms: int = INT64_MAX
    oldest_first: bool = False


class Recent(NamedTuple):
    """Entries, sorted, of records in [start, end) of a partition that no block covers, kept from earlier searches."""

    start: int
    end: int
    entries: Entries


class SegmentView(NamedTuple):
    """A segment as it was on the owning thread: readable up to `end`, `stored` units in the index file (`crc` as
    of the Index), then `tail`.

    segment_index: for the owning thread. It and `stored` are None while the index is rebuilt. keys: as Segment.keys.
    """

    segment: Segment
    path: str
    index_path: str
    keys_path: str
    first_offset: int
    end: int
    segment_index: Index | None
    stored: int | None
    crc: int
    tail: bytes
    keys: tuple[KeyBlock, ...] | None
    recent: Recent | None


class LogView(NamedTuple):
    """The readable segments of a partition, oldest first."""

    partition: int
    segments: list[SegmentView]


class Match(NamedTuple):
    """A record that was asked for. time_ms: as in the index, negative for a bound (index.py)."""

    time_ms: int
    partition: int
    offset: int
    size: int
    view: SegmentView


@dataclass(slots=True)
class FoundMatches:
    """What a search has found and learned. unsearched: bytes of data that it did not look at."""

    matches: list[Match] = field(default_factory=list)
    unsearched: int = 0
    more: bool = False
    """Whether there are more matches than were asked for."""
    learned: list[tuple[Segment, tuple[KeyBlock, ...]]] = field(default_factory=list)
    """Blocks of segments of which they were not known."""
    damaged: list[tuple[Segment, Index, IndexDamaged]] = field(default_factory=list)
    """Segments with damage in their index."""
    lost: list[Segment] = field(default_factory=list)
    """Segments whose key file is no longer there."""
    recent: list[tuple[Segment, Recent]] = field(default_factory=list)


class Budget:
    """What is left of a search's bounds; shared by all of its steps, one after the other."""

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
        """Whether nothing more may be read."""
        return self._bytes_left <= 0 or self._clock() >= self._deadline

    def take(self, count: int) -> int:
        """How many of `count` bytes may be read; they count from now on."""
        allowed = 0 if self.spent else min(count, self._bytes_left)
        self._bytes_left -= allowed
        return allowed
