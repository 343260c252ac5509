"""The time of day, which messages that expire are compared with. It is passed in wherever a test needs another one."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["WallClock", "now_ms"]

WallClock = Callable[[], int]
"""Milliseconds since 1970."""


def now_ms() -> int:
    """By this machine's clock, which may be set while the program runs."""
    return time.time_ns() // 1_000_000
