"""Find the messages of a block (one transaction's messages for one partition) in their partition, after the transaction
was committed. Append the messages that are missing there.

After the broker has died, the partition may have the whole block, only a part of the block, or nothing of it. The block
may be at the byte offset that the commit record names, or at another offset, because other messages may have been
appended before it. Each message is looked up by its id and compared byte for byte. Only the missing messages are
appended, in their order. So if the partition ends with a part of the block, the rest of the block follows this part,
and no message is stored twice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from metaq.protocol.errors import OffsetOutOfRange
from metaq.protocol.record import HEADER, HEADER_BYTES

from ..store.partition_log import PartitionLog
from .commit import EncodedBlock
from .open_transactions import Block
from .redo import Location, block_checksum

__all__ = ["Placed", "PlacedBlock", "complete", "find", "find_block", "is_at", "present"]

_log = logging.getLogger(__name__)

_SEARCH_BYTES = 64 << 20
_ID = slice(8, 16)
"""The bytes 8 to 15 of a record, which contain its message id (record.HEADER)."""
_CHECKED_BYTES = 4 << 20


class PlacedBlock(NamedTuple):
    """A committed block that is completely stored in its partition, and the offset and size of its bytes in the
    partition.
    """

    log: PartitionLog
    location: Location
    """The location that the attachment of the commit record must state for this block."""
    end: int
    """Byte offset after the block's last message. It is kept because it cannot be computed from `location` if the
    messages are in several segments.
    """


class Placed:
    """Where the records of a block are in its partition. `places`: a dict from the record's number in the block to its
    byte offset in the partition. Records without an entry in `places` are missing in the partition.
    """

    def __init__(self, block: Block, now_ms: int) -> None:
        self.block = block
        self.log = block.log
        self.encoded = EncodedBlock(block, block.log.end_offset, now_ms)
        self.places: dict[int, int] = {}
        self._bytes = memoryview(b"".join(self.encoded.data))
        self._bounds = [0, *accumulate(block.sizes)]

    @property
    def missing(self) -> list[int]:
        """The numbers of the block's records that were not found in the partition, in ascending order."""
        return [number for number in range(len(self.block.ids)) if number not in self.places]

    def look(self, after: int | None) -> None:
        """Search the partition for the block's records and add them to `places`. after: a byte offset; no record of the
        block is before it. The search begins at this offset only if the message ids are those of a Java broker; for
        other ids, it begins at the partition's first message, and skips segments in which all message ids are lower
        than the block's ids.
        """
        for run in _runs(self._matches(after), self._bounds):
            self._take(run)

    def look_at(self, start: int) -> None:
        """Look for the missing records where the commit record says that the block is; `start` is its byte offset. A
        record also counts as found if the bytes in the partition differ from it only in the message id. No checksum
        covers the id, so consumers accept the bytes as this message. If the record were appended again, consumers would
        get the message twice.
        """
        for number in self.missing:
            offset, size = start + self._bounds[number], self._size(number)
            if not self.log.first_offset <= offset <= self.log.visible_end - size:
                continue
            expected = self._bytes[self._bounds[number] : self._bounds[number + 1]]
            there = self.log.segments.snapshot().read(offset, size)
            if there[: _ID.start] == expected[: _ID.start] and there[_ID.stop :] == expected[_ID.stop :]:
                _log.warning(
                    "%s: the message at byte %d has lost its id %d to damage: it stays as it is",
                    self.log.directory,
                    offset,
                    self.block.ids[number],
                )
                self.places[number] = offset

    def starts(self) -> list[int]:
        """Return the byte offsets in the partition where the block may begin. For each record that was found, one
        possible offset is computed as if all records of the block were adjacent.
        """
        return list(dict.fromkeys(place - self._bounds[number] for number, place in self.places.items()))

    def location(self) -> Location:
        """Return the location of the block for its commit record. As in 1.x, it is one range of bytes. If the block's
        records are not adjacent, the range also includes the other records between them. If the records are in several
        segments, which 1.x cannot express, the location has the offset of the first record, but the size and checksum
        of the block's records alone.
        """
        whole = self.encoded.location
        start = self.places[0]
        if all(self.places[number] - start == bound for number, bound in enumerate(self._bounds[:-1])):
            return whole._replace(offset=start)
        first = min(self.places.values())
        size = self.end - first
        _, length = self.log.segments.extent(first, size)
        if length < size:  # over several files: 1.x cannot express that
            return whole._replace(offset=first)
        return whole._replace(offset=first, size=size, checksum=_checksum(self.log, first, size))

    @property
    def end(self) -> int:
        """The byte offset after the last record that was found or appended."""
        return max(place + self._size(number) for number, place in self.places.items())

    def append_missing(self, now_ms: int) -> int:
        """Append the missing records to the partition, and return their number. Raises StoreError."""
        missing = self.missing
        if not missing:
            return 0
        rest = Block(self.log)
        for number in missing:
            record = self._bytes[self._bounds[number] : self._bounds[number + 1]]
            _, checksum, message_id, flag = HEADER.unpack_from(record)
            rest.add(message_id, flag, checksum, record[HEADER_BYTES:])
        encoded = EncodedBlock(rest, self.log.end_offset, now_ms)
        self.log.durability.committed(encoded.base + encoded.size)
        position = self.log.append(encoded.data, encoded.units)
        for number in missing:
            self.places[number] = position
            position += self._size(number)
        return len(missing)

    def _size(self, number: int) -> int:
        return self._bounds[number + 1] - self._bounds[number]

    def _matches(self, after: int | None) -> Iterator[tuple[int, int]]:
        """Find readable records of the partition that have the message id and the size of a record in the block. Yield
        (byte offset in the partition, record number in the block) for each of them, in the order of offsets.
        """
        numbers = {message_id: number for number, message_id in enumerate(self.block.ids)}
        ids = np.array(self.block.ids, np.int64)
        lowest = int(ids.min())
        start = self.log.first_offset
        if lowest <= 0 and after is not None:
            start = self.log.segments.start_of(min(max(after, start), max(start, self.log.visible_end - 1)))
        for segment in list(self.log.segments):
            # ids increase: skip segments that were closed before these messages got their ids
            if segment.end <= start or (segment.index is not None and 0 < segment.index.max_id < lowest):
                continue
            for units in self.log.lookup.units_between(segment.first_offset, segment.end, _SEARCH_BYTES):
                for unit in units[np.isin(units["id"], ids)].tolist():
                    number = numbers[unit[1]]
                    if unit[3] == self._size(number):
                        yield unit[0], number

    def _take(self, run: Sequence[tuple[int, int]]) -> None:
        """Read the records of a run from the partition and compare them with the block's records. Add those with equal
        bytes to `places`. A run is a list of records that are adjacent both in the block and in the log.
        """
        offset, first = run[0]
        last = run[-1][1]
        expected = self._bytes[self._bounds[first] : self._bounds[last + 1]]
        if self.log.segments.snapshot().read(offset, len(expected)) == expected:
            if len(run) == len(self.block.ids):  # whole and in order: better than parts found before
                self.places.clear()
            for place, number in run:
                self.places.setdefault(number, place)
        elif len(run) > 1:
            for each in run:
                self._take([each])


