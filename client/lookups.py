"""Questions about one partition, answered over either protocol. Any thread; each blocks for one round trip.

All raise RequestTimedOut, BrokerUnavailable, and what a broker answered with (PartitionNotFound, RequestRefused …).
"""

from __future__ import annotations

from functools import partial

from metaq.protocol.errors import ClientError, PartitionNotFound, RemoteProtocolError, TopicNotAccepted
from metaq.protocol.frames import Frame, encode_frame
from metaq.protocol.limits import INT64_MAX
from metaq.protocol.record import Buffer
from metaq.protocol.remoting import (
    MessageCountsReply,
    MessageCountsRequest,
    OffsetReply,
    PartitionRequest,
    SearchByTimeRequest,
)
from metaq.protocol.statuses import RequestCode, Status
from metaq.protocol.text import Result, encode_offset

from .connection import Connection
from .inquiry import Asked
from .replies import frame_error, is_success, text_error
from .values import Lag, TopicPartition

__all__ = ["lag_behind", "max_offset", "message_counts", "min_offset", "offset_at_time"]

_GROUP = "metaq-lookup"
"""Of `offset` commands, whose group the broker ignores."""


def min_offset(connection: Connection, partition: TopicPartition, timeout: float | None = None) -> int:
    """The first readable byte; 0 if nothing was ever stored."""
    if connection.speaks_frames:
        return _offset(connection, RequestCode.MIN_OFFSET, PartitionRequest(*partition[::2]), partition, timeout)
    return _text_offset(connection, partition, 0, timeout)


def max_offset(connection: Asked, partition: TopicPartition, timeout: float | None = None) -> int:
    """The end of the readable bytes: where the next message will be; 0 if nothing was ever stored."""
    if connection.speaks_frames:
        return _offset(connection, RequestCode.MAX_OFFSET, PartitionRequest(*partition[::2]), partition, timeout)
    return _text_offset(connection, partition, INT64_MAX, timeout)


def offset_at_time(
    connection: Connection, partition: TopicPartition, time_ms: int, timeout: float | None = None
) -> int:
    """Where the first message stored at or after `time_ms` (milliseconds since 1970) begins, or the end.

    Raises ClientError if the broker speaks the text protocol only, which has no such question.
    """
    if not connection.speaks_frames:
        raise ClientError(
            f"{connection.endpoint} (version {connection.peer_version}) cannot look up a time: "
            "use an offset, 'earliest' or 'latest'"
        )
    request = SearchByTimeRequest(partition.topic, partition.partition, time_ms)
    return _offset(connection, RequestCode.SEARCH_OFFSET_BY_TIME, request, partition, timeout)


def message_counts(
    connection: Connection, partition: TopicPartition, offset: int, timeout: float | None = None
) -> MessageCountsReply | None:
    """Messages in the partition and in front of `offset`; None if the broker cannot count (text protocol)."""
    if not connection.speaks_frames:
        return None
    request = MessageCountsRequest(partition.topic, partition.partition, offset)
    frame = _ask(connection, RequestCode.MESSAGE_COUNTS, request.to_ext(), timeout)
    if is_success(frame):
        return MessageCountsReply.from_ext(frame.ext)
    error = frame_error(frame, partition, connection.endpoint)
    if isinstance(error, (PartitionNotFound, TopicNotAccepted)):
        return MessageCountsReply(0, 0, 0, 0)
    raise error


def lag_behind(connection: Connection, partition: TopicPartition, offset: int, timeout: float | None = None) -> Lag:
    """What lies between `offset` and the end of the partition."""
    counts = message_counts(connection, partition, offset, timeout)
    if counts is not None:
        return Lag(max(0, counts.total - counts.before), max(0, counts.max_offset - offset))
    return Lag(None, max(0, max_offset(connection, partition, timeout) - offset))


def _ask(connection: Asked, code: RequestCode, ext: dict[str, str | int], timeout: float | None) -> Frame:
    def build(opaque: int) -> tuple[Buffer]:
        return (encode_frame(code, opaque, ext),)

    reply = connection.call(build, timeout)
    if not isinstance(reply, Frame):
        raise RemoteProtocolError(f"{connection.endpoint} answered a frame with {reply!r}")
    return reply


def _offset(
    connection: Asked,
    code: RequestCode,
    request: PartitionRequest | SearchByTimeRequest,
    partition: TopicPartition,
    timeout: float | None,
) -> int:
    frame = _ask(connection, code, request.to_ext(), timeout)
    if is_success(frame):
        return OffsetReply.from_ext(frame.ext).offset
    raise frame_error(frame, partition, connection.endpoint)


def _text_offset(connection: Asked, partition: TopicPartition, offset: int, timeout: float | None) -> int:
    encode = partial(encode_offset, partition.topic, _GROUP, partition.partition, offset)

    def build(opaque: int) -> tuple[Buffer]:
        return (encode(opaque),)

    reply = connection.call(build, timeout)
    if not isinstance(reply, Result):
        raise RemoteProtocolError(f"{connection.endpoint} answered `offset` with {reply!r}")
    if reply.code == Status.NOT_FOUND:
        return 0  # 1.x makes a partition's store with its first message
    if reply.code != Status.SUCCESS or not reply.text.strip().lstrip("-").isdigit():
        raise text_error(reply, partition, connection.endpoint)
    return int(reply.text)
