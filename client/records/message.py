"""The classes of consumed messages."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from metaq.coordination.runtime.logs import get_log
from metaq.protocol.compression import payload_of
from metaq.protocol.errors import ClientError, CorruptRecord, PayloadUnreadable, RemoteProtocolError
from metaq.protocol.message_id import store_time_ms
from metaq.protocol.own_topics import OWN_MARK
from metaq.protocol.properties import PropertyValue
from metaq.protocol.record import (
    ATTRIBUTE_FLAG,
    COMPRESSED_FLAG,
    CORRELATION,
    EXPIRES_FLAG,
    HEADER_BYTES,
    PROPERTIES_FLAG,
    REPLY_TO,
    TYPE,
    Attributes,
    attribute_of,
    decode_attribute,
    payload_start,
    priority_of,
)
from metaq.protocol.retries import Failure, Origin, failure_of, payload_in, restored

from .results import TopicPartition

if TYPE_CHECKING:
    from ..serializers.base import Deserializer, ValueReader

__all__ = ["Message", "Origin", "PlainMessage", "RetriedMessage", "ValueMessage", "as_original", "failure_in"]

log = get_log(__name__)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BESIDE = ATTRIBUTE_FLAG | COMPRESSED_FLAG
"""Two flag bits: one says that a message has an attribute, the other that its payload is compressed. If neither is set,
the whole body is the payload.
"""


class Message(NamedTuple):
    """One stored message. Values that are not fields, such as `payload` and `tag`, are computed from the fields each
    time that the program reads them. (The class is a tuple, because Python creates tuples faster than other objects.)

    partition: the topic, broker and number of the partition that stores the message. offset: byte position of the
    message's record in the partition. id: the message's id, which is unique within the cluster. flag: the flag bits of
    metaq 1.x (protocol/record.py). body: the payload. If bit 0 of `flag` is set, the body also contains the attribute,
    before the payload.
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
        """The producer's payload. A compressed payload is decompressed each time that this property is read. Raises
        CorruptRecord if it cannot be decompressed; to go on with the next message, pass the error's `partition` and
        `end` to `seek`.
        """
        flag = self.flag
        if not flag & _BESIDE:
            return self.body
        if flag & COMPRESSED_FLAG:
            return self._unpacked()
        if flag & PROPERTIES_FLAG and self.partition.topic[:1] == OWN_MARK:
            return self._failed_payload()
        return self.body[payload_start(self.body, flag) :]

    def _unpacked(self) -> bytes:
        try:
            return payload_of(self.body, self.flag)
        except PayloadUnreadable as error:
            raise CorruptRecord.of(self.partition, self.offset, str(error), self.next_offset) from None

    def _failed_payload(self) -> bytes:
        """Return the payload of a message in one of metaq's own topics (such as a dead-letter topic), where the payload
        can be compressed although the message's flag lacks the bit for compression.
        """
        try:
            return payload_in(self.flag, self.body)
        except PayloadUnreadable as error:
            raise CorruptRecord.of(self.partition, self.offset, str(error), self.next_offset) from None
        except RemoteProtocolError as error:
            log.warning("%r is taken as it is: %s", self, error)
            return self.body[payload_start(self.body, self.flag) :]

    @property
    def next_offset(self) -> int:
        """Byte position in the partition where the record after this message begins."""
        return self.offset + HEADER_BYTES + len(self.body)

    @property
    def attributes(self) -> Attributes:
        """The attribute, tag, keys and properties of the message in one object. If you need several of them, read this
        property once: each reading of a single property, such as `message.tag`, decodes all of them again.
        """
        return decode_attribute(attribute_of(self.body, self.flag), self.flag)

    @property
    def attribute(self) -> str | None:
        """The message's attribute as in metaq 1.x: one text that the producer can set. It is None if the producer has
        set none.
        """
        return self.attributes.attribute

    @property
    def tag(self) -> str | None:
        return self.attributes.tag

    @property
    def keys(self) -> tuple[str, ...]:
        return self.attributes.keys

    @property
    def properties(self) -> Mapping[str, PropertyValue]:
        """The properties that the user has set on the message. Each value has the same type as when it was sent: str,
        int, float, bool or bytes.
        """
        return self.attributes.properties

    @property
    def content_type(self) -> str | None:
        """The payload's type as the producer has stated it, or None if the producer has stated none."""
        return self.attributes.reserved.get(TYPE)

    @property
    def correlation(self) -> str | None:
        """The text that a request and its reply have in common. By this text the producer that gets a reply finds the
        request. It is None for other messages.
        """
        return self.attributes.reserved.get(CORRELATION)

    @property
    def asks_reply(self) -> bool:
        """Whether this message is a request that Producer.reply can answer."""
        return REPLY_TO in self.attributes.reserved

    @property
    def value(self) -> Any:
        """The payload, decoded by the consumer's deserializer. The payload is decoded again at each access.

        Raises ValueUnreadable if the deserializer is for other content types, or cannot decode the payload. Raises
        ClientError if the consumer has no deserializer.
        """
        raise ClientError(
            "this message's reader has no deserializer: write Consumer(deserializer=…), or message.decode(…)"
        )

    def decode(self, deserializer: Deserializer) -> Any:
        """Decode the payload with the given deserializer (one serializer, or several for different content types), and
        return the value. Raises ConfigError and the errors of `value`.
        """
        from ..serializers.base import deserializers

        return deserializers("deserializer", deserializer).value_of(self)

    @property
    def expires_at(self) -> datetime | None:
        """The expiry time of the message, by the producer's clock, as an aware datetime in UTC. From this time on, no
        consumer gets the message. It is None if the message never expires.
        """
        milliseconds = self.attributes.expires_ms if self.flag & EXPIRES_FLAG else None
        return None if milliseconds is None else _EPOCH + timedelta(milliseconds=milliseconds)

    def has_expired(self, now_ms: int) -> bool:
        """Return whether the message has expired at the time `now_ms`, in milliseconds since 1970."""
        if not self.flag & EXPIRES_FLAG:
            return False
        milliseconds = self.attributes.expires_ms
        return milliseconds is not None and milliseconds <= now_ms

    @property
    def attempts(self) -> int:
        """In a handler of `Consumer.run`, the number of the present attempt to handle the message, counted from 1. The
        number is above 1 only if run() sends failed messages back to the broker. For a dead letter, it is the number of
        attempts that were made.
        """
        failure = failure_in(self)
        return 1 if failure is None else failure.attempts

    @property
    def origin(self) -> Origin:
        """Where the message was first stored: `topic`, `partition`, `offset`, `id`. For a dead letter, these are the
        values of the message that has failed; for every other message, they are its own.
        """
        failure = failure_in(self)
        return Origin(self.partition, self.offset, self.id) if failure is None else failure.origin

    @property
    def priority(self) -> int:
        """The message's priority for shared consumers, from 0 (ordinary) to 9 (most urgent)."""
        return priority_of(self.flag)

    @property
    def timestamp_ms(self) -> int | None:
        """The time when the message was stored, in milliseconds since 1970. It is None if a Java broker stored the
        message, because the ids of Java brokers contain no time.
        """
        return store_time_ms(self.id)

    @property
    def timestamp(self) -> datetime | None:
        """The time when the message was stored (`timestamp_ms`), as an aware datetime in UTC. It is None if a Java
        broker stored the message.
        """
        milliseconds = store_time_ms(self.id)
        return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)

    def __repr__(self) -> str:
        if self.flag & COMPRESSED_FLAG:
            shown = f"compressed, {len(self.body)} bytes"
        else:
            payload = self.body[payload_start(self.body, self.flag) :]
            shown = f"{payload[:32]!r}… {len(payload)} bytes" if len(payload) > 32 else repr(payload)
        return f"<Message {self.topic} {self.partition} @{self.offset} id {self.id} {shown}>"


