"""The key file beside a segment contains blocks of a hash table. Each block is written once and never changed. The
broker finds a message by its key with this table. If the file is lost, the broker computes it again from the segment's
data.

    <20-digit first offset>.keys, little-endian: blocks back to back, for records that follow each other
    off size header of a block                             off size entry (96 + 8 * i), sorted as one u64
      0    8 magic "metaqkey"                                0    4 position of the record in the segment, bytes
      8    4 version 1                                       4    4 CRC-32 of the key's UTF-8 bytes
     12    4 number of entries
     16    8 byte offset in the partition where its records begin
     24    8 and where they end
     32    8 lowest message id of its records, of all, with keys or without
     40    8 highest message id
     48    4 1 if each id is higher than the one before it, else 0
     52    4 checksum of the last record, as its header has it
     56    8 message id of the last record
     64    8 byte offset of the last record
     72    4 CRC-32 of the entries
     76   16 zero
     92    4 CRC-32 of bytes 0…91

Hashes are practically random, and the entries of a block are sorted by hash. So the value of a hash tells roughly at
which position in the block its entries are. A search reads a few KiB around this position. Different keys may have the
same hash, so the results are only candidates, and the caller compares the keys in the records. After a block was
written, a Java broker can cut the segment and write other records there. So a block's header describes the last record
that the block covers: if the segment does not contain this record any more, the block is not used. The entries of a
block are synced before its header is written. So if a block has a complete header after a crash, its entries are
complete, too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from math import isqrt
from struct import Struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32

from metaq.protocol.limits import MAX_BODY_BYTES
from metaq.protocol.record import (
    ATTRIBUTE_FLAG,
    HEADER,
    HEADER_BYTES,
    LONG_LIST_BYTES,
    PROPERTIES_FLAG,
    headers_at,
    key_hashes,
    long_key_hashes,
)

from . import tuning
from .files import Files, opened, read_exactly, write_all
from .index import UnitArray

__all__ = [
    "ENTRY_BYTES",
    "Covered",
    "Entries",
    "KeyBlock",
    "append_block",
    "entries_around",
    "positions_of",
    "read_blocks",
    "scan_keys",
]

Entries = npt.NDArray[np.uint64]
ENTRY_BYTES = 8
_HEADER = Struct("<8sIIqqqqIIqqI16x")
_HEADER_CRC = Struct("<I")
BLOCK_HEADER_BYTES = _HEADER.size + _HEADER_CRC.size
_MAGIC, _VERSION = b"metaqkey", 1
_POSITION_BITS = 32  # a segment is full at maxSegmentSize, an int32: no record begins behind it
_POSITION_MASK = (1 << _POSITION_BITS) - 1

_LARGEST_BYTES = 2 * MAX_BODY_BYTES
"""If a record has more than _LARGEST_BYTES bytes, only so many bytes from its start on are searched for keys. Only a
Java producer can have sent a larger record.
"""


class KeyBlock(NamedTuple):
    """A block of a key file. start, end: the byte offsets in the partition between which the block covers all records.
    entries: how many entries the block has. lowest_id, highest_id: the lowest and the highest message id of these
    records. ascending: whether each id is higher than the one before it. position: the byte position in the key file
    where the block's entries begin.
    """

    start: int
    end: int
    entries: int
    lowest_id: int
    highest_id: int
    ascending: bool
    position: int

    @property
    def next_position(self) -> int:
        """The byte position in the key file where the next block begins."""
        return self.position + self.entries * ENTRY_BYTES


# --- reading records --------------------------------------------------------------------------------------------------


def scan_keys(
    files: Files, fd: int, units: UnitArray, first_offset: int, pause: Callable[[float], None] = time.sleep
) -> Entries:
    """Read the records that `units` describe from the segment that begins at `first_offset`. Return one key-file entry
    for each key of these records, unsorted.

    Any thread may call this function. The function reads pieces of 4 MiB, and pauses between pieces of work so that
    other threads can use the Python interpreter. Raises OSError.
    """
    found: list[Entries] = [np.empty(0, np.uint64)]
    positions = units["offset"] - first_offset
    ends = positions + units["size"]
    number = 0
    while number < len(units):
        start = int(positions[number])
        stop = max(number + 1, int(np.searchsorted(ends, start + tuning.KEY_WINDOW_BYTES, "right")))
        size = min(int(ends[stop - 1]) - start, _LARGEST_BYTES)
        data = read_exactly(files, fd, size, start)
        found.append(_entries_in(data, positions[number:stop] - start, ends[number:stop] - start, start, pause))
        number = stop
    return np.concatenate(found)


def _entries_in(
    data: bytes,
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    base: int,
    pause: Callable[[float], None],
) -> Entries:
    whole = int(np.searchsorted(starts, len(data) - HEADER_BYTES, "right"))
    flags = headers_at(data, starts[:whole])["flag"].astype(np.int64)
    wanted = ATTRIBUTE_FLAG | PROPERTIES_FLAG
    starts = starts[np.flatnonzero((flags & wanted) == wanted)]
    starts, properties, stops = _property_lists(data, starts, ends)
    entries: list[int] = []
    is_long = stops - properties > LONG_LIST_BYTES
    found = [
        part
        for position, start, stop in zip(
            (base + starts[is_long]).tolist(), properties[is_long].tolist(), stops[is_long].tolist(), strict=True
        )
        for part in _long_entries(data, start, stop, position, pause)
    ]
    starts, properties, stops = starts[~is_long], properties[~is_long], stops[~is_long]
    for first in range(0, len(starts), tuning.KEY_SLICE_RECORDS):
        chosen = slice(first, first + tuning.KEY_SLICE_RECORDS)
        places = (base + starts[chosen]).tolist(), properties[chosen].tolist(), stops[chosen].tolist()
        for position, start, stop in zip(*places, strict=True):
            for hashed in key_hashes(data, start, stop):
                entries.append(hashed << _POSITION_BITS | position)
        if len(properties[chosen]) == tuning.KEY_SLICE_RECORDS:
            pause(tuning.KEY_SLICE_PAUSE_SECONDS)
    return np.concatenate([*found, np.array(entries, np.uint64)])


def _long_entries(
    data: bytes, start: int, stop: int, position: int, pause: Callable[[float], None]
) -> Iterator[Entries]:
    """Yield the entries of one record with a long property list, which may have millions of keys. If a key occurs in
    the list several times, most of its occurrences after the first get no entry.
    """
    for hashes in long_key_hashes(data, start, stop):
        yield hashes.astype(np.uint64) << np.uint64(_POSITION_BITS) | np.uint64(position)
        pause(tuning.KEY_SLICE_PAUSE_SECONDS)


def _property_lists(
    data: bytes, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Find the records with a complete attribute (the list of properties in front of the message): it must end neither
    behind the record's end nor behind the end of `data`. Return where these records begin, and where their attributes
    begin and end.
    """
    raw = np.frombuffer(data, np.uint8)
    body = starts + HEADER_BYTES
    starts, body = starts[body + 4 <= len(data)], body[body + 4 <= len(data)]
    lengths = raw[body[:, None] + np.arange(4)].view(">i4").reshape(-1).astype(np.int64)
    stops = body + 4 + lengths
    inside = (lengths >= 0) & (stops <= ends[np.searchsorted(ends, starts, "right")]) & (stops <= len(data))
    return starts[inside], (body + 4)[inside], stops[inside]


