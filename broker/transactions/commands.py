"""The messages inside 1.x's transaction log (storage.md §7): protobuf, described here in code, no generated file.

    TxCommand            { required enum cmdType = 1; required bytes cmd_content = 2; optional bool force = 3; }
    AppendMessageCommand { required int64 message_id = 1; required bytes put_command = 2; }
    TransactionOperation { required enum type = 1; required bool was_prepared = 2; required string transaction_id = 3;
                           optional int32 data_length = 4; }

`put_command` is the 8-token form of the `put` frame: `put topic partition len flag checksum txKey opaque` CR LF body.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from metaq.protocol.errors import RemoteProtocolError
from metaq.protocol.record import Buffer
from metaq.protocol.transactions import parse_key

__all__ = ["Operation", "OperationType", "StoredPut", "decode_command", "encode_operation", "encode_put"]


class OperationType(IntEnum):
    """What a TX_OP record says has happened."""

    XA_PREPARE = 1
    XA_COMMIT = 2
    XA_ROLLBACK = 3
    LOCAL_COMMIT = 4
    LOCAL_ROLLBACK = 5

    @property
    def is_commit(self) -> bool:
        return self in (OperationType.XA_COMMIT, OperationType.LOCAL_COMMIT)


class StoredPut(NamedTuple):
    """A message of a transaction. checksum: as the producer sent it, -1 for none."""

    tx_key: str
    message_id: int
    topic: str
    partition: int
    flag: int
    checksum: int
    opaque: int
    body: Buffer


class Operation(NamedTuple):
    """What became of a transaction. attachment_bytes: length of what follows the record (commits only)."""

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
    pool = DescriptorPool()  # our own: the default one is shared by the whole process
    pool.Add(_schema())
    names = ("TxCommand", "AppendMessageCommand", "TransactionOperation")
    first, second, third = (GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in names)
    return first, second, third


_TxCommand, _AppendMessage, _TransactionOperation = _message_classes()


# --- writing ----------------------------------------------------------------------------------------------------------


def encode_put(put: StoredPut) -> bytes:
    """TxCommand of a message in a transaction."""
    line = (
        f"put {put.topic} {put.partition} {len(put.body)} {put.flag} {put.checksum} {put.tx_key} {put.opaque}\r\n"
    ).encode()
    command = _AppendMessage(message_id=put.message_id, put_command=b"".join((line, put.body)))
    content: bytes = _TxCommand(cmdType=_APPEND_MSG, cmd_content=command.SerializeToString()).SerializeToString()
    return content


def encode_operation(operation: Operation) -> bytes:
    """TxCommand of what became of a transaction; a commit's attachment follows it in the file."""
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


def decode_command(data: bytes) -> StoredPut | Operation:
    """The command in the bytes of a TxCommand. Raises RemoteProtocolError saying what is wrong with them."""
    command = _parse(_TxCommand, data, "TxCommand")
    if command.cmdType == _APPEND_MSG:
        append = _parse(_AppendMessage, command.cmd_content, "AppendMessageCommand")
        return _decode_put(append.message_id, append.put_command)
    operation = _parse(_TransactionOperation, command.cmd_content, "TransactionOperation")
    if operation.data_length < 0:
        raise RemoteProtocolError(f"attachment of {operation.data_length} bytes")
    return Operation(
        _key(operation.transaction_id),
        OperationType(operation.type),
        operation.was_prepared,
        operation.data_length if OperationType(operation.type).is_commit else 0,
    )


def _parse(kind: Any, data: bytes, name: str) -> Any:
    try:
        message = kind.FromString(data)
    except DecodeError as error:
        raise RemoteProtocolError(f"no {name}: {error}") from error
    if not message.IsInitialized():
        raise RemoteProtocolError(f"{name} without its required fields")
    return message


def _decode_put(message_id: int, frame: bytes) -> StoredPut:
    # not protocol.text's parser: Java stores bodies of any size, and they must not be refused here
    line, end, body = frame.partition(b"\r\n")
    tokens = line.decode("utf-8", "replace").split(" ")
    if not end or len(tokens) != 8 or tokens[0] != "put":
        raise RemoteProtocolError(f"no stored put: {frame[:80]!r}")
    try:
        partition, length, flag, checksum, opaque = (int(tokens[position]) for position in (2, 3, 4, 5, 7))
    except ValueError as error:
        raise RemoteProtocolError(f"stored put with a bad number: {line[:80]!r}") from error
    if length != len(body) or partition < 0:
        raise RemoteProtocolError(f"stored put with a body of {len(body)} bytes: {line[:80]!r}")
    return StoredPut(_key(tokens[6]), message_id, tokens[1], partition, flag, checksum, opaque, body)


def _key(text: str) -> str:
    key = parse_key(text)
    if key is None:
        raise RemoteProtocolError("a record without a transaction")
    return key
