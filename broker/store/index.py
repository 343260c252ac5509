"""The index file beside each segment contains one unit of fixed size for each record. If the file is lost, the broker
computes it again from the segment's data. Some store times are then known only roughly (see below).

    <20-digit first offset>.index, little-endian
    off size header                                        off size unit (where: index_blocks.py)
      0    8 magic "metaqidx"                                0    8 byte offset of the record in the partition
      8    4 version 2                                       8    8 message id
     12    4 size of a unit, 32                             16    8 store time, Unix ms; negative: see below
     16    8 first offset of the segment                    24    4 size of the record, header included
     24    8 checkpoint: data before this byte offset and   28    4 tag hash, 0 = no tag
             the units for it are on the disk
     32    8 units up to the checkpoint
     40    8 largest positive message id among them, or 0
     48    4 CRC-32 of those in the last block, while that
             is not complete
     52    8 zero
     60    4 CRC-32 of bytes 0…59

In a file of version 1, the units were back to back, without checksums. The broker trusts the checkpoint of such a file,
but computes its units anew from the segment's data.

Store time: if the unit of a record that this broker has written is rebuilt, its store time is the time that the message
id contains. A record that a Java broker has written has a negative message id, which contains no time. So when the unit
of such a record is rebuilt, only an upper bound of its store time is known. The bound is stored as a NEGATIVE number:
-t means "stored at t or earlier". Searches use the absolute value of this field and assume that it does not decrease
from one unit to the next. The assumption holds because the clock from which the broker takes store times never goes
back.
"""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial
from struct import Struct
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from isal.isal_zlib import crc32

from metaq.protocol.record import Buffer

from . import tuning
from .files import Files, OpenFile, opened, read_exactly, write_all
from .index_blocks import (
    HEADER_BYTES,
    UNIT,
    UNIT_BYTES,
    UNIT_DTYPE,
    IndexDamaged,
    Unit,
    UnitArray,
    block_of,
    first_of,
    order_times,
    ordered_units,
    pack_units,
    read_block,
    read_units,
    unit_position,
    unreadable,
)

__all__ = [
    "FRESH_SUFFIX",
    "HEADER_BYTES",
    "UNIT",
    "UNIT_BYTES",
    "UNIT_DTYPE",
    "Checkpoint",
    "Index",
    "IndexDamaged",
    "StoredCheckpoint",
    "Unit",
    "UnitArray",
    "UnitReader",
    "Vouched",
    "largest_id",
    "order_times",
    "ordered_units",
    "read_checkpoint",
    "replace_index",
    "write_checkpoint",
    "write_units",
]

_log = logging.getLogger(__name__)

_HEADER = Struct("<8sIIqqqqI8x")
_HEADER_CRC = Struct("<I")
_MAGIC, _VERSION = b"metaqidx", 2
_UNCHECKED_VERSION = 1


class Checkpoint(NamedTuple):
    """The content of an index header. It states that the first `units` units in the file describe all data in
    [first_offset, end) (byte offsets in the partition), and that these data and units are on the disk. max_id: the
    largest positive message id in these units. It is 0 if there is none.

    crc: the CRC-32 of the covered units in the last block (see Units.crc). It is None if the file has version 1, whose
    units the broker does not use.
    """

    first_offset: int
    end: int
    units: int
    max_id: int
    crc: int | None = 0


def pack_header(checkpoint: Checkpoint) -> bytes:
    """Return the 64 bytes of an index file's header, which contains this checkpoint."""
    head = _HEADER.pack(_MAGIC, _VERSION, UNIT_BYTES, *checkpoint)
    return head + _HEADER_CRC.pack(crc32(head))


def unpack_header(data: bytes) -> Checkpoint | None:
    """Return the checkpoint that an index header contains. Return None if `data` is not a complete, undamaged header of
    version 1 or 2.
    """
    if len(data) != HEADER_BYTES or _HEADER_CRC.unpack_from(data, HEADER_BYTES - 4)[0] != crc32(data[:-4]):
        return None
    magic, version, unit_bytes, *fields = _HEADER.unpack_from(data)
    if (magic, unit_bytes) != (_MAGIC, UNIT_BYTES) or version not in (_VERSION, _UNCHECKED_VERSION):
        return None
    found = Checkpoint(*fields)
    return found if version == _VERSION else found._replace(crc=None)


