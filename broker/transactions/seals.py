"""Checksums that metaq adds to the records of 1.x's transaction log, in fields of TxCommand that 1.x passes over.

    seal         field 14, bytes     of a put: crc u32 · of an operation: messages u32 | content u32 | crc u32
    attachment   field 15, fixed32   of a commit: CRC-32 of the attachment, which follows at once: both change together
    padding      field 13, bytes     zeros, in a record that stands where damaged bytes were (`filler`)

crc: CRC-32 of where the record begins in its file, u64, of 1.x's fields, and of the two numbers before it. The place is
in it so that a message whose body looks like a record is never taken for one. messages: how many the transaction has;
content: CRC-32 of their records' CRC-32s, in order, so that a lost one is missed. Numbers are big-endian, but the
fixed32, which protobuf makes little-endian. Java's records, and those of our first releases, have none of this.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import NamedTuple

from isal.isal_zlib import crc32

from metaq.protocol.errors import RemoteProtocolError
from metaq.protocol.record import Buffer

from .commands import Operation, OperationType, command_end, encode_operation

__all__ = [
    "ATTACHMENT_SEAL_BYTES",
    "MIN_FILLER_BYTES",
    "Seal",
    "Sealed",
    "add_content",
    "attachment_seal",
    "filler_command",
    "is_filler",
    "open_seal",
    "record_crc",
    "seal_operation",
    "seal_put",
]

_PLACE = Struct(">Q")
_PUT = Struct(">BBI")
_COUNTS = Struct(">II")
_OPERATION = Struct(">BB8sI")
_ATTACHMENT = Struct("<BI")
_CRC = Struct(">I")
_SEAL_TAG, _ATTACHMENT_TAG, _PADDING_TAG = 14 << 3 | 2, 15 << 3 | 5, 13 << 3 | 2

ATTACHMENT_SEAL_BYTES = 4
"""The attachment's checksum, the last bytes before it."""

_FILLER_KEY = "TX:{}:0"
_FILLER = re.compile("TX:-*:0")
_LENGTH_BYTES = 4
_PADDING_BYTES = 6  # tag, and a size that always has five bytes
MIN_FILLER_BYTES = _LENGTH_BYTES + len(
    encode_operation(Operation(_FILLER_KEY.format(""), OperationType.LOCAL_ROLLBACK, was_prepared=False))
)
"""No whole record is shorter."""


class Seal(NamedTuple):
    """What a record says of itself. messages, content, attachment: of an operation; attachment only of a commit."""

    messages: int = 0
    content: int = 0
    attachment: int | None = None


class Sealed(NamedTuple):
    """The bytes of 1.x's fields, their CRC-32 with the record's place, and the seal; None for a record without one."""

    command: bytes
    crc: int
    seal: Seal | None


def record_crc(command: Buffer, offset: int) -> int:
    """CRC-32 of a record's place (byte in its file) and 1.x's fields."""
    return crc32(command, crc32(_PLACE.pack(offset)))


def add_content(content: int, crc: int) -> int:
    """The content of a transaction with one message more; 0 for none."""
    return crc32(_CRC.pack(crc), content)


# --- writing ----------------------------------------------------------------------------------------------------------


def seal_put(command: bytes, offset: int) -> tuple[bytes, int]:
    """What follows the command of a message whose record begins at `offset`, and the record's CRC-32."""
    crc = record_crc(command, offset)
    return _PUT.pack(_SEAL_TAG, _CRC.size, crc), crc


def seal_operation(command: bytes, offset: int, messages: int, content: int) -> bytes:
    """What follows the command that ends or prepares a transaction; a commit's attachment is sealed beside it."""
    counts = _COUNTS.pack(messages, content)
    crc = crc32(counts, record_crc(command, offset))
    return _OPERATION.pack(_SEAL_TAG, _COUNTS.size + _CRC.size, counts, crc)


def attachment_seal(attachment: bytes) -> bytes:
    """The field in front of an attachment; its last ATTACHMENT_SEAL_BYTES change with it."""
    return _ATTACHMENT.pack(_ATTACHMENT_TAG, crc32(attachment))


def filler_command(size: int) -> bytes:
    """The TxCommand of a record of `size` bytes, at least MIN_FILLER_BYTES, that means nothing to either broker."""
    extra = size - MIN_FILLER_BYTES
    key = _FILLER_KEY.format("" if extra >= _PADDING_BYTES else "-" * extra)
    command = encode_operation(Operation(key, OperationType.LOCAL_ROLLBACK, was_prepared=False))
    if extra < _PADDING_BYTES:
        return command
    return command + _padding(extra - _PADDING_BYTES)


def is_filler(operation: Operation) -> bool:
    """Whether an operation that has no seal only stands where damaged bytes were."""
    return _FILLER.fullmatch(operation.tx_key) is not None


def _padding(size: int) -> bytes:
    length = bytes((size >> shift & 0x7F) | 0x80 for shift in (0, 7, 14, 21)) + bytes([size >> 28])
    return bytes([_PADDING_TAG]) + length + bytes(size)


# --- reading ----------------------------------------------------------------------------------------------------------


def open_seal(data: bytes, offset: int) -> Sealed:
    """Check the bytes of a TxCommand whose record begins at `offset`. Raises RemoteProtocolError for damage."""
    end = command_end(data)
    command, rest = data[:end], data[end:]
    crc = record_crc(command, offset)
    if not rest:
        return Sealed(command, crc, None)
    if rest[0] == _PADDING_TAG and rest == _padding(len(rest) - _PADDING_BYTES):
        return Sealed(command, crc, None)
    if len(rest) == _PUT.size:
        seal, expected = Seal(), _PUT.pack(_SEAL_TAG, _CRC.size, crc)
    elif len(rest) in (_OPERATION.size, _OPERATION.size + _ATTACHMENT.size):
        messages, content = _COUNTS.unpack_from(rest, 2)
        expected = seal_operation(command, offset, messages, content)
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
