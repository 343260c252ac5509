"""Run functions in worker threads, and return their results through callbacks."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

__all__ = ["RunInThread", "Turns", "call_safely"]

_log = logging.getLogger(__name__)

RunInThread = Callable[[Callable[[], Any], Callable[[Any], None]], None]
"""run_in_thread(fn, done): runs fn in a worker thread, later calls done(result or exception) on the owning thread."""


def call_safely(callback: Callable[..., None], *arguments: object) -> None:
    """Call `callback`. If it raises an exception, which means that it has a bug, log the exception and do not raise it,
    so that the caller can still call other callbacks.
    """
    try:
        callback(*arguments)
    except Exception:
        _log.exception("%r failed", callback)


class Turns:
    """Shares worker threads fairly: runs functions with `run_in_thread`, at most `limit` at once. Only the thread that
    created this object may use it. `run_in_thread` may be any function that starts work and calls `done` at the end of
    the work.

    Each key has its own queue, and the queues take turns. So even if one key has many calls, another key still gets its
    share. Invariant: a key is in `_waiting` as long as calls with this key wait, and the order of the keys in
    `_waiting` is the order of their turns.
    """

    def __init__(
        self,
        run_in_thread: RunInThread,
        limit: int,
        *,
        pause: Callable[[], float] = lambda: 0.0,
        call_later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        """pause: returns how many seconds the next call must wait before it may start; 0 if it need not wait.
        call_later: schedules the end of this wait.
        """
        self._run_in_thread = run_in_thread
        self._limit = limit
        self._pause = pause
        self._call_later = call_later
        self._waiting: dict[Hashable, deque[tuple[Callable[[], Any], Callable[[Any], None]]]] = {}
        self._running = 0
        self._pausing = False

    def __len__(self) -> int:
        """Return the number of calls that wait for their turn."""
        return sum(map(len, self._waiting.values()))

    def run(self, key: Hashable, function: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run `function` in a worker thread when its turn comes, then call `done(result or exception)` on this
        thread.
        """
        self._waiting.setdefault(key, deque()).append((function, done))
        self._start()

    def _start(self) -> None:
        while self._waiting and self._running < self._limit and not self._pausing:
            seconds = self._pause()
            if seconds > 0 and self._call_later is not None:
                self._pausing = True
                self._call_later(seconds, self._go_on)
                return
            key = next(iter(self._waiting))
            queue = self._waiting.pop(key)
            function, done = queue.popleft()
            if queue:
                self._waiting[key] = queue  # behind all others
            self._running += 1
            self._run_in_thread(function, partial(self._ended, done))

    def _go_on(self) -> None:
        self._pausing = False
        self._start()

    def _ended(self, done: Callable[[Any], None], result: Any) -> None:
        self._running -= 1
        try:
            done(result)
        finally:
            self._start()
