"""The requests and answers of the framed protocol about bounds of partitions, searches, statistics, and the state of
partitions.

Each class describes the extFields of one kind of request or answer (docs/protocol.md). fields.py encodes and decodes
them. The requests for sending are in sends.py, for pulling in pulls.py, and for transactions in
transaction_requests.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Annotated, NamedTuple, Self

from .errors import RemoteProtocolError
from .fields import INT64_MIN, Ext, ExtFields, Field, PartitionField, TopicField, flag, number
from .limits import INT32_MAX, INT64_MAX, MAX_FOUND_MESSAGES, MAX_KEY_CHARACTERS, MAX_NAME_BYTES, check_node
from .message_id import UNKNOWN_ID
from .record import HEADER_BYTES

__all__ = [
    "ALL_PARTITIONS",
    "DEFAULT_FOUND_MESSAGES",
    "FOUND_ROW_BYTES",
    "HIDDEN_TOPICS",
    "ClosePartitionsRequest",
    "FoundReply",
    "FoundRow",
    "HandOverRequest",
    "MessageCountsReply",
    "MessageCountsRequest",
    "MoveRequest",
    "OffsetReply",
    "OpenPartitionsRequest",
    "PartitionRequest",
    "QueryMessageRequest",
    "SearchByCountRequest",
    "SearchByTimeRequest",
    "StatsRequest",
    "ViewMessageRequest",
    "decode_found",
    "encode_found",
]


@dataclass(slots=True)
class PartitionRequest(ExtFields):
    """MAX_OFFSET and MIN_OFFSET: ask for the upper or the lower bound of a partition's readable bytes."""

    topic: TopicField
    partition: PartitionField


@dataclass(slots=True)
class SearchByTimeRequest(ExtFields):
    """SEARCH_OFFSET_BY_TIME: ask for the offset of the first record that was stored at or after `time_ms` (milliseconds
    since 1970).
    """

    topic: TopicField
    partition: PartitionField
    time_ms: Annotated[int, number("timestamp", 0, INT64_MAX)]


@dataclass(slots=True)
class SearchByCountRequest(ExtFields):
    """SEARCH_OFFSET_BY_COUNT: ask where the last whole message ends that a client can read from `offset` on within two
    limits: at most `messages` messages and at most `max_bytes` bytes.

    messages and max_bytes are 0 … 2**63-1. A message must begin at `offset`.
    """

    topic: TopicField
    partition: PartitionField
    offset: Annotated[int, number("offset", 0, INT64_MAX)]
    messages: Annotated[int, number("messages", 0, INT64_MAX)] = INT64_MAX
    max_bytes: Annotated[int, number("maxBytes", 0, INT64_MAX)] = INT64_MAX


@dataclass(slots=True)
class OffsetReply(ExtFields):
    """Answer to MAX_OFFSET, MIN_OFFSET and the searches by time and by count: a byte offset."""

    offset: Annotated[int, number("offset", 0, INT64_MAX)]


@dataclass(slots=True)
class MessageCountsRequest(ExtFields):
    """MESSAGE_COUNTS: ask how many readable messages a partition has, and how many of them end at or before the byte
    `offset`.

    last_id: the id of the message right before `offset`, as in PullRequest.
    """

    topic: TopicField
    partition: PartitionField
    offset: Annotated[int, number("offset", INT64_MIN, INT64_MAX)] = 0
    last_id: Annotated[int, number("lastId", INT64_MIN, INT64_MAX, left_out=True)] = UNKNOWN_ID


@dataclass(slots=True)
class MessageCountsReply(ExtFields):
    """Answer to MESSAGE_COUNTS. total: number of readable messages. before: number of messages that end at or before
    the requested offset. min_offset, max_offset: the byte offsets where the readable data begins and ends.

    id_before: as in PullReply, for the requested offset.
    """

    total: Annotated[int, number("total", 0, INT64_MAX)]
    before: Annotated[int, number("before", 0, INT64_MAX)]
    min_offset: Annotated[int, number("minOffset", 0, INT64_MAX)]
    max_offset: Annotated[int, number("maxOffset", 0, INT64_MAX)]
    id_before: Annotated[int, number("idBefore", INT64_MIN, INT64_MAX, left_out=True)] = UNKNOWN_ID


def _check_item(item: str) -> str:
    """Check the length of the name of an item (a group of statistics) in a STATS request, and return the name. Whether
    such an item exists is not checked here, but when the broker answers the request. Raises RemoteProtocolError.
    """
    if len(item) > MAX_NAME_BYTES:
        raise RemoteProtocolError(f"extFields.item has {len(item)} characters: no item and no topic has so many")
    return item


HIDDEN_TOPICS = "*hidden*"
"""First word of the last line of the items `topics` and `offsets` of STATS if the asker may not see all topics. The
line goes on with `topics` and the number of those that are left out.
"""


@dataclass(slots=True)
class StatsRequest(ExtFields):
    """STATS: ask for statistics. The answer's body is the text that the 1.x command `stats <item>` returns. item: the
    name of a group of statistics; "" means the statistics of the broker process.
    """

    item: Annotated[str, Field("item", _check_item)] = ""


