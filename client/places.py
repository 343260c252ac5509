"""Where to begin to read a topic: values for users, and the offset that each means in a partition."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from metaq.protocol.errors import ConfigError, MessageNotFound, RequestRefused, SearchIncomplete
from metaq.protocol.statuses import Status

from .connection import Connection
from .finding import FoundMessage, MessageFinder
from .inquiry import Asked, offset_after, offset_at_time, partition_bounds
from .values import TopicPartition

__all__ = ["AtKey", "AtMessage", "Last", "Locate", "Place", "locate", "locate_found", "offset_of_last"]

Locate = Callable[[Connection, TopicPartition], int]
"""The byte offset in a partition; asks its broker. Raises BrokerUnavailable, RequestTimedOut, RequestRefused."""


class Last(NamedTuple):
    """The last `messages` messages of each partition."""

    messages: int


class AtMessage(NamedTuple):
    """The message with this id, and in other partitions what was stored when it was, or later."""

    message_id: int


class AtKey(NamedTuple):
    """The oldest message with this key, and in other partitions what was stored when it was, or later."""

    key: str


Place = datetime | Last | AtMessage | AtKey


def locate(place: Place, topics: list[str], finder: MessageFinder) -> Locate:
    """How to find `place` in any partition. A message is searched for here, in each of `topics` until it is found.

    Raises ConfigError, and for a message what MessageFinder raises.
    """
    if isinstance(place, datetime):
        if place.tzinfo is None:
            raise ConfigError("time", place, "give it a time zone, for example datetime.now(UTC)")
        time_ms = max(0, int(place.timestamp() * 1000))
        return lambda connection, partition: offset_at_time(connection, partition, time_ms)
    if isinstance(place, Last):
        count = place.messages
        if count < 0:
            raise ConfigError("Last", count, "choose 0 or more messages")
        return lambda connection, partition: offset_of_last(connection, partition, count)
    return locate_found(_find(place, topics, finder))


def _find(place: AtMessage | AtKey, topics: list[str], finder: MessageFinder) -> FoundMessage:
    nothing: MessageNotFound | SearchIncomplete | None = None
    for topic in topics:
        try:
            return _find_in(topic, place, finder)
        except MessageNotFound as error:
            nothing = nothing or error
        except SearchIncomplete as error:
            if error.unsearched_bytes:
                raise  # asking again goes further
            nothing = error  # a broker is absent: another topic may have it
    assert nothing is not None
    raise nothing


def _find_in(topic: str, place: AtMessage | AtKey, finder: MessageFinder) -> FoundMessage:
    if isinstance(place, AtMessage):
        return finder.view_message(topic, place.message_id)
    return finder.oldest_with_key(topic, place.key)


def locate_found(found: FoundMessage) -> Locate:
    """That message in its partition; in others the first one stored at its time or later."""
    message, stored_ms = found.message, found.stored_ms

    def find(connection: Connection, partition: TopicPartition) -> int:
        return message.offset if partition == message.partition else offset_at_time(connection, partition, stored_ms)

    return find


def offset_of_last(connection: Asked, partition: TopicPartition, messages: int) -> int:
    """Where the last `messages` messages of a partition begin. Raises RequestRefused if it cannot be told (Java)."""
    bounds = partition_bounds(connection, partition)
    if bounds.messages is None:
        raise RequestRefused(Status.BAD_REQUEST, f"{connection.endpoint} has no index by count (metaq 1.x)")
    skipped = max(0, bounds.messages - messages)
    return bounds.end if not messages else offset_after(connection, partition, bounds.first, skipped)
