"""Searches on the owning thread: snapshots of partitions, and what searches before have read."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from metaq.protocol.errors import StoreError

from . import tuning
from .index import Index, IndexDamaged
from .key_building import KeyBuilding
from .partition_log import PartitionLog
from .search_values import FoundMatches, LogView, Recent, SegmentView
from .segment import Segment

__all__ = ["Searching"]

_log = logging.getLogger(__name__)


class Searching:
    """Makes the views that search.py works on, and takes in what it has learned. Owning thread."""

    def __init__(self, building: KeyBuilding, max_recent_entries: int = tuning.MAX_RECENT_ENTRIES) -> None:
        self._building = building
        self._recent: dict[Segment, Recent] = {}  # the one used last at the end
        self._kept = 0
        self._max_kept = max_recent_entries

    def view(self, log: PartitionLog) -> LogView:
        """The log as it can be read now. Copies the index units that are only in memory, 2 MiB at most."""
        end = log.visible_end
        return LogView(log.partition, [self._view(each, end) for each in log.segments if each.first_offset < end])

    def _view(self, segment: Segment, visible_end: int) -> SegmentView:
        index = segment.index
        return SegmentView(
            segment,
            segment.path,
            segment.index_path,
            segment.keys_path,
            segment.first_offset,
            min(segment.end, visible_end),
            index,
            None if index is None else index.stored,
            0 if index is None else index.crc,
            b"" if index is None else index.tail(),
            segment.keys,
            self._recent.get(segment),
        )

    def take_in(self, found: FoundMatches, logs: Sequence[PartitionLog]) -> None:
        """Keep what a search in these logs has learned."""
        for segment, blocks in found.learned:
            if segment.keys is None and not blocks:  # others are checked before they are believed for ever
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
    except StoreError as error:  # the search is answered all the same
        _log.error("%s", error)
