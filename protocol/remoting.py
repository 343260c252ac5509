"""What else the framed protocol asks and answers: bounds, searches, statistics, transactions, partitions' state.

Each class is one set of extFields (docs/protocol.md); `to_ext` writes it, `from_ext` reads and checks it as fields.py
says. Sending and pulling are in sends.py, send_many.py and pulls.py.
"""

from __future__ import annotations

from typing import NamedTuple, Self

from .errors import RemoteProtocolError
from .fields import INT64_MIN, Ext, int_field, text_field
from .limits import INT32_MAX, INT64_MAX
from .sends import TX_KEY
from .transactions import NULL_KEY, TransactionType, parse_key

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


class PartitionRequest(NamedTuple):
    """MAX_OFFSET and MIN_OFFSET: the bounds of a partition's readable bytes."""

    topic: str
    partition: int

    def to_ext(self) -> dict[str, str | int]:
        return {"topic": self.topic, "partition": self.partition}

    @classmethod
    def from_ext(cls, ext: Ext) -> Self:
        return cls(text_field(ext, "topic"), int_field(ext, "partition", 0, INT32_MAX))


class SearchByTimeRequest(NamedTuple):
    """SEARCH_OFFSET_BY_TIME: the first record stored at or after `time_ms` (milliseconds since 1970)."""

    topic: str
    partition: int
    time_ms: int

    def to_ext(self) -> dict[str, str | int]:
        return {"topic": self.topic, "partition": self.partition, "timestamp": self.time_ms}

    @classmethod
    def from_ext(cls, ext: Ext) -> Self:
        return cls(
            text_field(ext, "topic"),
            int_field(ext, "partition", 0, INT32_MAX),
            int_field(ext, "timestamp", 0, INT64_MAX),
        )


class SearchByCountRequest(NamedTuple):
    """SEARCH_OFFSET_BY_COUNT: where one gets from `offset` by at most so many whole messages and so many bytes.

    messages and max_bytes: 0 … 2**63-1; `offset` is where a message begins.
    """

    topic: str
    partition: int
    offset: int
    messages: int
    max_bytes: int

    def to_ext(self) -> dict[str, str | int]:
        return {
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "messages": self.messages,
            "maxBytes": self.max_bytes,
        }

    @classmethod
    def from_ext(cls, ext: Ext) -> Self:
        return cls(
            text_field(ext, "topic"),
            int_field(ext, "partition", 0, INT32_MAX),
            int_field(ext, "offset", 0, INT64_MAX),
            int_field(ext, "messages", 0, INT64_MAX, INT64_MAX),
            int_field(ext, "maxBytes", 0, INT64_MAX, INT64_MAX),
        )


class OffsetReply(NamedTuple):
    """Answer to MAX_OFFSET, MIN_OFFSET and the searches by time and by count: a byte offset."""

    offset: int

    def to_ext(self) -> dict[str, str | int]:
        return {"offset": self.offset}

    @classmethod
    def from_ext(cls, ext: Ext) -> Self:
        return cls(int_field(ext, "offset", 0, INT64_MAX))


class MessageCountsRequest(NamedTuple):
    """MESSAGE_COUNTS: how many messages a partition holds, and how many of them lie before `offset`."""

    topic: str
    partition: int
    offset: int

    def to_ext(self) -> dict[str, str | int]:
        return {"topic": self.topic, "partition": self.partition, "offset": self.offset}

    @classmethod
    def from_ext(cls, ext: Ext) -> Self:
        return cls(
            text_field(ext, "topic"),
            int_field(ext, "partition", 0, INT32_MAX),
            int_field(ext, "offset", INT64_MIN, INT64_MAX, 0),
        )


