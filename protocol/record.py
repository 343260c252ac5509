"""The stored record of metaq 1.x, byte for byte (storage.md §2), and the data that the clients of this metaq add to the
record.

    off size field          big-endian, no padding, records back to back
      0    4 body length L  int32, >= 0
      4    4 checksum       CRC-32(body) & 0x7fffffff; the header is not covered
      8    8 message id     int64
     16    4 flag           int32, kept as the producer sent it
     20    L body           flag bit 0 clear: payload
                            flag bit 0 set:   int32 n | n bytes attribute (UTF-8) | payload

Flag bit 1 is metaq's own: it tells that the attribute is a property list (1.x stores this bit unchanged, and interprets
only bit 0). A property list has the form `name 0x01 value 0x02 name 0x01 value …`, as in RocketMQ; properties.py
describes how values of other types than text are written. Reserved names are TAGS, KEYS (keys separated by blanks),
ATTR (the 1.x attribute), and all names that begin with `metaq.`. If bit 1 is clear, the whole attribute is the tag. So
a Java client sees a tag as the message's attribute, and a filter on tags also finds an attribute that a Java client has
set.

1.x also stores the following bits unchanged. Bit 3: the payload is compressed (compression.py); the attribute is never
compressed. Bit 8: the message has the property `metaq.expires`. Readers look for this property only if bit 8 is set.
"""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from isal.isal_zlib import crc32

from .arrays import np
from .errors import LocalProtocolError, RemoteProtocolError
from .limits import MAX_FRAME_HEADER_BYTES, MAX_KEY_CHARACTERS, is_utf8
from .properties import RESERVED_PREFIX, TYPE_MARK, PropertyValue, decode_value, encode_value, plain_text

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "ATTRIBUTE_FLAG",
    "CHECK_AFTER_PROPERTY",
    "COMPRESSED_FLAG",
    "CORRELATION",
    "DELAYED_FLAG",
    "DELAY_PROPERTY",
    "DUE_PROPERTY",
    "EXPIRES",
    "EXPIRES_FLAG",
    "HALF_PRODUCER_PROPERTY",
    "HALF_PROPERTY",
    "HEADER",
    "HEADER_BYTES",
    "LONG_LIST_BYTES",
    "MAX_OWN_PROPERTIES",
    "MAX_PRIORITY",
    "PRIORITY_MASK",
    "PRIORITY_SHIFT",
    "PROPERTIES_FLAG",
    "REPLY_TO",
    "RESERVED_PROPERTIES",
    "TYPE",
    "Attributes",
    "Buffer",
    "RecordHeader",
    "attribute_of",
    "blank_headers",
    "checksum",
    "checksums",
    "checksums_match",
    "decode_attribute",
    "encode_attributes",
    "encode_body",
    "encode_key",
    "encode_record",
    "headers_at",
    "is_blank",
    "iter_headers",
    "key_hash",
    "key_hashes",
    "keys_of_attribute",
    "long_key_hashes",
    "matching_checksums",
    "own_body",
    "own_bytes",
    "own_list",
    "payload_bytes",
    "payload_start",
    "priorities_of",
    "priority_of",
    "property_of",
    "split_bodies",
    "tag_hash",
    "tag_hash_of_attribute",
    "tag_hash_of_body",
    "tag_of_attribute",
]

Buffer = bytes | bytearray | memoryview

HEADER = Struct(">iIqi")
"""Layout of a record's header: length of the body, checksum, message id, flag."""
HEADER_BYTES = HEADER.size  # 20


ATTRIBUTE_FLAG = 1
PROPERTIES_FLAG = 2
DELAYED_FLAG = 4
"""Flag bit 2: the broker keeps the message until its due time (or, for a half message, until its transaction is
decided), and clears the bit when it delivers the message (delays.py).
"""

DUE_PROPERTY = "metaq.due"
"""metaq's own property of a delayed message: the earliest time of its delivery, as Unix milliseconds in decimal."""

