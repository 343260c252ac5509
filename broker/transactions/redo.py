"""Records of 1.x's transaction log, `<dataLogPath>/transactions/redo.<n>` (storage.md §7), and a read-only reader.

    record     length n u32 | n bytes TxCommand | attachment of a commit          big-endian, back to back
    attachment per partition: offset i64 | bytes i32 | CRC-32 & 0x7fffffff i32 | name length i32 | "<topic>-<partition>"

The attachment says where the commit's messages lie in the partition logs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from metaq.protocol.errors import RemoteProtocolError
from metaq.protocol.record import Buffer

from ..store.files import Files, read_exactly
from .commands import Operation, StoredPut, decode_command, encode_operation, encode_put

__all__ = [
    "CHECKPOINT_PREFIX",
    "DIRECTORY",
    "REDO_PREFIX",
    "Location",
    "RedoContents",
    "RedoEntry",
    "RedoReader",
    "encode_locations",
    "encode_operation_record",
    "encode_put_record",
    "numbered_files",
    "read_redo",
]

DIRECTORY = "transactions"
"""Below dataLogPath."""
REDO_PREFIX = "redo."
CHECKPOINT_PREFIX = "checkpoint."

_LENGTH = Struct(">i")
_LOCATION = Struct(">qiii")
_CHUNK_BYTES = 1 << 20


class Location(NamedTuple):
    """Where a commit's messages of one partition lie: byte offset in the partition, bytes, CRC-32 (31 bits) of them."""

    store: str
    """`<topic>-<partition>`."""
    offset: int
    size: int
    checksum: int


class RedoEntry(NamedTuple):
    """One record. `offset` and `size`: bytes in the file, attachment included."""

    offset: int
    size: int
    command: StoredPut | Operation
    locations: tuple[Location, ...] = ()
    """Of a commit."""

    @property
    def attachment_offset(self) -> int:
        """Where in the file the attachment of a commit begins."""
        attached = self.command.attachment_bytes if isinstance(self.command, Operation) else 0
        return self.offset + self.size - attached


class RedoContents(NamedTuple):
    """A whole file: its records, where the last good one ends, its size in bytes, and why reading stopped before it."""

    entries: list[RedoEntry]
    end: int
    size: int
    problem: str | None
    """None if the file ends with its last record."""


# --- writing ----------------------------------------------------------------------------------------------------------


def encode_put_record(put: StoredPut) -> list[Buffer]:
    """The bytes of a message's record, in buffers."""
    command = encode_put(put)
    return [_LENGTH.pack(len(command)), command]


def encode_operation_record(operation: Operation, attachment: bytes = b"") -> list[Buffer]:
    """The bytes of a record that tells what became of a transaction, in buffers; the attachment is the last one."""
    command = encode_operation(operation._replace(attachment_bytes=len(attachment)))
    return [_LENGTH.pack(len(command)), command, attachment]


def encode_locations(locations: Sequence[Location]) -> bytes:
    """A commit's attachment; its length depends only on the names."""
    parts = []
    for store, offset, size, checksum in locations:
        name = store.encode("utf-8")
        parts += [_LOCATION.pack(offset, size, checksum, len(name)), name]
    return b"".join(parts)


# --- reading ----------------------------------------------------------------------------------------------------------


def decode_locations(data: bytes) -> tuple[Location, ...]:
    """The inverse of encode_locations. Raises RemoteProtocolError for bytes that are no attachment."""
    found = []
    position = 0
    while position < len(data):
        if position + _LOCATION.size > len(data):
            raise RemoteProtocolError("attachment cut")
        offset, size, checksum, length = _LOCATION.unpack_from(data, position)
        position += _LOCATION.size
        name = data[position : position + length]
        if not 0 <= length == len(name):
            raise RemoteProtocolError(f"attachment with a name of {length} bytes")
        found.append(Location(name.decode("utf-8", "replace"), offset, size, checksum))
        position += length
    return tuple(found)


class RedoReader:
    """Reads one file from `start` on, record by record, without changing it. Any thread; blocks.

    Iterate once; then `end` is where the last good record ends, `size` the file's size and `problem` says why reading
    stopped before it, None if it did not. `first_at`: whether a whole record begins at `start`. Raises OSError.
    """

    def __init__(self, files: Files, path: str, start: int = 0) -> None:
        self.end = start
        self.size = 0
        self.problem: str | None = None
        self._files = files
        self._path = path
        self._buffer = b""
        self._buffer_start = start

    def __iter__(self) -> Iterator[RedoEntry]:
        fd = self._files.open(self._path, os.O_RDONLY)
        try:
            self.size = self._files.status(self._path).size
            while self.end < self.size:
                entry = self._next(fd)
                if entry is None:
                    return
                self.end += entry.size
                yield entry
        finally:
            self._files.close(fd)

    def _next(self, fd: int) -> RedoEntry | None:
        try:
            return self._record(fd, self.end)
        except RemoteProtocolError as error:
            self.problem = str(error)
            return None

    def _record(self, fd: int, start: int) -> RedoEntry:
        (length,) = _LENGTH.unpack(self._bytes(fd, start, _LENGTH.size))
        if length <= 0:
            raise RemoteProtocolError(f"record of {length} bytes")
        command = decode_command(self._bytes(fd, start + _LENGTH.size, length))
        attachment = start + _LENGTH.size + length
        if not isinstance(command, Operation) or not command.attachment_bytes:
            return RedoEntry(start, attachment - start, command)
        data = self._bytes(fd, attachment, command.attachment_bytes)
        return RedoEntry(start, attachment + len(data) - start, command, decode_locations(data))

    def _bytes(self, fd: int, start: int, size: int) -> bytes:
        if start + size > self.size:
            raise RemoteProtocolError("a record that is not complete")
        position = start - self._buffer_start
        if position < 0 or position + size > len(self._buffer):
            self._buffer = read_exactly(self._files, fd, max(size, _CHUNK_BYTES), start)
            self._buffer_start, position = start, 0
        return self._buffer[position : position + size]


def read_redo(files: Files, path: str) -> RedoContents:
    """All records of one file. Any thread; blocks. Raises OSError if it cannot be read."""
    reader = RedoReader(files, path)
    entries = list(reader)
    return RedoContents(entries, reader.end, reader.size, reader.problem)


def numbered_files(files: Files, directory: str, prefix: str) -> dict[int, str]:
    """Paths of `<prefix><n>` in a directory by n, ascending; other files are left out. Raises OSError."""
    found = {}
    for name in files.list_directory(directory):
        number = name.removeprefix(prefix)
        if name.startswith(prefix) and number.isascii() and number.isdecimal() and str(int(number)) == number:
            found[int(number)] = os.path.join(directory, name)
    return dict(sorted(found.items()))
