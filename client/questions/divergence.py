"""Find out whether a partition still has the messages that a consumer group has read.

Messages may be lost after a group has read them: by `metaq brokers elect --unclean`, by a power cut with asynchronous
flush, or by a restored data directory. After the loss, other messages are stored at the offsets of the lost messages.
The group continues at its old offset, among or after these new messages, so that it skips some of them. The loss can be
detected, because a committed offset is stored with the id of the last message before the offset. If messages were lost,
the message with this id is not in the partition any more.
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

    Return None if the group has missed no message, or if this is unknown. The answer is unknown in three cases: the
    offset was stored without a message id that metaq has made, the broker is a Java broker, or retention has deleted
    the message with this id. A group that continues at the returned offset reads all messages, and at most a few of
    them twice. Raises the errors of all questions (asking.py).
    """
    if message_id <= 0 or not connection.speaks_frames:
        return None
    bounds, _, id_before = bounds_behind(connection, partition, offset, message_id)
    if id_before == UNKNOWN_ID:
        return None
    found = common_offset(connection, partition, bounds.first, message_id)
    return found if found is not None and found < offset else None


def common_offset(connection: Asked, partition: TopicPartition, first: int, message_id: int) -> int | None:
    """If the partition never had the message with this id, return the offset of the partition's first message that was
    stored at the same time as that message or later. Return None if the partition has or had the message, or if this is
    unknown now. first: the first readable offset of the partition. Raises the errors of all questions (asking.py).
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
    """Return whether the partition contains the message. Return None if this is unknown because not all of the
    partition's data could be searched now.
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
