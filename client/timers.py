"""Things to do later, on one thread that is started with the first of them."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

__all__ = ["Timers"]

log = logging.getLogger(__name__)


class Timers:
    """Runs each action once, at or soon after its time, one after another on a thread of its own. Any thread may add.

    Cost of adding: O(log waiting).
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._clock = clock
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def call_later(self, seconds: float, action: Callable[[], None]) -> None:
        """Run `action` in `seconds`; dropped if `close` comes first."""
        with self._changed:
            if self._closed:
                return
            entry = (self._clock() + seconds, next(self._order), action)
            heapq.heappush(self._heap, entry)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            elif self._heap[0] is entry:
                self._changed.notify()

    def close(self, timeout: float = 1.0) -> None:
        """Drop what waits; wait at most `timeout` seconds for an action that runs. Idempotent."""
        with self._changed:
            self._closed = True
            self._heap.clear()
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _run(self) -> None:
        while (action := self._next()) is not None:
            try:
                action()
            except Exception:  # one action's bug must not stop the others
                log.exception("%s: an action failed", self._name)

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._closed:
                pause = self._heap[0][0] - self._clock() if self._heap else None
                if pause is not None and pause <= 0:
                    return heapq.heappop(self._heap)[2]
                self._changed.wait(pause)
        return None
