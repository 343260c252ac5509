"""What a handler may answer, the bytes of the answers that have no handler of their own, and the code of an error."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TypeAlias

from twisted.internet.defer import Deferred

from metaq.protocol.errors import (
    ChecksumMismatch,
    DiskFull,
    FiltersBusy,
    InvalidName,
    LogReadOnly,
    MessageTooLarge,
    MetaqError,
    NotMaster,
    OffsetOutOfRange,
    PartitionClosed,
    PartitionNotFound,
    RemoteProtocolError,
    SearchesBusy,
    SlaveDisconnected,
    TopicNotAccepted,
    WrongPartition,
)
from metaq.protocol.frames import RESPONSE, encode_frame
from metaq.protocol.record import Buffer
from metaq.protocol.statuses import ResponseCode

__all__ = ["Answer", "Bytes", "Work", "answer_frame", "response_code"]

Bytes: TypeAlias = bytes | list[Buffer]
"""A whole answer, in one buffer or several (large data is not joined to its header)."""

Answer: TypeAlias = Bytes | Deferred[Bytes] | None
"""Bytes now, bytes later, or none at all."""

Work: TypeAlias = Generator[None, None, Answer]
"""A request that may take long: a few milliseconds up to each `yield`, where others may be served, then its answer."""


def answer_frame(
    opaque: int,
    ext: Mapping[str, str | int],
    code: ResponseCode = ResponseCode.SUCCESS,
    remark: str = "",
    body: int = 0,
) -> bytes:
    """Prefix and header of an answer whose body has `body` bytes; the caller sends the body after it."""
    return encode_frame(code, opaque, ext, body, flag=RESPONSE, remark=remark)


_RESPONSE_CODES: Mapping[type[MetaqError], ResponseCode] = {
    TopicNotAccepted: ResponseCode.TOPIC_NOT_EXIST,
    WrongPartition: ResponseCode.TOPIC_NOT_EXIST,
    PartitionNotFound: ResponseCode.TOPIC_NOT_EXIST,
    PartitionClosed: ResponseCode.NO_PERMISSION,
    DiskFull: ResponseCode.DISK_FULL,
    LogReadOnly: ResponseCode.SERVICE_NOT_AVAILABLE,
    NotMaster: ResponseCode.SERVICE_NOT_AVAILABLE,
    SlaveDisconnected: ResponseCode.SERVICE_NOT_AVAILABLE,
    FiltersBusy: ResponseCode.SYSTEM_BUSY,
    SearchesBusy: ResponseCode.SYSTEM_BUSY,
    InvalidName: ResponseCode.MESSAGE_ILLEGAL,
    RemoteProtocolError: ResponseCode.MESSAGE_ILLEGAL,
    ChecksumMismatch: ResponseCode.MESSAGE_ILLEGAL,
    MessageTooLarge: ResponseCode.MESSAGE_ILLEGAL,
    OffsetOutOfRange: ResponseCode.PULL_OFFSET_MOVED,
}


def response_code(error: MetaqError) -> ResponseCode:
    """How a frame is told of an error."""
    return _RESPONSE_CODES.get(type(error), ResponseCode.SYSTEM_ERROR)
