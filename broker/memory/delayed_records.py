"""The records of the internal logs of delayed messages (store/internal_logs.py, broker/delays). A record is a waiting
message, or it contains marks about such messages.

Each record has an index unit with the hash of the record's attribute (record.tag_hash_of_body). So the index units
alone tell which messages were stored, when each message is due, and which partition each message waits for.

    a waiting one    header, flag 1 | n i32 | n bytes <topic>-<partition> | taken i64 | flag i32 | checksum u32 | body
    written anew     the same with a `/` in front of the topic: it replaces the older record with its id
    marks            header, flag 1 | n i32 | n bytes /delivered …        | version u16 | settled i64 | groups
    a group          bytes u16 | topic | partition u32 | base i64 | first id i64 | count u32 | count × id i64 |
                     count × size u32                                                                   all big-endian

A record "written anew" is a copy of an older record; it was appended so that the older record's segment could be
removed. The id in the header of a waiting message's record is its pending id (protocol/delays.py). taken: the ordinary
message id that the message got when it arrived; this id includes the time of arrival. flag, checksum and body have the
values that the producer has sent.

A group in a `/delivered` record says that the messages in the group are delivered: that they were appended to their
partition, from byte `base` on. The group has the messages' sizes; the first message got the id `first id`. The group is
written before the messages are appended. If the broker crashes between the two writes, the group names messages that
are not in the partition; for these messages it is ignored. A group of `/cancelled` says that the messages will not be
delivered. A group of `/returned` says that the messages were not delivered although an earlier `/delivered` mark names
them, so that they wait again. In groups of `/cancelled` and `/returned`, base and first id are 0. A group of `/asked`
is about half messages: `size` tells how often producers were asked for the outcome of each message, and `base` is the
time of the last question (Unix ms). settled: a byte offset in the internal log; all deliveries whose marks lie before
this offset have really happened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import lru_cache
from struct import Struct, error
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32

from metaq.protocol.errors import StoreError
from metaq.protocol.message_id import EPOCH_MS, TIME_SHIFT
from metaq.protocol.record import ATTRIBUTE_FLAG, HEADER, HEADER_BYTES, Buffer, checksum, tag_hash

from ..store.index import UNIT

__all__ = [
    "FRONT_BYTES",
    "MARKS",
    "DelayTarget",
    "Group",
    "Ids",
    "MarkKind",
    "Marks",
    "Pending",
    "Sizes",
    "check_record",
    "decode_marks",
    "decode_pending",
    "encode_marks",
    "encode_pending",
    "overhead",
    "place_of",
    "place_tag",
    "taken_at",
]

_VERSION = 1
_ANEW = "/"
_LENGTH = Struct(">i")
_HEAD = Struct(">qiI")
_MARKS_HEAD = Struct(">Hq")
_NAME_LENGTH = Struct(">H")
_GROUP = Struct(">IqqI")
_IDS, _SIZES = np.dtype(">i8"), np.dtype(">u4")
_TAKEN = Struct(">q")

DelayTarget = tuple[str, int]
"""The topic and the partition number of a delayed message's destination."""

Ids = npt.NDArray[np.int64]
Sizes = npt.NDArray[np.int64]


class MarkKind(StrEnum):
    """The kinds of marks. Each value begins with `/`; the name of a topic never begins with `/`."""

    DELIVERED = "/delivered"
    CANCELLED = "/cancelled"
    RETURNED = "/returned"
    ASKED = "/asked"


MARKS = {tag_hash(kind): kind for kind in MarkKind}
"""The kinds of marks, by tag hash. The index unit of a record with marks has the tag hash of the marks' kind. By
chance, the name of a partition can have the same tag hash as a kind of mark. So if a unit has such a tag hash, only the
record itself tells whether it contains marks or a message for this partition.
"""


# --- those that wait --------------------------------------------------------------------------------------------------


class Pending(NamedTuple):
    """A waiting message, decoded from its record. body: the body that the producer has sent, including the
    attribute.
    """

    id: int
    place: DelayTarget
    taken: int
    flag: int
    checksum: int
    body: bytes


