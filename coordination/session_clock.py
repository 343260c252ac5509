"""The clock by which the age of a ZooKeeper session is measured."""

from __future__ import annotations

import sys
import time

__all__ = ["session_clock"]

if sys.platform == "linux":

    def session_clock() -> float:
        """Seconds since some moment, those included in which the machine was suspended: the servers count them too."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:
    session_clock = time.monotonic
