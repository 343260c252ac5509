"""Read the wall clock, which decides whether messages have expired. Code takes the clock as a parameter if tests need
to run it with another clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["WallClock", "now_ms"]

WallClock = Callable[[], int]
"""A function that returns the current time in milliseconds since 1970."""


def now_ms() -> int:
    """Return the current time in milliseconds since 1970 by this machine's clock. The clock may be set to another time
    while the program runs.
    """
    return time.time_ns() // 1_000_000
