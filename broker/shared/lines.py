"""Two kinds of queues for messages that wait to be leased: `Line` for new messages; `Again` for messages that were
leased before and, in an ordered group, also for new messages. A partition has one `Line` and one `Again` for each
priority. Every queue yields its messages in the partition's order.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["FRONT", "NO_KEY", "Again", "Line", "QueuedMessage"]

NO_KEY = -1

FRONT = 512
"""How many entries a `Line` converts from its numpy arrays to Python objects at once."""


class QueuedMessage(NamedTuple):
    """A record that waits to be leased. key: in an ordered group the hash of the record's key; NO_KEY if the record has
    no key or the group is not ordered.
    """

    offset: int
    size: int
    key: int = NO_KEY


class Line:
    """A queue of the records of one priority that were never leased, in order of their offsets. Each record takes 12
    bytes of memory. Used on the reactor thread.
    """

    __slots__ = ("_chunks", "_front", "_place", "count")

    def __init__(self) -> None:
        self.count = 0
        self._chunks: deque[tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]] = deque()
        self._front: list[QueuedMessage] = []
        self._place = 0

    def add(self, offsets: npt.NDArray[np.int64], sizes: npt.NDArray[np.int32]) -> None:
        """Add records at the end of the queue. Their offsets are larger than those of the records in the queue."""
        if len(offsets):
            self._chunks.append((offsets, sizes))
            self.count += len(offsets)

    def peek(self) -> QueuedMessage | None:
        """Return the first record; None if there is none."""
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
        """Remove the record that `peek` returned."""
        self._place += 1
        self.count -= 1

    def clear(self) -> None:
        self._chunks.clear()
        self._front.clear()
        self._place = self.count = 0


class Again:
    """A queue of records that were leased before. In an ordered group, it also has new records. The records are added
    in any order and are taken from the queue in the partition's order. A record is not removed when a member settles
    it, so the owner has to check whether the record that `peek` returns still waits to be leased. Used on the reactor
    thread.
    """

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[QueuedMessage] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, waiting: QueuedMessage) -> None:
        heappush(self._heap, waiting)

    def peek(self) -> QueuedMessage | None:
        """Return the first record; None if there is none."""
        return self._heap[0] if self._heap else None

    def pop(self) -> None:
        """Remove the record that `peek` returned."""
        heappop(self._heap)

    def clear(self) -> None:
        self._heap.clear()
