"""Delayed messages: their due times, the ids of waiting messages, and the requests CANCEL_DELAYED and LIST_DELAYED.

A delayed message is sent by an ordinary send. Its record has DELAYED_FLAG and the property `metaq.due` (Unix
milliseconds) or `metaq.delay` (milliseconds from the arrival at the broker to the delivery). Either all records of a
batch are delayed, or none is. In the broker's answer to the send, the offset is -1, and msgId is the pending id of the
first message:

    pending id = (due - EPOCH_MS) << TIME_SHIFT | counter

The counters of a batch are consecutive. So a client can compute the ids of all messages of a batch (`pending_ids`), if
it knows for each message how much later than the first message it is due. If too few counters are left for a
millisecond in which a message of a batch is due, the broker delivers the whole batch a millisecond later.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from .arrays import np
from .errors import RemoteProtocolError
from .fields import INT64_MIN, AnyTopicField, ExtFields, PartitionField, TopicField, choice, number
from .limits import INT64_MAX, MAX_DELAY_SECONDS, MAX_LISTED_DELAYED
from .message_id import EPOCH_MS, TIME_SHIFT
from .record import (
    ATTRIBUTE_FLAG,
    DELAY_PROPERTY,
    DUE_PROPERTY,
    HALF_PROPERTY,
    PROPERTIES_FLAG,
    Buffer,
    attribute_of,
    own_list,
    property_of,
)

__all__ = [
    "COUNTER_MASK",
    "CancelDelayedReply",
    "CancelDelayedRequest",
    "Cancelled",
    "ListDelayedRequest",
    "due_ms",
    "due_of",
    "pending_id",
    "pending_ids",
    "pending_ids_of",
    "wait_of",
]

COUNTER_MASK = (1 << TIME_SHIFT) - 1
"""A mask of the bits of the counter in a pending id. The counter has enough bits for four million messages that are due
in the same millisecond.
"""

_DUE, _DELAY, _HALF = DUE_PROPERTY.encode(), DELAY_PROPERTY.encode(), HALF_PROPERTY.encode()
_LIST_FLAGS = ATTRIBUTE_FLAG | PROPERTIES_FLAG
_MOST_DIGITS = 15
_FEW = 32
_DELAY_FIRST, _ITEM_END = _DELAY + b"\x01", b"\x02"
_LAST_MS = (INT64_MAX >> TIME_SHIFT) + EPOCH_MS


def pending_id(due: int, counter: int) -> int:
    """Return the id that a message has while it waits. due: the message's delivery time in Unix ms, later than
    EPOCH_MS.
    """
    return (due - EPOCH_MS) << TIME_SHIFT | counter & COUNTER_MASK


def pending_ids_of(dues: Sequence[int], counter: int, later: int = 0) -> Sequence[int]:
    """Return the `pending_id` for each due time. The counters in the ids are consecutive and begin with `counter`.
    For more than a few ids the function uses NumPy, which is faster. later: milliseconds to add to each due time.
    """
    if len(dues) <= _FEW:
        return [pending_id(due + later, number) for number, due in enumerate(dues, counter)]
    counters = np.arange(counter, counter + len(dues), dtype=np.int64) & COUNTER_MASK
    ids = (np.array(dues, np.int64) + (later - EPOCH_MS)) << TIME_SHIFT | counters
    return array("q", ids.tobytes())


def pending_ids(first_id: int, waits: Sequence[int]) -> list[int]:
    """Return the pending ids of a batch that begins with `first_id`. waits: for each message of the batch, the number
    that `wait_of` returns.
    """
    due, counter = due_ms(first_id) - waits[0], first_id & COUNTER_MASK
    return [pending_id(due + wait, counter + place) for place, wait in enumerate(waits)]


def due_ms(pending_id: int) -> int:
    """Return the message's due time (Unix ms) from its pending id."""
    return (pending_id >> TIME_SHIFT) + EPOCH_MS


def wait_of(flag: int, body: Buffer) -> int:
    """Return the value of the property `metaq.due` or `metaq.delay` of a delayed record. In a batch, either all records
    have `metaq.due` or all have `metaq.delay`.

    Raises RemoteProtocolError if the record has neither property.
    """
    return _said(flag, body)[1]