# --- searching --------------------------------------------------------------------------------------------------------


def positions_of(entries: Entries, key: int, low: int, high: int) -> list[int]:
    """Return the positions of the records that have a key with hash `key` and begin in bytes [low, high) of the
    segment. The positions ascend, and each is returned once.

    entries: sorted entries; several of them can have the same hash and the same record.
    """
    bounds = np.array([key << _POSITION_BITS | low, (key << _POSITION_BITS) + high], np.uint64)
    first, stop = entries.searchsorted(bounds)
    found: list[int] = (np.unique(entries[first:stop]) & np.uint64(_POSITION_MASK)).tolist()
    return found


def entries_around(files: Files, fd: int, block: KeyBlock, key: int) -> Entries:
    """Read a part of a block's sorted entries that includes all entries with hash `key`, and return it. Any thread may
    call this function. Raises OSError.
    """
    count = block.entries
    guess, width = count * key >> 32, 64 + 2 * isqrt(count)  # four standard deviations
    first, stop = max(0, guess - width), min(count, guess + width)
    found = _read_entries(files, fd, block, first, stop)
    lowest, highest = key << _POSITION_BITS, key << _POSITION_BITS | _POSITION_MASK
    if (first and found[0] >= lowest) or (stop < count and found[-1] <= highest):
        found = _read_entries(files, fd, block, 0, count)
    return found


def _read_entries(files: Files, fd: int, block: KeyBlock, first: int, stop: int) -> Entries:
    size, position = (stop - first) * ENTRY_BYTES, block.position + first * ENTRY_BYTES
    data = read_exactly(files, fd, size, position)
    if len(data) < size:
        raise OSError(f"the key file ends before byte {position + size}")
    return np.frombuffer(data, "<u8")


# --- files ------------------------------------------------------------------------------------------------------------


