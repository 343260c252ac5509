"""Convert errors to answers, and answers to errors, for both protocols. A broker sends an answer that reports an error;
the client that receives this answer raises the same error or a corresponding one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from .errors import (
    AccessRefused,
    AccountSpent,
    BrokerCertificateRequired,
    BrokerStarting,
    BrokerUnavailable,
    ChecksumMismatch,
    CompressionNotAccepted,
    DelayRefused,
    DiskFull,
    FiltersBusy,
    HalfRefused,
    InvalidName,
    InvalidWhere,
    LogReadOnly,
    MessageTooLarge,
    MetaqError,
    NotEnoughReplicas,
    NotLeader,
    NotMaster,
    NotSafe,
    OffsetOutOfRange,
    PartitionClosed,
    PartitionNotFound,
    PayloadUnreadable,
    QuotaExceeded,
    RemoteProtocolError,
    RequestRefused,
    SearchesBusy,
    SendInDoubt,
    SharedRefused,
    SlaveDisconnected,
    StaleSequence,
    TlsRequired,
    TooFewNodes,
    TopicNotAccepted,
    TransactionRefused,
    WrongPartition,
    XaRefused,
)
from .frames import Frame
from .statuses import ResponseCode, Status
from .text import Result
from .topic_partition import TopicPartition

__all__ = ["LEADER", "frame_error", "is_success", "response_code", "text_error", "transaction_refusal"]

LEADER = "leader"
"""Name of the extField that has the URL of a broker set's leader, or "" if the leader is unknown."""

_XA_REFUSAL = re.compile(r"XAException:code=(-?\d{1,9}),msg=(.*)", re.DOTALL)
"""Matches the error text by which a broker reports an XA error code in the form that 1.x's clients parse (wire.md §4).
errors.XaRefused writes such texts.
"""

_CLOSED = re.compile(r"[Pp]artition\[-?\d{1,10}-\d{1,10}\] has been closed")
"""Found in the text of a refusal with the status 403 if an operator has closed the partition (wire.md §3)."""

_CODES: Mapping[type[MetaqError], ResponseCode] = {
    TransactionRefused: ResponseCode.TRANSACTION_REFUSED,
    XaRefused: ResponseCode.TRANSACTION_REFUSED,
    TopicNotAccepted: ResponseCode.TOPIC_NOT_EXIST,
    WrongPartition: ResponseCode.TOPIC_NOT_EXIST,
    PartitionNotFound: ResponseCode.TOPIC_NOT_EXIST,
    PartitionClosed: ResponseCode.NO_PERMISSION,
    AccessRefused: ResponseCode.ACCESS_REFUSED,
    QuotaExceeded: ResponseCode.QUOTA_EXCEEDED,
    TlsRequired: ResponseCode.ACCESS_REFUSED,
    BrokerCertificateRequired: ResponseCode.ACCESS_REFUSED,
    DiskFull: ResponseCode.DISK_FULL,
    LogReadOnly: ResponseCode.SERVICE_NOT_AVAILABLE,
    NotSafe: ResponseCode.NOT_SAFE,
    StaleSequence: ResponseCode.STALE_SEQUENCE,
    SendInDoubt: ResponseCode.SEND_IN_DOUBT,
    NotMaster: ResponseCode.SERVICE_NOT_AVAILABLE,
    NotLeader: ResponseCode.NOT_LEADER,
    NotEnoughReplicas: ResponseCode.NOT_ENOUGH_REPLICAS,
    SlaveDisconnected: ResponseCode.SERVICE_NOT_AVAILABLE,
    BrokerStarting: ResponseCode.SYSTEM_BUSY,
    AccountSpent: ResponseCode.SYSTEM_BUSY,
    FiltersBusy: ResponseCode.SYSTEM_BUSY,
    SearchesBusy: ResponseCode.SYSTEM_BUSY,
    SharedRefused: ResponseCode.SHARED_REFUSED,
    InvalidName: ResponseCode.MESSAGE_ILLEGAL,
    InvalidWhere: ResponseCode.MESSAGE_ILLEGAL,
    RemoteProtocolError: ResponseCode.MESSAGE_ILLEGAL,
    ChecksumMismatch: ResponseCode.MESSAGE_ILLEGAL,
    DelayRefused: ResponseCode.MESSAGE_ILLEGAL,
    HalfRefused: ResponseCode.MESSAGE_ILLEGAL,
    MessageTooLarge: ResponseCode.MESSAGE_ILLEGAL,
    CompressionNotAccepted: ResponseCode.MESSAGE_ILLEGAL,
    PayloadUnreadable: ResponseCode.MESSAGE_ILLEGAL,
    OffsetOutOfRange: ResponseCode.PULL_OFFSET_MOVED,
}


