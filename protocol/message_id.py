"""Message ids (storage.md §2): `(t - 1303895660503) << 22 | brokerId << 12 | sequence`, int64.

1.x takes t from a clock without a fixed origin, so its ids carry no date and are usually negative. Ours take wall-clock
milliseconds, are positive, and (t, sequence) is one counter: the ids of a batch follow from its first id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .arrays import np

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "EPOCH_MS",
    "LAST_COUNTER",
    "MAX_BROKER_ID",
    "TIME_SHIFT",
    "UNKNOWN_ID",
    "counter_at",
    "counter_of",
    "foreign_from",
    "message_id",
    "message_id_list",
    "message_ids_from",
    "store_time_ms",
    "store_times_ms",
]

UNKNOWN_ID = -1
"""Stands for an unknown id."""

EPOCH_MS = 1303895660503
MAX_BROKER_ID = 1023
_SEQUENCE_BITS, _BROKER_BITS = 12, 10
_SEQUENCE_MASK = (1 << _SEQUENCE_BITS) - 1
_BROKER_FIELD = MAX_BROKER_ID << _SEQUENCE_BITS
TIME_SHIFT = _SEQUENCE_BITS + _BROKER_BITS
"""Number of an id's bits below the milliseconds."""

LAST_COUNTER = (1 << (63 - _BROKER_BITS)) - 1
"""Counter of the last positive id, which is reached in September 2080."""

_AHEAD_MS = 10 * 365 * 24 * 3600 * 1000
_SURELY_PAST_MS = 1_767_225_600_000
"""The beginning of 2026: a clock with an earlier time has lost its date."""
_RESERVE_MS = 24 * 3600 * 1000


def counter_at(time_ms: int) -> int:
    """Return the lowest counter whose id carries the wall-clock time `time_ms` (milliseconds since 1970)."""
    return (time_ms - EPOCH_MS) << _SEQUENCE_BITS


def counter_of(message_id: int) -> int:
    """Return the counter inside one of our ids (positive); the inverse of `message_id`."""
    return (message_id >> TIME_SHIFT) << _SEQUENCE_BITS | message_id & _SEQUENCE_MASK


def message_id(counter: int, broker_id: int) -> int:
    """Return the id with this counter (53 bits, see module) on this broker (0 … 1023)."""
    return (counter >> _SEQUENCE_BITS) << TIME_SHIFT | broker_id << _SEQUENCE_BITS | counter & _SEQUENCE_MASK


def message_ids_from(first_id: int, count: int) -> npt.NDArray[np.int64]:
    """Return the `count` ids of a batch that begins with `first_id`, as int64."""
    counters = np.arange(count, dtype=np.int64) + counter_of(first_id)
    ids = (counters >> _SEQUENCE_BITS) << TIME_SHIFT
    ids |= counters & _SEQUENCE_MASK
    ids |= first_id & _BROKER_FIELD
    return ids


def message_id_list(first_id: int, count: int) -> list[int]:
    """As `message_ids_from`, but return Python integers, which for a few ids costs only a fraction."""
    if (first_id & _SEQUENCE_MASK) + count <= _SEQUENCE_MASK + 1:
        return list(range(first_id, first_id + count))
    return message_ids_from(first_id, count).tolist()  # type: ignore[no-any-return]


def foreign_from(now_ms: int) -> int:
    """Return the lowest id that no broker of ours can have given to a message up to `now_ms` (Unix milliseconds).

    The id is ten years ahead of the clock: a damaged or foreign record with a higher id must not use up all remaining
    ids. A clock that has lost its date counts as 2026, so that a broker does not ignore its own ids.
    """
    time_ms = max(now_ms, _SURELY_PAST_MS) + _AHEAD_MS
    last_ms = (LAST_COUNTER >> _SEQUENCE_BITS) + EPOCH_MS - _RESERVE_MS
    return message_id(counter_at(min(time_ms, last_ms)), 0)


def store_time_ms(message_id: int) -> int | None:
    """Return the wall-clock milliseconds inside one of our ids, None for an id of the Java broker (negative: it has no
    date)."""
    return (message_id >> TIME_SHIFT) + EPOCH_MS if message_id > 0 else None


def store_times_ms(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """As `store_time_ms`, for many ids in int64. For an id that is not ours the result is meaningless."""
    return (ids >> TIME_SHIFT) + EPOCH_MS
