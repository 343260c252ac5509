"""What a filter is shown of a stored message."""

from __future__ import annotations

from functools import cached_property

from metaq.protocol.record import Attributes, RecordHeader, attribute_of, decode_attribute, payload_start

__all__ = ["FilteredMessage"]


class FilteredMessage:
    """One message of a partition, read only; what a filter does not ask for is not decoded.

    topic, partition, offset (byte position of the record), id and flag are as stored.
    """

    def __init__(self, topic: str, partition: int, offset: int, header: RecordHeader, body: bytes) -> None:
        """body: of the record, attribute included."""
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.id = header.id
        self.flag = header.flag
        self._body = body

    def __repr__(self) -> str:
        return f"<message {self.id} of {self.topic}-{self.partition} at {self.offset}>"

    @cached_property
    def payload(self) -> bytes:
        """What the producer sent, without the attribute."""
        return self._body[payload_start(self._body, self.flag) :]

    @cached_property
    def attributes(self) -> Attributes:
        """Attribute, tag, keys and headers."""
        return decode_attribute(attribute_of(self._body, self.flag), self.flag)

    @property
    def attribute(self) -> str | None:
        """1.x's attribute, None if there is none."""
        return self.attributes.attribute

    @property
    def tag(self) -> str | None:
        """The tag, None if there is none; the attribute is one."""
        return self.attributes.tag