class ValueMessage(Message):
    """The Message of a consumer with a deserializer. It contains the deserializer, which decodes its `value`. A
    ValueMessage is equal to a Message with the same fields. When a ValueMessage is pickled, it becomes a Message
    without the deserializer.
    """

    _reader: ValueReader

    @classmethod
    def of(cls, message: Message, reader: ValueReader) -> ValueMessage:
        made: ValueMessage = tuple.__new__(cls, message)
        made._reader = reader
        return made

    @property
    def value(self) -> Any:
        return self._reader.value_of(self)

    def __reduce__(self) -> tuple[type[Message], tuple[object, ...]]:
        return Message, tuple(self)


class PlainMessage(Message):
    """A Message without an attribute and without compression, so that the body is the payload. Its property `payload`
    reads the body without running a Python function. A PlainMessage is equal to a Message with the same fields, and is
    pickled as a Message.
    """

    __slots__ = ()

    payload = Message.body

    def __reduce__(self) -> tuple[type[Message], tuple[object, ...]]:
        return Message, tuple(self)


class RetriedMessage(Message):
    """A message that is passed to a handler again after a failure. It has the partition, offset, id, flag and body of
    the original message, although the consumer has read another record, namely the copy that was sent back to the
    broker.

    copy: the message of the record that the consumer has read. tries: number of times that the handler has failed on
    this copy.
    """

    copy: Message
    tries: int
    _attempts: int

    @property
    def value(self) -> Any:
        copy = self.copy
        return copy._reader.value_of(self) if isinstance(copy, ValueMessage) else super().value

    @property
    def attempts(self) -> int:
        return self._attempts

    @property
    def origin(self) -> Origin:
        return Origin(self.partition, self.offset, self.id)

    def __reduce__(self) -> tuple[object, ...]:
        return as_original, (self.copy, self.tries)


def failure_in(message: Message) -> Failure | None:
    """If `message` is one of metaq's own messages about a failed message (a dead letter, or a copy to be tried again),
    decode the failure that it records. Return None for any other message. Also return None if the record of the failure
    cannot be decoded.
    """
    if message.partition.topic[:1] != OWN_MARK:
        return None
    try:
        return failure_of(message.flag, message.body)
    except RemoteProtocolError as error:
        log.warning("%r is taken as it is: %s", message, error)
        return None


def as_original(copy: Message, tries: int = 0) -> Message:
    """The consumer has read a record with the message `copy`, and the handler has failed on this message `tries` times:
    return the message that the handler gets next. If the record is a copy that was sent back to the broker after
    earlier failures, the result has the original message's fields. A message that never failed is returned unchanged.
    """
    failure = failure_in(copy)
    if failure is None and not tries:
        return copy
    original = RetriedMessage(*copy)
    if failure is not None:
        place = failure.origin
        try:
            original = RetriedMessage(place.partition, place.offset, place.id, *restored(copy.flag, copy.body))
        except RemoteProtocolError as error:
            log.warning("%r is taken as it is: %s", copy, error)
    original.copy, original.tries = copy, tries
    original._attempts = 1 + tries + (0 if failure is None else failure.attempts)
    return original
