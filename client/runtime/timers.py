"""Run delayed actions on one thread, which starts when the first action is added. Also count down the time for
operations with several steps.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from metaq.coordination.runtime.interrupts import BackgroundThread, Bell, begin_elsewhere
from metaq.coordination.runtime.logs import get_log

__all__ = ["END_SECONDS", "Scheduler", "TimeLeft", "Timers"]

log = get_log(__name__)

END_SECONDS = 1.0
"""close() of a client takes at most this number of seconds longer than its timeout. close() needs the additional time
if waiting for the delivery of messages has used up the timeout, because it must still end connections and sessions
after that.
"""

_Entry = tuple[float, int, Callable[[], None]]


class Scheduler(Protocol):
    """Runs delayed actions one after another: on one thread (Timers), or on an event loop. Any thread may call the
    methods, which Timers describes.
    """

    def call_later(self, seconds: float, action: Callable[[], None]) -> None: ...
    def close(self, timeout: float = 1.0) -> None: ...


class Timers:
    """A scheduler that runs each added action once, at its requested time or soon after. The actions run one after
    another on one thread. Any thread may add actions.

    Adding an action wakes the scheduler's thread, which inserts the action among the n waiting actions in O(log n)
    steps. If an interrupt (interrupts.py) comes while an action is added, the action is added either completely or not
    at all.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._clock = clock
        self._order = itertools.count()
        self._added: deque[_Entry] = deque()
        self._bell = Bell()
        self._starting = threading.Lock()
        self._thread: BackgroundThread | None = None
        self._closed = False

    def call_later(self, seconds: float, action: Callable[[], None]) -> None:
        """Run `action` on the scheduler's thread after `seconds` seconds. If `close` is called before that time, the
        action is dropped.
        """
        if self._closed:
            return
        if self._thread is None:
            self._start()
        try:
            self._added.append((self._clock() + seconds, next(self._order), action))
            self._bell.ring()
        except BaseException:
            begin_elsewhere((self._bell.ring,))
            raise

    def close(self, timeout: float = 1.0) -> None:
        """Drop waiting actions, and wait at most `timeout` seconds for the end of a running action. Further calls do
        nothing.
        """
        self._closed = True
        self._bell.ring()
        if self._thread is not None and not self._thread.is_current:
            self._thread.join(timeout)

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = BackgroundThread(self._run, self._name)

    def _run(self) -> None:
        with self._starting:
            if self._thread is None or not self._thread.is_current:
                return  # the start of this thread was interrupted, and another thread has replaced it
        waiting: list[_Entry] = []
        while not self._closed:
            while self._added:
                heapq.heappush(waiting, self._added.popleft())
            pause = waiting[0][0] - self._clock() if waiting else None
            if pause is None or pause > 0:
                self._bell.wait(pause)
            else:
                self._do(heapq.heappop(waiting)[2])

    def _do(self, action: Callable[[], None]) -> None:
        try:
            action()
        except BaseException:  # one action's bug, or sys.exit() in a user's code, must not stop later actions
            log.exception("%s: an action failed", self._name)


class TimeLeft:
    """Tells how many of the given `seconds` are left; the time begins when the object is created. A close() method with
    several steps, each of which may hang, uses a TimeLeft to limit the time of all steps together. Any thread may use
    it.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + seconds

    @property
    def seconds(self) -> float:
        """Number of seconds that are left, or 0 when the time is over."""
        return max(0.0, self._end - self._clock())

    def part(self, share: float) -> float:
        """Return the remaining seconds multiplied by `share` (0 … 1). The caller uses the result as the limit of one
        step, so that some time is left for later steps.
        """
        return share * self.seconds
