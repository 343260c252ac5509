"""Decode fetched records into messages: the tight loop of every reader.

With a table of sizes the loop needs no step from record to record: a running sum gives the starts of the records, the
headers are one numpy array, and chains of C functions (struct, map, zip) make bodies and messages without bytecode per
message. Without a table (few records, a filtered answer, the text protocol) the loop goes from record to record. Both
ways give the same result.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress, repeat
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32

from metaq.protocol.record import (
    ATTRIBUTE_FLAG,
    COMPRESSED_FLAG,
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
from metaq.protocol.where import Where
from metaq.protocol.where.many_records import matching

from .message import Message, PlainMessage
from .results import TopicPartition

__all__ = [
    "WRONG_CHECKSUM",
    "WRONG_LENGTH",
    "ZEROS",
    "Decoded",
    "Good",
    "Records",
    "Runs",
    "decode_sized",
    "decode_walking",
    "good_records",
    "in_bytes",
    "joined",
]

WRONG_CHECKSUM = "its checksum does not match"
WRONG_LENGTH = "its length cannot be right"
ZEROS = "there are zeros instead of it"

_LENGTH = Struct(">i")  # the first field of a record
_make = tuple.__new__
"""Message(…) without its Python-level __new__; see bench/decoding.py."""


@dataclass(slots=True, eq=False)
class Records:
    """Adjacent stored records of a partition, from its byte `offset` on: data[start:end] of the received `data`.

    sizes: of all records, headers included; they fill [start, end). None if unknown: then the last record may be cut.
    runs: set if the records are adjacent only in `data`; None if they are adjacent in the partition, too.
    """

    data: bytes
    start: int
    end: int
    offset: int
    sizes: npt.NDArray[np.int64] | None
    runs: Runs | None = field(default=None, kw_only=True)

    def offsets(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the partition offsets of places in the data. A place where two runs meet has the offset of the later
        run."""
        if self.runs is None:
            return places + (self.offset - self.start)
        return places + self.runs.shifts[np.searchsorted(self.runs.places, places, "right") - 1]

    def place(self, offset: int) -> int:
        """Return the place of `offset` in the data, in `start` … `end`. For an offset between two runs this is the
        place where it would be."""
        if self.runs is None:
            return max(self.start, min(self.end, offset - self.offset + self.start))
        run = int(np.searchsorted(self.runs.places + self.runs.shifts, offset, "right")) - 1
        if run < 0:
            return self.start
        end = int(self.runs.places[run + 1]) if run + 1 < len(self.runs.places) else self.end
        return min(end, offset - int(self.runs.shifts[run]))


class Runs(NamedTuple):
    """Runs of records that are adjacent in an answer, but not in the partition: where each run begins in the data, and
    how much greater its partition offset is."""

    places: npt.NDArray[np.int64]
    shifts: npt.NDArray[np.int64]


def joined(runs: Sequence[tuple[int, memoryview]]) -> Records | None:
    """Return the records of an answer's runs, each with its offset, as one Records, if they are adjacent in the
    received data; otherwise None. Nothing is copied."""
    first_offset, first = runs[0]
    data, start, _ = in_bytes(first)
    lengths = np.array([len(each) for _, each in runs], np.int64)
    places = start + np.cumsum(lengths) - lengths
    last, last_start, end = in_bytes(runs[-1][1])
    if last is not data or last_start != places[-1]:
        return None
    shifts = np.array([offset for offset, _ in runs], np.int64) - places
    return Records(data, start, end, first_offset, None, runs=Runs(places, shifts))


def in_bytes(records: memoryview | bytes) -> tuple[bytes, int, int]:
    """Return the received object, and where the records begin and end in it. A view into bytes is not copied."""
    if isinstance(records, bytes):
        return records, 0, len(records)
    whole = records.obj
    if not isinstance(whole, bytes) or not records.contiguous:
        return in_bytes(bytes(records))
    start = _address(records) - _address(whole)
    return whole, start, start + len(records)


