"""Prepare each Python process that Spark keeps for further tasks, once."""

from __future__ import annotations

import gc
from functools import cache

__all__ = ["spare_modules"]


@cache
def spare_modules() -> None:
    """Exempt all present objects from garbage collection; only the first call in a process has an effect.

    PySpark's daemon runs a full collection after every task, and after each step of planning. It traverses every object
    of every imported module again, which took more than half the time of a short task. Unreferenced objects are still
    freed at once.
    """
    gc.freeze()
