"""Questions about one partition, asked on an open connection in whichever protocol it speaks: bounds, counts, offset at
a time, and the bytes themselves. For readers without a group (Spark, `metaq consume`) and for tools.

All functions block the calling thread, at most `timeout` seconds (default: the connection's request timeout), and raise
BrokerUnavailable, RequestTimedOut, or what refusals.py makes of the broker's refusal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from metaq.protocol.errors import (
    CorruptRecord,
    OffsetOutOfRange,
    PartitionNotFound,
    RemoteProtocolError,
    RequestRefused,
    TopicNotAccepted,
)
from metaq.protocol.frames import Frame, encode_frame
from metaq.protocol.limits import INT64_MAX, MAX_FRAME_BYTES
from metaq.protocol.pulls import NOT_DAMAGED, PullReply, PullRequest, decode_runs
from metaq.protocol.record import HEADER, HEADER_BYTES
from metaq.protocol.refusals import frame_error, is_success, text_error
from metaq.protocol.remoting import (
    MessageCountsReply,
    MessageCountsRequest,
    OffsetReply,
    PartitionRequest,
    SearchByCountRequest,
    SearchByTimeRequest,
    StatsRequest,
)
from metaq.protocol.sends import split_batch
from metaq.protocol.statuses import RequestCode, ResponseCode, Status
from metaq.protocol.text import Result, Value, encode_get, encode_offset, encode_stats

from .connection import Build, Connection, Endpoint, Reply
from .values import Lag, TopicPartition

__all__ = [
    "Asked",
    "BegunPull",
    "Bounds",
    "Pulled",
    "ask",
    "damaged_bytes",
    "lag_behind",
    "max_offset",
    "messages_before",
    "min_offset",
    "offset_after",
    "offset_at_time",
    "partition_bounds",
    "read_bytes",
    "read_raw",
    "read_stats",
    "verified_pull",
]

_PULL_CODES = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED)
"""Answers to a pull that are no refusal."""

READER_GROUP = "Just_for_Browser"
"""The group name that 1.x's own reader without a group (TopicBrowser) sends; no group state exists for it."""


class Asked(Protocol):
    """What of a Connection is used here."""

    @property
    def endpoint(self) -> Endpoint: ...
    @property
    def speaks_frames(self) -> bool: ...
    def call(self, build: Build, timeout: float | None = None) -> Reply: ...


class Bounds(NamedTuple):
    """The readable bytes [first, end) of a partition; messages is None if the broker cannot count them (Java)."""

    first: int
    end: int
    messages: int | None


def partition_bounds(connection: Asked, partition: TopicPartition, timeout: float | None = None) -> Bounds:
    """What can be read now. A partition that never got a message has the bounds 0 and 0."""
    if connection.speaks_frames:
        counts = _counts(connection, partition, 0, timeout)
        return Bounds(counts.min_offset, counts.max_offset, counts.total)
    return _stats_bounds(connection, partition, timeout)


def min_offset(connection: Asked, partition: TopicPartition, timeout: float | None = None) -> int:
    """The first readable byte; 0 if nothing was ever stored."""
    return _bound(connection, RequestCode.MIN_OFFSET, 0, partition, timeout)


def max_offset(connection: Asked, partition: TopicPartition, timeout: float | None = None) -> int:
    """The end of the readable bytes: where the next message will be; 0 if nothing was ever stored."""
    return _bound(connection, RequestCode.MAX_OFFSET, INT64_MAX, partition, timeout)


def lag_behind(connection: Asked, partition: TopicPartition, offset: int, timeout: float | None = None) -> Lag:
    """What lies between `offset` and the end of the partition; its messages are None if the broker cannot count."""
    if not connection.speaks_frames:
        return Lag(None, max(0, max_offset(connection, partition, timeout) - offset))
    try:
        counts = _counts(connection, partition, offset, timeout)
    except (PartitionNotFound, TopicNotAccepted):
        return Lag(0, 0)  # as one that never got a message
    return Lag(max(0, counts.total - counts.before), max(0, counts.max_offset - offset))


def messages_before(
    connection: Asked, partition: TopicPartition, offset: int, timeout: float | None = None
) -> int | None:
    """How many readable messages end at or before byte `offset`; None if the broker cannot count."""
    if not connection.speaks_frames:
        return None
    return _counts(connection, partition, offset, timeout).before


