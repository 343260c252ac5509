"""From fetched records to messages: the tight loop of every reader.

With a table of sizes no step is taken from record to record: where they begin is a running sum, the headers are one
numpy array, and bodies and messages are made by chains of C functions (struct, map, zip) without bytecode per message.
Without one (few records, a filtered answer, the text protocol) the records are walked. Both find the same.
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
from metaq.protocol.where.columns import matching

from .message import Message, PlainMessage
from .values import TopicPartition

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
"""Message(…) without its Python-level __new__; bench/decoding.py."""


@dataclass(slots=True, eq=False)
class Records:
    """Stored records that lie back to back in a partition, from its byte `offset` on: data[start:end], where `data` is
    what was received. sizes: of all records, headers included, which fill [start, end). None if they are not known:
    then the last record may be cut. runs: they are back to back in `data` only; None: in the partition, too.
    """

    data: bytes
    start: int
    end: int
    offset: int
    sizes: npt.NDArray[np.int64] | None
    runs: Runs | None = field(default=None, kw_only=True)

    def offsets(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Byte offsets in the partition of places in the data; where two runs meet, that of the later one."""
        if self.runs is None:
            return places + (self.offset - self.start)
        return places + self.runs.shifts[np.searchsorted(self.runs.places, places, "right") - 1]

    def place(self, offset: int) -> int:
        """The place in the data that `offset` has or, where it lies between two runs, would have; `start` … `end`."""
        if self.runs is None:
            return max(self.start, min(self.end, offset - self.offset + self.start))
        run = int(np.searchsorted(self.runs.places + self.runs.shifts, offset, "right")) - 1
        if run < 0:
            return self.start
        end = int(self.runs.places[run + 1]) if run + 1 < len(self.runs.places) else self.end
        return min(end, offset - int(self.runs.shifts[run]))


class Runs(NamedTuple):
    """Records that are apart in a partition and back to back in an answer: where each run of adjacent ones begins in
    the data, and how much more its offset in the partition is."""

    places: npt.NDArray[np.int64]
    shifts: npt.NDArray[np.int64]


def joined(runs: Sequence[tuple[int, memoryview]]) -> Records | None:
    """The records of an answer's runs, each with its offset, if they lie back to back in what was received; else None.
    Nothing is copied."""
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
    """The object that was received, and where in it the records begin and end. A view into bytes is not copied."""
    if isinstance(records, bytes):
        return records, 0, len(records)
    whole = records.obj
    if not isinstance(whole, bytes) or not records.contiguous:
        return in_bytes(bytes(records))
    start = _address(records) - _address(whole)
    return whole, start, start + len(records)


def _address(buffer: memoryview | bytes) -> int:
    """Where a buffer lies in memory. A memoryview does not tell its position inside its object in another way."""
    address: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
    return address


class Decoded(NamedTuple):
    """`total` messages, and what they end at: byte offset `end` of the partition, where `damage` says what is wrong, if
    it is not "". Behind the end of the messages there may be a cut record. flags: the bits that any of them has,
    or any that the filters have left out.

    messages: an iterator, so that they are made when they are taken. Thousands that wait would be what the garbage
    collector goes through again and again; some hundred that are used up soon it never sees.
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
    """All whole records up to the first that is damaged; with `tags` the messages that have one of them, with `where`
    those for which it holds."""
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
        if flag != last:  # seldom: what goes to one topic is mostly of one kind
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
    """Records in front of the first damaged one: where each begins in the data, its size, and its header
    (`header_dtype`). `damage` says what is wrong with that one; "" if there is none.
    """

    starts: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    headers: npt.NDArray[Any]
    damage: str

    def end_offset(self, records: Records) -> int:
        """Byte offset in the partition at which the damaged record begins, or, if there is none, the last one ends:
        what lies between two runs was not given."""
        end = records.start + int(self.sizes.sum())
        last = 0 if self.damage or not len(self.sizes) else int(self.sizes[-1])
        return int(records.offsets(np.array([end - last]))[0]) + last

    def up_to(self, count: int, damage: str) -> Good:
        """The first `count`, in front of a record with this damage."""
        return Good(self.starts[:count], self.sizes[:count], self.headers[:count], damage)

    def only(self, wanted: npt.NDArray[np.bool_]) -> Good:
        """Some of them; `end_offset` is not told of these."""
        return Good(self.starts[wanted], self.sizes[wanted], self.headers[wanted], self.damage)

    def checked(self, bodies: Sequence[bytes]) -> Good:
        """Those in front of the first whose checksum does not match. bodies: theirs, in order."""
        count = _leading(checksums(bodies) == self.headers["checksum"])
        return self if count == len(self.starts) else self.up_to(count, WRONG_CHECKSUM)


def good_records(records: Records, limit: int | None = None) -> Good:
    """What is good, but for checksums, of the records that begin before byte `limit` of the partition (None: all)."""
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
    """The sizes of the whole records that begin before `stop`, up to a wrong length; and what is wrong there.

    The first record and those of its size behind it cost no bytecode each (bench/decoding.py).
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
    """How many are true in front of the first false one."""
    return len(good) if good.all() else int(np.argmin(good))


def decode_sized(
    records: Records,
    partition: TopicPartition,
    tags: Container[str] | None = None,
    check: bool = True,
    where: Where | None = None,
) -> Decoded:
    """As decode_walking, for records of known sizes. bench/decoding.py says what it gains."""
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
    found = int(np.bitwise_or.reduce(flags))  # one look at all: most batches have no bit at all
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
