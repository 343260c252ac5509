"""Decode fetched records into messages. This code must be fast, because every reader spends much of its time here.

If the broker has sent a table of record sizes with the records, they are decoded without a Python loop. A running sum
of the sizes gives the positions where the records begin, and numpy reads all headers as one array. Chained C functions
(struct, map, zip) make bodies and messages, so no Python bytecode is executed for each record. If there is no table
(few records, a filtered answer, the text protocol), a Python loop goes from record to record. The result is the same in
both cases.
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
"""Makes a Message without the Python function Message.__new__, which would be slower; see bench/decoding.py."""


@dataclass(slots=True, eq=False)
class Records:
    """Stored records of a partition, in the partition's order, from its byte `offset` on. Their bytes are
    data[start:end], a part of the received `data`.

    sizes: the sizes of all records in bytes, headers included; their sum is `end` - `start`. `sizes` is None if the
    sizes are unknown; in this case the last record may be incomplete. runs: the groups of records that have no gap
    between them in the partition, with the offset of each group. `runs` is None if there is only one such group.
    """

    data: bytes
    start: int
    end: int
    offset: int
    sizes: npt.NDArray[np.int64] | None
    runs: Runs | None = field(default=None, kw_only=True)

    def offsets(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the byte offsets in the partition of the bytes at these positions in `data`. For a position where one
        run ends and the next begins, return the offset where the next run begins.
        """
        if self.runs is None:
            return places + (self.offset - self.start)
        return places + self.runs.shifts[np.searchsorted(self.runs.places, places, "right") - 1]

    def place(self, offset: int) -> int:
        """Return the position in `data` of the byte that is at `offset` in the partition. For an offset before the
        records return `start`, for an offset after them `end`. For an offset between two runs, return the position in
        `data` where the earlier run ends and the later one begins.
        """
        if self.runs is None:
            return max(self.start, min(self.end, offset - self.offset + self.start))
        run = int(np.searchsorted(self.runs.places + self.runs.shifts, offset, "right")) - 1
        if run < 0:
            return self.start
        end = int(self.runs.places[run + 1]) if run + 1 < len(self.runs.places) else self.end
        return min(end, offset - int(self.runs.shifts[run]))


class Runs(NamedTuple):
    """Several runs: groups of records that are adjacent in the partition. The groups follow one another in a broker's
    answer, but not in the partition, because a filter has left out the records between them. places: the position in
    the answer's data where each run begins. shifts: for each run, its offset in the partition minus its position in the
    data.
    """

    places: npt.NDArray[np.int64]
    shifts: npt.NDArray[np.int64]


def joined(runs: Sequence[tuple[int, memoryview]]) -> Records | None:
    """Join the runs of an answer into one Records object, without copying bytes. Each run is given as its offset in the
    partition and its bytes. Return None if the runs are not adjacent in the received data.
    """
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
    """Return the bytes object that contains the records, and the positions where the records begin and end in it. If
    `records` is a view into a bytes object, nothing is copied.
    """
    if isinstance(records, bytes):
        return records, 0, len(records)
    whole = records.obj
    if not isinstance(whole, bytes) or not records.contiguous:
        return in_bytes(bytes(records))
    start = _address(records) - _address(whole)
    return whole, start, start + len(records)


def _address(buffer: memoryview | bytes) -> int:
    """Return a buffer's memory address. From two addresses the caller computes where in an object a memoryview of it
    begins, because Python itself does not tell this.
    """
    address: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
    return address


class Decoded(NamedTuple):
    """The result of decoding records. total: number of messages in `messages`. end: the byte offset in the partition
    where the last decoded record ends.

    damage: a description of the damage of the record that begins at `end`, or "" if there is no damage. Even without
    damage, an incomplete record may begin at `end`. flags: the flag bits that at least one message has, including
    messages that the filters have left out.

    messages: an iterator that makes each message only when it is taken. If thousands of messages existed at once,
    Python's garbage collector would look at them again and again. If only a few hundred exist for a short time, the
    collector never looks at them.
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
    """Decode all complete records up to the first damaged record, in a Python loop over the records. tags: keep only
    messages with one of these tags. where: keep only messages that match this filter.
    """
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
        if flag != last:  # seldom: most messages of a topic have the same flag
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
    """The intact records before the first damaged record. For each record it contains the position in the data where
    the record begins, the record's size in bytes, and its header (`header_dtype`).

    damage: a description of the damage of the first damaged record, or "" if there is no damaged record.
    """

    starts: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    headers: npt.NDArray[Any]
    damage: str

    def end_offset(self, records: Records) -> int:
        """Return the byte offset in the partition where the damaged record begins or, if there is none, where the last
        record ends. If there are several runs, the result takes into account the gaps between them in the partition.
        """
        end = records.start + int(self.sizes.sum())
        last = 0 if self.damage or not len(self.sizes) else int(self.sizes[-1])
        return int(records.offsets(np.array([end - last]))[0]) + last

    def up_to(self, count: int, damage: str) -> Good:
        """Return only the first `count` records. damage: a description of the damage of the record after them."""
        return Good(self.starts[:count], self.sizes[:count], self.headers[:count], damage)

    def only(self, wanted: npt.NDArray[np.bool_]) -> Good:
        """Return a copy that contains only the records for which `wanted` is true. `end_offset` must not be called on
        the result, because it adds up the sizes of all records.
        """
        return Good(self.starts[wanted], self.sizes[wanted], self.headers[wanted], self.damage)

    def checked(self, bodies: Sequence[bytes]) -> Good:
        """Compute the checksum of each body, and compare it with the checksum in the record's header. Return the
        records before the first record whose checksums differ, with a description of this damage. bodies: the bodies of
        the records, in order.
        """
        count = _leading(checksums(bodies) == self.headers["checksum"])
        return self if count == len(self.starts) else self.up_to(count, WRONG_CHECKSUM)


def good_records(records: Records, limit: int | None = None) -> Good:
    """Return the intact records that begin before byte `limit` of the partition. If `limit` is None, return all intact
    records. Checksums are not compared.
    """
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
    """Find the sizes of records from the lengths in their headers, because the broker has sent no table of sizes.
    Return the sizes of the complete records that begin before the position `stop`, up to the first record with an
    impossible length, and a description of this error ("" if there is none).

    As long as the records have the same size as the first one, no Python bytecode runs for each record
    (bench/decoding.py).
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
    """Return the number of true values before the first false value."""
    return len(good) if good.all() else int(np.argmin(good))


def decode_sized(
    records: Records,
    partition: TopicPartition,
    tags: Container[str] | None = None,
    check: bool = True,
    where: Where | None = None,
) -> Decoded:
    """Decode records whose sizes are known. The result is the same as that of decode_walking, but this function is
    faster, as bench/decoding.py measures.
    """
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
    found = int(np.bitwise_or.reduce(flags))  # one step for all flags: in most batches no bit is set
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
    """Return whether the record's tag is in `tags`."""
    if not flag & ATTRIBUTE_FLAG:
        return False
    return decode_attribute(attribute_of(body, flag), flag).tag in tags