def read_blocks(
    files: Files, path: str, data_path: str, first_offset: int, end: int, *, check_entries: bool = False
) -> tuple[KeyBlock, ...]:
    """Return the good blocks of a key file that describe the segment [first_offset, end). Return () if there is no such
    file.

    Any thread may call this. The result ends before the first block that cannot be used, because it is incomplete,
    belongs to other data, or covers a last record that is no longer in the segment. The caller must write this block
    and all later ones again. check_entries: if True, the list also ends before a block whose entries do not match their
    checksum. Raises OSError.
    """
    try:
        size = files.status(path).size
    except FileNotFoundError:
        return ()
    with opened(files, path) as fd:
        blocks, lasts = _walk_headers(files, fd, size, first_offset, end)
        if check_entries:
            good = [_has_checksum(files, fd, *each) for each in zip(blocks, lasts, strict=True)]
            count = good.index(False) if False in good else len(good)
            blocks, lasts = blocks[:count], lasts[:count]
    with opened(files, data_path) as data:
        while blocks and not _is_record(files, data, lasts[-1], first_offset, blocks[-1].end):
            blocks.pop()
            lasts.pop()
    return tuple(blocks)


class Covered(NamedTuple):
    """The data that a key block covers: bytes [start, end) of the partition, and the index units of all good records in
    this range.
    """

    start: int
    end: int
    units: UnitArray


class _Last(NamedTuple):
    """The last record that a block covers, as the block's header describes it, and the checksum of the block's
    entries.
    """

    offset: int
    id: int
    checksum: int
    entries_checksum: int


def _has_checksum(files: Files, fd: int, block: KeyBlock, last: _Last) -> bool:
    return crc32(read_exactly(files, fd, block.entries * ENTRY_BYTES, block.position)) == last.entries_checksum


def _walk_headers(files: Files, fd: int, size: int, start: int, end: int) -> tuple[list[KeyBlock], list[_Last]]:
    blocks: list[KeyBlock] = []
    lasts: list[_Last] = []
    position = 0
    while position + BLOCK_HEADER_BYTES <= size:
        head = read_exactly(files, fd, BLOCK_HEADER_BYTES, position)
        unpacked = _unpack_header(head, position + BLOCK_HEADER_BYTES)
        if unpacked is None:
            break
        block, last = unpacked
        if block.start != start or not start < block.end <= end or block.next_position > size:
            break
        blocks.append(block)
        lasts.append(last)
        start, position = block.end, block.next_position
    return blocks, lasts


def _unpack_header(head: bytes, position: int) -> tuple[KeyBlock, _Last] | None:
    if len(head) < BLOCK_HEADER_BYTES or _HEADER_CRC.unpack_from(head, _HEADER.size)[0] != crc32(head[: _HEADER.size]):
        return None
    magic, version, count, start, end, low, high, ascending, checksum, last_id, last, crc = _HEADER.unpack_from(head)
    if (magic, version) != (_MAGIC, _VERSION):
        return None
    return KeyBlock(start, end, count, low, high, bool(ascending), position), _Last(last, last_id, checksum, crc)


def _is_record(files: Files, fd: int, last: _Last, first_offset: int, end: int) -> bool:
    header = files.pread(fd, HEADER_BYTES, last.offset - first_offset)
    if len(header) < HEADER_BYTES:
        return False
    length, checksum, message_id, _ = HEADER.unpack(header)
    ends_before = last.offset + HEADER_BYTES + length <= end  # damaged bytes may follow it
    return ends_before and (checksum, message_id) == (last.checksum, last.id)


def append_block(
    files: Files, path: str, data_fd: int, covered: Covered, entries: Entries, first_offset: int, position: int
) -> KeyBlock:
    """Write a block with these entries, which belong to the records in `covered`, at `position` of the key file, and
    return it. Create the file if it is missing.

    Before the write, cut off all bytes of the key file behind `position`. Any thread may call this, but for one file
    only one thread at a time. Raises OSError; in this case the file may end with entries that have no block header,
    which the next call cuts off.
    """
    start, end, units = covered
    ids = units["id"]
    last, last_id = int(units["offset"][-1]), int(ids[-1])
    checksum = HEADER.unpack(read_exactly(files, data_fd, HEADER_BYTES, last - first_offset))[1]
    rising = bool((ids[1:] > ids[:-1]).all())
    low, high = int(ids.min()), int(ids.max())
    block = KeyBlock(start, end, len(entries), low, high, rising, position + BLOCK_HEADER_BYTES)
    data = np.sort(entries).astype("<u8").tobytes()
    head = _HEADER.pack(
        _MAGIC, _VERSION, len(entries), start, end, low, high, rising, checksum, last_id, last, crc32(data)
    )
    flags = os.O_RDWR if position else os.O_RDWR | os.O_CREAT  # somebody may have deleted the file
    with opened(files, path, flags) as fd:
        files.truncate(fd, position)
        if data:
            write_all(files, fd, [data], block.position)
            files.fdatasync(fd)
        write_all(files, fd, [head + _HEADER_CRC.pack(crc32(head))], position)
    return block
