"""Store times in order: within a segment they never decrease, so that a search by time can halve its way (index.py)."""

from __future__ import annotations

import numpy as np

from metaq.protocol.record import Buffer

from .index import UNIT_DTYPE, UnitArray

__all__ = ["order_times", "ordered_units"]


def order_times(units: UnitArray, floor_ms: int = 0) -> None:
    """Raise store times, in place, to `floor_ms` (Unix ms) and to those of the records in front of them.

    Bounds stay bounds (negative). Times are raised and never lowered: a search then begins too early at worst, and
    skips no message.
    """
    times = units["time_ms"]
    known = np.abs(times)
    ordered = np.maximum.accumulate(np.maximum(known, floor_ms))
    if (ordered != known).any():
        units["time_ms"] = np.where(times < 0, -ordered, ordered)


def ordered_units(units: Buffer, floor_ms: int) -> bytes:
    """A copy of packed units with their times in order."""
    array = np.frombuffer(units, UNIT_DTYPE).copy()
    order_times(array, floor_ms)
    return array.tobytes()