def largest_id(units: Buffer | UnitArray) -> int:
    """Return the largest positive message id among units, or 0 if there is none."""
    array = units if isinstance(units, np.ndarray) else np.frombuffer(units, UNIT_DTYPE)
    return max(0, int(array["id"].max())) if len(array) else 0


Vouched = tuple[int, int]
"""A range of a segment's data that an index header states to be synced: (byte offset of its beginning, byte offset of
its end).
"""


class StoredCheckpoint(NamedTuple):
    """A checkpoint that was read from an index file, and the last unit that the checkpoint covers: (offset, id,
    time_ms, size, tag). `last_unit` is None if the checkpoint covers no units.
    """

    checkpoint: Checkpoint
    last_unit: tuple[int, int, int, int, int] | None


def read_checkpoint(files: Files, path: str, first_offset: int) -> StoredCheckpoint | None:
    """Return the checkpoint of an index file. Return None if the file is missing, damaged or too short, or belongs to
    another segment.

    This function does not check all units, but only those in the last block that the checkpoint covers (in a file of
    version 1, none). A file that can be opened but not read counts as damaged, because the broker can rebuild it.
    Raises OSError if the file cannot be opened, StoreError if memory is short.
    """
    try:
        with opened(files, path) as fd:
            return _read_checkpoint(partial(_load, files, fd, path), path, first_offset)
    except FileNotFoundError:
        return None
    except IndexDamaged as damage:
        _log.warning("%s", damage)
        return None


def _load(files: Files, fd: int, path: str, size: int, position: int) -> bytes:
    try:
        return read_exactly(files, fd, size, position)
    except OSError as error:
        raise unreadable(path, position, error) from error


def _read_checkpoint(load: Callable[[int, int], bytes], path: str, first_offset: int) -> StoredCheckpoint | None:
    found = unpack_header(load(HEADER_BYTES, 0))
    if found is None or found.first_offset != first_offset or found.end < first_offset or found.units < 0:
        return None
    if not found.units:
        return StoredCheckpoint(found, None)
    number = found.units - 1
    if found.crc is None:
        unit = load(UNIT_BYTES, HEADER_BYTES + number * UNIT_BYTES)
        return StoredCheckpoint(found, UNIT.unpack(unit)) if len(unit) == UNIT_BYTES else None
    block = block_of(number)
    units = read_block(load, path, block, found.units, found.crc)
    return StoredCheckpoint(found, UNIT.unpack_from(units, (number - first_of(block)) * UNIT_BYTES))


def write_units(
    files: Files, path: str, stored: int, units: Buffer, crc: int = 0, vouched: Vouched | None = None
) -> int:
    """Write units to an index file behind its first `stored` units, without a sync. If `stored` is 0, create the file
    anew. Return the CRC-32 of the units in the file's last, incomplete block, for the next call.

    crc: the result of the previous call for this file. It is 0 if `stored` is 0. vouched: a range of the segment's data
    that the header of the existing file states to be synced. The caller passes `vouched` only if it writes all units
    anew (`stored` is 0), because the existing file has version 1 or is damaged. Suppose that this function then
    overwrote the existing file in place. Until the next checkpoint, no header would state that the range is synced. A
    start of the broker before that checkpoint would check, and perhaps cut, data that it could have trusted. So if
    `vouched` is given, this function replaces the existing file by a new file with the same statement in its header,
    and waits for the disk. Any thread may call this function, but only one thread at a time per file. Raises OSError.
    Even after such an error, the units that the header covers are unchanged, and either the old file or the new one
    exists.
    """
    if vouched is not None:
        return replace_index(files, path, np.frombuffer(units, UNIT_DTYPE), *vouched)[1]
    parts, crc = pack_units(stored, units, crc)
    with opened(files, path, os.O_RDWR | (0 if stored else os.O_CREAT | os.O_TRUNC)) as fd:
        write_all(files, fd, parts, unit_position(stored))
    return crc


