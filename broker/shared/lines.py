"""Messages that wait to be leased: lines in the order of the partition, one for each priority."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["FRONT", "NO_KEY", "Again", "Line", "QueuedMessage"]

NO_KEY = -1

FRONT = 512
"""Entries that a line takes out of numpy's arrays together."""


class QueuedMessage(NamedTuple):
    """A record that may be leased. key: its hash, in a group that takes the records of a key in order."""

    offset: int
    size: int
    key: int = NO_KEY


class Line:
    """Records that nobody has had, of one priority, first to last: 12 bytes for each. Reactor thread."""

    __slots__ = ("_chunks", "_front", "_place", "count")

    def __init__(self) -> None:
        self.count = 0
        self._chunks: deque[tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]] = deque()
        self._front: list[QueuedMessage] = []
        self._place = 0

    def add(self, offsets: npt.NDArray[np.int64], sizes: npt.NDArray[np.int32]) -> None:
        """Behind the last one."""
        if len(offsets):
            self._chunks.append((offsets, sizes))
            self.count += len(offsets)

    def peek(self) -> QueuedMessage | None:
        """The first one."""
        if self._place < len(self._front):
            return self._front[self._place]
        if not self._chunks:
            return None
        offsets, sizes = self._chunks[0]
        self._front = list(map(QueuedMessage, offsets[:FRONT].tolist(), sizes[:FRONT].tolist()))
        self._place = 0
        if len(offsets) > FRONT:
            self._chunks[0] = offsets[FRONT:], sizes[FRONT:]
        else:
            self._chunks.popleft()
        return self._front[0]

    def pop(self) -> None:
        """Take the one that `peek` gave."""
        self._place += 1
        self.count -= 1

    def clear(self) -> None:
        self._chunks.clear()
        self._front.clear()
        self._place = self.count = 0


class Again:
    """Records of one priority that come in no order, and are leased in that of the partition. Their owner looks whether
    they are still there. Reactor thread."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[QueuedMessage] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, waiting: QueuedMessage) -> None:
        heappush(self._heap, waiting)

    def peek(self) -> QueuedMessage | None:
        """The first one."""
        return self._heap[0] if self._heap else None

    def pop(self) -> None:
        """Take the one that `peek` gave."""
        heappop(self._heap)

    def clear(self) -> None:
        self._heap.clear()