DELAY_PROPERTY = "metaq.delay"
"""metaq's own property of a delayed message: the time from its arrival at the broker to its delivery, as milliseconds
in decimal.
"""
COMPRESSED_FLAG = 8
EXPIRES_FLAG = 256

EXPIRES = "metaq.expires"
"""metaq's own property: the message's expiry time (Unix ms in decimal). From this time on, consumers no longer get the
message.
"""
TYPE = "metaq.type"
"""metaq's own property: the content type of the payload, which the producer's serializer has set."""
REPLY_TO = "metaq.reply-to"
"""metaq's own property of a request message. Its value `topic broker-partition inbox` tells where the reply must be
sent; `inbox` becomes the reply's tag.
"""
CORRELATION = "metaq.correlation"
"""metaq's own property of a request message and of its reply: an id that is the same in both, so that the requester can
find the request for a reply.
"""

PRIORITY_SHIFT, PRIORITY_MASK = 4, 0xF0
"""Flag bits 4–7: the priority of the message for shared consumers, 0 (ordinary) … MAX_PRIORITY."""

MAX_PRIORITY = 9

HALF_PROPERTY = "metaq.half"
"""metaq's own property of a half message: its producer group. The broker keeps the message until the outcome of its
transaction is known (half_messages.py).
"""

CHECK_AFTER_PROPERTY = "metaq.check-after"
"""metaq's own property of a half message: the time from its arrival at the broker to its first check, when the broker
first asks a producer for the outcome, as milliseconds in decimal.
"""

HALF_PRODUCER_PROPERTY = "metaq.half-producer"
"""metaq's own property of a half message: the name of the producer that sent it. Each producer chooses such a name for
itself. As long as this producer sends CHECK_HALVES requests to the broker, the broker asks no other producer for the
outcome of the transaction.
"""

MAX_OWN_PROPERTIES = 64
"""Maximum number of metaq's own properties that a broker reads from a long property list. A valid list has far fewer,
because metaq does not define so many properties.
"""

LONG_LIST_BYTES = 4 << 10
"""If a property list has more than this number of bytes, it counts as long: it is searched piece by piece, and as
rarely as possible, because a property list may have 8 MiB.
"""

_PIECE_BYTES = 64 << 10
"""Number of bytes of a long property list that are searched at once. Searching them takes less than a tenth of a
millisecond, and the bytes fit into the processor's cache.
"""

_KEYS_PIECE_BYTES = 16 << 10
"""The keys in the KEYS property are extracted in pieces of this number of bytes. Each piece takes less than a
millisecond, even if each key has only one character.
"""

_ATTRIBUTE_LENGTH = Struct(">i")
_COPY_BYTES = 512  # copying a smaller body costs less than a view of it
_NAME_END, _VALUE_END = "\x01", "\x02"
_TAGS, _KEYS, _ATTR = "TAGS", "KEYS", "ATTR"
_ITEM_END = _VALUE_END.encode()
_TYPE_MARK = TYPE_MARK.encode()
_OWN_ITEM = RESERVED_PREFIX.encode()
_NEXT_OWN_ITEM = _ITEM_END + _OWN_ITEM
_TAG_ITEM, _ATTR_ITEM = f"{_TAGS}{_NAME_END}".encode(), f"{_ATTR}{_NAME_END}".encode()
_NO_HASHES: list[int] = []
_is_one_key = re.compile(rb"[!-~]+").fullmatch  # nothing that could be a blank: the usual case, without decoding
_is_time = re.compile(r"[0-9]{1,18}").fullmatch
_KEYS_ITEM = f"{_VALUE_END}{_KEYS}{_NAME_END}".encode()
RESERVED_PROPERTIES = frozenset((_TAGS, _KEYS, _ATTR))


def checksum(body: Buffer) -> int:
    """Return the CRC-32 (IEEE) of `body` with the sign bit cleared, 0 … 2**31-1."""
    return crc32(body) & 0x7FFFFFFF