def offset_at_time(connection: Asked, partition: TopicPartition, time_ms: int, timeout: float | None = None) -> int:
    """Where the first message begins that was stored at or after `time_ms` (ms since 1970), or the end.

    Raises RequestRefused if the broker has no index by time (Java).
    """
    if not connection.speaks_frames:
        raise RequestRefused(
            Status.BAD_REQUEST,
            f"{connection.endpoint} has no index by time (metaq 1.x): name an offset, 'earliest' or 'latest' instead",
        )
    request = SearchByTimeRequest(partition.topic, partition.partition, time_ms)
    frame = ask(connection, RequestCode.SEARCH_OFFSET_BY_TIME, request.to_ext(), partition, timeout)
    return OffsetReply.from_ext(frame.ext).offset


def offset_after(
    connection: Asked,
    partition: TopicPartition,
    offset: int,
    messages: int = INT64_MAX,
    max_bytes: int = INT64_MAX,
    timeout: float | None = None,
) -> int:
    """Where at most `messages` whole messages of at most `max_bytes` bytes lead from `offset`, where one begins.

    Raises RequestRefused if the broker has no index by count (Java).
    """
    if not connection.speaks_frames:
        raise RequestRefused(Status.BAD_REQUEST, f"{connection.endpoint} has no index by count (metaq 1.x)")
    request = SearchByCountRequest(partition.topic, partition.partition, offset, messages, max_bytes)
    frame = ask(connection, RequestCode.SEARCH_OFFSET_BY_COUNT, request.to_ext(), partition, timeout)
    return OffsetReply.from_ext(frame.ext).offset


class Pulled(NamedTuple):
    """Runs of adjacent stored records, each with its byte offset, and where to go on; None in the text protocol. sizes:
    of the records, headers included, if there is one run and the broker told them.
    """

    runs: list[tuple[int, memoryview]]
    next_offset: int | None
    sizes: npt.NDArray[np.int64] | None = None


class BegunPull:
    """A pull whose request is sent: the broker reads and answers while the caller does something else.

    Of stored records from byte `offset` on, only those with one of `tags` (a few others may be among them) if there are
    any; the text protocol has no such filter and gives all. One thread, nothing else on the connection meanwhile.
    """

    def __init__(
        self, connection: Connection, partition: TopicPartition, offset: int, max_bytes: int, tags: tuple[str, ...] = ()
    ) -> None:
        self._connection = connection
        self._partition = partition
        self._offset = offset
        self._max_bytes = max_bytes
        if connection.speaks_frames:
            request = PullRequest(
                partition.topic, partition.partition, offset, max_bytes, READER_GROUP, tags, sizes=True
            )
            self._call = connection.begin(lambda opaque: (encode_frame(RequestCode.PULL, opaque, request.to_ext()),))
        else:
            self._call = connection.begin(_build_get(partition, offset, max_bytes))

    def result(self) -> Pulled:
        """Wait for the answer, as long as a request may take. Without runs: no record is there before next_offset.

        Raises as `read_bytes`.
        """
        partition, offset, answer = self._partition, self._offset, self._connection.finish(self._call)
        if not self._connection.speaks_frames:
            data = _got(answer, self._connection, partition, offset)
            data = _whole(data, self._connection, partition, offset, self._max_bytes, None)
            return Pulled([(offset, data)] if data else [], None if data else offset)
        frame = _found(_accepted(answer, self._connection, partition, _PULL_CODES), partition, offset)
        reply = PullReply.from_ext(frame.ext)
        if reply.records:
            sizes, records = split_batch(frame.body, reply.records)
            return Pulled([(offset, records)], reply.next_offset, sizes)
        if reply.runs:
            return Pulled(decode_runs(frame.body, reply.runs), reply.next_offset)
        return Pulled([(offset, frame.body)] if frame.body else [], reply.next_offset)


