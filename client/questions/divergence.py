"""Find out whether a partition still has the messages that a group has read.

Messages may be lost after a group has read them: by `metaq brokers elect --unclean`, by a power cut with asynchronous
flush, or by a restored data directory. The group then continues among or after the messages that replaced the lost
ones, and skips some of them. This can be detected: a committed offset has the id of the last message before it, and
that message is not in the partition.
"""

from __future__ import annotations

from metaq.protocol.errors import BrokerUnavailable, CorruptRecord, OffsetOutOfRange, RequestRefused, RequestTimedOut
from metaq.protocol.message_id import UNKNOWN_ID, store_time_ms
from metaq.protocol.remoting import FoundReply, ViewMessageRequest, decode_found
from metaq.protocol.statuses import RequestCode, ResponseCode

from ..records.results import TopicPartition
from ..settings.config import SEARCH_TIMEOUT_SECONDS
from .asking import Asked, ask
from .partition_bounds import bounds_behind, offset_at_time
from .stored_records import read_messages

__all__ = ["common_offset", "diverged_at"]


def diverged_at(connection: Asked, partition: TopicPartition, offset: int, message_id: int) -> int | None:
    """Return where the messages begin that a group with this committed offset may have missed.

    None: it has missed none, or that is unknown: the offset has no id that metaq made, the broker is a Java broker, or
    retention has deleted the message. A group that continues at the returned offset reads all messages, and at most a
    few of them twice. Raises as every question (asking.py).
    """
    if message_id <= 0 or not connection.speaks_frames:
        return None
    bounds, _, id_before = bounds_behind(connection, partition, offset, message_id)
    if id_before == UNKNOWN_ID:
        return None
    found = common_offset(connection, partition, bounds.first, message_id)
    return found if found is not None and found < offset else None


def common_offset(connection: Asked, partition: TopicPartition, first: int, message_id: int) -> int | None:
    """Return where the messages begin that were stored after the one with this id. The partition begins at `first` and
    does not have that message. None: the partition has or had it, or that is unknown now. Raises as every question."""
    stored_ms = store_time_ms(message_id)
    if stored_ms is None or _has(connection, partition, message_id) is not False:
        return None
    try:
        oldest = read_messages(connection, partition, first, 1)
    except (CorruptRecord, OffsetOutOfRange):
        return None
    if not oldest or oldest[0].id > message_id:
        return None  # retention may have deleted it
    return offset_at_time(connection, partition, stored_ms)


def _has(connection: Asked, partition: TopicPartition, message_id: int) -> bool | None:
    """Whether the partition has the message. None: not all of its data could be searched now."""
    ext = ViewMessageRequest(partition.topic, message_id, partition.partition).to_ext()
    found = (ResponseCode.QUERY_NOT_FOUND,)
    try:
        frame = ask(connection, RequestCode.VIEW_MESSAGE_BY_ID, ext, partition, SEARCH_TIMEOUT_SECONDS, found)
    except (BrokerUnavailable, RequestRefused, RequestTimedOut):  # too many searches now, or one too long
        return None
    reply = FoundReply.from_ext(frame.ext)
    if any(row.partition == partition.partition for row, _ in decode_found(frame.body, reply.messages)):
        return True
    return None if reply.unsearched else False