def due_of(flag: int, body: Buffer, now_ms: int) -> int:
    """Return a delayed record's due time in Unix ms, which may be in the past. now_ms: the current time of the broker's
    clock. Raises RemoteProtocolError if the record has no valid due time or delay, or if the due time is too far ahead.
    """
    delay, value = _said(flag, body)
    due = value + now_ms if delay else value
    if due > now_ms + MAX_DELAY_SECONDS * 1000 or due > _LAST_MS:
        name = DELAY_PROPERTY if delay else DUE_PROPERTY
        raise RemoteProtocolError(
            f"{name}={value} is more than {MAX_DELAY_SECONDS // 86400} days ahead of the broker's clock ({now_ms} ms): "
            "choose an earlier time"
        )
    if due <= EPOCH_MS:
        raise RemoteProtocolError(f"{DUE_PROPERTY}={value} is before the year 2011: it is milliseconds since 1970")
    return due


def _said(flag: int, body: Buffer) -> tuple[bool, int]:
    attribute = attribute_of(body, flag) if flag & _LIST_FLAGS == _LIST_FLAGS else None
    if attribute is not None:
        attribute = own_list(attribute)
        if attribute.startswith(_DELAY_FIRST) and attribute.find(_ITEM_END) == len(attribute) - 1:  # the usual case
            number = attribute[len(_DELAY_FIRST) : -1]
            if number.isdigit() and len(number) <= _MOST_DIGITS:
                return True, int(number)
        if property_of(attribute, _HALF) is not None:
            raise RemoteProtocolError("delayed messages and half messages cannot be in one batch: send two")
        value = property_of(attribute, _DUE)
        if (delay := value is None) and (value := property_of(attribute, _DELAY)) is None:
            attribute = None
        elif value is not None and value.isdigit() and len(value) <= _MOST_DIGITS:
            return delay, int(value)
    if attribute is None:
        raise RemoteProtocolError(
            f"a record with the flag for delay (4) has no property {DUE_PROPERTY} or {DELAY_PROPERTY}: add one"
        )
    text = (value or b"").decode("utf-8", "replace")[:40]
    raise RemoteProtocolError(f"{DELAY_PROPERTY if delay else DUE_PROPERTY}={text!r} is no number of milliseconds")


class Cancelled(StrEnum):
    """The outcome of a request to cancel a delayed message."""

    CANCELLED = "cancelled"
    """The message was cancelled: it has not been delivered and will never be delivered."""
    LATE = "late"
    """The message could not be cancelled: its due time has come, so the broker is delivering it or has delivered it."""
    UNKNOWN = "unknown"
    """No delayed message with this id waits for delivery to the partition. Perhaps the message was cancelled so long
    ago that the broker has forgotten the cancellation.
    """


@dataclass(slots=True)
class CancelDelayedRequest(ExtFields):
    """CANCEL_DELAYED: cancel a delayed message that waits for delivery to this partition. message_id: the pending id of
    the message.
    """

    topic: TopicField
    partition: PartitionField
    message_id: Annotated[int, number("msgId", 1, INT64_MAX)]


@dataclass(slots=True)
class CancelDelayedReply(ExtFields):
    """The answer to CANCEL_DELAYED. The broker sends the answer when the cancellation is stored as safely as messages
    of the topic are, for example synced to the disk. state: a member of Cancelled.
    """

    state: Annotated[str, choice("state", [each.value for each in Cancelled])]


@dataclass(slots=True)
class ListDelayedRequest(ExtFields):
    """LIST_DELAYED: ask for the number of waiting delayed messages, and for a list of them in the order of their
    delivery times. The list begins after the pending id `after`.

    topic: count and list only messages of this topic; "" means all topics. limit: maximum number of messages in the
    list; 0 means that only the number is returned. The answer's body is JSON. `count`: the number of waiting messages
    of the topic, or of all topics. `topics`: for the name of each of these topics, the number of its waiting messages.
    `messages`: the list. Each message in it has id, due (delivery time), topic, partition, bytes (size), taken (arrival
    time), and the preview that previews.py describes; due and taken are in Unix ms. `next`: the value of `after` with
    which the next request continues the list; 0 if the list is complete.
    """

    topic: AnyTopicField = ""
    limit: Annotated[int, number("limit", 0, MAX_LISTED_DELAYED)] = 100
    after: Annotated[int, number("after", INT64_MIN, INT64_MAX, left_out=True)] = 0
