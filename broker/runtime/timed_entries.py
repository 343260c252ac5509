"""A collection of objects that is ordered by a time of each object. The time of an object may change."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Generic, TypeVar

__all__ = ["MOVED_ENTRIES", "TimedEntries"]

E = TypeVar("E", bound=tuple[Any, ...])

MOVED_ENTRIES = 4
"""While `TimedEntries` replaces its heap by a new one, each `push` examines this many entries of the old heap. Two
entries per push would be enough to move all old entries before the new heap has too many entries.
"""

_NONE: list[Any] = []
"""An empty list that all TimedEntries objects share as their old heap while they have no old entries. This list is
never changed.
"""


class TimedEntries(Generic[E]):
    """A heap of entries; an entry is stale when its object is gone or has a different time now. When the heap has twice
    as many entries as there are current objects, it becomes the old heap. Each push then examines a few entries of the
    old heap and moves those that are not stale to a new heap. So no single push is slow even if there are many entries.
    """

    __slots__ = ("_new", "_old")

    def __init__(self) -> None:
        self._new: list[E] = []
        self._old: list[E] = _NONE

    def __len__(self) -> int:
        return len(self._new) + len(self._old)

    def clear(self) -> None:
        """Forget all entries."""
        self._new, self._old = [], _NONE

    @property
    def first(self) -> E:
        """The smallest entry; there must be one."""
        return self._first_heap()[0]

    def pop(self) -> E:
        """Remove and return the smallest entry."""
        return heappop(self._first_heap())

    def drop(self) -> None:
        """Remove one entry, no matter which."""
        (self._old or self._new).pop()

    def push(self, entry: E, things: int, is_current: Callable[[E], bool]) -> None:
        """Add an entry. things: the number of objects, which is the maximum number of entries that are not stale.
        is_current: returns whether an entry is not stale.
        """
        heappush(self._new, entry)
        for _ in range(min(MOVED_ENTRIES, len(self._old))):
            each = self._old.pop()  # a heap without its last entry is still a heap
            if is_current(each):
                heappush(self._new, each)
        if not self._old and len(self._new) > 2 * (things + 32):
            self._new, self._old = [], self._new

    def _first_heap(self) -> list[E]:
        if not self._old or (self._new and self._new[0] < self._old[0]):
            return self._new
        return self._old
