"""Records of 1.x's transaction log, `<dataLogPath>/transactions/redo.<n>` (storage.md §7).

    record     length n u32 | n bytes TxCommand | attachment of a commit          big-endian, back to back
    attachment per partition: offset i64 | bytes i32 | CRC-32 & 0x7fffffff i32 | name length i32 | "<topic>-<partition>"

The attachment says where the commit's messages lie in the partition logs. TxCommand has our checksums behind 1.x's
fields (seals.py); redo_reader.py reads.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from metaq.protocol.errors import RemoteProtocolError
from metaq.protocol.record import Buffer

from ..store.files import Files
from .commands import Operation, StoredPut, encode_operation, encode_put
from .seals import ATTACHMENT_SEAL_BYTES, Seal, attachment_seal, filler_command, seal_operation, seal_put

__all__ = [
    "CHECKPOINT_PREFIX",
    "DAMAGED_PREFIX",
    "DIRECTORY",
    "REDO_PREFIX",
    "Location",
    "RedoEntry",
    "attachment_patch",
    "decode_locations",
    "encode_filler",
    "encode_locations",
    "encode_operation_record",
    "encode_put_record",
    "numbered_files",
    "sealed_operation_record",
    "sealed_put_record",
]

DIRECTORY = "transactions"
"""Below dataLogPath."""
REDO_PREFIX = "redo."
CHECKPOINT_PREFIX = "checkpoint."
DAMAGED_PREFIX = "damaged-"
"""Of copies of what a start could not read."""

LENGTH = Struct(">i")
"""In front of each record."""
_LOCATION = Struct(">qiii")


class Location(NamedTuple):
    """Where a commit's messages of one partition lie: byte offset in the partition, bytes, CRC-32 (31 bits) of them."""

    store: str
    """`<topic>-<partition>`."""
    offset: int
    size: int
    checksum: int


class RedoEntry(NamedTuple):
    """One record. `offset` and `size`: bytes in the file, attachment included. crc: see seals.record_crc."""

    offset: int
    size: int
    command: StoredPut | Operation
    crc: int
    seal: Seal | None
    """None: of a Java broker, or of an old one of ours."""
    locations: tuple[Location, ...] = ()
    """Of a commit."""
    attachment_problem: str | None = None
    """Why the locations are not to be trusted."""

    @property
    def end(self) -> int:
        """Where in the file the next record begins."""
        return self.offset + self.size

    def patch(self, locations: Sequence[Location]) -> tuple[int, bytes]:
        """Where in the file to write what, so that the commit names other places; names and their order stay."""
        return attachment_patch(self.end, encode_locations(locations), sealed=self.seal is not None)


def attachment_patch(end: int, attachment: bytes, *, sealed: bool) -> tuple[int, bytes]:
    """Where in the file to write what, for a commit record that ends at `end` to have another attachment."""
    data = attachment_seal(attachment)[-ATTACHMENT_SEAL_BYTES:] + attachment if sealed else attachment
    return end - len(data), data


# --- writing ----------------------------------------------------------------------------------------------------------


def encode_put_record(put: StoredPut) -> list[Buffer]:
    """The bytes of a message's record as a Java broker writes it, in buffers."""
    command = encode_put(put)
    return [LENGTH.pack(len(command)), command]


def encode_operation_record(operation: Operation, attachment: bytes = b"") -> list[Buffer]:
    """The bytes of a Java broker's record that tells what became of a transaction; the attachment is the last one."""
    command = encode_operation(operation._replace(attachment_bytes=len(attachment)))
    return [LENGTH.pack(len(command)), command, attachment]


def sealed_put_record(put: StoredPut, offset: int) -> tuple[list[Buffer], int]:
    """The bytes of a message's record that is to lie at `offset` of its file, in buffers, and its crc."""
    command = encode_put(put)
    seal, crc = seal_put(command, offset)
    return [LENGTH.pack(len(command) + len(seal)), command, seal], crc


def sealed_operation_record(
    operation: Operation, offset: int, messages: int, content: int, attachment: bytes = b""
) -> list[Buffer]:
    """The bytes of a record at `offset` that tells what became of a transaction; the attachment is the last one.

    messages, content: of the transaction, see seals.py.
    """
    command = encode_operation(operation._replace(attachment_bytes=len(attachment)))
    seal = seal_operation(command, offset, messages, content)
    if attachment:
        seal += attachment_seal(attachment)
    return [LENGTH.pack(len(command) + len(seal)), command, seal, attachment]


def encode_filler(size: int) -> bytes:
    """A record of `size` bytes, at least seals.MIN_FILLER_BYTES, that means nothing to either broker."""
    command = filler_command(size)
    return LENGTH.pack(len(command)) + command


def encode_locations(locations: Sequence[Location]) -> bytes:
    """A commit's attachment; its length depends only on the names."""
    parts = []
    for store, offset, size, checksum in locations:
        name = store.encode("utf-8", "surrogateescape")
        parts += [_LOCATION.pack(offset, size, checksum, len(name)), name]
    return b"".join(parts)


# --- reading ----------------------------------------------------------------------------------------------------------


def decode_locations(data: bytes) -> tuple[Location, ...]:
    """The inverse of encode_locations. Raises RemoteProtocolError for bytes that are not an attachment."""
    found = []
    position = 0
    while position < len(data):
        if position + _LOCATION.size > len(data):
            raise RemoteProtocolError("attachment cut")
        offset, size, checksum, length = _LOCATION.unpack_from(data, position)
        position += _LOCATION.size
        name = data[position : position + length]
        if not 0 < length == len(name):
            raise RemoteProtocolError(f"attachment with a name of {length} bytes")
        if offset < 0 or size <= 0 or checksum < 0:
            raise RemoteProtocolError(f"attachment with {size} bytes at {offset}")
        found.append(Location(name.decode("utf-8", "surrogateescape"), offset, size, checksum))
        position += length
    return tuple(found)


def numbered_files(files: Files, directory: str, prefix: str) -> dict[int, str]:
    """Paths of `<prefix><n>` in a directory by n, ascending; other files are left out. Raises OSError."""
    found = {}
    for name in files.list_directory(directory):
        number = name.removeprefix(prefix)
        if name.startswith(prefix) and number.isascii() and number.isdecimal() and str(int(number)) == number:
            found[int(number)] = os.path.join(directory, name)
    return dict(sorted(found.items()))