class RecordHeader(NamedTuple):
    """A record's header and the record's position. start: the position in bytes in the buffer that contains the
    record.
    """

    start: int
    length: int
    checksum: int
    id: int
    flag: int

    @property
    def end(self) -> int:
        """Position of the first byte after the record."""
        return self.start + HEADER_BYTES + self.length


class Attributes(NamedTuple):
    """The data of a record other than its payload. properties: the user's properties. reserved: metaq's own properties,
    whose names begin with `metaq.`, with their values as written in the record.
    """

    attribute: str | None = None
    tag: str | None = None
    keys: tuple[str, ...] = ()
    properties: Mapping[str, PropertyValue] = {}
    reserved: Mapping[str, str] = {}

    @property
    def expires_ms(self) -> int | None:
        """The message's expiry time in Unix ms; from this time on, consumers do not get the message. The value is None
        if the message never expires.
        """
        text = self.reserved.get(EXPIRES, "")
        return int(text) if _is_time(text) else None


_NO_ATTRIBUTES = Attributes()


def encode_attributes(
    attribute: str | None = None,
    tag: str | None = None,
    keys: Sequence[str] = (),
    properties: Mapping[str, PropertyValue] | None = None,
    reserved: Mapping[str, str] | None = None,
) -> tuple[int, bytes]:
    """Encode these values as a record's attribute. Return (flag bits, attribute bytes), or (0, b"") if all arguments
    are empty.

    If the only value is an attribute or a tag, it is written as the attribute of 1.x. Otherwise all values are written
    as a property list. reserved: metaq's own properties; if EXPIRES is among them, bit 8 is in the returned flag bits.
    Raises LocalProtocolError for keys with blanks, for invalid UTF-8 (half of a surrogate pair), for names or values
    with 0x01 or 0x02, and for reserved names. Also raises the errors of `encode_value`, for example TypeError.
    """
    if not keys and not properties and not reserved and (attribute is None or tag is None or attribute == tag):
        single = tag if attribute is None else attribute
        if single is None:
            return 0, b""
        return ATTRIBUTE_FLAG, _encoded(single, [("tag" if attribute is None else "attribute", single)])
    pairs: list[tuple[str, str]] = []
    if tag is not None:
        pairs.append((_TAGS, plain_text(tag)))
    if keys:
        for key in keys:
            if not key or any(c.isspace() for c in key):
                raise LocalProtocolError(f"key {key!r} is empty or has a blank: keys are separated by blanks")
        pairs.append((_KEYS, " ".join(keys)))
    if attribute is not None:
        pairs.append((_ATTR, plain_text(attribute)))
    for name, value in (properties or {}).items():
        if name in RESERVED_PROPERTIES or name.startswith(RESERVED_PREFIX):
            raise LocalProtocolError(f"property name {name!r} is reserved: choose another")
        if not name:
            raise LocalProtocolError("property name '' is empty: give it a name")
        pairs.append((plain_text(name), encode_value(value, name)))
    if reserved:
        pairs.extend(reserved.items())
    text = "".join([f"{name}{_NAME_END}{written}{_VALUE_END}" for name, written in pairs])
    if text.count(_NAME_END) > len(pairs) or text.count(_VALUE_END) > len(pairs):
        name = next(name for name, written in pairs if _NAME_END in name + written or _VALUE_END in name + written)
        raise LocalProtocolError(f"property {name!r} has a byte 0x01 or 0x02, which separate properties: take it out")
    flag = ATTRIBUTE_FLAG | PROPERTIES_FLAG
    if reserved and EXPIRES in reserved:
        flag |= EXPIRES_FLAG
    return flag, _encoded(text, pairs)


def _encoded(text: str, pairs: Sequence[tuple[str, str]]) -> bytes:
    """Encode the text of an attribute as UTF-8. pairs: the names and the values in the text. If the encoding fails, the
    function looks for the wrong text in `pairs`, so that the error names the property. Raises LocalProtocolError.
    """
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        bad = repr(error.object[error.start : error.end])
        name = next((name for name, written in pairs if not is_utf8(name + written)), "")
        raise LocalProtocolError(f"{name!r} has {bad}, which is not valid UTF-8: use proper text") from None