class MessageCountsReply(NamedTuple):
    """total: readable messages; before: those wholly before the asked offset; and the partition's bounds in bytes."""

    total: int
    before: int
    min_offset: int
    max_offset: int

    def to_ext(self) -> dict[str, str | int]:
        return {
            "total": self.total,
            "before": self.before,
            "minOffset": self.min_offset,
            "maxOffset": self.max_offset,
        }

    @classmethod
    def from_ext(cls, ext: Ext) -> Self:
        names = ("total", "before", "minOffset", "maxOffset")
        return cls(*(int_field(ext, name, 0, INT64_MAX) for name in names))


class StatsRequest(NamedTuple):
    """STATS: the reply's body is the text of the 1.x command `stats <item>`."""

    item: str = ""

    def to_ext(self) -> dict[str, str | int]:
        return {"item": self.item}

    @classmethod
    def from_ext(cls, ext: Ext) -> Self:
        return cls(text_field(ext, "item", ""))


class TransactionRequest(NamedTuple):
    """TRANSACTION: a verb of 1.x's `transaction` (wire.md §3), docs/transactions.md.

    tx_key: None for RECOVER. type: a name of TransactionType. timeout_seconds: 0 = none; for BEGIN. qualifier: for
    RECOVER, "" = all.
    """

    tx_key: str | None
    type: str
    session_id: str = ""
    timeout_seconds: int = 0
    qualifier: str = ""

    def to_ext(self) -> dict[str, str | int]:
        return {
            TX_KEY: NULL_KEY if self.tx_key is None else self.tx_key,
            "type": self.type,
            "sessionId": self.session_id,
            "timeoutSeconds": self.timeout_seconds,
            "qualifier": self.qualifier,
        }

    @classmethod
    def from_ext(cls, ext: Ext) -> Self:
        kind = text_field(ext, "type")
        if kind not in TransactionType.__members__:
            raise RemoteProtocolError(
                f"extFields.type={kind[:40]!r} is none of {', '.join(TransactionType.__members__)}"
            )
        return cls(
            parse_key(text_field(ext, TX_KEY, NULL_KEY)),
            kind,
            text_field(ext, "sessionId", ""),
            int_field(ext, "timeoutSeconds", 0, INT32_MAX, 0),
            text_field(ext, "qualifier", ""),
        )


class CompleteTransactionRequest(NamedTuple):
    """COMPLETE_TRANSACTION: an operator's decision on a prepared XA transaction.

    action: commit, rollback, complete (give it up without saying which) or forget (drop the note of such a decision).
    """

    tx_key: str
    action: str

    def to_ext(self) -> dict[str, str | int]:
        return {TX_KEY: self.tx_key, "action": self.action}

    @classmethod
    def from_ext(cls, ext: Ext) -> Self:
        action = text_field(ext, "action")
        if action not in COMPLETE_ACTIONS:
            raise RemoteProtocolError(f"extFields.action={action[:40]!r} is none of {', '.join(COMPLETE_ACTIONS)}")
        return cls(parse_key(text_field(ext, TX_KEY)) or NULL_KEY, action)


COMPLETE_ACTIONS = ("commit", "rollback", "complete", "forget")


class ClosePartitionsRequest(NamedTuple):
    """CLOSE_PARTITIONS: refuse puts to and gets from the partitions `start` … `end` of a configured topic."""

    topic: str
    start: int
    end: int

    def to_ext(self) -> dict[str, str | int]:
        return {"topic": self.topic, "start": self.start, "end": self.end}

    @classmethod
    def from_ext(cls, ext: Ext) -> Self:
        start = int_field(ext, "start", 0, INT32_MAX)
        return cls(text_field(ext, "topic"), start, int_field(ext, "end", start, INT32_MAX))


class OpenPartitionsRequest(NamedTuple):
    """OPEN_PARTITIONS: take puts and gets again for all closed partitions of a topic."""

    topic: str

    def to_ext(self) -> dict[str, str | int]:
        return {"topic": self.topic}

    @classmethod
    def from_ext(cls, ext: Ext) -> Self:
        return cls(text_field(ext, "topic"))
