"""What else the framed protocol asks and answers: bounds, searches, statistics, transactions, partitions' state.

Each class is one set of extFields (docs/protocol.md), written and read as fields.py says. Sending and pulling are in
sends.py, send_many.py and pulls.py, searches for messages in searches.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Self

from .errors import RemoteProtocolError
from .fields import INT64_MIN, Ext, ExtFields, Field, PartitionField, TopicField, choice, number
from .limits import INT32_MAX, INT64_MAX
from .transactions import NULL_KEY, TX_KEY, TransactionType, parse_key, parse_own_key

__all__ = [
    "COMPLETE_ACTIONS",
    "ClosePartitionsRequest",
    "CompleteTransactionRequest",
    "MessageCountsReply",
    "MessageCountsRequest",
    "OffsetReply",
    "OpenPartitionsRequest",
    "PartitionRequest",
    "SearchByCountRequest",
    "SearchByTimeRequest",
    "StatsRequest",
    "TransactionRequest",
]


@dataclass(slots=True)
class PartitionRequest(ExtFields):
    """MAX_OFFSET and MIN_OFFSET: the bounds of a partition's readable bytes."""

    topic: TopicField
    partition: PartitionField


@dataclass(slots=True)
class SearchByTimeRequest(ExtFields):
    """SEARCH_OFFSET_BY_TIME: the first record stored at or after `time_ms` (milliseconds since 1970)."""

    topic: TopicField
    partition: PartitionField
    time_ms: Annotated[int, number("timestamp", 0, INT64_MAX)]


@dataclass(slots=True)
class SearchByCountRequest(ExtFields):
    """SEARCH_OFFSET_BY_COUNT: where one gets from `offset` by at most so many whole messages and so many bytes.

    messages and max_bytes: 0 … 2**63-1; `offset` is where a message begins.
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
    """MESSAGE_COUNTS: how many messages a partition holds, and how many of them lie before `offset`."""

    topic: TopicField
    partition: PartitionField
    offset: Annotated[int, number("offset", INT64_MIN, INT64_MAX)] = 0


@dataclass(slots=True)
class MessageCountsReply(ExtFields):
    """total: readable messages; before: those wholly before the asked offset; and the partition's bounds in bytes."""

    total: Annotated[int, number("total", 0, INT64_MAX)]
    before: Annotated[int, number("before", 0, INT64_MAX)]
    min_offset: Annotated[int, number("minOffset", 0, INT64_MAX)]
    max_offset: Annotated[int, number("maxOffset", 0, INT64_MAX)]


@dataclass(slots=True)
class StatsRequest(ExtFields):
    """STATS: the reply's body is the text of the 1.x command `stats <item>`."""

    item: Annotated[str, Field("item")] = ""


def _or_null(key: str | None) -> str:
    return NULL_KEY if key is None else key


@dataclass(slots=True)
class TransactionRequest(ExtFields):
    """TRANSACTION: a verb of 1.x's `transaction` (wire.md §3), docs/transactions.md.

    tx_key: None for RECOVER. type: a name of TransactionType. timeout_seconds: 0 = none; for BEGIN. qualifier: for
    RECOVER, "" = all.
    """

    tx_key: Annotated[str | None, Field(TX_KEY, parse_key, _or_null, missing=None)]
    type: Annotated[str, choice("type", TransactionType.__members__)]
    session_id: Annotated[str, Field("sessionId")] = ""
    timeout_seconds: Annotated[int, number("timeoutSeconds", 0, INT32_MAX)] = 0
    qualifier: Annotated[str, Field("qualifier")] = ""


COMPLETE_ACTIONS = ("commit", "rollback", "complete", "forget")


@dataclass(slots=True)
class CompleteTransactionRequest(ExtFields):
    """COMPLETE_TRANSACTION: an operator's decision on a prepared XA transaction.

    action: commit, rollback, complete (give it up without saying which) or forget (drop the note of such a decision).
    """

    tx_key: Annotated[str, Field(TX_KEY, parse_own_key)]
    action: Annotated[str, choice("action", COMPLETE_ACTIONS)]


@dataclass(slots=True)
class ClosePartitionsRequest(ExtFields):
    """CLOSE_PARTITIONS: refuse puts to and gets from the partitions `start` … `end` of a configured topic."""

    topic: TopicField
    start: Annotated[int, number("start", 0, INT32_MAX)]
    end: Annotated[int, number("end", 0, INT32_MAX)]

    @classmethod
    def from_ext(cls, ext: Ext) -> Self:
        """As ExtFields; `end` must not be before `start`."""
        found = super(ClosePartitionsRequest, cls).from_ext(ext)
        if found.end < found.start:
            raise RemoteProtocolError(f"extFields.end={found.end} is before start={found.start}")
        return found


@dataclass(slots=True)
class OpenPartitionsRequest(ExtFields):
    """OPEN_PARTITIONS: take puts and gets again for all closed partitions of a topic."""

    topic: TopicField