@lru_cache(1 << 14)
def _front(place: DelayTarget, anew: bool = False) -> tuple[bytes, int, int]:
    """Return three values that all records of messages that wait for this partition have in common: the bytes between
    the header and the field `taken`, the CRC-32 of these bytes, and the hash of the record's attribute.
    """
    name = f"{_ANEW if anew else ''}{place[0]}-{place[1]}"
    encoded = name.encode("utf-8")
    front = _LENGTH.pack(len(encoded)) + encoded
    return front, crc32(front), tag_hash(name)


def place_tag(place: DelayTarget, *, anew: bool = False) -> int:
    """Return the tag hash in the index units of the messages that wait for this partition."""
    return _front(place, anew)[2]


def place_of(record: Buffer) -> tuple[DelayTarget, bool]:
    """Return the destination of a waiting message, and whether the message's record is a rewritten one. record: the
    message's record, or only its first bytes. Raises StoreError.
    """
    try:
        (name_bytes,) = _LENGTH.unpack_from(record, HEADER_BYTES)
        start = HEADER_BYTES + _LENGTH.size
        name = bytes(record[start : start + name_bytes]).decode("utf-8")
        topic, _, partition = name.removeprefix(_ANEW).rpartition("-")
        return (topic, int(partition)), name.startswith(_ANEW)
    except (error, ValueError) as wrong:
        raise StoreError(f"a delayed message cannot be read: {wrong}") from wrong


def overhead(place: DelayTarget) -> int:
    """Return how many bytes longer the record of a message for this partition is in the internal log than in the
    partition.
    """
    return len(_front(place)[0]) + _HEAD.size


def encode_pending(
    place: DelayTarget,
    flags: Sequence[int],
    checksums: Sequence[int],
    bodies: Sequence[Buffer],
    taken: Sequence[int],
    ids: Sequence[int],
    *,
    anew: bool = False,
) -> tuple[list[Buffer], list[int]]:
    """Return the records of waiting messages, as a list of buffers, and the size of each record. anew: whether the new
    records replace older records with the same ids.
    """
    front, front_crc, _ = _front(place, anew)
    more = len(front) + _HEAD.size
    buffers: list[Buffer] = []
    sizes = []
    head_of, pack = _HEAD.pack, HEADER.pack
    for flag, crc, body, taken_id, pending_id in zip(flags, checksums, bodies, taken, ids, strict=True):
        head = head_of(taken_id, flag, crc)
        length = more + len(body)
        found = crc32(body, crc32(head, front_crc)) & 0x7FFFFFFF
        buffers += (pack(length, found, pending_id, ATTRIBUTE_FLAG) + front + head, body)
        sizes.append(length + HEADER_BYTES)
    return buffers, sizes


def decode_pending(record: bytes) -> Pending | None:
    """Decode the whole record of a waiting message. Return None if the record is damaged or is not a waiting
    message.
    """
    length, crc, pending_id, flag = HEADER.unpack_from(record)
    if length != len(record) - HEADER_BYTES or flag != ATTRIBUTE_FLAG or checksum(record[HEADER_BYTES:]) != crc:
        return None
    try:
        (name_bytes,) = _LENGTH.unpack_from(record, HEADER_BYTES)
        start = HEADER_BYTES + _LENGTH.size + name_bytes
        place = _place_named(record[start - name_bytes : start])
        taken, sent_flag, sent_checksum = _HEAD.unpack_from(record, start)
        return Pending(pending_id, place, taken, sent_flag, sent_checksum, record[start + _HEAD.size :])
    except (error, ValueError):
        return None


@lru_cache(1 << 14)
def _place_named(name: bytes) -> DelayTarget:
    """Return the topic and the number of the partition with this name. Raises ValueError if it is not the name of a
    partition.
    """
    topic, _, partition = name.decode("utf-8").removeprefix(_ANEW).rpartition("-")
    return topic, int(partition)


FRONT_BYTES = HEADER_BYTES + _LENGTH.size + 256 + _TAKEN.size
"""A record's field `taken` is within this many bytes from the record's beginning. The partition's name comes before
this field; the name has at most 255 bytes, because it is the name of a directory.
"""


