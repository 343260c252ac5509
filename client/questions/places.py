"""Define the values that users can pass to state a position in a topic, and convert each value to an offset in a
partition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from metaq.protocol.errors import ClientError, ConfigError, CorruptRecord, MessageNotFound, SearchIncomplete
from metaq.protocol.limits import INT64_MAX

from ..records.results import TopicPartition
from ..runtime.durations import is_number
from ..settings.config import check_number, check_offset
from .asking import Asked
from .finding import FoundMessage, MessageFinder, check_key, check_message_id
from .partition_bounds import Bounds, bounds_at, max_offset, min_offset, offset_after, offset_at_time, offset_of_last
from .stored_records import read_bytes

__all__ = [
    "AtKey",
    "AtMessage",
    "Last",
    "Locate",
    "OffsetIn",
    "Place",
    "Position",
    "check_begins_message",
    "locate",
    "offset_in",
]

Locate = Callable[[Asked, TopicPartition], int]
"""A function that asks a partition's broker for a byte offset and returns it. The function raises BrokerUnavailable,
RequestTimedOut and RequestRefused.
"""


class Last(NamedTuple):
    """The position in each partition at which the last `messages` messages of the partition begin."""

    messages: int


class AtMessage(NamedTuple):
    """The position of the message with this id, in the partition that contains it. In each other partition of the
    topic, the position is the first message that was stored at the same time as this message or later.
    """

    message_id: int


class AtKey(NamedTuple):
    """The position of the oldest message with this key, in the partition that contains it. In each other partition of
    the topic, the position is the first message that was stored at the same time as this message or later.
    """

    key: str


Place = datetime | Last | AtMessage | AtKey
Position = int | str | Place
"""A position in a partition: a byte offset, "earliest" (the first readable byte), "latest" (the end), a datetime (the
first message that was stored then or later), Last, AtMessage or AtKey.
"""

OffsetIn = Callable[[Asked, TopicPartition, Bounds], int]
"""A function that returns a byte offset in a partition, within the given bounds of the partition's readable bytes. The
function may ask the partition's broker. The function raises ClientError if the user's byte offset is outside of the
bounds. It also raises the errors of Locate.
"""


_BOUNDS: Mapping[str, Locate] = {"earliest": min_offset, "latest": max_offset}


def locate(
    position: Position, topics: Sequence[str] = (), finder: MessageFinder | None = None, option: str = "position"
) -> int | Locate:
    """Check the position that a user has given. If the position is a byte offset, return this number. Otherwise return
    a function that finds the position's offset in any partition.

    For a position that a message states (AtMessage or AtKey), `locate` itself searches for the message with `finder`:
    it searches the `topics` one after another until it finds the message. If `finder` is None, AtMessage and AtKey are
    not allowed.
    option: the name of the user's option in the texts of errors. Raises ConfigError, and for a message the errors of
    MessageFinder.
    """
    if is_number(position):
        check_offset(option, position)
        return int(position)
    if isinstance(position, str) and position in _BOUNDS:
        return _BOUNDS[position]
    if isinstance(position, datetime):
        if position.tzinfo is None:
            raise ConfigError("time", position, "give it a time zone, for example datetime.now(UTC)")
        time_ms = max(0, int(position.timestamp() * 1000))
        return lambda connection, partition: offset_at_time(connection, partition, time_ms)
    if isinstance(position, Last):
        count = position.messages
        check_number("Last", count, may_be_0=True, most=INT64_MAX, unit="messages")
        return lambda connection, partition: offset_of_last(connection, partition, count)
    if isinstance(position, AtMessage | AtKey) and finder is not None:
        if isinstance(position, AtMessage):
            check_message_id("AtMessage", position.message_id)
        else:
            check_key("AtKey", position.key)
        message, stored_ms, _ = _find(position, topics, finder)
        return lambda connection, partition: (
            message.offset if partition == message.partition else offset_at_time(connection, partition, stored_ms)
        )
    raise ConfigError(option, repr(position), "choose an offset of 0 or more bytes, 'earliest', 'latest' or a place")


def _find(place: AtMessage | AtKey, topics: Sequence[str], finder: MessageFinder) -> FoundMessage:
    nothing: MessageNotFound | SearchIncomplete | None = None
    for topic in topics:
        try:
            return _find_in(topic, place, finder)
        except MessageNotFound as error:
            nothing = nothing or error
        except SearchIncomplete as error:
            if error.unsearched_bytes:
                raise  # another search would continue
            nothing = error  # a broker is absent: another topic may have the message
    assert nothing is not None
    raise nothing


def _find_in(topic: str, place: AtMessage | AtKey, finder: MessageFinder) -> FoundMessage:
    if isinstance(place, AtMessage):
        return finder.view_message(topic, place.message_id)
    return finder.oldest_with_key(topic, place.key)


def offset_in(position: Position, topic: str, finder: MessageFinder) -> OffsetIn:
    """Return a function that finds the offset of `position` in the partitions of `topic`. Raises the errors of
    `locate`.
    """
    find = locate(position, [topic], finder)
    if isinstance(find, int):
        return lambda connection, partition, bounds: _inside(find, partition, bounds)
    return lambda connection, partition, bounds: min(max(find(connection, partition), bounds.first), bounds.end)


def _inside(offset: int, partition: TopicPartition, bounds: Bounds) -> int:
    if not bounds.first <= offset <= bounds.end:
        raise ClientError(
            f"offset {offset} is outside [{bounds.first}, {bounds.end}], the readable bytes of "
            f"{partition.topic} {partition}: choose one of them, earliest, latest or a time"
        )
    return offset


def check_begins_message(connection: Asked, partition: TopicPartition, offset: int) -> None:
    """Raise ClientError if byte `offset`, which must be readable, is inside a message; the error's text names the
    nearest offsets where messages begin. Also raises the errors of Locate. There is no error if the bytes at `offset`
    are damaged, because the reader reports the damage later. There is no error, either, if the broker is a Java broker,
    which cannot tell where messages begin.
    """
    if not connection.speaks_frames:
        return
    try:
        read_bytes(connection, partition, offset, 1)
    except CorruptRecord as error:
        if error.end is not None:
            return
        bounds, before = bounds_at(connection, partition, offset)
        begin = offset_after(connection, partition, bounds.first, before or 0)
        following = offset_after(connection, partition, begin, 1)
        raise ClientError(
            f"offset {offset} is inside a message of {partition.topic} {partition}: choose {begin}, where it begins, "
            f"or {following}, where it ends"
        ) from None
