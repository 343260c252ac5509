"""Ask a broker about a partition: which byte range can be read, and how many messages it contains. Also ask for two
kinds of offsets: that of the first message that was stored at or after a certain time, and the offset before or after a
certain number of messages.
"""

from __future__ import annotations

from typing import NamedTuple

from metaq.protocol.errors import AccessRefused, PartitionNotFound, TopicNotAccepted
from metaq.protocol.limits import INT64_MAX
from metaq.protocol.message_id import UNKNOWN_ID
from metaq.protocol.pulls import READER_GROUP
from metaq.protocol.refusals import text_error
from metaq.protocol.remoting import (
    HIDDEN_TOPICS,
    MessageCountsReply,
    MessageCountsRequest,
    OffsetReply,
    PartitionRequest,
    SearchByCountRequest,
    SearchByTimeRequest,
    StatsRequest,
)
from metaq.protocol.statuses import RequestCode, Status
from metaq.protocol.text import encode_offset, encode_stats

from ..records.results import Lag, TopicPartition
from .asking import Asked, as_result, ask, need_frames

__all__ = [
    "Bounds",
    "bounds_at",
    "bounds_behind",
    "lag_behind",
    "max_offset",
    "min_offset",
    "offset_after",
    "offset_at_time",
    "offset_of_last",
    "partition_bounds",
    "read_stats",
]


_REMEDY = "name an offset, 'earliest' or 'latest' instead"


class Bounds(NamedTuple):
    """The readable byte range [first, end) of a partition, and the number of messages in it. `messages` is None if the
    broker cannot count messages (a Java broker).
    """

    first: int
    end: int
    messages: int | None


def partition_bounds(connection: Asked, partition: TopicPartition, timeout: float | None = None) -> Bounds:
    """Return the partition's readable byte range and its number of messages. If no message was ever stored in the
    partition, the range is [0, 0).
    """
    return bounds_at(connection, partition, 0, timeout)[0]


def bounds_at(
    connection: Asked, partition: TopicPartition, offset: int, timeout: float | None = None
) -> tuple[Bounds, int | None]:
    """Return the partition's readable byte range. Also return the number of messages in this range that end at or
    before byte `offset`; this number is None if the broker cannot count messages.
    """
    return bounds_behind(connection, partition, offset, UNKNOWN_ID, timeout)[:2]


def bounds_behind(
    connection: Asked, partition: TopicPartition, offset: int, last_id: int, timeout: float | None = None
) -> tuple[Bounds, int | None, int]:
    """Return the two results of `bounds_at`, and the id of the message directly before `offset`.

    The result has UNKNOWN_ID instead of this id in three cases: the id equals `last_id`, which the caller already
    knows; there is no message before the offset; or the broker does not report the id (a Java broker, or an earlier
    version).
    """
    if not connection.speaks_frames:
        return _stats_bounds(connection, partition, timeout), None, UNKNOWN_ID
    request = MessageCountsRequest(partition.topic, partition.partition, offset, last_id)
    frame = ask(connection, RequestCode.MESSAGE_COUNTS, request.to_ext(), partition, timeout)
    counts = MessageCountsReply.from_ext(frame.ext)
    return Bounds(counts.min_offset, counts.max_offset, counts.total), counts.before, counts.id_before


def min_offset(connection: Asked, partition: TopicPartition, timeout: float | None = None) -> int:
    """Return the offset of the first readable byte, or 0 if nothing was ever stored."""
    return _bound(connection, RequestCode.MIN_OFFSET, 0, partition, timeout)


def max_offset(connection: Asked, partition: TopicPartition, timeout: float | None = None) -> int:
    """Return the end of the readable bytes, where the next message will begin. Return 0 if nothing was ever stored."""
    return _bound(connection, RequestCode.MAX_OFFSET, INT64_MAX, partition, timeout)


def lag_behind(connection: Asked, partition: TopicPartition, offset: int, timeout: float | None = None) -> Lag:
    """Return how many bytes and how many messages a reader at `offset` has not read yet: those from `offset` to the end
    of the partition. `messages` in the result is None if the broker cannot count messages.
    """
    if not connection.speaks_frames:
        return Lag(None, max(0, max_offset(connection, partition, timeout) - offset))
    try:
        bounds, before = bounds_at(connection, partition, offset, timeout)
    except (PartitionNotFound, TopicNotAccepted):
        return Lag(0, 0)  # the same as for a partition that never got a message
    return Lag(max(0, (bounds.messages or 0) - (before or 0)), max(0, bounds.end - offset))


