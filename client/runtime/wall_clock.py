"""The time of day, which decides whether messages have expired. The clock is a parameter wherever a test needs another
clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["WallClock", "now_ms"]

WallClock = Callable[[], int]
"""Function that returns the time in milliseconds since 1970."""


def now_ms() -> int:
    """Return the time in milliseconds since 1970 by this machine's clock, which somebody may set while the program
    runs.
    """
    return time.time_ns() // 1_000_000