def replace_index(files: Files, path: str, units: UnitArray, first_offset: int, end: int) -> tuple[Checkpoint, int]:
    """Replace or create an index file with these units. Return the checkpoint in the new file's header, and the CRC-32
    of the units in the file's last, incomplete block (like `write_units`).

    The header says that the data in [first_offset, end) and the units for them are synced. If `units` also has units
    for data behind `end`, the function writes them, too, but the header does not cover them. Any thread may call this.
    At every moment either the old file or the new, synced file exists. Raises OSError.
    """
    fresh = path + FRESH_SUFFIX
    covered = int(np.searchsorted(units["offset"] + units["size"], end, "right"))
    promised = units[:covered]
    crc = write_units(files, fresh, 0, promised.tobytes())
    checkpoint = Checkpoint(first_offset, end, covered, largest_id(promised), crc)
    if covered < len(units):
        crc = write_units(files, fresh, covered, units[covered:].tobytes(), crc)
    write_checkpoint(files, fresh, checkpoint, sync=False)
    with opened(files, fresh, os.O_RDWR) as fd:
        files.fdatasync(fd)
    files.rename(fresh, path)
    return checkpoint, crc


def write_checkpoint(files: Files, path: str, checkpoint: Checkpoint, *, sync: bool) -> None:
    """Replace the header in an index file by a new one, whose checkpoint covers more units. The caller has written
    these units with `write_units` and has synced the data that they describe.

    sync: whether to sync the units before the header is written. The caller passes False if a sync of the whole file
    system has put the units on the disk. Any thread may call this, even while another thread writes units that the
    checkpoint does not cover. The header itself is not synced: if a crash loses it, the file has the previous header,
    which covers fewer units but is also true. Raises OSError.
    """
    with opened(files, path, os.O_RDWR | (0 if checkpoint.units else os.O_CREAT)) as fd:
        if sync:
            files.fdatasync(fd)
        write_all(files, fd, [pack_header(checkpoint)], 0)


FRESH_SUFFIX = ".new"
"""The suffix of the new index file while `replace_index` writes it. If a crash has left a file with this suffix, the
next rebuild of the index overwrites it, or it is removed together with the segment.
"""


def _end_of(unit: Any) -> int:
    return int(unit["offset"]) + int(unit["size"])


class Units(ABC):
    """The index units of one segment. The first `stored` units are in the index file, and every read of them verifies
    their checksums. The other units are only in memory.

    crc: the CRC-32 of the units in the file's last block, if that block is not complete. A search among n units reads
    O(log n) blocks of the file. All methods that read units raise IndexDamaged if the file is damaged or cannot be
    read, and StoreError if the process has no free file descriptor or memory.
    """

    __slots__ = ("_tail", "crc", "path", "stored")

    def __init__(self, path: str, stored: int, crc: int, tail: Buffer) -> None:
        self.path = path
        self.stored = stored
        self.crc = crc
        self._tail = bytearray(tail)

    def __len__(self) -> int:
        return self.stored + len(self._tail) // UNIT_BYTES

    @abstractmethod
    def _load(self, size: int, position: int) -> Buffer:
        """Return `size` bytes of the index file from byte `position` on, or fewer at the end of the file."""

    def unit(self, number: int) -> Unit:
        """Return unit `number` as (offset, id, time_ms, size, tag), 0 <= number < len(self)."""
        if number >= self.stored:
            return self._unstored(number)
        block = block_of(number)
        return UNIT.unpack_from(self._block(block), (number - first_of(block)) * UNIT_BYTES)

    def units(self, start: int, stop: int) -> UnitArray:
        """Return the units start … stop-1 as one array. If there are not so many units, return those that exist."""
        stored = self.stored
        if stop > stored:
            stop = min(stop, len(self))
        if start < stop <= stored:
            return read_units(self._load, self.path, start, stop, stored, self.crc)
        tail = bytes(self._tail[max(0, start - stored) * UNIT_BYTES : max(0, stop - stored) * UNIT_BYTES])
        if start < stored and start < stop:
            tail = read_units(self._load, self.path, start, stored, stored, self.crc).tobytes() + tail
        return np.frombuffer(tail, UNIT_DTYPE)

    def starting_before(self, offset: int) -> int:
        """Return the number of records that start before `offset`."""
        return self._search(_offset, offset)

    def ending_by(self, offset: int) -> int:
        """Return the number of records that end at or before `offset`."""
        return self._search(_end, offset + 1)

    def stored_before(self, time_ms: int) -> int:
        """Return the number of records that were stored before `time_ms` (Unix ms). If only an upper bound of a
        record's store time is known, the bound counts.
        """
        return self._search(_time, time_ms)

    def _unstored(self, number: int) -> Unit:
        return UNIT.unpack_from(self._tail, (number - self.stored) * UNIT_BYTES)

    def _block(self, block: int) -> Buffer:
        return read_block(self._load, self.path, block, self.stored, self.crc)

    def _search(self, key: Callable[[Unit], int], value: int, start: int = 0, stop: int | None = None) -> int:
        """Search the units start … stop-1, and return the number of the first unit for which key(unit) >= value. The
        keys must not decrease from one unit to the next.
        """
        stored, held = self.stored, -1
        units: Buffer = b""

        def key_of(number: int) -> int:
            nonlocal held, units
            if number >= stored:
                return key(self._unstored(number))
            block = block_of(number)
            if block != held:
                held, units = block, self._block(block)
            return key(UNIT.unpack_from(units, (number - first_of(block)) * UNIT_BYTES))

        return bisect_left(range(len(self)), value, start, stop, key=key_of)


