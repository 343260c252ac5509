"""The form of a stored message that is passed to filters."""

from __future__ import annotations

from metaq.protocol.compression import payload_of
from metaq.protocol.record import Attributes, attribute_of, decode_attribute

__all__ = ["FilteredMessage"]


class FilteredMessage:
    """One message of a partition, as a read-only object. An attribute of this object, such as `payload`, is decoded
    only when a filter uses it.

    topic, partition, offset (the byte position of the record), id and flag are those of the stored message.
    """

    __slots__ = ("_attributes", "_body", "_payload", "flag", "id", "offset", "partition", "topic")

    def __init__(self, topic: str, partition: int, offset: int, message_id: int, flag: int, body: bytes) -> None:
        """body: the body of the record: the payload, preceded by the attribute if there is one."""
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

    @property  # a cached_property needs a lock, which takes longer than this property
    def payload(self) -> bytes:
        """The producer's payload, without the attribute. Raises PayloadUnreadable if the payload is compressed and
        cannot be decompressed.
        """
        if self._payload is None:
            self._payload = payload_of(self._body, self.flag)
        return self._payload

    @property
    def attributes(self) -> Attributes:
        """The message's attribute, tag, keys and properties, in one object."""
        if self._attributes is None:
            self._attributes = decode_attribute(attribute_of(self._body, self.flag), self.flag)
        return self._attributes

    @property
    def attribute(self) -> str | None:
        """The message's attribute, as in metaq 1.x, or None if there is none."""
        return self.attributes.attribute

    @property
    def tag(self) -> str | None:
        """The message's tag, or None if there is none. The attribute of a 1.x message is used as its tag."""
        return self.attributes.tag