def taken_at(record: Buffer) -> int | None:
    """Return the field `taken` of a record, or None if `record` has too few bytes."""
    if len(record) < HEADER_BYTES + _LENGTH.size:
        return None
    (name_bytes,) = _LENGTH.unpack_from(record, HEADER_BYTES)
    start = HEADER_BYTES + _LENGTH.size + name_bytes
    if name_bytes < 0 or len(record) < start + _TAKEN.size:
        return None
    taken: int = _TAKEN.unpack_from(record, start)[0]
    return taken


# --- marks ------------------------------------------------------------------------------------------------------------


class Group(NamedTuple):
    """Waiting messages for one partition, as a mark names them. sizes: the sizes of the messages' records in the
    partition, including the header.
    """

    place: DelayTarget
    ids: Ids
    sizes: Sizes
    base: int = 0
    first_id: int = 0

    @property
    def end(self) -> int:
        """The byte offset in the partition where the group's last record ends."""
        return self.base + int(self.sizes.sum())


class Marks(NamedTuple):
    """The content of a record with marks. All groups in one record have the same kind."""

    kind: MarkKind
    settled: int
    groups: Sequence[Group]


def encode_marks(marks: Marks, now_ms: int, offset: int) -> tuple[bytes, bytes]:
    """Return the record with these marks and its index unit, to be appended at byte `offset` of the internal log."""
    kind = marks.kind
    body = b"".join([_LENGTH.pack(len(kind)), kind.encode(), *_body(marks)])
    record_id = max(0, now_ms - EPOCH_MS) << TIME_SHIFT
    unit = UNIT.pack(offset, record_id, now_ms, HEADER_BYTES + len(body), tag_hash(kind))
    return HEADER.pack(len(body), checksum(body), record_id, ATTRIBUTE_FLAG) + body, unit


def _body(marks: Marks) -> Iterator[bytes]:
    yield _MARKS_HEAD.pack(_VERSION, marks.settled)
    for place, ids, sizes, base, first_id in marks.groups:
        topic = place[0].encode("utf-8")
        yield _NAME_LENGTH.pack(len(topic)) + topic + _GROUP.pack(place[1], base, first_id, len(ids))
        yield ids.astype(_IDS).tobytes()
        yield sizes.astype(_SIZES).tobytes()


def decode_marks(record: bytes) -> Marks | None:
    """Decode a whole record with marks. Return None if the record's attribute shows that the record contains no marks.
    Raises StoreError if the record is damaged or a newer version of the broker has written it.
    """
    length, crc, _, _ = HEADER.unpack_from(record)
    if length != len(record) - HEADER_BYTES or checksum(record[HEADER_BYTES:]) != crc:
        raise StoreError("marks of delayed messages are damaged")
    try:
        (name_bytes,) = _LENGTH.unpack_from(record, HEADER_BYTES)
        start = HEADER_BYTES + _LENGTH.size + name_bytes
        name = record[start - name_bytes : start].decode("utf-8")
        if name not in list(MarkKind):
            return None
        version, settled = _MARKS_HEAD.unpack_from(record, start)
        if version != _VERSION:
            raise StoreError(f"marks of delayed messages of version {version}: a newer broker has written them")
        return Marks(MarkKind(name), settled, list(_groups(record, start + _MARKS_HEAD.size)))
    except (error, ValueError) as wrong:
        raise StoreError(f"marks of delayed messages cannot be read: {wrong}") from wrong


def _groups(record: bytes, start: int) -> Iterator[Group]:
    while start < len(record):
        (topic_bytes,) = _NAME_LENGTH.unpack_from(record, start)
        start += _NAME_LENGTH.size + topic_bytes
        topic = record[start - topic_bytes : start].decode("utf-8")
        partition, base, first_id, count = _GROUP.unpack_from(record, start)
        start += _GROUP.size
        ids = np.frombuffer(record, _IDS, count, start).astype(np.int64)
        start += count * _IDS.itemsize
        sizes = np.frombuffer(record, _SIZES, count, start).astype(np.int64)
        start += count * _SIZES.itemsize
        yield Group((topic, partition), ids, sizes, base, first_id)


def check_record(record: bytes) -> None:
    """Raise StoreError if a record is neither a waiting message nor a record with marks."""
    if decode_marks(record) is None and decode_pending(record) is None:
        raise StoreError("a delayed message cannot be read")