def _address(buffer: memoryview | bytes) -> int:
    """Return a buffer's address. There is no other way to find the position of a memoryview inside its object."""
    address: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
    return address


class Decoded(NamedTuple):
    """The result of decoding: `total` messages, which end at byte offset `end` of the partition.

    `damage` says what is wrong at the end; "": nothing. A cut record may follow the end. flags: the bits set in any
    message, including messages that the filters have left out.

    messages: an iterator, so that messages are made when they are taken. The garbage collector would traverse thousands
    of waiting messages again and again; it never sees some hundred that are soon used up.
    """

    messages: Iterator[Message]
    total: int
    end: int
    damage: str
    flags: int


def _decoded(messages: list[Message], end: int, damage: str, flags: int) -> Decoded:
    return _make(Decoded, (iter(messages), len(messages), end, damage, flags))


def decode_walking(
    records: Records,
    partition: TopicPartition,
    tags: Container[str] | None = None,
    check: bool = True,
    where: Where | None = None,
) -> Decoded:
    """Decode all whole records up to the first damaged one. tags: only messages with one of them; where: only matching
    ones."""
    data, start, end = records.data, records.start, records.end
    shift = records.offset - start
    messages: list[Message] = []
    flags = last = 0
    kind: type[Message] = PlainMessage
    damage = ""
    append, unpack, crc = messages.append, HEADER.unpack_from, crc32
    body_start = start + HEADER_BYTES
    while body_start <= end:
        length, checksum, identity, flag = unpack(data, start)
        if length <= 0:
            if length < 0:
                damage = WRONG_LENGTH
                break
            if is_blank(length, checksum, identity):
                damage = ZEROS
                break
        body_end = body_start + length
        if body_end > end:
            break
        body = data[body_start:body_end]
        if check and crc(body) & 0x7FFFFFFF != checksum:
            damage = WRONG_CHECKSUM
            break
        if flag != last:  # seldom: messages of a topic are mostly of one kind
            last = flag
            flags |= flag
            kind = Message if flag else PlainMessage
        append(_make(kind, (partition, start + shift, identity, flag, body)))
        start = body_end
        body_start = start + HEADER_BYTES
    if tags is not None:
        messages = [each for each in messages if _has_tag(each.body, each.flag, tags)]
    if where is not None:
        messages = [each for each in messages if where.holds_for(each.body, each.flag)]
    return _decoded(messages, start + shift, damage, flags)


class Good(NamedTuple):
    """Intact records before the first damaged one: where each begins in the data, its size, and its header
    (`header_dtype`).

    `damage` says what is wrong with the damaged record; "" if there is none.
    """

    starts: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    headers: npt.NDArray[Any]
    damage: str

    def end_offset(self, records: Records) -> int:
        """Byte offset in the partition where the damaged record begins; without one, where the last record ends. Bytes
        between two runs were not returned by the broker."""
        end = records.start + int(self.sizes.sum())
        last = 0 if self.damage or not len(self.sizes) else int(self.sizes[-1])
        return int(records.offsets(np.array([end - last]))[0]) + last

    def up_to(self, count: int, damage: str) -> Good:
        """Return the first `count` records, before a record with this damage."""
        return Good(self.starts[:count], self.sizes[:count], self.headers[:count], damage)

    def only(self, wanted: npt.NDArray[np.bool_]) -> Good:
        """Return the wanted records; `end_offset` does not apply to the result."""
        return Good(self.starts[wanted], self.sizes[wanted], self.headers[wanted], self.damage)

    def checked(self, bodies: Sequence[bytes]) -> Good:
        """Return the records before the first checksum mismatch. bodies: the bodies of the records, in order."""
        count = _leading(checksums(bodies) == self.headers["checksum"])
        return self if count == len(self.starts) else self.up_to(count, WRONG_CHECKSUM)


