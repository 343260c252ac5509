"""Find out whether a partition still has the messages that a consumer group has read.

A partition can lose messages that a group has already read: by `metaq brokers elect --unclean`, by a power cut with
asynchronous flush, or if an operator has restored an old copy of the data directory. After that, the broker stores new
messages at the offsets of the lost ones. The group, which continues at its committed offset, would skip the new
messages before this offset. The loss can be detected, because the id of the last message before the offset is stored
with each committed offset: if that message was lost, the partition has no message with this id any more.
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
    """Return the offset of the first message that a group with this committed offset may have missed.

    Return None if the group has missed no message, or if this is unknown. It is unknown in three cases: the offset was
    stored without a message id or with the id of a Java broker, the broker is a Java broker, or retention has deleted
    the message with this id. If the group continues at the returned offset, it misses no message, and reads at most a
    few messages twice. Raises the errors of all questions (asking.py).
    """
    if message_id <= 0 or not connection.speaks_frames:
        return None
    bounds, _, id_before = bounds_behind(connection, partition, offset, message_id)
    if id_before == UNKNOWN_ID:
        return None
    found = common_offset(connection, partition, bounds.first, message_id)
    return found if found is not None and found < offset else None


def common_offset(connection: Asked, partition: TopicPartition, first: int, message_id: int) -> int | None:
    """Find out whether the partition has lost the message with this id. If it has, return the offset of the first
    message that was stored at or after the time when the lost message was stored; the lost message's id contains this
    time. Return None if the partition contains the message, if retention may have deleted it, or if that cannot be
    found out now. first: the first readable offset of the partition. Raises the errors of all questions (asking.py).
    """
    stored_ms = store_time_ms(message_id)
    if stored_ms is None or _has(connection, partition, message_id) is not False:
        return None
    try:
        oldest = read_messages(connection, partition, first, 1)
    except (CorruptRecord, OffsetOutOfRange):
        return None
    if not oldest or oldest[0].id > message_id:
        return None  # retention may have deleted the message
    return offset_at_time(connection, partition, stored_ms)


def _has(connection: Asked, partition: TopicPartition, message_id: int) -> bool | None:
    """Return whether the partition contains the message with this id, or None if the broker could not search all of the
    partition's data now.
    """
    ext = ViewMessageRequest(partition.topic, message_id, partition.partition).to_ext()
    found = (ResponseCode.QUERY_NOT_FOUND,)
    try:
        frame = ask(connection, RequestCode.VIEW_MESSAGE_BY_ID, ext, partition, SEARCH_TIMEOUT_SECONDS, found)
    except (BrokerUnavailable, RequestRefused, RequestTimedOut):  # too many searches now, or one took too long
        return None
    reply = FoundReply.from_ext(frame.ext)
    if any(row.partition == partition.partition for row, _ in decode_found(frame.body, reply.messages)):
        return True
    return None if reply.unsearched else False
