"""The time of day, for message expiry. It is a parameter wherever a test needs another clock."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["WallClock", "now_ms"]

WallClock = Callable[[], int]
"""Milliseconds since 1970."""


def now_ms() -> int:
    """Return the time by this machine's clock, which may be set while the program runs."""
    return time.time_ns() // 1_000_000
