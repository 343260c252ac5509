"""Read records from a `.meta` file without an index. Recovery and the rebuild of indexes use these functions. Any
thread may call them.

Neighbouring records of equal size are found and checked together by numpy and C code, because a Python loop over single
records would be slow. Slower and simpler code with the same results is in tests/unit/broker/store/test_references.py.
The benchmark `startup` measures this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32

from metaq.protocol.message_id import counter_at, foreign_from, message_id, store_times_ms
from metaq.protocol.record import (
    ATTRIBUTE_FLAG,
    HEADER,
    HEADER_BYTES,
    Buffer,
    header_dtype,
    headers_at,
    is_blank,
    tag_hash_of_body,
)
from metaq.protocol.resync import next_record

from . import tuning
from .files import Files, Readable, read_exactly
from .index import UNIT_DTYPE, UnitArray, order_times

__all__ = [
    "Scan",
    "bound_java_times",
    "find_record",
    "is_zero",
    "scan_bytes",
    "scan_units",
    "time_id",
    "walk",
]

_LENGTH = Struct(">i")  # the first field of a record's header


def time_id(time_ms: int) -> int:
    """Return the largest message id that a broker can have assigned up to the time `time_ms` (Unix ms). Ids contain the
    time since a fixed date; return 0 if `time_ms` is before this date.
    """
    return max(0, message_id(counter_at(time_ms + 1), 0) - 1)


class Scan(NamedTuple):
    """The result of a scan: the units of the good records, and `end`, the position behind the last good record in the
    file or buffer.

    If a record's id is negative, the time_ms of its unit is 0 until `bound_java_times` sets it.
    """

    units: UnitArray
    end: int


def scan_units(
    files: Readable,
    fd: int,
    start: int,
    size: int,
    first_offset: int,
    *,
    max_records: int | None = None,
    checked: Callable[[int, Buffer], None] | None = None,
) -> Scan:
    """Check records one by one from position `start` up to `size`. Stop at the first record that is not whole and good.

    A good record ends at or before `size`, has the right CRC-32, and does not consist of 20 zero bytes. (20 zero bytes
    look like the header of a record without a body, but every record that a broker has written has a message id. So
    such bytes belong to a file's end that a crash has left filled with zeros.) Positions are byte positions in the
    file; the offset in a unit is first_offset + position. checked(position, data): called in order for each sequence of
    good records, with the position and the bytes of the sequence. For the cost per record see
    docs/decisions/096-what-reading-without-an-index-costs.md.
    """
    blocks = []
    position, want = start, tuning.SCAN_CHUNK_BYTES
    while position < size:
        data = read_exactly(files, fd, min(want, size - position), position)
        scan = scan_bytes(data, first_offset + position, max_records=max_records)
        if scan.end:
            blocks.append(scan.units)
            if checked is not None:
                checked(position, memoryview(data)[: scan.end])
            position, want = position + scan.end, tuning.SCAN_CHUNK_BYTES
            if max_records is not None:
                break
            continue
        need = _announced_size(data)
        if need <= len(data) or position + need > size:
            break
        want = need
    return Scan(np.concatenate(blocks) if blocks else np.empty(0, UNIT_DTYPE), position)


def walk(files: Files, fd: int, start: int, size: int, first_offset: int) -> Iterator[Scan]:
    """Read a file like `scan_units`, but continue behind damage: yield scans that together cover the byte positions
    [start, size). Each scan describes either a sequence of good records, with their units, or a range of damaged bytes.
    A scan of damaged bytes has no units, and its `end` is the position where the damaged bytes end.

    A scan has at most tuning.WALK_RECORDS records. The parameters, and what counts as a good record, are as in
    `scan_units`.
    """
    position = start
    while position < size:
        scan = scan_units(files, fd, position, size, first_offset, max_records=tuning.WALK_RECORDS)
        if not len(scan.units):
            good = find_record(files, fd, position, size)
            scan = Scan(scan.units, size if good is None else good)
        yield scan
        position = scan.end


def scan_bytes(data: bytes, first_offset: int, *, max_records: int | None = None) -> Scan:
    """Check records like `scan_units`, but in the memory buffer `data`. first_offset: the byte offset of the buffer's
    first byte in the partition.
    """
    blocks, end = [], 0
    for run in _runs(data, max_records):
        units, good = _units_of(data, run, first_offset)
        blocks.append(units)
        end = run.starts[good] if good < len(run.starts) else run.end
        if good < len(run.starts):
            break
    return Scan(np.concatenate(blocks) if blocks else np.empty(0, UNIT_DTYPE), end)


class _Run(NamedTuple):
    """A sequence of records in a buffer, each of which begins where the one before it ends, according to their length
    fields. starts, end: positions in the buffer. size: the size of each record in bytes, including the header. It is 0
    if the sizes may differ.
    """

    starts: Sequence[int]
    end: int
    size: int


def _runs(data: bytes, max_records: int | None) -> Iterator[_Run]:
    """Divide a buffer into runs of records by means of the records' length fields, and yield the runs. Stop at the
    first record that is incomplete or has an impossible length. Checksums are not verified.
    """
    position = 0
    left = len(data) if max_records is None else max_records
    while left:
        size = _announced_size(data[position : position + HEADER_BYTES])
        count = _same_sizes(data, position, size, left) if size > HEADER_BYTES else 0
        if count >= tuning.SCAN_RUN_FROM:
            run = _Run(range(position, position + count * size, size), position + count * size, size)
        else:
            run = _mixed(data, position, min(left, tuning.SCAN_MIXED_RECORDS))
        if not run.starts:
            break
        yield run
        position = run.end
        left -= len(run.starts)


def _same_sizes(data: bytes, position: int, size: int, limit: int) -> int:
    """Return how many records of `size` bytes follow each other without a record of another size from `position` on, at
    most `limit`. To save time if the records have different sizes, the function first looks at a few records, and at
    the others only if all of these have the size `size`.
    """
    available = min(limit, (len(data) - position) // size)
    for count in (min(available, tuning.SCAN_RUN_FROM), available):
        lengths = np.ndarray((count,), ">i4", data, position, (size,))
        other = lengths != size - HEADER_BYTES
        if other.any():
            return int(other.argmax())
    return available


def _mixed(data: bytes, position: int, limit: int) -> _Run:
    starts: list[int] = []
    add, unpack = starts.append, _LENGTH.unpack_from
    last = len(data) - HEADER_BYTES
    while position <= last and len(starts) < limit:
        (length,) = unpack(data, position)
        end = position + HEADER_BYTES + length
        if length < 0 or end > len(data) or (not length and is_blank(*HEADER.unpack_from(data, position)[:3])):
            break
        add(position)
        position = end
    return _Run(starts, position, 0)


def _checksums(data: bytes, run: _Run) -> npt.NDArray[np.uint32]:
    """Return the CRC-32 of the body of each record in the run. The checksums are computed without a Python loop over
    the records.
    """
    bodies: Iterable[Buffer]
    if run.size:
        records = memoryview(data)[run.starts[0] : run.end]
        bodies = chain.from_iterable(Struct(f"{HEADER_BYTES}x{run.size - HEADER_BYTES}s").iter_unpack(records))
    else:
        ends = [*run.starts[1:], run.end]
        bodies = map(memoryview(data).__getitem__, map(slice, [start + HEADER_BYTES for start in run.starts], ends))
    return np.fromiter(map(crc32, bodies), np.uint32, len(run.starts)) & np.uint32(0x7FFFFFFF)


def _announced_size(data: bytes) -> int:
    """Return the size in bytes, including the header, of the record at the beginning of `data` according to its header.
    Return 0 if the header is incomplete or has an impossible length.
    """
    if len(data) < HEADER_BYTES:
        return 0
    length: int = HEADER.unpack_from(data)[0]
    return HEADER_BYTES + length if length >= 0 else 0


def _headers(data: bytes, run: _Run, at: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    if run.size:
        return np.ndarray((len(at),), header_dtype(), data, run.starts[0], (run.size,))
    return headers_at(data, at)


def _units_of(data: bytes, run: _Run, base: int) -> tuple[UnitArray, int]:
    """Return the units of the run's records before the first one with a wrong checksum, and the number of these
    records. base: the byte offset of the buffer's first byte in the partition.
    """
    at = np.array(run.starts, dtype=np.int64)
    headers = _headers(data, run, at)
    wrong = headers["checksum"] != _checksums(data, run)
    good = int(wrong.argmax()) if wrong.any() else len(at)
    at, headers = at[:good], headers[:good]
    units = np.zeros(good, UNIT_DTYPE)
    units["offset"] = at + base
    units["id"] = ids = headers["id"].astype(np.int64)
    units["time_ms"] = np.where(ids > 0, store_times_ms(ids), 0)
    units["size"] = headers["length"] + HEADER_BYTES
    view = memoryview(data)
    for i in np.flatnonzero(headers["flag"] & ATTRIBUTE_FLAG).tolist():
        body = run.starts[i] + HEADER_BYTES
        units["tag"][i] = tag_hash_of_body(view[body : run.starts[i] + int(units["size"][i])], int(headers["flag"][i]))
    return units, good


def bound_java_times(units: UnitArray, modified_ms: int) -> None:
    """Set the store times of units whose records have ids without a store time: each gets the latest time at which its
    record can have been stored, as a negative number. This latest time is the earliest of these times: `modified_ms`
    (when the file was last changed) and the store times of later records whose ids contain one.

    An id contains no store time if it is negative or cannot have been assigned by this broker software. Afterwards,
    each record's time that is lower than that of the record before it is raised to that time. The raising is necessary
    because times that come from ids can be out of order: the messages of a transaction get their ids before the commit,
    but their records are stored at the commit.
    """
    modified_ms = max(0, modified_ms)
    undated = (units["time_ms"] <= 0) | (units["id"] >= foreign_from(modified_ms))
    if undated.any():
        times = np.where(undated, modified_ms, units["time_ms"])
        earliest_later = np.minimum.accumulate(times[::-1])[::-1]
        units["time_ms"][undated] = -np.minimum(earliest_later[undated], modified_ms)
    order_times(units)


def is_zero(files: Files, fd: int, start: int, size: int) -> bool:
    """Return whether all bytes in [start, size) are zero."""
    for position in range(start, size, tuning.SCAN_CHUNK_BYTES):
        if any(read_exactly(files, fd, min(tuning.SCAN_CHUNK_BYTES, size - position), position)):
            return False
    return True


def find_record(files: Files, fd: int, start: int, size: int) -> int | None:
    """Return the position of the first good record after `start`, or None if there is none in [start, size).

    The call blocks its thread while it reads all bytes up to the good record (`protocol/resync.py`), or up to `size` if
    there is none.
    """
    return next_record(partial(read_exactly, files, fd), start, size)
