"""Convert the filters that Spark passes to the data source ("pushes down") to conditions that reduce the messages to
fetch. The filters that can be used are those on the topic, the broker, the partition, the byte offset, the store time
and the tag. The functions compute only from their arguments. Some messages that do not pass the filters are fetched
nevertheless, which is harmless, because Spark applies every filter again. Every message that passes the filters is
fetched.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from metaq.client.records.results import TopicPartition
from metaq.protocol.pulls import TAG_SEPARATOR

from .options import MAX_TAGS

__all__ = ["Pushed", "push"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Pushed:
    """The conditions on messages that follow from the pushed filters. An attribute that is None sets no condition.
    Offsets (in bytes) and times (in milliseconds since 1970) must be in [min, max).
    """

    topics: frozenset[str] | None = None
    brokers: frozenset[int] | None = None
    partitions: frozenset[int] | None = None
    tags: frozenset[str] | None = None
    min_offset: int | None = None
    max_offset: int | None = None
    min_time_ms: int | None = None
    max_time_ms: int | None = None

    def wants(self, partition: TopicPartition) -> bool:
        """Whether a message of this partition can pass the filters; if not, the partition need not be read."""
        return (
            (self.topics is None or partition.topic in self.topics)
            and (self.brokers is None or partition.broker in self.brokers)
            and (self.partitions is None or partition.partition in self.partitions)
        )

    @property
    def sent_tags(self) -> tuple[str, ...]:
        """Return the tags that tasks put into their pull requests, so that brokers send only messages with these tags.
        Return () if the filters do not restrict the tag, or if they name more than MAX_TAGS tags or a tag that a
        request cannot contain.
        """
        tags = sorted(self.tags or ())
        sendable = 0 < len(tags) <= MAX_TAGS and all(tag and TAG_SEPARATOR not in tag for tag in tags)
        return tuple(tags) if sendable else ()

    @property
    def nothing(self) -> bool:
        """Whether the filters exclude every message, so that nothing needs to be read."""
        return self.tags is not None and not self.tags


def push(filters: Iterable[Filter], pushed: Pushed = Pushed()) -> Pushed:
    """Return `pushed` with the additional conditions of all `filters`. Filters that this module cannot use add no
    condition; Spark applies them itself.
    """
    for each in filters:
        pushed = _add(pushed, each)
    return pushed


_SETS = {"topic": ("topics", str), "broker": ("brokers", int), "partition": ("partitions", int), "tag": ("tags", str)}


def _add(pushed: Pushed, each: Filter) -> Pushed:
    path: tuple[str, ...] = getattr(each, "attribute", ())
    if len(path) != 1:
        return pushed
    value: Any = getattr(each, "value", None)
    (column,) = path
    if column in _SETS and isinstance(each, EqualTo | EqualNullSafe | In):
        return _add_set(pushed, *_SETS[column], value if isinstance(each, In) else (value,))
    if column == "offset" and type(value) is int:
        return _add_offset(pushed, each, value)
    if column == "timestamp" and isinstance(value, datetime) and value.tzinfo is not None:
        return _add_time(pushed, each, (value - _EPOCH) // _MILLISECOND)
    return pushed


def _add_set(pushed: Pushed, name: str, kind: type, values: tuple[Any, ...]) -> Pushed:
    if not all(type(value) is kind for value in values):
        return pushed  # null, or a type that Spark compares by its own rules
    former = getattr(pushed, name)
    found = frozenset(values)
    changes: dict[str, Any] = {name: found if former is None else former & found}
    return replace(pushed, **changes)


def _add_offset(pushed: Pushed, each: Filter, value: int) -> Pushed:
    low, high = _interval(each, value)
    return replace(pushed, min_offset=_higher(pushed.min_offset, low), max_offset=_lower(pushed.max_offset, high))


def _add_time(pushed: Pushed, each: Filter, value: int) -> Pushed:
    """Return `pushed` with the additional condition of a filter on the store time. Store times are in milliseconds, and
    `value` is rounded down to milliseconds. So all messages that were stored in the same millisecond as `value` are
    fetched.
    """
    if isinstance(each, GreaterThan):
        each = GreaterThanOrEqual(each.attribute, each.value)
    elif isinstance(each, LessThan):
        each = LessThanOrEqual(each.attribute, each.value)
    low, high = _interval(each, value)
    return replace(pushed, min_time_ms=_higher(pushed.min_time_ms, low), max_time_ms=_lower(pushed.max_time_ms, high))


def _interval(each: Filter, value: int) -> tuple[int | None, int | None]:
    """Return the bounds [low, high) of the integers that pass the filter. None means that there is no bound at this
    end.
    """
    match each:
        case EqualTo() | EqualNullSafe():
            return value, value + 1
        case GreaterThan():
            return value + 1, None
        case GreaterThanOrEqual():
            return value, None
        case LessThan():
            return None, value
        case LessThanOrEqual():
            return None, value + 1
        case _:
            return None, None


def _higher(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)


def _lower(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)
