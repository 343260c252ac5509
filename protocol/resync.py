"""Find the next valid record after damaged bytes. The bytes may come from a file or from a broker's answers.

A record does not begin with bytes by which one could recognize it. So the search accepts a position as the beginning of
a record only if the bytes there, read as a header, are followed by a body with the CRC-32 that this header states. For
random bytes that is true only once in four billion positions. The cost of a search is limited (_CRC_BYTES), because
computing so many checksums takes long.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32

from .limits import MAX_RECORD_BODY_BYTES
from .record import HEADER, HEADER_BYTES, is_blank

__all__ = ["Read", "RecordSearch", "next_record"]

Read = Callable[[int, int], bytes]
"""read(size, position): return `size` bytes from `position` on, or fewer bytes at the end of the data. This function
may raise any error, and the search passes it on.
"""

_BLOCK_BYTES = 1 << 20
_MAX_BLOCKS = 20
"""Maximum number of blocks of 1 MiB that are kept in memory while searching. A record may be 8 MiB long, so the search
must keep several blocks to check one record.
"""

_WINDOW_BYTES = 4 << 20
"""Number of byte positions that one step of the search checks."""

_CRC_BYTES = 1 << 30
"""Limit for the cost of a search: the number of bytes for which checksums are computed. For each position where a
header may begin, the search computes the checksum of the body that this header would have. A body is likely to be a
true one if the bytes after it could be a record header, or if the data ends after it. _CRC_BYTES limits the total size
of the bodies that are not likely; the limit for the likely bodies is eight times as large. When a limit is reached, the
search checks only the small ones of these bodies.
"""

_SMALL_BYTES = 4 << 10
_MAX_EMPTY = 1 << 12
"""Maximum number of consecutive empty records to skip while looking for a record with a body. Because an empty record
consists of zeros except for its id and its flag, an empty record is no proof that the records around it are intact.
"""


class RecordSearch:
    """Searches for the first valid record that starts after `start` and before `end`. This object may be used by one
    thread only. Call `step` until it returns True.

    The search first tries the position at which the record at `start` would end according to its header, then one by
    one all positions after `start`. An empty record is accepted only at the position tried first, and only if a valid
    record or the end of the data follows. At other positions, the twenty bytes of an empty record may be a part of
    other data. Records whose body is larger than MAX_RECORD_BODY_BYTES are not found.
    """

    def __init__(self, read: Read, start: int, end: int, base: int = 0) -> None:
        """base: the lowest position that the search reads. Give it if the bytes before this position no longer exist,
        for example after retention.
        """
        self.found: int | None = None
        """The position of the record that was found, or None until a record is found."""
        self._read = read
        self._start = start
        self._end = end
        self._base = base
        self._next = start + 1
        self._left = _CRC_BYTES
        self._left_likely = 8 * _CRC_BYTES
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._tried_announced = False

    def begins_good(self) -> bool:
        """Whether a valid record begins at `start` itself, so that no search is needed."""
        header = self._header(self._start)
        return header is not None and self._has_checksum(self._start, header[0], header[1])

    def step(self) -> bool:
        """Search the next 4 MiB or fewer. Return whether the search is over. Raises the errors of `read`."""
        if not self._tried_announced:
            self._tried_announced = True
            self.found = self._announced()
        if self.found is None and self._next < self._end:
            self._look_at_window()
        return self.found is not None or self._next >= self._end

    # --- bytes --------------------------------------------------------------------------------------------------------

    def _block(self, number: int) -> bytes:
        block = self._blocks.get(number)
        if block is None:
            position = self._base + number * _BLOCK_BYTES
            block = self._read(min(_BLOCK_BYTES, self._end - position), position)
            self._blocks[number] = block
            if len(self._blocks) > _MAX_BLOCKS:
                self._blocks.popitem(last=False)
        else:
            self._blocks.move_to_end(number)
        return block

    def _bytes(self, position: int, size: int) -> bytes:
        """Return `size` bytes from `position` on, or fewer if the data ends before `position + size`."""
        number, first = divmod(position - self._base, _BLOCK_BYTES)
        last = first + min(size, self._end - position)
        if last <= _BLOCK_BYTES:
            return self._block(number)[first:last]
        blocks = [self._block(each) for each in range(number, number + -(-last // _BLOCK_BYTES))]
        return b"".join(blocks)[first:last]

    def _header(self, position: int) -> tuple[int, int, int, int] | None:
        """Return the record header at `position`. Return None if the bytes there cannot be a header: they are blank, or
        the body would extend beyond the end of the data.
        """
        data = self._bytes(position, HEADER_BYTES)
        if len(data) < HEADER_BYTES:
            return None
        length, checksum, message_id, flag = HEADER.unpack(data)
        if not 0 <= length <= min(MAX_RECORD_BODY_BYTES, self._end - position - HEADER_BYTES) or checksum >= 1 << 31:
            return None
        if not length and (checksum or is_blank(length, checksum, message_id)):
            return None
        return length, checksum, message_id, flag

    # --- looking ------------------------------------------------------------------------------------------------------

    def _announced(self) -> int | None:
        header = self._bytes(self._start, HEADER_BYTES)
        length = int.from_bytes(header[:4], "big", signed=True)
        if len(header) < HEADER_BYTES or not 0 <= length <= MAX_RECORD_BODY_BYTES or not any(header):
            return None
        first = position = self._start + HEADER_BYTES + length
        for _ in range(_MAX_EMPTY):
            found = None if position >= self._end else self._header(position)
            if found is None:
                return first if first < position == self._end else None
            if found[0]:
                return first if self._has_checksum(position, found[0], found[1]) else None
            position += HEADER_BYTES
        return None

    def _look_at_window(self) -> None:
        start = self._next
        self._next = min(self._end, start + _WINDOW_BYTES)
        data = self._bytes(start, _WINDOW_BYTES + HEADER_BYTES)
        small = len(data) - HEADER_BYTES - _SMALL_BYTES
        for position, length, checksum in _candidates(data, self._end - start):
            if length <= _SMALL_BYTES and position <= small:  # most are small: numbers in a body look like lengths
                body = position + HEADER_BYTES
                good = crc32(data[body : body + length]) & 0x7FFFFFFF == checksum
            else:
                good = self._is_record(start + position, length, checksum)
            if good:
                self.found = start + position
                return

    def _is_record(self, position: int, length: int, checksum: int) -> bool:
        following = position + HEADER_BYTES + length
        likely = following == self._end or self._header(following) is not None
        left = self._left_likely if likely else self._left
        if length > _SMALL_BYTES and length > left:
            return False
        if likely:
            self._left_likely -= length
        else:
            self._left -= length
        return self._has_checksum(position, length, checksum)

    def _has_checksum(self, position: int, length: int, expected: int) -> bool:
        found, place, end = 0, position + HEADER_BYTES, position + HEADER_BYTES + length
        while place < end:
            size = min(end - place, _BLOCK_BYTES - (place - self._base) % _BLOCK_BYTES)
            data = self._bytes(place, size)
            if len(data) < size:
                return False
            found = crc32(data, found)
            place += size
        return found & 0x7FFFFFFF == expected


def next_record(read: Read, start: int, end: int) -> int | None:
    """Return the position of the first valid record after `start` that a RecordSearch finds, or None if it finds none
    before `end`.
    """
    search = RecordSearch(read, start, end)
    while not search.step():
        pass
    return search.found


def _candidates(data: bytes, room: int) -> Iterator[tuple[int, int, int]]:
    """Yield all positions in the first _WINDOW_BYTES of `data` where a record header may begin. With each position,
    yield the length and the checksum that the header there would state for its body. room: the number of bytes from the
    beginning of `data` to the end of the searched data; a record must not end after it.
    """
    count = min(_WINDOW_BYTES, len(data) - HEADER_BYTES)
    if count <= 0:
        return iter(())
    raw = np.frombuffer(data, np.uint8)
    if not raw.any():
        return iter(())
    lengths = _big_endian_words(raw, 0, count)
    possible = (lengths > 0) & (lengths <= min(MAX_RECORD_BODY_BYTES, room)) & (raw[4 : 4 + count] < 0x80)
    found = np.flatnonzero(possible)
    found = found[found + lengths[found] + HEADER_BYTES <= room]
    checksums = _big_endian_words(raw, 4, count)[found]
    return zip(found.tolist(), lengths[found].tolist(), checksums.tolist(), strict=True)


def _big_endian_words(raw: npt.NDArray[np.uint8], start: int, count: int) -> npt.NDArray[np.uint32]:
    """Return the big-endian u32 at each of `count` consecutive byte positions from `start` on."""
    words = raw[start : start + count].astype(np.uint32)
    for i in (1, 2, 3):
        words = (words << np.uint32(8)) | raw[start + i : start + i + count]
    return words
