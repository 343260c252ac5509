"""Make the records and the index units that are appended to a partition, either from single puts or from a client's
batch, which consists of whole records.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import accumulate
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt

from metaq.protocol.errors import RemoteProtocolError
from metaq.protocol.message_id import EPOCH_MS, TIME_SHIFT, store_times_ms
from metaq.protocol.record import (
    ATTRIBUTE_FLAG,
    HEADER,
    HEADER_BYTES,
    LONG_LIST_BYTES,
    PROPERTIES_FLAG,
    Buffer,
    attribute_of,
    header_dtype,
    headers_at,
    matching_checksums,
    tag_hash_of_attribute,
    tag_hash_of_body,
)

from . import tuning
from .index import UNIT, UNIT_DTYPE

__all__ = [
    "StampedRecords",
    "encode_many_puts",
    "encode_puts",
    "packed_units",
    "stamp_in_slices",
    "stamp_puts",
    "units_of",
]

_HEADER_BYTES_DTYPE = np.dtype(("V", HEADER_BYTES))
_ID_POSITION = 8
_ID_BYTES = 8


def encode_puts(
    puts: Sequence[tuple[int, int, Buffer]], base_offset: int, ids: Sequence[int], now_ms: int | None = None
) -> tuple[list[Buffer], bytes]:
    """Return the records and packed index units of single puts, ready for PartitionLog.append.

    puts: (flag, checksum, body) of each put. The checksum is that of the body, reduced to 31 bits; the caller has
    verified or computed it. ids: one message id per put. base_offset: the log's end_offset. now_ms: the store time in
    Unix ms. If now_ms is None, the ids must have been assigned by this broker, and the time in each id is the record's
    store time. Bodies are not copied.
    """
    buffers: list[Buffer] = []
    units = []
    offset = base_offset
    for (flag, checksum, body), message_id in zip(puts, ids, strict=True):
        length = len(body)
        size = length + 20
        buffers.append(HEADER.pack(length, checksum, message_id, flag))
        if length:
            buffers.append(body)
        tag = tag_hash_of_body(body, flag) if flag & 1 else 0
        time_ms = (message_id >> TIME_SHIFT) + EPOCH_MS if now_ms is None else now_ms
        units.append(UNIT.pack(offset, message_id, time_ms, size, tag))
        offset += size
    return buffers, b"".join(units)


def encode_many_puts(
    puts: Sequence[tuple[int, int, bytes]], base_offset: int, ids: Sequence[int]
) -> tuple[Sequence[Buffer], Buffer]:
    """Return the same as `encode_puts`. This function uses numpy and copies the bodies, which is faster for more than a
    few puts.
    """
    if len(puts) <= tuning.FEW_PUTS:
        return encode_puts(puts, base_offset, ids)
    flags, checksums, bodies = zip(*puts, strict=True)
    flag_column, checksum_column, id_column = (np.array(each, np.int64) for each in (flags, checksums, ids))
    stamped = stamp_puts(flag_column, checksum_column, bodies, id_column)
    stamped.units["offset"] += base_offset
    return (stamped.data,), stamped.units.view(np.uint8).data


class StampedRecords(NamedTuple):
    """Whole records that already have their message ids, together with their index units.

    data: the records back to back, possibly read-only. starts, ends: where each record starts and ends in `data`.
    units: an array of UNIT_DTYPE. The byte offsets in these units count from the beginning of `data`; when the records
    are appended, the offset of `data` in the partition is added to them. intact: for each record, whether its body
    matches its checksum.
    flags: all flag bits that are set in any of the records.
    """

    data: memoryview
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    units: npt.NDArray[np.void]
    intact: npt.NDArray[np.bool_]
    flags: int = 0


def stamp_puts(
    flags: npt.NDArray[np.int64],
    checksums: npt.NDArray[np.int64],
    bodies: Sequence[bytes],
    ids: npt.NDArray[np.int64],
) -> StampedRecords:
    """Make records and index units from puts whose checksums the caller has verified. The result has the same form as
    the result of `stamp_in_slices`.
    """
    widths = np.fromiter(map(len, bodies), np.int64, len(bodies)) + HEADER_BYTES
    ends = np.cumsum(widths)
    headers = np.empty(len(bodies), header_dtype())
    headers["length"] = widths - HEADER_BYTES
    headers["checksum"] = checksums
    headers["id"] = ids
    headers["flag"] = flags
    parts: list[bytes] = [b""] * (2 * len(bodies))
    parts[::2] = cast(list[bytes], headers.view(_HEADER_BYTES_DTYPE).tolist())
    parts[1::2] = bodies
    data = memoryview(b"".join(parts))
    starts = ends - widths
    stamped = StampedRecords(data, starts, ends, _units(starts, ids, widths), np.ones(len(bodies), np.bool_))
    tagged = np.flatnonzero(flags & ATTRIBUTE_FLAG)
    if len(tagged):
        _Tags().hash(stamped, tagged, flags[tagged])
    return stamped


def _units(
    starts: npt.NDArray[np.int64], ids: npt.NDArray[np.int64], widths: npt.NDArray[np.int64]
) -> npt.NDArray[np.void]:
    units = np.zeros(len(widths), UNIT_DTYPE)
    units["offset"] = starts
    units["id"] = ids
    units["time_ms"] = store_times_ms(ids)
    units["size"] = widths
    return units


def units_of(
    offset: int,
    ids: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    tags: npt.NDArray[np.int64] | int,
    now_ms: int,
) -> npt.NDArray[np.void]:
    """Return the index units of back-to-back records that begin at byte `offset`.

    sizes: the size of each record in bytes, including its header. tags: the hash of each record's tag (0 for a record
    without a tag), or one hash for all records. now_ms: the store time in Unix ms.
    """
    units = np.zeros(len(ids), UNIT_DTYPE)
    units["offset"][1:] = np.cumsum(sizes[:-1])
    units["offset"] += offset
    units["id"], units["size"], units["time_ms"], units["tag"] = ids, sizes, now_ms, tags
    return units


def packed_units(
    offset: int, ids: Sequence[int], sizes: Sequence[int], tags: Sequence[int] | int, now_ms: int
) -> bytes:
    """Return the same index units as `units_of`, but packed as bytes. If there are only a few records, the function
    does not use numpy, because it is faster without numpy.
    """
    if len(ids) > tuning.FEW_PUTS:
        columns = np.array(ids, np.int64), np.array(sizes, np.int64)
        return units_of(offset, *columns, tags if isinstance(tags, int) else np.array(tags, np.int64), now_ms).tobytes()
    each = (tags,) * len(ids) if isinstance(tags, int) else tags
    rows = zip(accumulate(sizes[:-1], initial=offset), ids, sizes, each, strict=True)
    return b"".join([UNIT.pack(place, message_id, now_ms, size, tag) for place, message_id, size, tag in rows])


def stamp_in_slices(
    body: Buffer, sizes: npt.NDArray[np.integer], ids: npt.NDArray[np.int64]
) -> Generator[None, None, StampedRecords]:
    """Write message ids into whole records, verify their checksums, and make their index units.

    Pauses (`yield`) every few milliseconds. body: the records back to back; the ids that they contain are replaced. If
    body is writable, the ids are written into body itself, else into a copy of body. sizes: the size of each record in
    bytes, including the header. ids: the message ids that this broker has assigned, one per record. The function
    handles the records in slices. Each step, for example the check of the checksums, is one numpy operation for all
    records of a slice. Records with an attribute are also read one by one, to get their tag. Raises RemoteProtocolError
    if `sizes`, the length fields in the records and the length of `body` do not agree, or if there is no record.
    """
    data = memoryview(body)
    if data.readonly:
        data = memoryview(bytearray(body))
    widths = sizes.astype(np.int64)
    ends = np.cumsum(widths)
    starts = ends - widths
    _check_sizes(widths, int(ends[-1]) if len(ends) else 0, len(data))
    stamped = StampedRecords(data, starts, ends, _units(starts, ids, widths), np.empty(len(ids), np.bool_))
    tags = _Tags()
    first = found = 0
    while True:
        last = _slice_end(stamped, first)
        flags = _stamp(stamped, widths, ids, slice(first, last))
        bits = int(np.bitwise_or.reduce(flags))
        if bits:
            found |= bits
            yield from tags.hash_in_slices(stamped, first, flags)
        first = last
        if first == len(ids):
            return stamped._replace(flags=found) if found else stamped
        yield


def _slice_end(stamped: StampedRecords, first: int) -> int:
    """Return where the slice that begins with record number `first` ends: the number of its last record plus 1."""
    ends = stamped.ends
    if len(stamped.data) <= tuning.SLICE_BYTES:
        return min(len(ends), first + tuning.SLICE_RECORDS)
    fitting = int(np.searchsorted(ends, stamped.starts[first] + tuning.SLICE_BYTES, "right"))
    return max(first + 1, min(first + tuning.SLICE_RECORDS, fitting))


def _stamp(
    stamped: StampedRecords, widths: npt.NDArray[np.int64], ids: npt.NDArray[np.int64], chosen: slice
) -> npt.NDArray[np.int64]:
    """Write the message ids `ids` into the records `chosen`, and set `stamped.intact` to whether the checksums of these
    records match. Return the records' flags.
    """
    data, starts, ends, _, intact, _ = stamped
    starts, ends, widths, ids = starts[chosen], ends[chosen], widths[chosen], ids[chosen]
    headers, in_place = _headers(data, starts, widths)
    wrong = headers["length"] != widths - HEADER_BYTES
    if wrong.any():
        number = int(chosen.start) + int(wrong.argmax())
        raise RemoteProtocolError(f"record {number} of the batch does not have the announced size")
    intact[chosen] = matching_checksums(data, starts + HEADER_BYTES, ends, headers["checksum"])
    if in_place:
        headers["id"] = ids
    else:
        _write_ids(data, starts, ids)
    return headers["flag"].astype(np.int64)


def _headers(
    data: memoryview, starts: npt.NDArray[np.int64], widths: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.void], bool]:
    """Return an array of the records' headers, and whether this array shares the memory of `data`, so that a change of
    the array changes the records. It shares this memory only if all records have the same size; otherwise it is a copy.
    """
    width = int(widths[0])
    if (widths == width).all():
        return np.ndarray(len(widths), header_dtype(), data, int(starts[0]), (width,)), True
    return headers_at(data, starts), False


def _check_sizes(widths: npt.NDArray[np.int64], total: int, body_bytes: int) -> None:
    if not len(widths):
        raise RemoteProtocolError("the batch has no record")
    if (least := int(widths.min())) < HEADER_BYTES:
        raise RemoteProtocolError(f"record size {least} is impossible")
    if total != body_bytes:
        raise RemoteProtocolError(f"the batch's records have {total} bytes, its body {body_bytes}")


def _write_ids(data: memoryview, starts: npt.NDArray[np.int64], ids: npt.NDArray[np.int64]) -> None:
    raw = np.frombuffer(data, np.uint8)
    where = starts[:, None] + np.arange(_ID_POSITION, _ID_POSITION + _ID_BYTES)
    raw[where] = ids.astype(">i8").view(np.uint8).reshape(-1, _ID_BYTES)


class _Tags:
    """Finds the tag hashes of records. Many records have the same attribute. So the hash is kept for each distinct
    attribute, and each attribute is decoded only once.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[bytes | None, int], int] = {}

    def hash_in_slices(
        self, stamped: StampedRecords, first: int, flags: npt.NDArray[np.int64]
    ) -> Generator[None, None, None]:
        """Call `hash` for those records that have an attribute, and pause (`yield`) every few milliseconds. first: the
        number of the first record to examine. flags: the flags of the records to examine, from record `first` on.
        """
        tagged = np.flatnonzero(flags & ATTRIBUTE_FLAG)
        for done in range(0, len(tagged), tuning.SLICE_ATTRIBUTES):
            if done:
                yield
            chosen = tagged[done : done + tuning.SLICE_ATTRIBUTES]
            yield from self._hash_in_slices(stamped, chosen + first, flags[chosen])

    def _hash_in_slices(
        self, stamped: StampedRecords, tagged: npt.NDArray[np.intp], flags: npt.NDArray[np.int64]
    ) -> Generator[None, None, None]:
        """Call `hash` for the records `tagged`. If their attributes may be long, call it for a few of them at a time,
        with a pause between two calls.
        """
        sizes = (stamped.ends[tagged] - stamped.starts[tagged]).cumsum()
        done = 0
        while done < len(tagged):
            if done:
                yield
            most = tuning.SLICE_ATTRIBUTE_BYTES + (int(sizes[done - 1]) if done else 0)
            stop = max(done + 1, int(np.searchsorted(sizes, most, "right")))
            self.hash(stamped, tagged[done:stop], flags[done:stop])
            done = stop

    def hash(self, stamped: StampedRecords, tagged: npt.NDArray[np.intp], flags: npt.NDArray[np.int64]) -> None:
        """Set the tag hashes of the records `tagged`, which have an attribute. flags: the flags of these records."""
        data, known = stamped.data, self._known
        hashes = []
        bodies = zip(
            (stamped.starts[tagged] + HEADER_BYTES).tolist(),
            stamped.ends[tagged].tolist(),
            flags.tolist(),
            strict=True,
        )
        for start, end, flag in bodies:
            key = attribute_of(data[start:end], flag), flag & PROPERTIES_FLAG
            if end - start > LONG_LIST_BYTES:  # long lists rarely equal each other
                hashes.append(tag_hash_of_attribute(*key))
                continue
            if key not in known:
                known[key] = tag_hash_of_attribute(*key)
            hashes.append(known[key])
        stamped.units["tag"][tagged] = hashes
