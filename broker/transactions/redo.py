"""Encode and decode the records of the transaction log of metaq 1.x, the files `redo.<n>` (storage.md §7). metaq adds
checksums to these records.

    record     length n u32 | n bytes TxCommand | attachment of a commit          big-endian, back to back
    attachment per partition: offset i64 | bytes i32 | CRC-32 & 0x7fffffff i32 | name length i32 | "<topic>-<partition>"

The attachment states at which offsets in the partitions' logs the messages of the commit are. After the fields of 1.x,
metaq adds three fields of its own to TxCommand. metaq 1.x ignores these fields:

    seal         field 14, bytes     of a put: crc u32 · of an operation: messages u32 | content u32 | crc u32
    attachment   field 15, fixed32   of a commit: CRC-32 of the attachment, which follows at once: both change together
    padding      field 13, bytes     zeros, in a record that replaces damaged bytes (`encode_filler`)

crc: a CRC-32 over the record's position in its file (u64), the fields of 1.x, and the numbers messages and content.
This CRC covers the position, because a message's body may contain a copy of a record. The copy is at another position
than the record, so its CRC is wrong and it is never taken for a record. messages: the number of messages of the
transaction. content: the CRC-32 of the CRC-32s of these messages' records, in order. A replay compares `messages` and
`content` with the messages that it has read, and so detects a lost message. Numbers are big-endian, except the fixed32,
which protobuf makes little-endian. Records of Java brokers and of the first metaq releases have no such fields.
redo_reader.py reads files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import NamedTuple

from isal.isal_zlib import crc32

from metaq.protocol.errors import RemoteProtocolError
from metaq.protocol.record import Buffer

from .commands import Operation, OperationType, StoredPut, command_end, encode_operation, encode_put

__all__ = [
    "LENGTH",
    "MIN_FILLER_BYTES",
    "Location",
    "RedoEntry",
    "Seal",
    "Sealed",
    "add_content",
    "attachment_patch",
    "attachment_seal",
    "block_checksum",
    "decode_locations",
    "encode_filler",
    "encode_locations",
    "is_filler",
    "open_seal",
    "sealed_operation_record",
    "sealed_put_record",
]

LENGTH = Struct(">i")
"""The format of the length field in front of each record."""
_LOCATION = Struct(">qiii")

_PLACE = Struct(">Q")
_PUT = Struct(">BBI")
_COUNTS = Struct(">II")
_OPERATION = Struct(">BB8sI")
_ATTACHMENT = Struct("<BI")
_CRC = Struct(">I")
_SEAL_TAG, _ATTACHMENT_TAG, _PADDING_TAG = 14 << 3 | 2, 15 << 3 | 5, 13 << 3 | 2

_ATTACHMENT_CRC_BYTES = 4
"""Number of bytes of the attachment's checksum, which is directly before the attachment."""

_FILLER_KEY = "TX:{}:0"
_FILLER = re.compile("TX:-*:0")
_PADDING_BYTES = 6  # tag, and a size that always takes five bytes
MIN_FILLER_BYTES = LENGTH.size + len(
    encode_operation(Operation(_FILLER_KEY.format(""), OperationType.LOCAL_ROLLBACK, was_prepared=False))
)
"""The size in bytes of the shortest filler record."""


class Seal(NamedTuple):
    """The fields of a record's seal. `messages` and `content` exist only in the records of operations (preparations,
    commits and rollbacks). `attachment` (the checksum of the attachment) exists only in the records of commits.
    """

    messages: int = 0
    content: int = 0
    attachment: int | None = None


class Sealed(NamedTuple):
    """The checked contents of a record: the bytes of the fields of 1.x, the CRC-32 over the record's position and these
    bytes, and the record's seal (None if it has no seal).
    """

    command: bytes
    crc: int
    seal: Seal | None


class Location(NamedTuple):
    """Where a commit's messages are in one partition: the byte offset of the first message, the size of all in bytes,
    and their `block_checksum`.
    """

    store: str
    """`<topic>-<partition>`."""
    offset: int
    size: int
    checksum: int


class RedoEntry(NamedTuple):
    """A record of a redo file. offset: the position of the record's first byte in the file. size: the record's number
    of bytes, including the attachment. crc: the CRC-32 of the record without its seal.
    """

    offset: int
    size: int
    command: StoredPut | Operation
    crc: int
    seal: Seal | None
    """The seal of the record. It is None if a Java broker or an old metaq release wrote the record."""
    locations: tuple[Location, ...] = ()
    """Where the messages are in each partition, according to the attachment. It is empty for all records except those
    of commits.
    """
    attachment_problem: str | None = None
    """The reason why `locations` cannot be trusted. It is None if they can be trusted."""

    @property
    def end(self) -> int:
        """The byte position in the file where the next record begins."""
        return self.offset + self.size

    def patch(self, locations: Sequence[Location]) -> tuple[int, bytes]:
        """Compute the write that replaces the locations in this commit record by `locations`. Return the position in
        the file and the bytes to write at this position. The new locations must have the same store names
        (`<topic>-<partition>`) as the old ones, in the same order.
        """
        return attachment_patch(self.end, encode_locations(locations), sealed=self.seal is not None)


def _record_crc(command: Buffer, offset: int) -> int:
    """Return one CRC-32 over two values: the record's position in its file (`offset`), and the bytes of the fields of
    1.x.
    """
    return crc32(command, crc32(_PLACE.pack(offset)))


def add_content(content: int, crc: int) -> int:
    """Return the new value of `content` (the checksum over a transaction's messages) after one more message. crc: the
    crc of the message's record.
    content: the value before this message; 0 before the first message.
    """
    return crc32(_CRC.pack(crc), content)