def read_bytes(
    connection: Asked, partition: TopicPartition, offset: int, max_bytes: int, timeout: float | None = None
) -> memoryview:
    """Stored records from byte `offset` on: the last may be cut, the first is whole; empty at the end.

    Raises OffsetOutOfRange with the readable bounds as far as the broker tells them; CorruptRecord if our broker knows
    that no message begins at `offset` (a Java broker does not look).
    """
    if connection.speaks_frames:
        return _pull(connection, partition, offset, max_bytes, timeout).body
    return _get(connection, partition, offset, max_bytes, timeout)


def read_raw(
    connection: Asked, partition: TopicPartition, offset: int, size: int, timeout: float | None = None
) -> bytes:
    """Stored bytes [offset, offset + size), whatever they are, fewer only at the end. By the text protocol.

    Asks as often as the broker's maxTransferSize and its segments need. Raises OffsetOutOfRange as `read_bytes` does.
    """
    parts, read = [], 0
    while read < size:
        data = _get_once(connection, partition, offset + read, size - read, timeout)
        if not data:
            break
        parts.append(bytes(data))
        read += len(data)
    return b"".join(parts)


def verified_pull(
    connection: Asked, partition: TopicPartition, offset: int, timeout: float | None = None
) -> CorruptRecord | None:
    """The damaged bytes at `offset` if the broker finds any when it compares the checksum of the record there."""
    request = PullRequest(partition.topic, partition.partition, offset, 1, READER_GROUP, verify=True)
    frame = ask(connection, RequestCode.PULL, request.to_ext(), partition, timeout, _PULL_CODES)
    reply = PullReply.from_ext(frame.ext)
    if reply.damaged_from == NOT_DAMAGED:
        return None
    return damaged_bytes(partition, reply.damaged_from, reply.next_offset)


def damaged_bytes(partition: TopicPartition, start: int, end: int) -> CorruptRecord:
    """The error for bytes [start, end) of a partition that hold no good record."""
    return CorruptRecord.of(partition, start, "no good record is there", end)


def read_stats(connection: Asked, item: str = "", timeout: float | None = None) -> list[str]:
    """The lines of the broker's `stats <item>`; "" are the broker's own figures, as `name value`."""
    if connection.speaks_frames:
        ext = StatsRequest(item).to_ext()
        frame = ask(connection, RequestCode.STATS, ext, TopicPartition(item, -1, -1), timeout)
        text = str(frame.body, "utf-8", "replace")
    else:
        reply = _text_result(connection.call(lambda opaque: (encode_stats(item, opaque),), timeout), connection)
        text = reply.text
    return [line for line in text.splitlines() if line not in ("STATS", "END")]


# --- frames -----------------------------------------------------------------------------------------------------------


def ask(
    connection: Asked,
    code: RequestCode,
    ext: Mapping[str, str | int],
    partition: TopicPartition,
    timeout: float | None,
    accepted: tuple[int, ...] = (),
) -> Frame:
    """The answer to a frame without a body. partition: for errors. accepted: codes beside SUCCESS that are no error."""
    reply = connection.call(lambda opaque: (encode_frame(code, opaque, ext),), timeout)
    return _accepted(reply, connection, partition, accepted)


def _accepted(reply: Reply, connection: Asked, partition: TopicPartition, accepted: tuple[int, ...]) -> Frame:
    if not isinstance(reply, Frame):
        raise RemoteProtocolError(f"{connection.endpoint} answered a frame with text")
    if not is_success(reply) and reply.code not in accepted:
        raise frame_error(reply, partition, connection.endpoint)
    return reply


def _counts(connection: Asked, partition: TopicPartition, offset: int, timeout: float | None) -> MessageCountsReply:
    request = MessageCountsRequest(partition.topic, partition.partition, offset)
    frame = ask(connection, RequestCode.MESSAGE_COUNTS, request.to_ext(), partition, timeout)
    return MessageCountsReply.from_ext(frame.ext)


def _bound(connection: Asked, code: RequestCode, beyond: int, partition: TopicPartition, timeout: float | None) -> int:
    """beyond: an offset from which the text protocol's `offset` leads to the bound."""
    if connection.speaks_frames:
        request = PartitionRequest(partition.topic, partition.partition)
        return OffsetReply.from_ext(ask(connection, code, request.to_ext(), partition, timeout).ext).offset
    topic, number = partition.topic, partition.partition
    reply = connection.call(lambda opaque: (encode_offset(topic, READER_GROUP, number, beyond, opaque),), timeout)
    result = _text_result(reply, connection)
    if result.code == Status.NOT_FOUND:
        return 0  # 1.x makes a partition's store with its first message
    if result.code != Status.SUCCESS or not result.text.strip().lstrip("-").isdigit():
        raise text_error(result, partition, connection.endpoint)
    return int(result.text)


