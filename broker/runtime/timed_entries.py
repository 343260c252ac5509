"""Keep entries for objects, for example for timers, so that the object with the earliest time is found first. The time
of an object can change.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Generic, TypeVar

__all__ = ["MOVED_ENTRIES", "TimedEntries"]

E = TypeVar("E", bound=tuple[Any, ...])

MOVED_ENTRIES = 4
"""While `TimedEntries` replaces its heap by a new one, each `push` examines this many entries of the old heap. Even two
entries per push would be enough to examine all old entries before the new heap must be replaced, too.
"""

_NONE: list[Any] = []
"""An empty list that all TimedEntries objects share as their old heap while they have no old entries. This list is
never changed.
"""


class TimedEntries(Generic[E]):
    """A heap of entries. An entry belongs to an object and begins with the object's time; it is stale when its object
    is gone or has a different time now. When the heap has more than about twice as many entries as there are objects,
    it becomes the old heap, and a new, empty heap is begun. Each later push examines a few entries of the old heap,
    moves those that are not stale to the new heap, and forgets the stale ones. So no single push has to examine all
    entries.
    """

    __slots__ = ("_new", "_old")

    def __init__(self) -> None:
        self._new: list[E] = []
        self._old: list[E] = _NONE

    def __len__(self) -> int:
        return len(self._new) + len(self._old)

    def clear(self) -> None:
        """Remove all entries."""
        self._new, self._old = [], _NONE

    @property
    def first(self) -> E:
        """The smallest entry, stale or not. There must be at least one entry."""
        return self._first_heap()[0]

    def pop(self) -> E:
        """Remove and return the smallest entry."""
        return heappop(self._first_heap())

    def drop(self) -> None:
        """Remove an arbitrary entry."""
        (self._old or self._new).pop()

    def push(self, entry: E, things: int, is_current: Callable[[E], bool]) -> None:
        """Add an entry. things: the number of objects; at most this many entries are not stale. is_current(entry):
        returns True if the entry is not stale.
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