def _offset(unit: Unit) -> int:
    return unit[0]


def _end(unit: Unit) -> int:
    return unit[0] + unit[3]


def _time(unit: Unit) -> int:
    return abs(unit[2])


class Index(Units):
    """The index units of one segment. The first `stored` units are in the index file. The units behind them are only in
    memory until the next checkpoint writes them to the file.

    Only the thread that owns the store may use this object; `write_units` runs in other threads on a copy of the units.
    The object remembers the offsets at which results of `units_ending_by` ended. For these offsets, `starting_before`
    and `ending_by` take O(1). They are just the offsets that a consumer asks for if it reads a partition in order. (The
    units in an index never change, so a remembered offset stays valid.) Methods that read the file can raise NotCached,
    like `OpenFile.read`.
    """

    __slots__ = ("_boundaries", "file", "max_stored_id", "vouched")

    def __init__(
        self,
        file: OpenFile,
        stored: int = 0,
        max_stored_id: int = 0,
        tail: Buffer = b"",
        crc: int = 0,
        vouched: Vouched | None = None,
    ) -> None:
        """tail: the packed units that are only in memory. crc: see Units. vouched: see `write_units`."""
        super().__init__(file.path, stored, crc, tail)
        self.vouched = vouched
        self.file = file
        self.max_stored_id = max_stored_id
        self._boundaries: dict[int, int] = {}  # byte offset between two records -> records before it

    @property
    def unstored(self) -> int:
        """The number of units that are only in memory."""
        return len(self._tail) // UNIT_BYTES

    @property
    def max_id(self) -> int:
        """The largest positive message id of the segment's units, or 0 if there is none. Takes O(unstored units)."""
        return max(self.max_stored_id, largest_id(bytes(self._tail)))

    def extend(self, units: Buffer) -> int:
        """Add packed units in memory, behind the present units. Return how many units are now only in memory."""
        self._tail += units
        return len(self._tail) // UNIT_BYTES

    def tail(self) -> bytes:
        """Return a copy of the units that are only in memory."""
        return bytes(self._tail)

    def mark_stored(self, count: int, max_id: int, crc: int) -> None:
        """Record that the first `count` units that were only in memory are in the file now. crc: the result of
        `write_units`.
        """
        del self._tail[: count * UNIT_BYTES]
        if count:
            self.vouched = None
        self.stored += count
        self.crc = crc
        self.max_stored_id = max(self.max_stored_id, max_id)

    def reader(self, files: Files) -> UnitReader:
        """Return an object with which a worker thread can read the units that exist now. Units that are only in memory
        are copied into that object.
        """
        return UnitReader(files, self.path, self.stored, self.crc, self._tail)

    def units_ending_by(self, start: int, offset: int, max_count: int) -> UnitArray:
        """Return the units from number `start` on whose records end at or before `offset`, but at most `max_count`
        units.
        """
        stop = min(len(self), start + max_count)
        chunks: list[UnitArray] = []
        size = tuning.SEARCH_FIRST_UNITS
        probing = True
        while start < stop:
            chunk = self.units(start, min(stop, first_of(block_of(start + size) + 1)))  # blocks are read whole
            fitting = int(np.searchsorted(chunk["offset"], offset))
            if fitting and _end_of(chunk[fitting - 1]) > offset:
                fitting -= 1
            if fitting == len(chunk) < stop - start:
                # estimate the remaining units from the remaining bytes, and add a few, so that the next read is the
                # last
                end = _end_of(chunk[-1])
                bytes_read = end - int(chunk[0]["offset"])
                size = (offset - end) * len(chunk) * 9 // (bytes_read * 8) + tuning.SEARCH_FIRST_UNITS
                if probing:  # reading the first few again costs less than joining them to the others
                    probing, size = False, size + len(chunk)
                    continue
            chunks.append(chunk[:fitting])
            start += fitting
            if fitting < len(chunk):
                break
        # joined as bytes: numpy's concatenate compares the fields of the arrays each time
        found = chunks[0] if len(chunks) == 1 else np.frombuffer(b"".join([each.data for each in chunks]), UNIT_DTYPE)
        if len(found):
            self._remember(_end_of(found[-1]), start)
        return found

    def _remember(self, offset: int, number: int) -> None:
        if len(self._boundaries) >= tuning.MAX_BOUNDARIES:
            self._boundaries.clear()
        self._boundaries[offset] = number

    def starting_before(self, offset: int) -> int:
        """Return the number of records that start before `offset`."""
        known = self._boundaries.get(offset)
        return super().starting_before(offset) if known is None else known

    def ending_by(self, offset: int) -> int:
        """Return the number of records that end at or before `offset`."""
        known = self._boundaries.get(offset)
        return super().ending_by(offset) if known is None else known

    def _load(self, size: int, position: int) -> Buffer:
        try:
            return self.file.read(size, position)
        except OSError as error:
            raise unreadable(self.path, position, error) from error