def block_checksum(data: Iterable[Buffer]) -> int:
    """Return 31 bits of the CRC-32 of all bytes (storage.md §7)."""
    crc = 0
    for buffer in data:
        crc = crc32(buffer, crc)
    return crc & 0x7FFFFFFF


# --- writing ----------------------------------------------------------------------------------------------------------


def sealed_put_record(put: StoredPut, offset: int) -> tuple[list[Buffer], int]:
    """Return the buffers of a message's record, and the record's crc. offset: the record's position in its file."""
    command = encode_put(put)
    crc = _record_crc(command, offset)
    return [LENGTH.pack(len(command) + _PUT.size), command, _PUT.pack(_SEAL_TAG, _CRC.size, crc)], crc


def sealed_operation_record(
    operation: Operation, offset: int, messages: int, content: int, attachment: bytes = b""
) -> list[Buffer]:
    """Return the buffers of the record of a preparation, commit or rollback. offset: the record's position in its file.
    The attachment is the last buffer.

    messages, content: the number and the checksum of the transaction's messages.
    """
    command = encode_operation(operation._replace(attachment_bytes=len(attachment)))
    seal = _operation_seal(command, offset, messages, content)
    if attachment:
        seal += attachment_seal(attachment)
    return [LENGTH.pack(len(command) + len(seal)), command, seal, attachment]


def _operation_seal(command: bytes, offset: int, messages: int, content: int) -> bytes:
    counts = _COUNTS.pack(messages, content)
    return _OPERATION.pack(_SEAL_TAG, _COUNTS.size + _CRC.size, counts, crc32(counts, _record_crc(command, offset)))


def attachment_seal(attachment: bytes) -> bytes:
    """Return the encoded field that stands before an attachment and contains the attachment's checksum."""
    return _ATTACHMENT.pack(_ATTACHMENT_TAG, crc32(attachment))


def encode_locations(locations: Sequence[Location]) -> bytes:
    """Return the attachment of a commit record for these locations. The length of the attachment depends only on the
    names of the stores (`<topic>-<partition>`).
    """
    parts = []
    for store, offset, size, checksum in locations:
        name = store.encode("utf-8", "surrogateescape")
        parts += [_LOCATION.pack(offset, size, checksum, len(name)), name]
    return b"".join(parts)


def attachment_patch(end: int, attachment: bytes, *, sealed: bool) -> tuple[int, bytes]:
    """Compute the write that replaces the attachment of a commit record that ends at the position `end` of the file.
    Return the position in the file and the bytes to write at this position. sealed: whether the record has the
    attachment's checksum.
    """
    data = attachment_seal(attachment)[-_ATTACHMENT_CRC_BYTES:] + attachment if sealed else attachment
    return end - len(data), data


def encode_filler(size: int) -> bytes:
    """Return a filler record of `size` bytes (at least MIN_FILLER_BYTES). Both metaq brokers and Java brokers ignore a
    filler record.
    """
    extra = size - MIN_FILLER_BYTES
    key = _FILLER_KEY.format("" if extra >= _PADDING_BYTES else "-" * extra)
    command = encode_operation(Operation(key, OperationType.LOCAL_ROLLBACK, was_prepared=False))
    if extra >= _PADDING_BYTES:
        command += _padding(extra - _PADDING_BYTES)
    return LENGTH.pack(len(command)) + command


def _padding(size: int) -> bytes:
    length = bytes((size >> shift & 0x7F) | 0x80 for shift in (0, 7, 14, 21)) + bytes([size >> 28])
    return bytes([_PADDING_TAG]) + length + bytes(size)


# --- reading ----------------------------------------------------------------------------------------------------------


def is_filler(operation: Operation) -> bool:
    """Whether an operation is a filler (a record that replaces damaged bytes and has no meaning). The operation must
    come from a record without a seal.
    """
    return _FILLER.fullmatch(operation.tx_key) is not None


def open_seal(data: bytes, offset: int) -> Sealed:
    """Check the bytes of a TxCommand against the seal of its record, and return them with the seal. offset: the
    record's position in its file. Raises RemoteProtocolError if the bytes are damaged.
    """
    end = command_end(data)
    command, rest = data[:end], data[end:]
    crc = _record_crc(command, offset)
    if not rest:
        return Sealed(command, crc, None)
    if rest[0] == _PADDING_TAG and rest == _padding(len(rest) - _PADDING_BYTES):
        return Sealed(command, crc, None)
    if len(rest) == _PUT.size:
        seal, expected = Seal(), _PUT.pack(_SEAL_TAG, _CRC.size, crc)
    elif len(rest) in (_OPERATION.size, _OPERATION.size + _ATTACHMENT.size):
        messages, content = _COUNTS.unpack_from(rest, 2)
        expected = _operation_seal(command, offset, messages, content)
        seal = Seal(messages, content)
        if len(rest) > _OPERATION.size:
            tag, attachment = _ATTACHMENT.unpack_from(rest, _OPERATION.size)
            if tag != _ATTACHMENT_TAG:
                raise RemoteProtocolError("a record with a wrong checksum")
            seal = seal._replace(attachment=attachment)
    else:
        raise RemoteProtocolError(f"{len(rest)} bytes behind a command that are not a checksum")
    if rest[: len(expected)] != expected:
        raise RemoteProtocolError("a record with a wrong checksum")
    return Sealed(command, crc, seal)


def decode_locations(data: bytes) -> tuple[Location, ...]:
    """Decode an attachment that `encode_locations` has made. Raises RemoteProtocolError if the bytes are not an
    attachment.
    """
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
