"""A stored message as a filter sees it."""

from __future__ import annotations

from metaq.protocol.compression import payload_of
from metaq.protocol.record import Attributes, attribute_of, decode_attribute

__all__ = ["FilteredMessage"]


class FilteredMessage:
    """One message of a partition, read-only. Parts that a filter does not use are not decoded.

    topic, partition, offset (byte position of the record), id and flag are as stored.
    """

    __slots__ = ("_attributes", "_body", "_payload", "flag", "id", "offset", "partition", "topic")

    def __init__(self, topic: str, partition: int, offset: int, message_id: int, flag: int, body: bytes) -> None:
        """body: of the record, attribute included."""
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.id = message_id
        self.flag = flag
        self._body = body
        self._payload: bytes | None = None
        self._attributes: Attributes | None = None

    def __repr__(self) -> str:
        return f"<message {self.id} of {self.topic}-{self.partition} at {self.offset}>"

    @property  # a cached_property takes a lock, which costs more than this property
    def payload(self) -> bytes:
        """The producer's payload, without the attribute. Raises PayloadUnreadable if it is compressed and damaged."""
        if self._payload is None:
            self._payload = payload_of(self._body, self.flag)
        return self._payload

    @property
    def attributes(self) -> Attributes:
        """Attribute, tag, keys and properties."""
        if self._attributes is None:
            self._attributes = decode_attribute(attribute_of(self._body, self.flag), self.flag)
        return self._attributes

    @property
    def attribute(self) -> str | None:
        """1.x's attribute, None if there is none."""
        return self.attributes.attribute

    @property
    def tag(self) -> str | None:
        """The tag, None if there is none; the attribute is one."""
        return self.attributes.tag
