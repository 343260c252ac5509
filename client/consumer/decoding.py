"""From fetched records to messages: the tight loop of the consumer.

With a table of sizes no step is taken from record to record: where they begin is a running sum, the headers are one
numpy array, and bodies and messages are made by chains of C functions (struct, map, zip) without bytecode per message.
Without one (few records, a filtered answer, the text protocol) the records are walked. Both find the same.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from itertools import repeat
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32

from metaq.protocol.record import (
    ATTRIBUTE_FLAG,
    HEADER,
    HEADER_BYTES,
    attribute_of,
    blank_headers,
    checksums,
    decode_attribute,
    headers_at,
    is_blank,
    split_bodies,
)

from ..message import Message, PlainMessage
from ..values import TopicPartition

__all__ = [
    "WRONG_CHECKSUM",
    "WRONG_LENGTH",
    "ZEROS",
    "Decoded",
    "Good",
    "Records",
    "decode_sized",
    "decode_walking",
    "good_records",
]

WRONG_CHECKSUM = "its checksum does not match"
WRONG_LENGTH = "its length cannot be right"
ZEROS = "there are zeros instead of it"

_make = tuple.__new__
"""Message(…) without its Python-level __new__: half the time."""


class Records(Protocol):
    """What of a Chunk is decoded; see there."""

    data: bytes
    start: int
    end: int
    offset: int
    sizes: npt.NDArray[np.int64] | None


class Decoded(NamedTuple):
    """`total` messages, and what they end at: byte offset `end` of the partition, where `damage` says what is wrong, if
    it is not "". Behind the end of the messages there may be a cut record.

    messages: an iterator, so that they are made when they are taken. Thousands that wait would be what the garbage
    collector goes through again and again; some hundred that are used up soon it never sees.
    """

    messages: Iterator[Message]
    total: int
    end: int
    damage: str


def _decoded(messages: list[Message], end: int, damage: str) -> Decoded:
    return Decoded(iter(messages), len(messages), end, damage)


def decode_walking(
    records: Records, partition: TopicPartition, tags: Container[str] | None = None, check: bool = True
) -> Decoded:
    """All whole records up to the first that is damaged; with `tags` the messages that have one of them."""
    data, start, end = records.data, records.start, records.end
    shift = records.offset - start
    messages: list[Message] = []
    append, unpack, crc = messages.append, HEADER.unpack_from, crc32
    body_start = start + HEADER_BYTES
    while body_start <= end:
        length, checksum, identity, flag = unpack(data, start)
        if length <= 0:
            if length < 0:
                return _decoded(messages, start + shift, WRONG_LENGTH)
            if is_blank(length, checksum, identity):
                return _decoded(messages, start + shift, ZEROS)
        body_end = body_start + length
        if body_end > end:
            break
        body = data[body_start:body_end]
        if check and crc(body) & 0x7FFFFFFF != checksum:
            return _decoded(messages, start + shift, WRONG_CHECKSUM)
        if tags is None or _has_tag(body, flag, tags):
            append(_make(Message, (partition, start + shift, identity, flag, body)))
        start = body_end
        body_start = start + HEADER_BYTES
    return _decoded(messages, start + shift, "")


class Good(NamedTuple):
    """Records in front of the first damaged one: where each begins in the data, its size, its header (HEADER_DTYPE)
    and, if bodies were looked at, its body. `damage` says what is wrong with that one; "" if there is none.
    """

    starts: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    headers: npt.NDArray[Any]
    bodies: list[bytes]
    damage: str

    def end(self, records: Records) -> int:
        """Position in the data behind the last of them."""
        return records.start + int(self.sizes.sum())


def good_records(records: Records, check: bool, bodies: bool) -> Good:
    """What can be handed out of records with known sizes. check: whether checksums are compared; bodies: whether they
    are wanted even so.
    """
    assert records.sizes is not None
    starts = np.cumsum(records.sizes) - records.sizes + records.start
    headers = headers_at(records.data, starts)
    count, damage = _leading(headers["length"] == records.sizes - HEADER_BYTES), WRONG_LENGTH
    blank = blank_headers(headers[:count])
    if blank.any():
        count, damage = int(blank.argmax()), ZEROS
    found = split_bodies(records.data, records.start, records.sizes[:count]) if check or bodies else []
    if check:
        matching = _leading(checksums(found) == headers["checksum"][:count])
        if matching < count:
            count, damage = matching, WRONG_CHECKSUM
            del found[count:]
    if count == len(starts):
        damage = ""
    return Good(starts[:count], records.sizes[:count], headers[:count], found, damage)


def _leading(good: npt.NDArray[np.bool_]) -> int:
    """How many are true in front of the first false one."""
    return len(good) if good.all() else int(np.argmin(good))


def decode_sized(
    records: Records, partition: TopicPartition, tags: Container[str] | None = None, check: bool = True
) -> Decoded:
    """As decode_walking, for records with known sizes."""
    good = good_records(records, check, bodies=True)
    shift = records.offset - records.start
    flags = good.headers["flag"]
    columns = (
        repeat(partition),
        (good.starts + shift).tolist(),
        good.headers["id"].tolist(),
        flags.tolist() if flags.any() else repeat(0),
        good.bodies,
    )
    kind = Message if np.bitwise_and(flags, ATTRIBUTE_FLAG).any() else PlainMessage
    messages: Iterator[Message] = map(_make, repeat(kind, len(good.starts)), zip(*columns, strict=False))
    end = good.end(records) + shift
    if tags is not None:
        return _decoded([each for each in messages if _has_tag(each.body, each.flag, tags)], end, good.damage)
    return Decoded(messages, len(good.starts), end, good.damage)


def _has_tag(body: bytes, flag: int, tags: Container[str]) -> bool:
    """Whether the record's tag is among `tags`."""
    if not flag & ATTRIBUTE_FLAG:
        return False
    return decode_attribute(attribute_of(body, flag), flag).tag in tags