def _pull(connection: Asked, partition: TopicPartition, offset: int, max_bytes: int, timeout: float | None) -> Frame:
    request = PullRequest(partition.topic, partition.partition, offset, max_bytes, READER_GROUP)
    frame = ask(connection, RequestCode.PULL, request.to_ext(), partition, timeout, _PULL_CODES)
    return _found(frame, partition, offset)


def _found(frame: Frame, partition: TopicPartition, offset: int) -> Frame:
    """The answer to a pull from `offset` on. Raises CorruptRecord, OffsetOutOfRange."""
    if frame.code == ResponseCode.PULL_OFFSET_MOVED:
        moved = PullReply.from_ext(frame.ext)
        if moved.damaged_from != NOT_DAMAGED:
            raise damaged_bytes(partition, moved.damaged_from, moved.next_offset)
        if moved.min_offset <= offset <= moved.max_offset:
            raise CorruptRecord.of(partition, offset, f"no message begins there, one does at {moved.next_offset}")
        raise OffsetOutOfRange(offset, moved.min_offset, moved.max_offset)
    return frame


# --- text -------------------------------------------------------------------------------------------------------------


def _get(
    connection: Asked, partition: TopicPartition, offset: int, max_bytes: int, timeout: float | None
) -> memoryview:
    data = _get_once(connection, partition, offset, max_bytes, timeout)
    return _whole(data, connection, partition, offset, max_bytes, timeout)


def _whole(
    data: memoryview,
    connection: Asked,
    partition: TopicPartition,
    offset: int,
    max_bytes: int,
    timeout: float | None,
) -> memoryview:
    """A `get` cuts even its first record at the size asked for: then it is asked for more than `data`."""
    while len(data) >= max_bytes and not _first_is_whole(data) and max_bytes <= MAX_FRAME_BYTES:
        max_bytes *= 2
        data = _get_once(connection, partition, offset, max_bytes, timeout)
    return data


def _get_once(
    connection: Asked, partition: TopicPartition, offset: int, max_bytes: int, timeout: float | None
) -> memoryview:
    return _got(connection.call(_build_get(partition, offset, max_bytes), timeout), connection, partition, offset)


def _build_get(partition: TopicPartition, offset: int, max_bytes: int) -> Build:
    return lambda opaque: (encode_get(partition.topic, READER_GROUP, partition.partition, offset, max_bytes, opaque),)


def _got(reply: Reply, connection: Asked, partition: TopicPartition, offset: int) -> memoryview:
    """The bytes in the answer to a `get` from `offset` on. Raises OffsetOutOfRange, and what text_error makes."""
    if isinstance(reply, Value):
        return reply.data
    result = _text_result(reply, connection)
    if result.code == Status.NOT_FOUND:
        return memoryview(b"")
    if result.code == Status.MOVED and result.text.isdigit():
        raise OffsetOutOfRange(offset, int(result.text), int(result.text))  # 1.x tells the nearer bound only
    raise text_error(result, partition, connection.endpoint)


def _first_is_whole(data: memoryview) -> bool:
    return len(data) >= HEADER_BYTES and HEADER.unpack_from(data)[0] <= len(data) - HEADER_BYTES


def _text_result(reply: Reply, connection: Asked) -> Result:
    if not isinstance(reply, Result):
        raise RemoteProtocolError(f"{connection.endpoint} answered with {type(reply).__name__} instead of a result")
    return reply


def _stats_bounds(connection: Asked, partition: TopicPartition, timeout: float | None) -> Bounds:
    """From the line `<topic> part <p> min_offset <n> max_offset <n>` of `stats offsets`."""
    wanted = [partition.topic, "part", str(partition.partition), "min_offset"]
    for line in read_stats(connection, "offsets", timeout):
        words = line.split(" ")
        if words[:4] == wanted and len(words) == 7:
            return Bounds(int(words[4]), int(words[6]), None)
    return Bounds(0, 0, None)
