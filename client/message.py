"""A message as a consumer gets it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from metaq.protocol.message_id import store_time_ms
from metaq.protocol.record import (
    ATTRIBUTE_FLAG,
    HEADER_BYTES,
    Attributes,
    attribute_of,
    decode_attribute,
    payload_start,
    priority_of,
)

from .values import TopicPartition

__all__ = ["Message", "PlainMessage"]


class Message(NamedTuple):
    """One stored message. Only what every message needs is computed when it is made; the rest when it is looked at.
    (A tuple because that is made fastest.)

    partition: where it is stored (with topic and broker). offset: byte position of its record there. id: unique within
    the cluster. flag: metaq 1.x's bits (protocol/record.py). body: the payload, after the attribute if flag bit 0
    is set.
    """

    partition: TopicPartition
    offset: int
    id: int
    flag: int
    body: bytes

    @property
    def topic(self) -> str:
        return self.partition.topic

    @property
    def payload(self) -> bytes:
        """What the producer sent."""
        return self.body[payload_start(self.body, self.flag) :] if self.flag & ATTRIBUTE_FLAG else self.body

    @property
    def next_offset(self) -> int:
        """Byte position of the record after it."""
        return self.offset + HEADER_BYTES + len(self.body)

    @property
    def attributes(self) -> Attributes:
        """Attribute, tag, keys and headers together: decoded once, where each of them alone decodes again."""
        return decode_attribute(attribute_of(self.body, self.flag), self.flag)

    @property
    def attribute(self) -> str | None:
        """The metaq 1.x attribute."""
        return self.attributes.attribute

    @property
    def tag(self) -> str | None:
        return self.attributes.tag

    @property
    def keys(self) -> tuple[str, ...]:
        return self.attributes.keys

    @property
    def headers(self) -> Mapping[str, str]:
        return self.attributes.headers

    @property
    def priority(self) -> int:
        """How urgent it is for shared consumers, 0 (ordinary) … 9."""
        return priority_of(self.flag)

    @property
    def timestamp_ms(self) -> int | None:
        """When it was stored, milliseconds since 1970; None if a Java broker took it (its ids are no clock)."""
        return store_time_ms(self.id)

    @property
    def timestamp(self) -> datetime | None:
        """`timestamp_ms` as an aware datetime in UTC."""
        milliseconds = store_time_ms(self.id)
        return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)

    def __repr__(self) -> str:
        payload = self.payload
        shown = f"{payload[:32]!r}… {len(payload)} bytes" if len(payload) > 32 else repr(payload)
        return f"<Message {self.topic} {self.partition} @{self.offset} id {self.id} {shown}>"


class PlainMessage(Message):
    """A message known to have no attribute, whose payload is its body: found without a call of Python. Equal to a
    Message with the same fields, and pickled as one.
    """

    __slots__ = ()

    payload = Message.body

    def __reduce__(self) -> tuple[type[Message], tuple[object, ...]]:
        return Message, tuple(self)
