"""How tests wait for what other threads and processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["DEADLINE", "assert_within", "eventually"]

DEADLINE = 120.0
"""Seconds. No wait gives up earlier: a deadline only ends a test that has failed, so a short one proves nothing."""

T = TypeVar("T")


def eventually(condition: Callable[[], T], seconds: float = 0.0, what: str = "it") -> T:
    """Wait for a condition and return its first true value. Any thread; looks every few milliseconds.

    Raises AssertionError, which names `what`, after `seconds` or DEADLINE, whichever is more. A test whose subject is
    a time measures that itself.
    """
    limit = max(seconds, DEADLINE)
    end = time.monotonic() + limit
    while not (value := condition()):
        assert time.monotonic() < end, f"{what} did not happen within {limit:g} s"
        time.sleep(0.005)
    return value


def assert_within(seconds: float, attempt: Callable[[], float], tries: int = 5) -> None:
    """Assert that what `attempt` does can be done within `seconds`; it returns how long it took, and can be repeated.

    What else a machine does only adds to a time, so the quickest of up to `tries` attempts counts.
    """
    took = [attempt()]
    while took[-1] >= seconds and len(took) < tries:
        took.append(attempt())
    assert min(took) < seconds, f"it took {', '.join(f'{each:.2f}' for each in took)} s each time"
