"""How much of the processor background work may take while there is other work."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Share"]

_BUSY_CORES = 0.25
"""Processor time of everything else, in cores, above which the work is held back."""

_SHARE_CORES = 0.2
"""What it may take then. Python runs on one core, so this is what producers and hot readers may lose."""

_WINDOW_SECONDS = 0.1
_BURST_SECONDS = 0.01


class Share:
    """Measures what one kind of work costs, and holds it back while the process is busy with others. Owning thread.

    Nothing is held back on an otherwise idle broker: a backlog is then read as fast as disk and network allow.
    """

    def __init__(self, seconds: Callable[[], float], process_seconds: Callable[[], float] = time.process_time) -> None:
        """seconds: monotonic clock. process_seconds: processor time of all threads."""
        self._seconds = seconds
        self._process_seconds = process_seconds
        self._since = self._refilled = seconds()
        self._used = process_seconds()
        self._spent = 0.0  # in this window, by the work itself
        self._credit = _BURST_SECONDS
        self.busy = False

    def spend(self, seconds: float) -> None:
        """The work has cost so much processor time."""
        self._spent += seconds
        self._credit -= seconds

    def pause(self) -> float:
        """Seconds to wait before more work may begin; 0 for none."""
        now = self._seconds()
        if now - self._since >= _WINDOW_SECONDS:
            self._look(now)
        if not self.busy:
            self._credit, self._refilled = _BURST_SECONDS, now
            return 0.0
        self._credit = min(_BURST_SECONDS, self._credit + (now - self._refilled) * _SHARE_CORES)
        self._refilled = now
        return max(0.0, -self._credit / _SHARE_CORES)

    def _look(self, now: float) -> None:
        used = self._process_seconds()
        others = (used - self._used - self._spent) / (now - self._since)
        self.busy = others > _BUSY_CORES
        self._since, self._used, self._spent = now, used, 0.0