def offset_at_time(connection: Asked, partition: TopicPartition, time_ms: int, timeout: float | None = None) -> int:
    """Return the offset of the first message that was stored at or after `time_ms` (milliseconds since 1970). If there
    is no such message, return the end of the partition.

    Raises RequestRefused if the broker has no index by time (a Java broker).
    """
    need_frames(connection, "has no index by time", _REMEDY)
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
    """Count complete messages from `offset` on, and return the offset after the last counted message. At most
    `messages` messages are counted, and the sum of their bytes is at most `max_bytes`. A message must begin at
    `offset`.

    Raises RequestRefused if the broker has no index by count (a Java broker).
    """
    need_frames(connection, "has no index by count", _REMEDY)
    request = SearchByCountRequest(partition.topic, partition.partition, offset, messages, max_bytes)
    frame = ask(connection, RequestCode.SEARCH_OFFSET_BY_COUNT, request.to_ext(), partition, timeout)
    return OffsetReply.from_ext(frame.ext).offset


def offset_of_last(connection: Asked, partition: TopicPartition, messages: int) -> int:
    """Return the offset where the last `messages` messages of a partition begin. Raises RequestRefused as
    `offset_after` does.
    """
    need_frames(connection, "has no index by count", _REMEDY)
    bounds = partition_bounds(connection, partition)
    if not messages:
        return bounds.end
    return offset_after(connection, partition, bounds.first, max(0, (bounds.messages or 0) - messages))


def read_stats(connection: Asked, item: str = "", timeout: float | None = None) -> list[str]:
    """Return the lines of the broker's answer to `stats <item>`. For the item "", these lines contain statistics of the
    broker itself, one `name value` per line.
    """
    if connection.speaks_frames:
        ext = StatsRequest(item).to_ext()
        frame = ask(connection, RequestCode.STATS, ext, TopicPartition(item, -1, -1), timeout)
        text = str(frame.body, "utf-8", "replace")
    else:
        reply = as_result(connection.call(lambda opaque: (encode_stats(item, opaque),), timeout), connection)
        text = reply.text
    return [line for line in text.splitlines() if line not in ("STATS", "END")]


def _bound(connection: Asked, code: RequestCode, beyond: int, partition: TopicPartition, timeout: float | None) -> int:
    """Ask the broker for the lower or upper bound of the partition's readable bytes, and return it. code: the framed
    protocol's request for this bound. beyond: an offset outside of the range, on the side of this bound. The `offset`
    command of the text protocol answers such an offset with the nearest bound.
    """
    if connection.speaks_frames:
        request = PartitionRequest(partition.topic, partition.partition)
        return OffsetReply.from_ext(ask(connection, code, request.to_ext(), partition, timeout).ext).offset
    topic, number = partition.topic, partition.partition
    reply = connection.call(lambda opaque: (encode_offset(topic, READER_GROUP, number, beyond, opaque),), timeout)
    result = as_result(reply, connection)
    if result.code == Status.NOT_FOUND:
        return 0  # 1.x creates a partition's files with its first message
    if result.code != Status.SUCCESS or not result.text.strip().lstrip("-").isdigit():
        raise text_error(result, partition, connection.endpoint)
    return int(result.text)


def _stats_bounds(connection: Asked, partition: TopicPartition, timeout: float | None) -> Bounds:
    """Return the partition's bounds from the broker's answer to `stats offsets`. The answer has a line `<topic> part
    <p> min_offset <n> max_offset <n>` for each partition. Raises AccessRefused if the broker leaves out the topic.
    """
    wanted = [partition.topic, "part", str(partition.partition), "min_offset"]
    for line in read_stats(connection, "offsets", timeout):
        words = line.split(" ")
        if words[:4] == wanted and len(words) == 7:
            return Bounds(int(words[4]), int(words[6]), None)
        if words[0] == HIDDEN_TOPICS:
            raise AccessRefused(f"{connection.endpoint}: the grant see:{partition.topic} is missing")
    return Bounds(0, 0, None)
