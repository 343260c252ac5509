"""In front of a broker: loses the answers of chosen requests, which the broker has carried out."""

from __future__ import annotations

import threading
from collections import Counter

from tests.doubles.proxy import Passes, Proxy

__all__ = ["LosingProxy"]

_KEPT_BYTES = 4096


class LosingProxy(Proxy):
    """Passes everything on, but the answer to a request with a marked text: that is dropped, and its connection ends.

    Any thread may mark.
    """

    def __init__(self, port: int) -> None:
        """port: where the broker listens."""
        self.lost: Counter[bytes] = Counter()
        """Answers lost, by mark."""
        self.watched: dict[bytes, list[int]] = {}
        """How often each piece of a request had these bytes, if it had them."""
        self._marks: set[bytes] = set()
        self._lock = threading.Lock()
        super().__init__(("127.0.0.1", port))

    def lose(self, mark: bytes) -> None:
        """The answer to the next request with these bytes. They must stand in nothing else that clients send."""
        with self._lock:
            self._marks.add(mark)

    def ways(self) -> tuple[Passes, Passes]:
        losing: list[bytes] = []
        seen = b""

        def request(data: bytes) -> tuple[bytes, bool]:
            nonlocal seen
            for mark, counts in self.watched.items():
                if count := data.count(mark):
                    counts.append(count)
            seen = seen[-_KEPT_BYTES:] + data
            with self._lock:
                found = [mark for mark in self._marks if mark in seen]
                self._marks.difference_update(found)
            losing.extend(found)
            return data, True

        def answer(data: bytes) -> tuple[bytes, bool]:
            self.lost.update(losing)
            return (b"", False) if losing else (data, True)

        return request, answer
