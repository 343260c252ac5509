"""Make and read the records of failed messages, that is, of messages on which a handler has failed. A failed message
waits for another attempt or is a dead letter. The code in this module does no I/O.

The record of a failed message has the body of the original message; metaq's own properties follow the original's
properties. The payload is not compressed, because metaq's own topics accept no compressed messages. Only a payload that
would be too large without compression stays compressed. metaq's own properties are:

    metaq.origin     topic/broker-partition/offset/id/flag of the original, where it was stored first
    metaq.attempts   how often a handler has failed on the message, decimal
    metaq.cause      the last error, and in a second line its place in the code; at most MAX_CAUSE_CHARACTERS
    metaq.failed     the time of the last failure, Unix ms, decimal
    metaq.delay      if there will be another attempt: ms until then, decimal (delays.py)

An attribute of 1.x, which is not a property list, becomes the properties TAGS and ATTR (a long attribute only ATTR). An
attribute that cannot be in a list, because it has a byte 0x01 or 0x02, becomes `metaq.attribute`, in base64. `restored`
recreates the original from the record, byte for byte, with two differences. The payload is not compressed. The
properties `metaq.due`, `metaq.delay`, `metaq.half` and `metaq.check-after` are missing, because they were only needed
until the original message was delivered.

An operator sends a dead letter again or drops it; after that the dead letter counts as done. Its record stays, because
single records cannot be removed from a log. So the operator's command appends to the same partition a record that marks
the dead letter as done. The appended record has no payload and has this property:

    metaq.done       redriven or dropped, a blank, and the byte positions of dead letters of this partition, with commas
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from dataclasses import dataclass

from .compression import payload_of, unpacked_if_fitting
from .errors import PayloadUnreadable, RemoteProtocolError
from .record import (
    ATTRIBUTE_FLAG,
    CHECK_AFTER_PROPERTY,
    COMPRESSED_FLAG,
    DELAY_PROPERTY,
    DELAYED_FLAG,
    DUE_PROPERTY,
    EXPIRES,
    EXPIRES_FLAG,
    HALF_PRODUCER_PROPERTY,
    HALF_PROPERTY,
    PROPERTIES_FLAG,
    Buffer,
    attribute_of,
    encode_body,
    payload_start,
    property_of,
)
from .topic_partition import TopicPartition

__all__ = [
    "ATTEMPTS_PROPERTY",
    "CAUSE_PROPERTY",
    "DONE_PROPERTY",
    "FAILED_PROPERTY",
    "MAX_CAUSE_CHARACTERS",
    "MAX_DONE_OFFSETS",
    "ORIGIN_PROPERTY",
    "Done",
    "Failure",
    "Origin",
    "done_of",
    "encode_done",
    "encode_failed",
    "failure_of",
    "payload_in",
    "restored",
    "shortened",
    "without_expiry",
]

ORIGIN_PROPERTY = "metaq.origin"
ATTEMPTS_PROPERTY = "metaq.attempts"
CAUSE_PROPERTY = "metaq.cause"
FAILED_PROPERTY = "metaq.failed"
DONE_PROPERTY = "metaq.done"
_ATTRIBUTE_PROPERTY = "metaq.attribute"

MAX_CAUSE_CHARACTERS = 1000
"""Maximum number of characters of `metaq.cause`. This is enough for an error text and the file and line where the error
was raised, and little enough that thousands of causes fit into memory.
"""

MAX_DONE_OFFSETS = 1000
"""Maximum number of dead letters that one record marks as done."""

_MOST_TAG_BYTES = 4096
"""Maximum size in bytes of an attribute of 1.x that is stored both as TAGS and as ATTR. A longer attribute is stored
only as ATTR, because nobody searches for such a long tag.
"""

_NAME_END, _ITEM_END = b"\x01", b"\x02"
_OURS = tuple(
    name.encode() + _NAME_END
    for name in (
        *(ORIGIN_PROPERTY, ATTEMPTS_PROPERTY, CAUSE_PROPERTY, FAILED_PROPERTY, _ATTRIBUTE_PROPERTY),
        *(DUE_PROPERTY, DELAY_PROPERTY, HALF_PROPERTY, HALF_PRODUCER_PROPERTY, CHECK_AFTER_PROPERTY),
    )
)
_LIST = ATTRIBUTE_FLAG | PROPERTIES_FLAG
_ORIGIN = re.compile(r"([^/]+)/(\d{1,9})-(\d{1,9})/(\d{1,19})/(-?\d{1,19})/(-?\d{1,10})")
_DONE = re.compile(rb"(redriven|dropped) (\d{1,19}(?:,\d{1,19})*)")
_MARKS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Origin:
    """The place where a message was first stored: the partition (with topic and broker) and the byte offset in it; and
    the message's id there.
    """

    partition: TopicPartition
    offset: int
    id: int

    @property
    def topic(self) -> str:
        return self.partition.topic

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


@dataclass(frozen=True, slots=True)
class Failure:
    """The description of a handler's failures on one message. attempts: how often a handler has failed on the message,
    at least 1. failed_ms: the time of the last failure, Unix ms.

    cause: type and text of the last error; after a line end, the place in the program where it was raised.
    """

    origin: Origin
    attempts: int
    cause: str
    failed_ms: int


@dataclass(frozen=True, slots=True)
class Done:
    """The content of a record that marks dead letters as done. how: `redriven` or `dropped`. offsets: the byte offsets
    of these dead letters in the partition of this record.
    """

    how: str
    offsets: tuple[int, ...]


def encode_done(done: Done) -> tuple[int, bytes]:
    """Return the flag and the body of a record that marks dead letters as done. `done` must name at most
    MAX_DONE_OFFSETS dead letters.
    """
    assert 0 < len(done.offsets) <= MAX_DONE_OFFSETS
    value = f"{done.how} {','.join(map(str, done.offsets))}"
    return _LIST, encode_body(b"", _LIST, f"{DONE_PROPERTY}\x01{value}\x02".encode())


def done_of(flag: int, body: Buffer) -> Done | None:
    """Return which dead letters a record marks as done, or None if the record marks none."""
    attribute = attribute_of(body, flag) if flag & _LIST == _LIST else None
    value = None if attribute is None else property_of(attribute, DONE_PROPERTY.encode())
    found = None if value is None else _DONE.fullmatch(value)
    return None if found is None else Done(found[1].decode(), tuple(map(int, found[2].split(b","))))


def shortened(cause: str) -> str:
    """Return `cause` in a form that a property can hold: control characters except line ends are replaced, and the text
    is cut to MAX_CAUSE_CHARACTERS.
    """
    clean = _MARKS.sub(" ", cause.encode("utf-8", "replace").decode("utf-8"))
    return clean if len(clean) <= MAX_CAUSE_CHARACTERS else clean[: MAX_CAUSE_CHARACTERS - 1] + "…"


def encode_failed(flag: int, body: bytes, failure: Failure, delay_ms: int | None = None) -> tuple[int, bytes]:
    """Return the flag and the body of the record that is stored for a failed message. delay_ms: milliseconds until
    another attempt; None means that there is no other attempt and the message becomes a dead letter.

    flag, body: the flag and the body of the original. The returned body is 50 bytes to 5 KB longer than the original's
    body would be without compression. The returned body has at most MAX_RECORD_BODY_BYTES, except if an attribute of
    1.x of more than 40 KB has to be written in base64. If the original's payload is compressed, this function
    decompresses it. If the decompression fails, or if the decompressed payload would be too large, the payload stays
    compressed. In each case `payload_in` returns the uncompressed payload.
    """
    flag, body = _unpacked(flag, body)
    origin = failure.origin
    place = f"{origin.topic}/{origin.partition}/{origin.offset}/{origin.id}/{flag & ~DELAYED_FLAG}"
    ours = {
        ORIGIN_PROPERTY: place,
        ATTEMPTS_PROPERTY: str(failure.attempts),
        CAUSE_PROPERTY: shortened(failure.cause),
        FAILED_PROPERTY: str(failure.failed_ms),
    }
    if delay_ms is not None:
        ours[DELAY_PROPERTY] = str(delay_ms)
    items = [*_items(flag, body), *(f"{name}\x01{value}".encode() for name, value in ours.items())]
    failed_flag = (flag | _LIST) & ~(DELAYED_FLAG | COMPRESSED_FLAG) | (0 if delay_ms is None else DELAYED_FLAG)
    attribute = b"".join(item + _ITEM_END for item in items)
    return failed_flag, encode_body(body[payload_start(body, flag) :], failed_flag, attribute)


def _unpacked(flag: int, body: bytes) -> tuple[int, bytes]:
    if not flag & COMPRESSED_FLAG:
        return flag, body
    try:
        return unpacked_if_fitting(body, flag)
    except PayloadUnreadable:
        return flag, body


def payload_in(flag: int, body: bytes) -> bytes:
    """Return the original message's uncompressed payload from the record of a failed message. Raises PayloadUnreadable,
    RemoteProtocolError.
    """
    found = _read(flag, body)
    packed = 0 if found is None else found[1] & COMPRESSED_FLAG
    return payload_of(body, flag | packed)


def failure_of(flag: int, body: Buffer) -> Failure | None:
    """Return the failure that a record describes, or None if the record does not belong to a failed message. Raises
    RemoteProtocolError.
    """
    found = _read(flag, body)
    return found and found[0]


def restored(flag: int, body: bytes) -> tuple[int, bytes]:
    """Return the flag and the body of the original message. flag, body: the record of the failed message. Raises
    RemoteProtocolError if the record does not belong to a failed message.
    """
    found = _read(flag, body)
    if found is None:
        raise RemoteProtocolError(f"the record has no property {ORIGIN_PROPERTY}: it is no message that failed")
    _, original_flag, attribute = found
    payload = body[payload_start(body, flag) :]
    if not original_flag & ATTRIBUTE_FLAG:
        return original_flag, payload
    if original_flag & PROPERTIES_FLAG:
        kept = b"".join(item + _ITEM_END for item in attribute.split(_ITEM_END) if item and not item.startswith(_OURS))
        return original_flag, encode_body(payload, original_flag, kept)
    encoded = property_of(attribute, _ATTRIBUTE_PROPERTY.encode())
    try:
        text = property_of(attribute, b"ATTR") or b"" if encoded is None else b64decode(encoded, validate=True)
    except Base64Error as error:
        raise RemoteProtocolError(f"{_ATTRIBUTE_PROPERTY} is no base64") from error
    return original_flag, encode_body(payload, original_flag, text)


def without_expiry(flag: int, body: bytes) -> tuple[int, bytes]:
    """Remove the property `metaq.expires` from a record; return the new flag and the new body."""
    attribute = attribute_of(body, flag) if flag & EXPIRES_FLAG else None
    if attribute is None:
        return flag, body
    front = EXPIRES.encode() + _NAME_END
    kept = b"".join(item + _ITEM_END for item in attribute.split(_ITEM_END) if item and not item.startswith(front))
    return flag & ~EXPIRES_FLAG, encode_body(body[payload_start(body, flag) :], flag, kept)


def _items(flag: int, body: bytes) -> list[bytes]:
    """Convert the attribute of an original message to the items (name and value) of a property list, and return
    them.
    """
    attribute = attribute_of(body, flag)
    if attribute is None:
        return []
    if flag & PROPERTIES_FLAG:
        return [item for item in attribute.split(_ITEM_END) if item and not item.startswith(_OURS)]
    if _NAME_END in attribute or _ITEM_END in attribute:
        return [_ATTRIBUTE_PROPERTY.encode() + _NAME_END + b64encode(attribute)]
    own = b"ATTR" + _NAME_END + attribute
    return [b"TAGS" + _NAME_END + attribute, own] if len(attribute) <= _MOST_TAG_BYTES else [own]


def _read(flag: int, body: Buffer) -> tuple[Failure, int, bytes] | None:
    """Return the failure that a record describes, the flag of the original message, and the record's property list.
    Return None if the record does not belong to a failed message.
    """
    attribute = attribute_of(body, flag) if flag & _LIST == _LIST else None
    place = None if attribute is None else property_of(attribute, ORIGIN_PROPERTY.encode())
    if attribute is None or place is None:
        return None
    found = _ORIGIN.fullmatch(place.decode("utf-8", "replace"))
    attempts = property_of(attribute, ATTEMPTS_PROPERTY.encode()) or b""
    failed = property_of(attribute, FAILED_PROPERTY.encode()) or b""
    if found is None or not attempts.isdigit() or not failed.isdigit() or len(attempts) > 9 or len(failed) > 18:
        raise RemoteProtocolError(f"{ORIGIN_PROPERTY}, {ATTEMPTS_PROPERTY} or {FAILED_PROPERTY} of a record is damaged")
    topic, broker, partition, offset, identity, original_flag = found.groups()
    origin = Origin(TopicPartition(topic, int(broker), int(partition)), int(offset), int(identity))
    cause = (property_of(attribute, CAUSE_PROPERTY.encode()) or b"").decode("utf-8", "replace")
    return Failure(origin, int(attempts), cause, int(failed)), int(original_flag), attribute
