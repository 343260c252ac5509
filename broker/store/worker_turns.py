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
"""The type of run_in_thread(fn, done), which runs fn in a worker thread. When fn has ended, run_in_thread passes fn's
result or exception to `done`, on the thread that called run_in_thread.
"""


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
    created this object may use it. `run_in_thread` need not use threads: it may be any function that starts the work
    and calls `done` when the work has ended.

    Each call of `run` names a key, such as a topic. The calls with the same key wait in one queue, and the queues take
    turns: one call from each queue. Therefore a large number of calls with one key does not delay the calls with
    another key for long.
    Invariant: a key is in `_waiting` as long as calls with this key wait, and the first key in `_waiting` has the next
    turn.
    """

    def __init__(
        self,
        run_in_thread: RunInThread,
        limit: int,
        *,
        pause: Callable[[], float] = lambda: 0.0,
        call_later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        """pause: returns how many seconds must pass before the next function may start, or 0 if it may start at once.
        call_later(seconds, function): used to start the next function after this time.
        """
        self._run_in_thread = run_in_thread
        self._limit = limit
        self._pause = pause
        self._call_later = call_later
        self._waiting: dict[Hashable, deque[tuple[Callable[[], Any], Callable[[Any], None]]]] = {}
        self._running = 0
        self._pausing = False

    def __len__(self) -> int:
        """Return the number of functions that wait for their turn and have not started."""
        return sum(map(len, self._waiting.values()))

    def run(self, key: Hashable, function: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run `function` in a worker thread when the turn of its key comes. After that, call `done(result or
        exception)` on the thread that created this object.
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