def good_records(records: Records, limit: int | None = None) -> Good:
    """Return the records that begin before byte `limit` of the partition (None: all) and are intact; checksums are not
    compared."""
    stop = records.end if limit is None else records.place(limit)
    sizes, damage = (records.sizes, "") if records.sizes is not None else _sizes_by_length(records, stop)
    starts = np.cumsum(sizes) - sizes + records.start
    if limit is not None:
        starts = starts[: np.searchsorted(starts, stop)]
        sizes = sizes[: len(starts)]
    good = Good(starts, sizes, headers_at(records.data, starts), damage)
    count = _leading(good.headers["length"] == sizes - HEADER_BYTES)
    if count < len(starts):
        good = good.up_to(count, WRONG_LENGTH)
    blank = blank_headers(good.headers)
    return good.up_to(int(blank.argmax()), ZEROS) if blank.any() else good


def _sizes_by_length(records: Records, stop: int) -> tuple[npt.NDArray[np.int64], str]:
    """Return the sizes of the whole records that begin before `stop`, up to a wrong length, and the error there.

    The first record, and following records of the same size, cost no bytecode each (bench/decoding.py).
    """
    data, position, end = records.data, records.start, records.end
    sizes = np.empty(0, np.int64)
    if position < stop and position + HEADER_BYTES <= end and (length := _length_at(data, position)) >= 0:
        size = HEADER_BYTES + length
        count = min((end - position) // size, -(-(stop - position) // size))
        others = np.flatnonzero(np.ndarray(count, ">i4", data, position, (size,)) != length)
        sizes = np.full(others[0] if len(others) else count, size, np.int64)
        position += len(sizes) * size
    found: list[int] = []
    damage = ""
    while position < stop and position + HEADER_BYTES <= end:
        size = HEADER_BYTES + _length_at(data, position)
        if size < HEADER_BYTES:
            damage = WRONG_LENGTH
        if size < HEADER_BYTES or position + size > end:
            break
        found.append(size)
        position += size
    return np.concatenate((sizes, np.array(found, np.int64))) if found else sizes, damage


def _length_at(data: bytes, position: int) -> int:
    length: int = _LENGTH.unpack_from(data, position)[0]
    return length


def _leading(good: npt.NDArray[np.bool_]) -> int:
    """Return the number of true values before the first false one."""
    return len(good) if good.all() else int(np.argmin(good))


def decode_sized(
    records: Records,
    partition: TopicPartition,
    tags: Container[str] | None = None,
    check: bool = True,
    where: Where | None = None,
) -> Decoded:
    """Decode as decode_walking does, records with known sizes. bench/decoding.py measures the gain."""
    good = good_records(records)
    bodies = split_bodies(records.data, records.start, good.sizes)
    if check:
        good = good.checked(bodies)
    shift = records.offset - records.start
    end = good.end_offset(records)
    if where is not None:
        wanted = matching(where, records.data, good.starts, good.sizes)
        bodies = list(compress(bodies, wanted.tolist()))
        good = good.only(wanted)
    flags = good.headers["flag"]
    found = int(np.bitwise_or.reduce(flags))  # one step for all flags: most batches have no bits
    columns = (
        repeat(partition),
        (good.starts + shift).tolist(),
        good.headers["id"].tolist(),
        flags.tolist() if found else repeat(0),
        bodies,
    )
    kind = Message if found & (ATTRIBUTE_FLAG | COMPRESSED_FLAG) else PlainMessage
    messages: Iterator[Message] = map(_make, repeat(kind, len(good.starts)), zip(*columns, strict=False))
    if tags is not None:
        return _decoded([each for each in messages if _has_tag(each.body, each.flag, tags)], end, good.damage, found)
    return Decoded(messages, len(good.starts), end, good.damage, found)


def _has_tag(body: bytes, flag: int, tags: Container[str]) -> bool:
    """Whether the record's tag is among `tags`."""
    if not flag & ATTRIBUTE_FLAG:
        return False
    return decode_attribute(attribute_of(body, flag), flag).tag in tags