def encode_key(key: bytes) -> tuple[int, bytes] | None:
    """Return what `encode_attributes` returns for a single key, at a tenth of the cost. Return None if the key is not
    printable ASCII.
    """
    if not _is_one_key(key):
        return None
    return ATTRIBUTE_FLAG | PROPERTIES_FLAG, _KEYS_ITEM[1:] + key + _ITEM_END


def payload_bytes(payload: Buffer) -> bytes:
    """Return the current content of a payload as bytes. Any other buffer than a bytes object is copied, so that later
    changes of the buffer do not change the message. Raises TypeError if `payload` is not a buffer.
    """
    if isinstance(payload, bytes):
        return payload
    if isinstance(payload, Buffer):
        return bytes(payload)
    hint = ": encode it, for example with .encode()" if isinstance(payload, str) else ""
    raise TypeError(f"a payload is bytes, bytearray or memoryview, not {type(payload).__name__}{hint}")


def encode_body(payload: bytes, flag: int, attribute: bytes) -> bytes:
    """Return the body of a record: `payload`, preceded by the attribute if bit 0 of `flag` is set."""
    if flag & ATTRIBUTE_FLAG:
        return b"".join((_ATTRIBUTE_LENGTH.pack(len(attribute)), attribute, payload))
    return payload


def priority_of(flag: int) -> int:
    """Return a record's priority for shared consumers. A number above MAX_PRIORITY, which metaq's producers never
    write, counts as MAX_PRIORITY.
    """
    return min((flag & PRIORITY_MASK) >> PRIORITY_SHIFT, MAX_PRIORITY)


