"""Message ids (storage.md §2): `(t - 1303895660503) << 22 | brokerId << 12 | sequence`, int64.

In an id of a 1.x broker (Java), t is not a date, but comes from a clock whose zero is arbitrary. So the ids of 1.x
contain no date and are usually negative. In an id of metaq's own brokers, t is the wall-clock time in milliseconds. So
the ids of these brokers are positive. These brokers treat (t, sequence) as one counter and give the messages of a batch
consecutive counters, so the ids of a batch can be computed from its first id.
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
"""The number that stands for a message id where the id is unknown."""

EPOCH_MS = 1303895660503
MAX_BROKER_ID = 1023
_SEQUENCE_BITS, _BROKER_BITS = 12, 10
_SEQUENCE_MASK = (1 << _SEQUENCE_BITS) - 1
_BROKER_FIELD = MAX_BROKER_ID << _SEQUENCE_BITS
TIME_SHIFT = _SEQUENCE_BITS + _BROKER_BITS
"""Number of bits of an id that are below the bits of the time in milliseconds."""

LAST_COUNTER = (1 << (63 - _BROKER_BITS)) - 1
"""The counter of the last positive id. As the counter contains the time, brokers will reach this counter in September
2080.
"""

_AHEAD_MS = 10 * 365 * 24 * 3600 * 1000
_SURELY_PAST_MS = 1_767_225_600_000
"""The beginning of 2026, as Unix milliseconds. If a computer's clock shows an earlier time, the clock is wrong."""
_RESERVE_MS = 24 * 3600 * 1000


def counter_at(time_ms: int) -> int:
    """Return the lowest counter of the ids that contain the wall-clock time `time_ms` (milliseconds since 1970)."""
    return (time_ms - EPOCH_MS) << _SEQUENCE_BITS


def counter_of(message_id: int) -> int:
    """Return the counter in an id of one of metaq's own brokers (a positive id). This is the inverse function of
    `message_id`.
    """
    return (message_id >> TIME_SHIFT) << _SEQUENCE_BITS | message_id & _SEQUENCE_MASK


def message_id(counter: int, broker_id: int) -> int:
    """Return the message id with this counter (53 bits, see the module's docstring) and this broker id (0 … 1023)."""
    return (counter >> _SEQUENCE_BITS) << TIME_SHIFT | broker_id << _SEQUENCE_BITS | counter & _SEQUENCE_MASK


def message_ids_from(first_id: int, count: int) -> npt.NDArray[np.int64]:
    """Return the `count` ids of a batch that begins with `first_id`, as int64."""
    counters = np.arange(count, dtype=np.int64) + counter_of(first_id)
    ids = (counters >> _SEQUENCE_BITS) << TIME_SHIFT
    ids |= counters & _SEQUENCE_MASK
    ids |= first_id & _BROKER_FIELD
    return ids


def message_id_list(first_id: int, count: int) -> list[int]:
    """Like `message_ids_from`, but return Python integers. For few ids this is several times faster."""
    if (first_id & _SEQUENCE_MASK) + count <= _SEQUENCE_MASK + 1:
        return list(range(first_id, first_id + count))
    return message_ids_from(first_id, count).tolist()  # type: ignore[no-any-return]


def foreign_from(now_ms: int) -> int:
    """Return the lowest id that none of metaq's own brokers can have given to a message until `now_ms` (Unix
    milliseconds).

    The time in the returned id is ten years after `now_ms`. A broker chooses ids for new messages that are greater than
    all stored ids. But it ignores stored ids that are not less than the returned id: otherwise one damaged or foreign
    record with a huge id would leave no ids for new messages. If `now_ms` is before 2026, the clock is wrong, and the
    function uses the beginning of 2026, so that a broker does not ignore its own ids.
    """
    time_ms = max(now_ms, _SURELY_PAST_MS) + _AHEAD_MS
    last_ms = (LAST_COUNTER >> _SEQUENCE_BITS) + EPOCH_MS - _RESERVE_MS
    return message_id(counter_at(min(time_ms, last_ms)), 0)


def store_time_ms(message_id: int) -> int | None:
    """Return the store time (Unix milliseconds) that a message id contains. Return None for a negative id, because
    negative ids come from Java brokers and contain no date.
    """
    return (message_id >> TIME_SHIFT) + EPOCH_MS if message_id > 0 else None


def store_times_ms(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Like `store_time_ms`, for many ids in int64. For an id from a Java broker the result is meaningless."""
    return (ids >> TIME_SHIFT) + EPOCH_MS