def response_code(error: MetaqError) -> ResponseCode:
    """Return the response code for an answer frame that reports this error."""
    return _CODES.get(type(error), ResponseCode.SYSTEM_ERROR)


def is_success(frame: Frame) -> bool:
    """Return whether the answer `frame` reports success."""
    return frame.code == ResponseCode.SUCCESS


def frame_error(frame: Frame, partition: TopicPartition, broker: object) -> MetaqError:
    """Return the error that the broker reports in the answer `frame`, by its response code and its remark. partition,
    broker: the partition and the broker of the request, for the error text.
    """
    code, remark = frame.code, frame.remark
    if code == ResponseCode.NO_PERMISSION:
        return PartitionClosed(partition.broker, partition.partition)
    if code == ResponseCode.ACCESS_REFUSED:
        return AccessRefused(f"{broker}: {remark}")
    if code == ResponseCode.QUOTA_EXCEEDED:
        return QuotaExceeded(f"{broker}: {remark}")
    if code == ResponseCode.TOPIC_NOT_EXIST:
        return TopicNotAccepted(partition.topic)
    if code == ResponseCode.SERVICE_NOT_AVAILABLE:
        return LogReadOnly(f"{partition.topic} {partition} on {broker}", remark)
    if code == ResponseCode.NOT_LEADER:
        return NotLeader(partition.broker, frame.ext.get(LEADER, ""), str(broker))
    if code == ResponseCode.NOT_ENOUGH_REPLICAS:
        return TooFewNodes(f"{broker}: {remark}")
    if code == ResponseCode.NOT_SAFE:
        return NotSafe(f"{partition.topic} {partition} on {broker}", remark)
    if code == ResponseCode.SEND_IN_DOUBT:
        return SendInDoubt(f"{broker}: {remark}")
    if code == ResponseCode.DISK_FULL:
        return DiskFull(str(broker), remark)
    if code == ResponseCode.SYSTEM_BUSY:
        return BrokerUnavailable(f"{broker} is busy: {remark}")
    if code == ResponseCode.SHARED_REFUSED:
        return SharedRefused(f"{broker}: {remark}")
    if code == ResponseCode.TRANSACTION_REFUSED:
        return transaction_refusal(remark)
    return RequestRefused(code, f"{broker}: {remark or f'response code {code}'}")


def text_error(result: Result, partition: TopicPartition, broker: object) -> MetaqError:
    """Return the error that the broker reports by the status of a `result` answer. partition, broker: the partition and
    the broker of the request, for the error text.

    1.x answers most failures with the status 500 and a text for people. This function ignores these texts, except two
    that are the same from Java brokers and from metaq's own brokers: the text for a wrong checksum, and the text for a
    closed partition. A Java broker sends the status 403 only for a closed partition. Metaq's own brokers also send it
    for what a user or a connection may not do.
    """
    if result.code == Status.FORBIDDEN:
        if _CLOSED.search(result.text):
            return PartitionClosed(partition.broker, partition.partition)
        return AccessRefused(f"{broker}: {result.text}")
    if result.code == Status.NOT_FOUND:
        return PartitionNotFound(partition.topic, partition.partition)
    if result.code == Status.UNAVAILABLE:
        return BrokerUnavailable(f"{broker} is stopping: {result.text}")
    if str(ChecksumMismatch()) in result.text:
        return ChecksumMismatch()
    return RequestRefused(result.code, f"{broker}: {result.text or f'status {result.code}'}")


def transaction_refusal(text: str) -> TransactionRefused:
    """Return the error for a broker's answer that refuses a request about a transaction. text: the text of the answer.
    If it contains an XA error code, the returned error has this code.
    """
    coded = _XA_REFUSAL.fullmatch(text)
    return TransactionRefused(text) if coded is None else XaRefused(int(coded[1]), coded[2])