def _runs(matches: Iterator[tuple[int, int]], bounds: Sequence[int]) -> Iterator[list[tuple[int, int]]]:
    run: list[tuple[int, int]] = []
    for offset, number in matches:
        if run:
            before, last = run[-1]
            if number != last + 1 or offset != before + bounds[last + 1] - bounds[last]:
                yield run
                run = []
        run.append((offset, number))
    if run:
        yield run


def find(block: Block, hint: Location | None, now_ms: int, *, believed: bool) -> PlacedBlock | Placed:
    """Find a committed block in its partition. If the block is where its commit record says, return it as a
    PlacedBlock. If not, search the partition, and return a Placed with the offsets of the records that were found.

    hint: the location in the commit record. believed: whether the attachment of the commit record is undamaged. If it
    is undamaged and the location is before the partition's first message, retention has removed the messages, so they
    are not searched for.
    """
    log = block.log
    if hint is not None and believed and hint.offset < log.first_offset:
        return PlacedBlock(log, hint, hint.offset + hint.size)
    placed = Placed(block, now_ms)
    if hint is not None and is_at(log, named := placed.encoded.location._replace(offset=hint.offset)):
        return PlacedBlock(log, named, named.offset + named.size)
    placed.look(hint.offset if hint is not None and believed else None)
    if hint is not None and believed:
        placed.look_at(hint.offset)
    return placed


def complete(placed: Placed, now_ms: int) -> tuple[PlacedBlock, int]:
    """Append the missing records. Return the complete block with its location, and the number of records that were
    appended. Raises StoreError.
    """
    log, found = placed.log, len(placed.places)
    appended = placed.append_missing(now_ms)
    if appended:
        _log.warning(
            "%s: %d of %d committed messages were not there: appended up to byte %d",
            log.directory,
            appended,
            found + appended,
            log.end_offset,
        )
    return PlacedBlock(log, placed.location(), placed.end), appended


def is_at(log: PartitionLog, location: Location) -> bool:
    """Return whether the bytes at this location of the log have the size and checksum in `location`."""
    if location.size <= 0 or not log.first_offset <= location.offset <= log.visible_end - location.size:
        return False
    try:
        _, length = log.segments.extent(location.offset, location.size)
        return length == location.size and _checksum(log, location.offset, length) == location.checksum
    except OffsetOutOfRange:
        return False


def _checksum(log: PartitionLog, offset: int, size: int) -> int:
    """Return the checksum of `size` bytes of one segment. If one message of a block was appended much later than the
    others, the range from the first to the last may be most of the segment. So the bytes are read piece by piece.
    """
    starts = range(offset, offset + size, _CHECKED_BYTES)
    return block_checksum(
        log.segments.snapshot().read(start, min(_CHECKED_BYTES, offset + size - start)) for start in starts
    )


def present(block: Block, now_ms: int) -> int:
    """Return the number of the block's messages that are found in their partition."""
    placed = Placed(block, now_ms)
    placed.look(None)
    return len(placed.places)


def find_block(block: Block, location: Location, now_ms: int) -> Location | None:
    """Find the place of a block in its partition. Used if only some of the block's messages can be read in the
    transaction log. Return None if the partition does not have the whole block.

    location: the location in the commit record; its size and checksum are those of the whole block. So if a range of
    the partition has this size and checksum, it also contains the messages that cannot be read in the transaction log.
    """
    lost = location.size - block.size
    if lost < 0:
        return None
    placed = Placed(block, now_ms)
    placed.look(None)
    for start in placed.starts():  # the damaged messages may be the first ones, or later ones
        for found in (location._replace(offset=start), location._replace(offset=start - lost)):
            if is_at(block.log, found):
                return found
    return None
