"""Convert the options `deliver_at` and `delay` of a send into properties of the record, and build the results of the
sends of delayed messages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import overload

from metaq.protocol.delays import due_ms, pending_ids
from metaq.protocol.errors import LocalProtocolError
from metaq.protocol.limits import MAX_DELAY_SECONDS
from metaq.protocol.message_id import EPOCH_MS
from metaq.protocol.record import (
    ATTRIBUTE_FLAG,
    CHECK_AFTER_PROPERTY,
    DELAY_PROPERTY,
    DELAYED_FLAG,
    DUE_PROPERTY,
    HALF_PROPERTY,
    Buffer,
    attribute_of,
    property_of,
)

from ..records.results import SendResult, TopicPartition
from ..runtime.durations import Duration, seconds_of

__all__ = ["NOW", "DelayedResults", "Timing", "delay_properties", "due_at", "refuse_delay", "timing_of"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_DUE, _HALF, _CHECK_AFTER = DUE_PROPERTY.encode(), HALF_PROPERTY.encode(), CHECK_AFTER_PROPERTY.encode()


class Timing(IntEnum):
    """How a record tells the broker when to deliver its message (protocol/delays.py). All records of a batch must have
    the same Timing.
    """

    NOW = 0
    DUE = 1
    DELAY = 2
    HALF = 3
    """The message waits for the outcome of its transaction (protocol/half_messages.py). The broker chooses the time at
    which it asks a producer for the outcome for the first time.
    """
    CHECKED_HALF = 4
    """The message waits for the outcome of its transaction, and its record states when the broker asks a producer for
    the outcome for the first time. A batch must not contain both CHECKED_HALF and HALF messages. The broker answers
    only with the id of the first message, and an id depends on the time of the first question. The producer does not
    know this time for a HALF message, so it could not compute the other ids.
    """

    @property
    def is_half(self) -> bool:
        return self >= Timing.HALF


NOW = Timing.NOW
"""The same value as Timing.NOW. Code that runs for each message uses this constant, because reading a member of the
enumeration costs a Python call.
"""

_FIRST = tuple(
    (f"{name}\x01".encode(), timing) for name, timing in ((DUE_PROPERTY, Timing.DUE), (DELAY_PROPERTY, Timing.DELAY))
)
"""Pairs of bytes and a Timing. If a record's property list begins with the bytes of a pair, the record has the Timing
of this pair.
"""


def delay_properties(deliver_at: datetime | None, delay: Duration | None) -> Mapping[str, str]:
    """Return a mapping with one item: the name and the value of the property in which a record states the delivery time
    `deliver_at` or the `delay`. Exactly one of the two must be given (not None). Raises TypeError, LocalProtocolError.
    """
    if deliver_at is not None and delay is not None:
        raise LocalProtocolError(f"deliver_at={deliver_at} and delay={delay} are both given: choose one")
    if deliver_at is not None:
        if not isinstance(deliver_at, datetime):
            raise TypeError(
                f"deliver_at={deliver_at!r} is no datetime but {type(deliver_at).__name__}: use delay=seconds"
            )
        if deliver_at.tzinfo is None:
            raise LocalProtocolError(
                f"deliver_at={deliver_at} has no time zone: write datetime.now(UTC) + …, or add .astimezone()"
            )
        due = -((_EPOCH - deliver_at) // _MS)  # rounded up, so that the message is never early
        if deliver_at - datetime.now(UTC) > timedelta(seconds=MAX_DELAY_SECONDS):
            raise _too_late(f"deliver_at={deliver_at}")
        if due <= EPOCH_MS:
            raise LocalProtocolError(
                f"deliver_at={deliver_at} lies before all messages, which begin in 2011: leave it out for at once"
            )
        return {DUE_PROPERTY: str(due)}
    seconds = seconds_of("delay", delay)
    if not seconds >= 0:  # also false for NaN
        raise LocalProtocolError(f"delay={delay} is not 0 or more: choose a number of seconds from now on")
    if seconds > MAX_DELAY_SECONDS:
        raise _too_late(f"delay={delay}")
    return {DELAY_PROPERTY: str(math.ceil(round(seconds * 1000, 6)))}


def _too_late(what: str) -> LocalProtocolError:
    return LocalProtocolError(
        f"{what} is more than {MAX_DELAY_SECONDS // 86400} days ahead, which no broker keeps: choose an earlier time"
    )


def refuse_delay(options: Mapping[str, object], where: str = "a transaction") -> None:
    """Raise LocalProtocolError if the options of a send contain `deliver_at` or `delay`. where: words for the error's
    text that say what the send belongs to.
    """
    for name in ("deliver_at", "delay"):
        if options.get(name) is not None:
            raise LocalProtocolError(
                f"{name}={options[name]} in {where}, whose messages wait for the outcome alone: use send(), or leave "
                f"{name} out"
            )


def timing_of(flag: int, body: Buffer) -> Timing:
    """Read the Timing of a message from the flag and the body of its record, and return it."""
    if not flag & DELAYED_FLAG:
        return NOW
    if type(body) is bytes:  # the usual case
        for item, timing in _FIRST:
            if body.startswith(item, 4):
                return timing
    attribute = attribute_of(body, flag) if flag & ATTRIBUTE_FLAG else None
    if attribute is not None and property_of(attribute, _HALF) is not None:
        return Timing.HALF if property_of(attribute, _CHECK_AFTER) is None else Timing.CHECKED_HALF
    return Timing.DELAY if attribute is None or property_of(attribute, _DUE) is None else Timing.DUE


def due_at(pending_id: int) -> datetime:
    """Return the time when the delayed message with this id is due."""
    return _EPOCH + timedelta(milliseconds=due_ms(pending_id))


class DelayedResults(Sequence[SendResult]):
    """The results of sending one batch of delayed or half messages; each result is computed only when it is read."""

    __slots__ = ("_first_id", "_ids", "_waits", "partition", "replicas")

    def __init__(
        self, first_id: int, partition: TopicPartition, waits: Sequence[int], replicas: int | None = None
    ) -> None:
        """waits: one number for each message: its delivery time in Unix ms, or its delay in ms. Only the differences
        between these numbers matter. For half messages it is the delay in ms until the broker's first question, or 0 if
        the broker chooses this delay.
        """
        self.partition = partition
        self.replicas = replicas
        self._first_id = first_id
        self._waits = waits
        self._ids: list[int] | None = None

    def __len__(self) -> int:
        return len(self._waits)

    @property
    def message_ids(self) -> list[int]:
        """Return the ids of all messages of the batch."""
        if self._ids is None:
            self._ids = pending_ids(self._first_id, self._waits)
        return self._ids

    @overload
    def __getitem__(self, index: int) -> SendResult: ...

    @overload
    def __getitem__(self, index: slice) -> list[SendResult]: ...

    def __getitem__(self, index: int | slice) -> SendResult | list[SendResult]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        pending_id = self.message_ids[index]
        return SendResult(pending_id, self.partition, -1, self.replicas, due_at(pending_id))

    def __repr__(self) -> str:
        return f"<{len(self)} results, partition {self.partition}, first due {due_at(self.message_ids[0])}>"