def priorities_of(flags: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Return `priority_of` for each flag."""
    urgent: npt.NDArray[np.int32] = np.minimum((flags & PRIORITY_MASK) >> PRIORITY_SHIFT, MAX_PRIORITY).astype(np.int32)
    return urgent


def encode_record(body: Buffer, message_id: int, flag: int) -> bytes:
    """Return one complete record. Use this function for tests and single records. For many records it is faster if the
    caller joins headers and bodies.
    """
    return HEADER.pack(len(body), checksum(body), message_id, flag) + bytes(body)


def payload_start(body: Buffer, flag: int) -> int:
    """Return the position of the payload in `body`. The position is 0 if there is no attribute, or if the body states a
    length of the attribute that does not fit into the body. Records with such a length exist, because brokers do not
    check it.
    """
    if not flag & ATTRIBUTE_FLAG or len(body) < 4:
        return 0
    end: int = 4 + _ATTRIBUTE_LENGTH.unpack_from(body)[0]
    return end if 4 <= end <= len(body) else 0


def attribute_of(body: Buffer, flag: int) -> bytes | None:
    """Return the attribute's bytes, or None if the record has no attribute, or if the attribute's stated length does
    not fit into the body.
    """
    start = payload_start(body, flag)
    return bytes(body[4:start]) if start else None


def own_bytes(body: Buffer, flag: int) -> int:
    """Return how many bytes of a record's body exist only because the record has metaq's own properties. These are the
    bytes of metaq's own properties themselves. If the property list has no other items, the whole list counts. If the
    only other item is a tag or an attribute, the name of this item counts too, because the tag or attribute could be
    written without a list. The tag of a reply also counts, because the user has not chosen this tag: it is the inbox
    that the request names.
    """
    attribute = attribute_of(body, flag) if flag & PROPERTIES_FLAG else None
    if attribute is None:
        return 0
    items = attribute.split(_ITEM_END)[:-1]
    own = [item for item in items if item.startswith(_OWN_ITEM)]
    names = {item.partition(_NAME_END.encode())[0].decode("utf-8", "replace") for item in own}
    users = [item for item in items if not item.startswith(_OWN_ITEM)]
    if CORRELATION in names and REPLY_TO not in names:
        users = [item for item in users if not item.startswith(_TAG_ITEM)]
    if not own:
        return 0
    if not users:
        return _ATTRIBUTE_LENGTH.size + len(attribute)
    alone = len(users) == 1 and users[0].startswith((_TAG_ITEM, _ATTR_ITEM))
    return len(attribute) - sum(len(item) + 1 for item in users) + (len(_TAG_ITEM) + 1 if alone else 0)


def decode_attribute(attribute: bytes | None, flag: int) -> Attributes:
    """Decode a record's attribute, which contains all data of the record except its payload. Invalid UTF-8 becomes
    replacement characters, as in Java.
    """
    if attribute is None:
        return _NO_ATTRIBUTES
    is_list = flag & PROPERTIES_FLAG
    if not is_list or len(attribute) <= _PIECE_BYTES:
        texts: Iterable[str] = (text := attribute.decode("utf-8", "replace"),)
        if not is_list:
            return Attributes(text, text)
    else:
        texts = _texts_of(attribute)
    pairs: dict[str, str] = {}
    for text in texts:
        for item in text.split(_VALUE_END):
            name, mark, value = item.partition(_NAME_END)
            if mark:
                pairs[name] = value
    keys = pairs.pop(_KEYS, "")
    tag, own = pairs.pop(_TAGS, None), pairs.pop(_ATTR, None)
    reserved: dict[str, str] = {}
    if _OWN_ITEM in attribute:
        reserved = {name: value for name, value in pairs.items() if name.startswith(RESERVED_PREFIX)}
        for name in reserved:
            del pairs[name]
    properties: Mapping[str, PropertyValue] = pairs
    if _TYPE_MARK in attribute:
        properties = {name: decode_value(value) for name, value in pairs.items()}
    return Attributes(own, tag, tuple(keys.split()), properties, reserved)


def _texts_of(attribute: bytes) -> Iterator[str]:
    """Yield a property list as text. A long list is yielded in pieces of whole items, because Python runs no other
    thread while it decodes one text, so decoding a long list at once would block all threads.
    """
    start = 0
    while len(attribute) - start > _PIECE_BYTES:
        end = attribute.rfind(_ITEM_END, start, start + _PIECE_BYTES)
        if end < 0 and (end := attribute.find(_ITEM_END, start)) < 0:
            break
        yield attribute[start:end].decode("utf-8", "replace")
        start = end + 1
    yield attribute[start:].decode("utf-8", "replace")


def tag_of_attribute(attribute: bytes | None, flag: int) -> str | None:
    """Return the tag that `decode_attribute` would return. Only the tag is decoded, because decoding all of a message's
    properties (a message may have a million) would take long.
    """
    raw = _raw_tag(attribute, flag)
    return None if raw is None else raw.decode("utf-8", "replace")


def _raw_tag(attribute: bytes | None, flag: int) -> bytes | None:
    if attribute is None or not flag & PROPERTIES_FLAG:
        return attribute
    return _last_value(attribute, _TAG_ITEM, 0, len(attribute))


def _last_value(data: bytes, item: bytes, start: int, end: int) -> bytes | None:
    """Return the value of a property in the property list data[start:end], or None if the list does not have the
    property. If the list has the property several times, the last value counts. item: the property's name with the byte
    0x01 that ends it.
    """
    place = _rfind(data, _ITEM_END + item, start, end) + 1
    if not place:
        if not data.startswith(item, start, end):
            return None
        place = start
    place += len(item)
    stop = data.find(_ITEM_END, place, end)
    return data[place : stop if stop >= 0 else end]


def _rfind(data: bytes, wanted: bytes, start: int, end: int) -> int:
    """Like `bytes.rfind`, but search in pieces, so that another thread can run between two pieces."""
    while end - start > _PIECE_BYTES:
        first = end - _PIECE_BYTES
        if (place := data.rfind(wanted, first, end)) >= 0:
            return place
        end = first + len(wanted) - 1
    return data.rfind(wanted, start, end)


def _find(data: bytes, wanted: bytes, start: int, end: int) -> int:
    """Like `bytes.find`, but search in pieces, as `_rfind` does."""
    while end - start > _PIECE_BYTES:
        last = start + _PIECE_BYTES
        if (place := data.find(wanted, start, last)) >= 0:
            return place
        start = last - len(wanted) + 1
    return data.find(wanted, start, end)


def keys_of_attribute(attribute: bytes) -> Iterator[list[str]]:
    """Yield the keys that `decode_attribute` would return for a property list. The other properties are not decoded.

    The keys are yielded in lists, because there may be millions of them. A key that is longer than MAX_KEY_CHARACTERS
    may be split into several items of the lists, which does no harm, because nobody can search for so long a key.
    """
    value = _last_value(attribute, _KEYS_ITEM[1:], 0, len(attribute))
    return iter(()) if value is None else _keys_in(value)


def _keys_in(value: bytes) -> Iterator[list[str]]:
    decoder = getincrementaldecoder("utf-8")("replace")
    rest = ""
    for start in range(0, len(value), _KEYS_PIECE_BYTES):
        is_last = start + _KEYS_PIECE_BYTES >= len(value)
        text = rest + decoder.decode(value[start : start + _KEYS_PIECE_BYTES], is_last)
        keys = text.split()
        rest = keys.pop() if keys and not (is_last or text[-1].isspace()) else ""
        rest = rest[: MAX_KEY_CHARACTERS + 1]
        yield keys


def own_list(attribute: bytes) -> bytes:
    """Return a long property list without the users' properties, so that `property_of` is fast on the result. A short
    list is returned unchanged.

    The result has only the first MAX_OWN_PROPERTIES of metaq's own properties. Each property is cut to LONG_LIST_BYTES,
    which is enough for every property that a broker reads.
    """
    if len(attribute) <= LONG_LIST_BYTES:
        return attribute
    items: list[bytes] = []
    start = 0 if attribute.startswith(_OWN_ITEM) else _next_own(attribute, 0)
    while start >= 0 and len(items) < MAX_OWN_PROPERTIES:
        end = attribute.find(_ITEM_END, start)
        end = len(attribute) if end < 0 else end
        items.append(attribute[start : min(end, start + LONG_LIST_BYTES)])
        start = _next_own(attribute, end)
    return b"".join([item + _ITEM_END for item in items])


def _next_own(attribute: bytes, start: int) -> int:
    """Return the position of the next item after `start` that is one of metaq's own properties, or -1 if there is
    none.
    """
    place = _find(attribute, _NEXT_OWN_ITEM, start, len(attribute))
    return place + 1 if place >= 0 else -1


def own_body(body: Buffer, flag: int) -> Buffer:
    """If a record's body is long, return it without its payload and without the users' properties (see `own_list`).
    Return a short body, or a body without a property list, unchanged.
    """
    if len(body) <= LONG_LIST_BYTES or not flag & PROPERTIES_FLAG or (attribute := attribute_of(body, flag)) is None:
        return body
    return encode_body(b"", flag, own_list(attribute))


def property_of(attribute: bytes, name: bytes) -> bytes | None:
    """Return the value of one property in a property list, as it is written there, or None if there is no property with
    this name.
    """
    item = name + _NAME_END.encode()
    if attribute.startswith(item):
        start = 0
    else:
        start = attribute.find(_ITEM_END + item) + 1
        if not start:
            return None
    start += len(item)
    end = attribute.find(_ITEM_END, start)
    return attribute[start : end if end >= 0 else None]


def key_hashes(data: bytes, start: int, end: int) -> list[int]:
    """Return the `key_hash` of each key in the property list data[start:end]. The function is fast enough for millions
    of calls. For long property lists use `long_key_hashes`.
    """
    place = data.rfind(_KEYS_ITEM, start, end) + 1
    if not place:
        if not data.startswith(_KEYS_ITEM[1:], start, end):
            return _NO_HASHES
        place = start
    place += len(_KEYS_ITEM) - 1
    stop = data.find(_ITEM_END, place, end)
    value = data[place : stop if stop >= 0 else end]
    if _is_one_key(value):
        return [crc32(value)]
    return [key_hash(key) for key in value.decode("utf-8", "replace").split()]


def long_key_hashes(data: bytes, start: int, end: int) -> Iterator[npt.NDArray[np.uint32]]:
    """Yield the `key_hash` of each key in the long property list data[start:end], in arrays. An array contains each
    hash only once.
    """
    value = _last_value(data, _KEYS_ITEM[1:], start, end)
    for keys in () if value is None else _keys_in(value):
        yield np.array([*map(key_hash, set(keys))], np.uint32)


def key_hash(key: str) -> int:
    """Return the number by which an index finds the messages with this key: the CRC-32 of the key's UTF-8 bytes."""
    return crc32(key.encode("utf-8"))


def tag_hash(tag: str) -> int:
    """Return the number that stands for a tag in the index: the tag's CRC-32, but never 0, which means "no tag"."""
    return crc32(tag.encode("utf-8")) or 1


def tag_hash_of_attribute(attribute: bytes | None, flag: int) -> int:
    """Return the `tag_hash` of the tag in a record's attribute, or 0 if there is no tag. Before the hash is computed,
    invalid UTF-8 in the tag is replaced as in `decode_attribute`. But a tag that is too long for any request to name it
    is hashed as it is, because to decode it would take up to 50 ms.
    """
    raw = _raw_tag(attribute, flag)
    if raw is None:
        return 0
    if raw.isascii() or len(raw) > MAX_FRAME_HEADER_BYTES:
        return crc32(raw) or 1
    return tag_hash(raw.decode("utf-8", "replace"))


def tag_hash_of_body(body: Buffer, flag: int) -> int:
    """Return the `tag_hash` of the tag in a record's body, or 0 if the record has no tag."""
    return tag_hash_of_attribute(attribute_of(body, flag), flag) if flag & ATTRIBUTE_FLAG else 0


_LEAST_ID = 1 << 56
"""No positive id of a stored message is less than this number. The ids of metaq's own brokers contain the time when the
id was chosen; every id chosen after November 2011 is larger than this number. Ids of a Java broker are negative, or
practically random.
"""


def is_blank(length: int, crc: int, message_id: int) -> bool:
    """Return whether a stored header is 20 zero bytes, or begins with 9 or more zero bytes.

    Such zero bytes are not a record. A file system leaves zero bytes where data was lost. Zero bytes at the header's
    beginning also remain if a disk has written only the sector that contains the header's end. Twenty zero bytes have
    the form of a message with an empty body, because the checksum of an empty body is 0. But the id of a stored message
    never begins with a zero byte, so a stored header of zero bytes cannot be a message. In a client's request, however,
    the same bytes are an empty message, because a message has no id before the broker stores it.
    """
    return not (length or crc) and 0 <= message_id < _LEAST_ID


@cache
def header_dtype() -> np.dtype[Any]:
    """Return the layout of HEADER as a NumPy type."""
    return np.dtype([("length", ">i4"), ("checksum", ">u4"), ("id", ">i8"), ("flag", ">i4")])


def blank_headers(headers: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return for each header (of the type `header_dtype`) what `is_blank` would return."""
    blank: npt.NDArray[np.bool_] = headers["length"] == 0
    if blank.any():  # usually no length is 0, and the other fields need not be read
        ids = headers["id"]
        blank &= (headers["checksum"] == 0) & (ids >= 0) & (ids < _LEAST_ID)
    return blank


def iter_headers(data: Buffer, start: int = 0, *, stored: bool = True) -> Iterator[RecordHeader]:
    """Yield the headers of all records that are completely in `data` from `start` on. An incomplete last record is left
    out.

    stored: whether the records have ids; False for the records in a client's request. The cost is O(records), because
    bodies are not read. Raises RemoteProtocolError for a negative length, and, among stored records, for a header for
    which `is_blank` is true.
    """
    end = len(data)
    unpack = HEADER.unpack_from
    while start + HEADER_BYTES <= end:
        length, crc, message_id, flag = unpack(data, start)
        if length <= 0:
            if length < 0:
                raise RemoteProtocolError(f"record at byte {start} has length {length}")
            if stored and is_blank(length, crc, message_id):
                raise RemoteProtocolError(f"the header at byte {start} is 20 zero bytes")
        header = RecordHeader(start, length, crc, message_id, flag)
        if header.end > end:
            return
        yield header
        start = header.end


def headers_at(data: Buffer, starts: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Return a copy of the headers (of the type `header_dtype`) at the positions `starts` of `data`. Each header must
    be completely in `data`.
    """
    if not len(starts):
        return np.empty(0, header_dtype())
    anywhere = np.ndarray(len(data) - HEADER_BYTES + 1, f"V{HEADER_BYTES}", data, 0, (1,))
    headers: npt.NDArray[Any] = anywhere[starts].view(header_dtype())
    return headers


_BODIES = 64
"""If records have the same size, one call of a compiled `struct.Struct` extracts the bodies of this number of
records.
"""


@lru_cache(maxsize=256)
def _bodies_struct(length: int, count: int) -> Struct:
    return Struct(f"{HEADER_BYTES}x{length}s" * count)


def split_bodies(data: bytes, start: int, sizes: npt.NDArray[np.int64]) -> list[bytes]:
    """Return the bodies of back-to-back records in `data` from `start` on; sizes: the sizes of the records, headers
    included.

    Each body is copied. The function is fast because it executes no Python bytecode for each record and, if all records
    have the same size, creates no slice objects.
    """
    count = len(sizes)
    if count >= _BODIES and sizes.min() == sizes.max():
        size = int(sizes[0])
        bodies: list[bytes] = []
        for first in range(0, count, _BODIES):
            unpack = _bodies_struct(size - HEADER_BYTES, min(_BODIES, count - first)).unpack_from
            bodies += unpack(data, start + first * size)
        return bodies
    ends = np.cumsum(sizes) + start
    begins = ends - sizes + HEADER_BYTES
    return list(map(data.__getitem__, map(slice, begins.tolist(), ends.tolist())))


def checksums(bodies: Sequence[Buffer]) -> npt.NDArray[np.uint32]:
    """Return the `checksum` of each body."""
    return np.fromiter(map(crc32, bodies), np.uint32, len(bodies)) & np.uint32(0x7FFFFFFF)


def checksums_match(
    data: memoryview, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], expected: npt.NDArray[Any]
) -> bool:
    """Whether all bodies data[start:end] have their checksums in `expected`."""
    return bool(matching_checksums(data, starts, ends, expected).all())


def matching_checksums(
    data: memoryview, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], expected: npt.NDArray[Any]
) -> npt.NDArray[np.bool_]:
    """Return for each body data[start:end] whether it has the checksum `expected`. No Python bytecode is executed for
    each record.
    """
    found = np.fromiter(map(crc32, _bodies(data, starts, ends)), dtype=np.uint32, count=len(starts))
    matching: npt.NDArray[np.bool_] = (found & 0x7FFFFFFF) == expected
    return matching


def _bodies(
    data: memoryview, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> Iterable[Buffer | npt.NDArray[np.uint8]]:
    """Return an iterable of the bodies data[start:end]. If all bodies have the same size and begin at equal distances,
    NumPy extracts them at half the cost of slicing `data`.
    """
    count = len(starts)
    if count > 1:
        width, length = int(starts[1] - starts[0]), int(ends[0] - starts[0])
        if 0 < length <= width and (np.diff(starts) == width).all() and (ends - starts == length).all():
            if length <= _COPY_BYTES:
                copied = np.ndarray(count, np.dtype(("V", length)), data, int(starts[0]), (width,))
                return cast(list[bytes], copied.tolist())
            return np.ndarray((count, length), np.uint8, data, int(starts[0]), (width, 1))
    return map(data.__getitem__, map(slice, starts.tolist(), ends.tolist()))