@dataclass(slots=True)
class ClosePartitionsRequest(ExtFields):
    """CLOSE_PARTITIONS: tell the broker to refuse puts to and gets from the partitions with the numbers `start` … `end`
    of a configured topic.
    """

    topic: TopicField
    start: Annotated[int, number("start", 0, INT32_MAX)]
    end: Annotated[int, number("end", 0, INT32_MAX)]

    @classmethod
    def from_ext(cls, ext: Ext) -> Self:
        """Decode the extFields like ExtFields.from_ext. Also raises RemoteProtocolError if `end` is less than
        `start`.
        """
        found = super(ClosePartitionsRequest, cls).from_ext(ext)
        if found.end < found.start:
            raise RemoteProtocolError(f"extFields.end={found.end} is before start={found.start}")
        return found


@dataclass(slots=True)
class OpenPartitionsRequest(ExtFields):
    """OPEN_PARTITIONS: tell the broker to open all closed partitions of a topic, so that it accepts puts and gets for
    them again.
    """

    topic: TopicField


def _read_node(text: str) -> str:
    return text and check_node(text)


@dataclass(slots=True)
class HandOverRequest(ExtFields):
    """HAND_OVER: tell the leader of a broker set to hand its leadership to another in-sync node. node: the name of that
    node; "" means any in-sync node.
    """

    node: Annotated[str, Field("node", _read_node)] = ""


@dataclass(slots=True)
class MoveRequest(ExtFields):
    """MOVE: tell a broker that the state of a move of partitions has perhaps changed in ZooKeeper. The broker then
    reads this state from ZooKeeper and does the work that the state demands of it. broker, partition: the broker id and
    the number of the first of the moved partitions, which identify the move.
    """

    topic: TopicField
    broker: Annotated[int, number("broker", 0, INT32_MAX)]
    partition: PartitionField


# --- messages by id and by key ----------------------------------------------------------------------------------------

ALL_PARTITIONS = -1
DEFAULT_FOUND_MESSAGES = 32


def _read_key(text: str) -> str:
    if not 1 <= len(text) <= MAX_KEY_CHARACTERS:
        raise RemoteProtocolError(f"extFields.key has {len(text)} characters, not 1 … {MAX_KEY_CHARACTERS}")
    return text


SearchedPartition = Annotated[int, number("partition", ALL_PARTITIONS, INT32_MAX)]


@dataclass(slots=True)
class ViewMessageRequest(ExtFields):
    """VIEW_MESSAGE_BY_ID: ask for the message with this id. partition: the partition to search; -1 means all partitions
    of the topic at this broker.
    """

    topic: TopicField
    message_id: Annotated[int, number("msgId", INT64_MIN, INT64_MAX)]
    partition: SearchedPartition = ALL_PARTITIONS


@dataclass(slots=True)
class QueryMessageRequest(ExtFields):
    """QUERY_MESSAGE: ask for the newest (or oldest) `max_messages` messages with a key, stored at `begin_ms` … `end_ms`
    (Unix ms).

    max_messages: 1 … MAX_FOUND_MESSAGES. partition: as in ViewMessageRequest.
    """

    topic: TopicField
    key: Annotated[str, Field("key", _read_key)]
    max_messages: Annotated[int, number("maxNum", 1, MAX_FOUND_MESSAGES)] = DEFAULT_FOUND_MESSAGES
    begin_ms: Annotated[int, number("beginTimestamp", 0, INT64_MAX)] = 0
    end_ms: Annotated[int, number("endTimestamp", 0, INT64_MAX)] = INT64_MAX
    partition: SearchedPartition = ALL_PARTITIONS
    oldest_first: Annotated[bool, flag("oldest")] = False


@dataclass(slots=True)
class FoundReply(ExtFields):
    """Answer to VIEW_MESSAGE_BY_ID and QUERY_MESSAGE, with the response code SUCCESS or QUERY_NOT_FOUND. The body
    begins with a table of `messages` rows (`encode_found`).

    unsearched: number of bytes of data that were not searched; 0 means that all data was searched. more: whether there
    are more messages with the key than the answer contains.
    """

    messages: Annotated[int, number("count", 0, MAX_FOUND_MESSAGES)]
    unsearched: Annotated[int, number("unsearched", 0, INT64_MAX)]
    more: Annotated[bool, flag("more")]


class FoundRow(NamedTuple):
    """The partition, the offset, the store time and the size of a record that a search has found. time_ms: when the
    record was stored (Unix ms). If time_ms is negative, a Java broker has stored the record, at -time_ms or earlier.
    """

    partition: int
    offset: int
    time_ms: int
    size: int


_ROW = Struct(">IQqI")
FOUND_ROW_BYTES = _ROW.size


def encode_found(rows: Sequence[FoundRow]) -> bytes:
    """Encode the table that precedes the found records. Each record has a row `partition u32 | offset u64 | time i64 |
    bytes u32`.
    """
    return b"".join(_ROW.pack(*row) for row in rows)


def decode_found(body: memoryview, count: int) -> list[tuple[FoundRow, memoryview]]:
    """Decode the body of an answer with `count` records: return each row with its record. Raises RemoteProtocolError if
    the table and the records do not exactly fill the body.
    """
    position = count * FOUND_ROW_BYTES
    if len(body) < position:
        raise RemoteProtocolError(f"{count} found records have a body of {len(body)} bytes only")
    found: list[tuple[FoundRow, memoryview]] = []
    for fields in _ROW.iter_unpack(body[:position]):
        row = FoundRow(*fields)
        if row.size < HEADER_BYTES:
            raise RemoteProtocolError(f"a found record has {row.size} bytes")
        found.append((row, body[position : position + row.size]))
        position += row.size
    if position != len(body):
        raise RemoteProtocolError(f"found records end at byte {position} of {len(body)}")
    return found
