"""The layout of units in an index file: blocks with a checksum, which every read verifies. Any thread may use these
functions.

    block i: 4,096 bytes from 4096 * i on, little-endian
     off size
       0 4064 127 units of 32 bytes; in block 0 the file's header and 125 units
    4064    8 magic "metaqblk"
    4072    8 number of the block
    4080   12 zero
    4092    4 CRC-32 of the block's units and the 28 bytes above, begun with the number of the block

The trailer (the fields behind the units) is written once, by the write that completes the block. An incomplete block
has no trailer. Its reader gets the number of its units and their CRC-32 from the file's header (`Checkpoint.units`,
`Checkpoint.crc`) or from memory (`Units.stored`, `Units.crc`). A write that adds units to an incomplete block computes
the block's new CRC-32 from the CRC-32 that the previous write returned. So a write need not read the file, and it
writes only behind the bytes that the index header covers. Because the computation of the CRC-32 begins with the block's
number, the CRC-32 also detects a block that was written to another block's position.

To save time, `read_units` reads and checks many blocks at once. Simpler code with the same results is in
tests/unit/broker/store/test_references.py. The benchmark `consume` measures this code.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32

from metaq.protocol.errors import StoreError
from metaq.protocol.record import Buffer

__all__ = [
    "BLOCK_BYTES",
    "HEADER_BYTES",
    "UNIT",
    "UNIT_BYTES",
    "UNIT_DTYPE",
    "IndexDamaged",
    "Unit",
    "UnitArray",
    "block_of",
    "first_of",
    "order_times",
    "ordered_units",
    "pack_units",
    "read_block",
    "read_units",
    "unit_position",
    "unreadable",
]

UNIT = Struct("<qqqiI")
"""The fields of a unit: byte offset (absolute), message id, store time (Unix ms), record size in bytes (header + body),
tag hash.
"""
UNIT_BYTES = UNIT.size  # 32
UNIT_DTYPE = np.dtype([("offset", "<i8"), ("id", "<i8"), ("time_ms", "<i8"), ("size", "<i4"), ("tag", "<u4")])
UnitArray = npt.NDArray[Any]
Unit = tuple[int, int, int, int, int]

HEADER_BYTES = 64
BLOCK_BYTES = 4096
_TRAILER = Struct("<8sQ12x")
_CRC = Struct("<I")
_TRAILER_BYTES = _TRAILER.size + _CRC.size
_MAGIC = b"metaqblk"
_HEADER_UNITS = HEADER_BYTES // UNIT_BYTES  # how many units would fit in the header's place
_BLOCK_UNITS = (BLOCK_BYTES - _TRAILER_BYTES) // UNIT_BYTES
_BLOCK_UNIT_BYTES = _BLOCK_UNITS * UNIT_BYTES
_BLOCK = np.dtype(
    [("units", f"V{_BLOCK_UNIT_BYTES}"), ("magic", "S8"), ("number", "<u8"), ("zero", "V12"), ("crc", "<u4")]
)
_RIGHT = 0x2144DF1C
"""The CRC-32 of a complete, good block, trailer included (block 0: without the file's header), if the computation
begins with the block's number. It is the same for all blocks: if any bytes are followed by their own CRC-32, the CRC-32
of the whole is always this number.
"""

_SCARCE = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))
"""Error numbers of failed opens and reads. They mean that the process lacks file descriptors or memory, not that the
file is damaged.
"""

_Load = Callable[[int, int], Buffer]
"""load(size, position): returns `size` bytes of the file from `position` on, or fewer at the end of the file."""


class IndexDamaged(Exception):  # internal: the log then reads the data themselves and rebuilds the index
    """Raised if an index file does not contain the bytes that were written to it, or cannot be read."""

    def __init__(self, path: str, block: int, reason: str) -> None:
        super().__init__(f"{path}: block {block}, at byte {block * BLOCK_BYTES}: {reason}")
        self.path = path
        self.block = block
        self.reason = reason


def unreadable(path: str, position: int, error: OSError) -> IndexDamaged | StoreError:
    """Return the error that the caller must raise after a read of an index file has failed with `error`: StoreError if
    descriptors or memory are short, else IndexDamaged. So a file that is missing or has a bad sector counts as damaged
    and is rebuilt.
    """
    if error.errno in _SCARCE:
        return StoreError(f"{path} cannot be read: {error}")
    return IndexDamaged(path, position // BLOCK_BYTES, f"it cannot be read: {error}")


def block_of(number: int) -> int:
    """Return the number of the block that contains unit `number`."""
    return (number + _HEADER_UNITS) // _BLOCK_UNITS


def unit_position(number: int) -> int:
    """Return the byte position of unit `number` in the index file."""
    block, place = divmod(number + _HEADER_UNITS, _BLOCK_UNITS)
    return block * BLOCK_BYTES + place * UNIT_BYTES


def first_of(block: int) -> int:
    """Return the number of the first unit of a block."""
    return max(0, block * _BLOCK_UNITS - _HEADER_UNITS)


def order_times(units: UnitArray, floor_ms: int = 0) -> None:
    """Increase the store times in the array `units` where necessary, so that each is at least `floor_ms` (Unix ms) and
    at least the time of the unit before it.

    A binary search by time works only if the times within a segment never decrease. A negative time, which means an
    upper bound, stays negative, and its absolute value counts. This function only increases times. So a search for the
    messages since a certain time may begin too early, but it skips no message.
    """
    times = units["time_ms"]
    known = np.abs(times)
    ordered = np.maximum.accumulate(np.maximum(known, floor_ms))
    if (ordered != known).any():
        units["time_ms"] = np.where(times < 0, -ordered, ordered)


def ordered_units(units: Buffer, floor_ms: int) -> bytes:
    """Return a copy of packed units, with store times raised where necessary so that they do not decrease (see
    `order_times`).
    """
    array = np.frombuffer(units, UNIT_DTYPE).copy()
    order_times(array, floor_ms)
    return array.tobytes()


def _trailer(block: int, crc: int) -> bytes:
    head = _TRAILER.pack(_MAGIC, block)
    return head + _CRC.pack(crc32(head, crc))


def pack_units(stored: int, units: Buffer, crc: int) -> tuple[list[Buffer], int]:
    """Return the buffers that must be written at `unit_position(stored)` to add these units to the file. The second
    result is the `crc` for the next call: the CRC-32 of the units in the file's incomplete block after this write.

    stored: how many units the file has. crc: the CRC-32 of the units in the file's incomplete block, as the last call
        returned it. It is 0 if `stored` is 0.
    """
    block = block_of(stored)
    room = (first_of(block + 1) - stored) * UNIT_BYTES
    if len(units) < room:
        return [units], crc32(units, crc)
    view = memoryview(units)
    complete, rest = divmod(len(view) - room, _BLOCK_UNIT_BYTES)
    end = len(view) - rest
    parts: list[Buffer] = [view[:room], _trailer(block, crc32(view[:room], crc))]
    if complete:
        parts.append(_pack_blocks(block + 1, view[room:end]))
    parts.append(view[end:])
    return parts, crc32(view[end:], block + 1 + complete)


def _pack_blocks(first: int, units: memoryview) -> Buffer:
    """Return the bytes of complete blocks that contain these units. The first block gets the number `first`. For speed,
    numpy builds all blocks together and not one by one.
    """
    count = len(units) // _BLOCK_UNIT_BYTES
    blocks = np.zeros(count, _BLOCK)
    blocks["units"] = np.frombuffer(units, f"V{_BLOCK_UNIT_BYTES}")
    blocks["magic"] = _MAGIC
    blocks["number"] = np.arange(first, first + count)
    packed = blocks.view(np.uint8).data
    for start, number in zip(range(0, len(packed), BLOCK_BYTES), range(first, first + count), strict=True):
        end = start + BLOCK_BYTES - _CRC.size
        _CRC.pack_into(packed, end, crc32(packed[start:end], number))
    return packed


def read_block(load: _Load, path: str, block: int, stored: int, crc: int) -> Buffer:
    """Read and check the units of block number `block`, and return a buffer that begins with their bytes; other bytes
    can follow them. stored: the number of units in the file; later bytes are ignored. crc: see Units.crc.

    Raises IndexDamaged, and the errors of `load`.
    """
    position = block * BLOCK_BYTES or HEADER_BYTES
    if block < block_of(stored):
        end, right = (block + 1) * BLOCK_BYTES, _RIGHT
    else:
        end, right = unit_position(stored), crc
    data = load(end - position, position)
    if crc32(data, block) != right or len(data) < end - position:
        raise _damaged(path, block, len(data) < end - position)
    return data


def read_units(load: _Load, path: str, start: int, stop: int, stored: int, crc: int) -> UnitArray:
    """Return the units start … stop-1 (0 <= start < stop <= stored), with one read of the file. Raises the errors that
    `read_block` raises.
    """
    first, last = block_of(start), block_of(stop - 1)
    if first == last:
        units = read_block(load, path, first, stored, crc)
        return np.frombuffer(units, UNIT_DTYPE, stop - start, (start - first_of(first)) * UNIT_BYTES)
    begin = first * BLOCK_BYTES
    complete = min(last + 1, block_of(stored)) - first  # of the blocks
    end = (last + 1) * BLOCK_BYTES if first + complete > last else unit_position(stored)
    data = memoryview(load(end - begin, begin))
    position = complete * BLOCK_BYTES
    if crc32(data[0 if begin else HEADER_BYTES : position], _crc_before(first)) != _crc_before(first + complete):
        raise _first_damaged(path, data, first, first + complete)
    rest = data[position:]
    if len(data) < end - begin or (rest and crc32(rest, last) != crc):
        raise _damaged(path, last, len(data) < end - begin)
    found = np.empty(complete * _BLOCK_UNIT_BYTES + len(rest), np.uint8)
    blocks = np.frombuffer(data, np.uint8, position).reshape(complete, BLOCK_BYTES)
    found[: complete * _BLOCK_UNIT_BYTES].reshape(complete, _BLOCK_UNIT_BYTES)[:] = blocks[:, :_BLOCK_UNIT_BYTES]
    found[complete * _BLOCK_UNIT_BYTES :] = rest
    skipped = start + _HEADER_UNITS - first * _BLOCK_UNITS
    return found.view(UNIT_DTYPE)[skipped : skipped + stop - start]


_ZEROS = bytes(BLOCK_BYTES)
_STEP = crc32(_ZEROS) ^ _RIGHT
_crcs = [0]
_growing = threading.Lock()


def _crc_before(block: int) -> int:
    """Return the CRC-32 of all blocks before number `block`, as one sequence of bytes, if they are good. The result is
    the same for every index file. So `read_units` can check the blocks `a` to `b` with one CRC-32 of all their bytes:
    it begins the computation with `_crc_before(a)`. If the blocks are good, the result is `_crc_before(b + 1)`.

    A good block `i` has the CRC-32 _RIGHT if the computation begins with i. Here the computation for block `i` begins
    with another start value: the CRC-32 of the blocks before it. CRC-32 is linear, so the result differs from _RIGHT by
    a value that does not depend on the block's content. This value can be computed from the two start values and as
    many zero bytes as a block has. If one block is damaged, this check detects all damage that a CRC-32 of this block
    alone would detect. If several blocks are damaged, it fails to detect the damage in one of 2^32 cases.
    """
    if block >= len(_crcs):
        with _growing:
            while block >= len(_crcs):
                _crcs.append(crc32(_ZEROS, _crcs[-1] ^ len(_crcs) - 1) ^ _STEP)
    return _crcs[block]


def _first_damaged(path: str, data: memoryview, first: int, stop: int) -> IndexDamaged:
    """Return the error for the first damaged block among the blocks first … stop-1. At least one of them is damaged."""
    for block in range(first, stop):
        end = (block + 1 - first) * BLOCK_BYTES
        start = end - BLOCK_BYTES if block else HEADER_BYTES
        if crc32(data[start:end], block) != _RIGHT:
            break
    return _damaged(path, block, len(data) < end)


def _damaged(path: str, block: int, short: bool) -> IndexDamaged:
    return IndexDamaged(path, block, "the file ends before it" if short else "its units do not fit its checksum")
