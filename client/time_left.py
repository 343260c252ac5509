"""One time limit for an end that has several steps, any of which may hang."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["END_SECONDS", "TimeLeft"]

END_SECONDS = 1.0
"""What close() takes at most beyond its timeout, to end connections and sessions when it was needed for messages."""


class TimeLeft:
    """Counts down `seconds` from now; any thread."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + seconds

    @property
    def seconds(self) -> float:
        """0 when the time is over."""
        return max(0.0, self._end - self._clock())

    def part(self, share: float) -> float:
        """For a step that may take this share of what is left, so that the next ones get some too."""
        return share * self.seconds
