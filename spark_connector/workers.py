"""Make Spark's tasks faster by preparing the Python processes that run them. Spark reuses a process for many tasks, so
each process is prepared only once.
"""

from __future__ import annotations

import gc
from functools import cache

__all__ = ["spare_modules"]


@cache
def spare_modules() -> None:
    """Exempt all objects that exist now from garbage collection. Later calls in the same process have no effect.

    PySpark's daemon runs a full garbage collection after every task, and after each step of planning. Without the
    exemption, each of these collections traverses all objects of all imported modules, which took more than half the
    time of a short task. Reference counting still frees unreferenced objects at once.
    """
    gc.freeze()