class UnitReader(Units):
    """The index units of one segment as they were when this object was made. The object reads the index file with its
    own file descriptor.

    Any thread may use the object as a context manager, but only one thread at a time.
    """

    __slots__ = ("_fd", "_files")

    def __init__(self, files: Files, path: str, stored: int, crc: int, tail: Buffer = b"") -> None:
        """stored, crc: the values of these attributes of the segment's Index. tail: the packed units that are only in
        memory.
        """
        super().__init__(path, stored, crc, tail)
        self._files = files
        self._fd = -1

    def __enter__(self) -> Self:
        if self.stored:
            try:
                self._fd = self._files.open(self.path, os.O_RDONLY)
            except OSError as error:
                raise unreadable(self.path, 0, error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._fd >= 0:
            self._files.close(self._fd)

    def chunks(self, start: int, stop: int) -> Iterator[UnitArray]:
        """Yield units start … stop-1 in arrays of at most 2 MiB."""
        for first in range(start, stop, tuning.UNITS_PER_READ):
            yield self.units(first, min(stop, first + tuning.UNITS_PER_READ))

    def chunks_backwards(self, start: int, stop: int) -> Iterator[UnitArray]:
        """Yield units start … stop-1 in arrays of at most 2 MiB like `chunks`, but the last array first."""
        for last in range(stop, start, -tuning.UNITS_PER_READ):
            yield self.units(max(start, last - tuning.UNITS_PER_READ), last)

    def with_id(self, message_id: int, start: int, stop: int, *, ascending: bool) -> int | None:
        """Search the units start … stop-1 for this message id. Return the number of the first unit that has the id, or
        None.
        ascending: True if the caller knows that the ids of these units are in ascending order, so that a binary search
        is possible.
        """
        if ascending:
            place = self._search(lambda unit: unit[1], message_id, start, stop)
            return place if place < stop and self.unit(place)[1] == message_id else None
        for chunk in self.chunks(start, stop):
            found = np.flatnonzero(chunk["id"] == message_id)
            if len(found):
                return start + int(found[0])
            start += len(chunk)
        return None

    def _load(self, size: int, position: int) -> Buffer:
        return _load(self._files, self._fd, self.path, size, position)
