"""Encode and decode the protobuf messages in the transaction log of metaq 1.x (storage.md §7). The protobuf encoding is
written by hand in this module; no generated file is used.

    TxCommand            { required enum cmdType = 1; required bytes cmd_content = 2; optional bool force = 3; }
    AppendMessageCommand { required int64 message_id = 1; required bytes put_command = 2; }
    TransactionOperation { required enum type = 1; required bool was_prepared = 2; required string transaction_id = 3;
                           optional int32 data_length = 4; }

`put_command` is the 8-token form of the `put` frame: `put topic partition len flag checksum txKey opaque` CR LF body.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Any, NamedTuple

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from metaq.protocol.errors import InvalidName, RemoteProtocolError
from metaq.protocol.limits import INT32_MAX, INT32_MIN, check_topic
from metaq.protocol.record import Buffer
from metaq.protocol.text import NO_CHECKSUM
from metaq.protocol.transactions import is_xa, parse_key

__all__ = [
    "Operation",
    "OperationType",
    "StoredPut",
    "command_end",
    "content_end",
    "decode_command",
    "encode_operation",
    "encode_put",
]


class OperationType(IntEnum):
    """What has happened to a transaction (for example its preparation or its commit), as a TX_OP record states it."""

    XA_PREPARE = 1
    XA_COMMIT = 2
    XA_ROLLBACK = 3
    LOCAL_COMMIT = 4
    LOCAL_ROLLBACK = 5

    @property
    def is_commit(self) -> bool:
        return self in (OperationType.XA_COMMIT, OperationType.LOCAL_COMMIT)

    @property
    def is_xa(self) -> bool:
        return self not in (OperationType.LOCAL_COMMIT, OperationType.LOCAL_ROLLBACK)


class StoredPut(NamedTuple):
    """A message of a transaction. checksum: the checksum that the producer has sent. It is -1 if the producer has sent
    none.
    """

    tx_key: str
    message_id: int
    topic: str
    partition: int
    flag: int
    checksum: int
    opaque: int
    body: Buffer


class Operation(NamedTuple):
    """The preparation or the outcome of a transaction. attachment_bytes: the length of the attachment that follows the
    record of a commit.
    """

    tx_key: str
    type: OperationType
    was_prepared: bool
    attachment_bytes: int = 0


# --- the schema -------------------------------------------------------------------------------------------------------

_APPEND_MSG, _TX_OP = 1, 2
_REQUIRED, _OPTIONAL = FieldDescriptorProto.LABEL_REQUIRED, FieldDescriptorProto.LABEL_OPTIONAL
_ENUM, _BYTES, _BOOL = FieldDescriptorProto.TYPE_ENUM, FieldDescriptorProto.TYPE_BYTES, FieldDescriptorProto.TYPE_BOOL
_INT64, _INT32 = FieldDescriptorProto.TYPE_INT64, FieldDescriptorProto.TYPE_INT32
_STRING = FieldDescriptorProto.TYPE_STRING
_PACKAGE = "metaq.transactions"
_BEGINNINGS = (b"\x08\x01\x12", b"\x08\x02\x12")  # cmdType, tag of cmd_content
_FORCE = (b"\x18\x00", b"\x18\x01")
_MAX_VARINT_BYTES = 5
_DECIMAL = re.compile("0|-?[1-9][0-9]{0,9}", re.ASCII)


def _schema() -> FileDescriptorProto:
    file = FileDescriptorProto(name="metaq/transactions.proto", package=_PACKAGE, syntax="proto2")
    _add_enum(file, "CommandType", {"APPEND_MSG": _APPEND_MSG, "TX_OP": _TX_OP})
    _add_enum(file, "OperationType", {kind.name: kind.value for kind in OperationType})
    _add_message(
        file,
        "TxCommand",
        ("cmdType", _REQUIRED, _ENUM, "CommandType"),
        ("cmd_content", _REQUIRED, _BYTES, ""),
        ("force", _OPTIONAL, _BOOL, ""),
    )
    _add_message(
        file, "AppendMessageCommand", ("message_id", _REQUIRED, _INT64, ""), ("put_command", _REQUIRED, _BYTES, "")
    )
    _add_message(
        file,
        "TransactionOperation",
        ("type", _REQUIRED, _ENUM, "OperationType"),
        ("was_prepared", _REQUIRED, _BOOL, ""),
        ("transaction_id", _REQUIRED, _STRING, ""),
        ("data_length", _OPTIONAL, _INT32, ""),
    )
    return file


def _add_enum(file: FileDescriptorProto, name: str, values: dict[str, int]) -> None:
    enum = file.enum_type.add(name=name)
    for value_name, number in values.items():
        enum.value.add(name=value_name, number=number)


def _add_message(file: FileDescriptorProto, name: str, *fields: tuple[str, Any, Any, str]) -> None:
    message = file.message_type.add(name=name)
    for number, (field, label, kind, enum) in enumerate(fields, 1):
        added = message.field.add(name=field, number=number, label=label, type=kind)
        if enum:
            added.type_name = f".{_PACKAGE}.{enum}"


def _message_classes() -> tuple[Any, Any, Any]:
    pool = DescriptorPool()  # a separate pool: the default one is shared by the whole process
    pool.Add(_schema())
    names = ("TxCommand", "AppendMessageCommand", "TransactionOperation")
    first, second, third = (GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in names)
    return first, second, third


_TxCommand, _AppendMessage, _TransactionOperation = _message_classes()


# --- writing ----------------------------------------------------------------------------------------------------------


def encode_put(put: StoredPut) -> bytes:
    """Return the encoded TxCommand for a message in a transaction."""
    line = (
        f"put {put.topic} {put.partition} {len(put.body)} {put.flag} {put.checksum} {put.tx_key} {put.opaque}\r\n"
    ).encode()
    command = _AppendMessage(message_id=put.message_id, put_command=b"".join((line, put.body)))
    content: bytes = _TxCommand(cmdType=_APPEND_MSG, cmd_content=command.SerializeToString()).SerializeToString()
    return content


def encode_operation(operation: Operation) -> bytes:
    """Return the encoded TxCommand for an operation. In the redo file, the attachment of a commit follows the
    TxCommand.
    """
    content = _TransactionOperation(
        type=operation.type, was_prepared=operation.was_prepared, transaction_id=operation.tx_key
    )
    if operation.type.is_commit:
        content.data_length = operation.attachment_bytes
    command = _TxCommand(cmdType=_TX_OP, cmd_content=content.SerializeToString())
    if operation.type is OperationType.XA_PREPARE:
        command.force = True
    encoded: bytes = command.SerializeToString()
    return encoded


# --- reading ----------------------------------------------------------------------------------------------------------


def command_end(data: Buffer) -> int:
    """Return the position in the bytes of a TxCommand where the fields of metaq 1.x end. After this position come the
    fields that only this broker writes (redo.py).

    This broker and the Java broker write the fields of metaq 1.x in ascending order of their field numbers, and no
    field twice. Raises RemoteProtocolError if the bytes do not begin with these fields in this form.
    """
    end = content_end(data)
    if end > len(data):
        raise RemoteProtocolError(f"TxCommand of {len(data)} bytes with content up to byte {end}")
    force = bytes(data[end : end + 2])
    return end + 2 if force in _FORCE else end


def content_end(data: Buffer) -> int:
    """Return the position where the field `cmd_content` ends according to its length. The position may be after the end
    of the data. Raises RemoteProtocolError.
    """
    if bytes(data[:3]) not in _BEGINNINGS:
        raise RemoteProtocolError(f"no TxCommand: {bytes(data[:8]).hex()}")
    size = shift = 0
    for position in range(3, 3 + _MAX_VARINT_BYTES):
        if position >= len(data):
            break
        size |= (data[position] & 0x7F) << shift
        shift += 7
        if data[position] < 0x80:
            return position + 1 + size
    raise RemoteProtocolError("TxCommand with content of unknown size")


def decode_command(data: bytes) -> StoredPut | Operation:
    """Decode the bytes of a TxCommand that has only the fields of metaq 1.x.

    Raises RemoteProtocolError if no broker writes such bytes, which means that they are damaged. The error's text names
    the problem.
    """
    command = _parse(_TxCommand, data, "TxCommand")
    if command.cmdType == _APPEND_MSG:
        append = _parse(_AppendMessage, command.cmd_content, "AppendMessageCommand")
        return _decode_put(append.message_id, append.put_command)
    operation = _parse(_TransactionOperation, command.cmd_content, "TransactionOperation")
    kind, key = OperationType(operation.type), _key(operation.transaction_id)
    if operation.data_length < 0:
        raise RemoteProtocolError(f"attachment of {operation.data_length} bytes")
    if operation.data_length and not kind.is_commit:
        raise RemoteProtocolError(f"{kind.name} with an attachment of {operation.data_length} bytes")
    if kind.is_xa is not is_xa(key) or command.force is not (kind is OperationType.XA_PREPARE):
        raise RemoteProtocolError(f"{kind.name} of {key}, force={command.force}")
    return Operation(key, kind, operation.was_prepared, operation.data_length)


def _parse(kind: Any, data: bytes, name: str) -> Any:
    try:
        message = kind.FromString(data)
    except DecodeError as error:
        raise RemoteProtocolError(f"no {name}: {error}") from error
    if not message.IsInitialized():
        raise RemoteProtocolError(f"{name} without its required fields")
    if message.SerializeToString() != data or len(data) != _known_size(message):
        raise RemoteProtocolError(f"{name} with fields that no broker writes")
    return message


def _known_size(message: Any) -> int:
    message.DiscardUnknownFields()
    size: int = message.ByteSize()
    return size


def _decode_put(message_id: int, frame: bytes) -> StoredPut:
    # not protocol.text's parser: Java stores bodies of any size, and they must not be refused here
    line, end, body = frame.partition(b"\r\n")
    try:
        tokens = line.decode("utf-8").split(" ")
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"stored put that is not UTF-8: {line[:80]!r}") from error
    if not end or len(tokens) != 8 or tokens[0] != "put":
        raise RemoteProtocolError(f"not a stored put: {frame[:80]!r}")
    partition, length, flag, checksum, opaque = (_int32(tokens[position], line) for position in (2, 3, 4, 5, 7))
    if length != len(body) or partition < 0 or checksum < NO_CHECKSUM:
        raise RemoteProtocolError(f"stored put with a body of {len(body)} bytes: {line[:80]!r}")
    try:
        check_topic(tokens[1])
    except InvalidName as error:
        raise RemoteProtocolError(f"stored put: {error}") from error
    return StoredPut(_key(tokens[6]), message_id, tokens[1], partition, flag, checksum, opaque, body)


def _int32(token: str, line: bytes) -> int:
    """Parse a number as this broker and the Java broker write it: without leading zeros, and without a sign except a
    minus.
    """
    if _DECIMAL.fullmatch(token) and INT32_MIN <= (value := int(token)) <= INT32_MAX:
        return value
    raise RemoteProtocolError(f"stored put with the number {token!r}: {line[:80]!r}")


def _key(text: str) -> str:
    key = parse_key(text)
    if key is None:
        raise RemoteProtocolError("a record without a transaction")
    return key
