"""Read a redo file record by record, and skip damage. The reader does not change the file. Any thread may use the
reader; its reads block the thread.

A damaged range begins at a record that cannot be read, or whose checksum is wrong, and reaches to the next good record.
Usually the next good record begins where the bad record ends according to its length field. If no good record begins at
this position, the reader searches for one. If the search finds a record with a correct seal, the record is good: the
seal covers the record's position in the file, so a copy of a record in a message's body would have a wrong seal. A
record of a Java broker has no seal. So it counts as good only if all following records are good, too, up to the next
record with a seal or the end of the file. Without this rule, bytes in a message's body that look like records could be
taken for records.

An incomplete record at the end of the file is called a torn tail: the broker or the machine died during the write.
Zeros up to the end of the file are a torn tail, too. If the length field of an incomplete last record contradicts its
content, the record cannot just have been cut off, and it counts as damage instead of a torn tail.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from metaq.protocol.errors import RemoteProtocolError

from ..store.files import Files, naming, read_exactly
from ..store.scan import is_zero
from .commands import Operation, content_end, decode_command
from .redo import LENGTH, RedoEntry, attachment_seal, decode_locations, is_filler, open_seal

__all__ = ["RedoDamage", "RedoReader"]

_CHUNK_BYTES = 1 << 20
_SEARCH_READ_BYTES = 1 << 30
"""The searches for good records must check bytes that may be a record. When all searches in one file together have read
this many bytes for such checks, they give up, and the rest of the file counts as damaged.
"""
_COMMAND = re.compile(rb"\x08[\x01\x02]\x12")
_MOST_BEHIND_CONTENT = 2 + 14 + 5
"""Maximum number of bytes that follow the content of a command in its record: the field `force`, the seal and the
attachment's checksum.
"""


class RedoDamage(NamedTuple):
    """A range [start, end) of a redo file that contains no good record; `cause` says what is wrong with the bytes.
    torn: whether these bytes are the file's last record, which was not completely written.
    """

    start: int
    end: int
    cause: str
    torn: bool = False


class _Incomplete(RemoteProtocolError):
    """Raised if the file ends before the end of a record."""


class RedoReader:
    """Reads the records of one file from the position `start` on. Raises OSError.

    Iterate over the reader to get the records, or over `parts` to get the records and the damaged ranges in their order
    in the file. Only one iteration is possible. After the iteration, `end` is the position where the last good record
    ends, and `size` is the size of the file.
    """

    def __init__(self, files: Files, path: str, start: int = 0) -> None:
        self.end = start
        self.size = 0
        self._files = files
        self._path = path
        self._fd = -1
        self._buffer = b""
        self._buffer_start = start
        self._budget = _SEARCH_READ_BYTES

    def __iter__(self) -> Iterator[RedoEntry]:
        return (part for part in self.parts() if isinstance(part, RedoEntry))

    def parts(self) -> Iterator[RedoEntry | RedoDamage]:
        """Yield the records and the damaged ranges of the file in order. Filler records, which replace earlier damage,
        are left out.
        """
        self._fd = self._files.open(self._path, os.O_RDONLY)
        try:
            with naming(self._path):
                self.size = self._files.status(self._path).size
                position = self.end
                while position < self.size:
                    part = self._part(position)
                    position = part.end
                    if isinstance(part, RedoEntry):
                        self.end = position
                        if part.seal is None and isinstance(part.command, Operation) and is_filler(part.command):
                            continue
                    yield part
        finally:
            self._files.close(self._fd)

    def _part(self, start: int) -> RedoEntry | RedoDamage:
        try:
            return self._record(start)
        except RemoteProtocolError as error:
            cause, incomplete = str(error), isinstance(error, _Incomplete)
        end = self._next_good(start)
        torn = end == self.size and (
            self._may_be_torn(start) if incomplete else is_zero(self._files, self._fd, start, end)
        )
        return RedoDamage(start, end, cause, torn)

    # --- records ------------------------------------------------------------------------------------------------------

    def _record(self, start: int) -> RedoEntry:
        (length,) = LENGTH.unpack(self._bytes(start, LENGTH.size))
        if length <= 0:
            raise RemoteProtocolError(f"record of {length} bytes")
        sealed = open_seal(self._bytes(start + LENGTH.size, length), start)
        command = decode_command(sealed.command)
        end = start + LENGTH.size + length
        entry = RedoEntry(start, end - start, command, sealed.crc, sealed.seal)
        if not isinstance(command, Operation) or not command.attachment_bytes:
            return entry
        data = self._bytes(end, command.attachment_bytes)
        entry = entry._replace(size=entry.size + len(data))
        if sealed.seal is None:
            return entry._replace(locations=decode_locations(data))
        problem = None
        if sealed.seal.attachment != int.from_bytes(attachment_seal(data)[1:], "little"):
            problem = "an attachment with a wrong checksum"
        try:
            return entry._replace(locations=decode_locations(data), attachment_problem=problem)
        except RemoteProtocolError as error:
            return entry._replace(attachment_problem=str(error))

    def _bytes(self, start: int, size: int) -> bytes:
        if start + size > self.size:
            raise _Incomplete("a record that is not complete")
        position = start - self._buffer_start
        if position < 0 or position + size > len(self._buffer):
            self._buffer = read_exactly(self._files, self._fd, max(size, _CHUNK_BYTES), start)
            self._buffer_start, position = start, 0
        data = self._buffer[position : position + size]
        if len(data) < size:
            raise _Incomplete("a record that is not complete")  # the file has become shorter
        return data

    # --- damage -------------------------------------------------------------------------------------------------------

    def _next_good(self, start: int) -> int:
        """Return the position of the first good record after the bad record at `start`, or the file's size if there is
        none.
        """
        announced = self._announced_end(start)
        if announced is not None and announced < self.size and self._counts(announced, chain=False):
            return announced
        position = start + 1
        while position < self.size and self._budget > 0:
            window = read_exactly(self._files, self._fd, _CHUNK_BYTES, position)
            for match in _COMMAND.finditer(window, LENGTH.size):
                candidate = position + match.start() - LENGTH.size
                if self._counts(candidate, chain=True):
                    return candidate
                if self._budget <= 0:
                    return self.size
            if len(window) < _CHUNK_BYTES:
                break
            position += len(window) - LENGTH.size - 2  # a match may lie across two windows
        return self.size

    def _announced_end(self, start: int) -> int | None:
        try:
            (length,) = LENGTH.unpack(self._bytes(start, LENGTH.size))
        except _Incomplete:
            return None
        return start + LENGTH.size + int(length) if length > 0 else None

    def _counts(self, start: int, *, chain: bool) -> bool:
        """Return whether the record at `start` is good. chain: whether a record without a seal is good only if the
        following records are good, too, up to a record with a seal or the end of the file.
        """
        position = start
        while True:
            try:
                entry = self._record(position)
            except RemoteProtocolError:
                self._budget -= min(self.size - position, LENGTH.size + self._announced_size(position))
                return False
            self._budget -= entry.size
            position = entry.end
            if entry.seal is not None or not chain or position == self.size:
                return True

    def _announced_size(self, start: int) -> int:
        end = self._announced_end(start)
        return 0 if end is None or end > self.size else end - start

    def _may_be_torn(self, start: int) -> bool:
        """Return whether the incomplete last record of the file, at `start`, may be a torn tail: whether its length
        field agrees with its content.
        """
        head = read_exactly(self._files, self._fd, LENGTH.size + 8, start)
        if len(head) <= LENGTH.size + 3:
            return True
        (length,) = LENGTH.unpack_from(head)
        try:
            content = content_end(head[LENGTH.size :])
        except RemoteProtocolError:
            return len(head) < LENGTH.size + 8  # cut inside the size of the content
        return bool(content <= length <= content + _MOST_BEHIND_CONTENT)
