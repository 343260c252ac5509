"""A broker's answers as values or errors, the same for both protocols."""

from __future__ import annotations

import re

from metaq.protocol.errors import (
    BrokerUnavailable,
    ChecksumMismatch,
    DiskFull,
    LogReadOnly,
    MetaqError,
    PartitionClosed,
    PartitionNotFound,
    RequestRefused,
    TopicNotAccepted,
    TransactionRefused,
    XaRefused,
)
from metaq.protocol.frames import Frame
from metaq.protocol.statuses import ResponseCode, Status
from metaq.protocol.text import Result

from .connection import Endpoint
from .values import TopicPartition

__all__ = ["frame_error", "is_success", "text_error", "transaction_refusal"]

_XA_REFUSAL = re.compile(r"XAException:code=(-?\d{1,9}),msg=(.*)", re.DOTALL)
"""How 1.x puts a number into an answer, for its clients to read (wire.md §4)."""


def is_success(frame: Frame) -> bool:
    """Whether a frame's request was done."""
    return frame.code == ResponseCode.SUCCESS


def frame_error(frame: Frame, partition: TopicPartition, endpoint: Endpoint) -> MetaqError:
    """The error that a frame's response code and remark stand for."""
    code, remark = frame.code, frame.remark
    if code == ResponseCode.NO_PERMISSION:
        return PartitionClosed(partition.broker, partition.partition)
    if code == ResponseCode.TOPIC_NOT_EXIST:
        return TopicNotAccepted(partition.topic)
    if code == ResponseCode.SERVICE_NOT_AVAILABLE:
        return LogReadOnly(f"{partition.topic} {partition} on {endpoint}", remark)
    if code == ResponseCode.DISK_FULL:
        return DiskFull(str(endpoint), remark)
    if code == ResponseCode.SYSTEM_BUSY:
        return BrokerUnavailable(f"{endpoint} is busy: {remark}")
    if code == ResponseCode.TRANSACTION_REFUSED:
        return transaction_refusal(remark)
    return RequestRefused(code, f"{endpoint}: {remark or f'response code {code}'}")


def text_error(result: Result, partition: TopicPartition, endpoint: Endpoint) -> MetaqError:
    """The error that a `result` line's status stands for.

    1.x answers most failures with 500 and a text for people; the texts are not matched on, except that a wrong
    checksum has a text of its own which both brokers send unchanged.
    """
    if result.code == Status.FORBIDDEN:
        return PartitionClosed(partition.broker, partition.partition)
    if result.code == Status.NOT_FOUND:
        return PartitionNotFound(partition.topic, partition.partition)
    if result.code == Status.UNAVAILABLE:
        return BrokerUnavailable(f"{endpoint} is stopping: {result.text}")
    if str(ChecksumMismatch()) in result.text:
        return ChecksumMismatch()
    return RequestRefused(result.code, f"{endpoint}: {result.text or f'status {result.code}'}")


def transaction_refusal(text: str) -> TransactionRefused:
    """What a broker's refusal of a transaction's verb stands for: with a code of XA's if there is one."""
    coded = _XA_REFUSAL.fullmatch(text)
    return TransactionRefused(text) if coded is None else XaRefused(int(coded[1]), coded[2])
