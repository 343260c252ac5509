"""The framed protocol's requests and replies: extFields and bodies (docs/protocol.md).

Each class is one set of extFields, strings on the wire; `to_ext` writes it, `from_ext` reads and checks it.
A wrong or missing field raises RemoteProtocolError naming it; the broker answers that with MESSAGE_ILLEGAL.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from .errors import RemoteProtocolError
from .limits import INT32_MAX, INT32_MIN, INT64_MAX, MAX_BATCH_RECORDS
from .record import HEADER_BYTES
from .transactions import NULL_KEY, TransactionType, parse_key

__all__ = [
    "COMPLETE_ACTIONS",
    "TX_KEY",
    "ClosePartitionsRequest",
    "CompleteTransactionRequest",
    "MessageCountsReply",
    "MessageCountsRequest",
    "OffsetReply",
    "OpenPartitionsRequest",
    "PartitionRequest",
    "PullReply",
    "PullRequest",
    "SearchByCountRequest",
    "SearchByTimeRequest",
    "SendBatchRequest",
    "SendReply",
    "SendRequest",
    "StatsRequest",
    "TransactionRequest",
    "decode_runs",
    "encode_runs",
    "encode_sizes",
    "int_field",
    "split_batch",
    "text_field",
]

Ext = Mapping[str, str]
INT64_MIN = -INT64_MAX - 1
MAX_WAIT_MS = 60_000
"""Longest time a pull may be parked, in milliseconds."""
TAG_SEPARATOR = "||"
TX_KEY = "txKey"
"""The ext field that puts a message into a transaction."""


def int_field(ext: Ext, name: str, low: int, high: int, default: int | None = None) -> int:
    """A field's integer in [low, high]. Raises RemoteProtocolError; for a missing one only without a default."""
    text = ext.get(name)
    if text is None:
        if default is not None:
            return default
        raise RemoteProtocolError(f"extFields.{name} is missing")
    digits = text[1:] if text[:1] == "-" else text
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 19 or not low <= int(text) <= high:
        raise RemoteProtocolError(f"extFields.{name}={text[:40]!r} is not an integer in [{low}, {high}]")
    return int(text)


def text_field(ext: Ext, name: str, default: str | None = None) -> str:
    """A field's text. Raises RemoteProtocolError for a missing one without a default."""
    text = ext.get(name, default)
    if text is None:
        raise RemoteProtocolError(f"extFields.{name} is missing")
    return text


def _tx_key(ext: Ext) -> str | None:
    """The transaction a message belongs to, None for none. `null` stays a key, one that nobody can have begun."""
    text = ext.get(TX_KEY)
    return None if text is None else parse_key(text) or NULL_KEY


class SendRequest(NamedTuple):
    """SEND: one message; the frame's body is the record's body. Checksum -1 = do not check; partition -1 = any.

    tx_key: the transaction it belongs to (docs/transactions.md), None for none; then the partition must be named.
    """

    topic: str
    partition: int
    flag: int
    checksum: int
    tx_key: str | None = None

    def to_ext(self) -> dict[str, str | int]:
        ext: dict[str, str | int] = {
            "topic": self.topic,
            "partition": self.partition,
            "flag": self.flag,
            "checksum": self.checksum,
        }
        if self.tx_key is not None:
            ext[TX_KEY] = self.tx_key
        return ext

    @classmethod
    def from_ext(cls, ext: Ext) -> Self:
        return cls(
            text_field(ext, "topic"),
            int_field(ext, "partition", -1, INT32_MAX),
            int_field(ext, "flag", INT32_MIN, INT32_MAX, 0),
            int_field(ext, "checksum", -1, INT32_MAX, -1),
            _tx_key(ext),
        )


class SendReply(NamedTuple):
    """Answer to SEND and SEND_BATCH: id of the (first) message, its partition, its byte offset.

    A batch's other ids follow from the first (message_id.message_ids_from), its offsets from the record sizes. In a
    transaction the offset is -1: it is known at the commit.
    """

    message_id: int
    partition: int
    offset: int

    def to_ext(self) -> dict[str, str | int]:
        return {"msgId": self.message_id, "partition": self.partition, "offset": self.offset}

    @classmethod
    def from_ext(cls, ext: Ext) -> Self:
        return cls(
            int_field(ext, "msgId", INT64_MIN, INT64_MAX),
            int_field(ext, "partition", 0, INT32_MAX),
            int_field(ext, "offset", -1, INT64_MAX),
        )


class SendBatchRequest(NamedTuple):
    """SEND_BATCH: body = count x u32 record sizes (header + body), then the records as stored, with message id 0.

    tx_key: as for SEND.
    """

    topic: str
    partition: int
    records: int
    tx_key: str | None = None

    def to_ext(self) -> dict[str, str | int]:
        ext: dict[str, str | int] = {"topic": self.topic, "partition": self.partition, "count": self.records}
        if self.tx_key is not None:
            ext[TX_KEY] = self.tx_key
        return ext

    @classmethod
    def from_ext(cls, ext: Ext) -> Self:
        return cls(
            text_field(ext, "topic"),
            int_field(ext, "partition", -1, INT32_MAX),
            int_field(ext, "count", 1, MAX_BATCH_RECORDS),
            _tx_key(ext),
        )


def split_batch(body: memoryview, count: int) -> tuple[npt.NDArray[np.int64], memoryview]:
    """Record sizes and records of a SEND_BATCH body, or of an answer to PULL with `records`.

    Raises RemoteProtocolError if the sizes do not fill the body. Whether they are those that the records have in their
    headers is not looked at.
    """
    table = 4 * count
    if len(body) < table:
        raise RemoteProtocolError(f"batch of {count} records has a body of {len(body)} bytes only")
    sizes = np.frombuffer(body[:table], dtype=">u4").astype(np.int64)
    records = body[table:]
    if int(sizes.min()) < HEADER_BYTES or int(sizes.sum()) != len(records):
        raise RemoteProtocolError(f"batch: record sizes do not add up to {len(records)} bytes")
    return sizes, records


class PullRequest(NamedTuple):
    """PULL: records from a byte offset on, at most `max_bytes` of them (the first one whole, whatever its size).

    tags: only records with one of these tags (compared by hash; the client checks again), empty = all.
    wait_ms: how long the broker may park the request when there is nothing to return, 0 … MAX_WAIT_MS.
    sequence: the client's own number, echoed.
    sizes: whether the answer may begin with a table of record sizes (PullReply.records).
    """

    topic: str
    partition: int
    offset: int
    max_bytes: int
    group: str = ""
    tags: tuple[str, ...] = ()
    wait_ms: int = 0
    sequence: int = 0
    sizes: bool = False

    def to_ext(self) -> dict[str, str | int]:
        ext: dict[str, str | int] = {
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "maxBytes": self.max_bytes,
            "group": self.group,
            "waitMs": self.wait_ms,
            "sequence": self.sequence,
        }
        if self.tags:
            ext["tags"] = TAG_SEPARATOR.join(self.tags)
        if self.sizes:
            ext["sizes"] = 1
        return ext

    @classmethod
    def from_ext(cls, ext: Ext) -> Self:
        tags = text_field(ext, "tags", "")
        return cls(
            text_field(ext, "topic"),
            int_field(ext, "partition", 0, INT32_MAX),
            int_field(ext, "offset", INT64_MIN, INT64_MAX),
            int_field(ext, "maxBytes", 1, INT32_MAX),
            text_field(ext, "group", ""),
            tuple(tags.split(TAG_SEPARATOR)) if tags else (),
            int_field(ext, "waitMs", 0, MAX_WAIT_MS, 0),
            int_field(ext, "sequence", 0, INT64_MAX, 0),
            int_field(ext, "sizes", 0, 1, 0) == 1,
        )


class PullReply(NamedTuple):
    """Answer to PULL, code SUCCESS, PULL_NOT_FOUND (nothing before the wait ended) or PULL_OFFSET_MOVED.

    next_offset: where to go on (for PULL_OFFSET_MOVED: where readable data begins or ends). min/max_offset: bounds of
    the readable bytes. behind: messages between next_offset and max_offset. runs: 0 = the body is one slice of the log
    from the asked offset on; n = a filtered reply, the body begins with n runs (`encode_runs`). records: n = the body
    begins with the sizes of its n records (`encode_sizes`, `split_batch`); 0 = it does not, though they were asked for.
    """

    next_offset: int
    min_offset: int
    max_offset: int
    behind: int
    sequence: int = 0
    runs: int = 0
    records: int = 0

    def to_ext(self) -> dict[str, str | int]:
        ext: dict[str, str | int] = {
            "nextOffset": self.next_offset,
            "minOffset": self.min_offset,
            "maxOffset": self.max_offset,
            "behind": self.behind,
            "sequence": self.sequence,
            "runs": self.runs,
        }
        if self.records:
            ext["records"] = self.records
        return ext

    @classmethod
    def from_ext(cls, ext: Ext) -> Self:
        return cls(
            int_field(ext, "nextOffset", 0, INT64_MAX),
            int_field(ext, "minOffset", 0, INT64_MAX),
            int_field(ext, "maxOffset", 0, INT64_MAX),
            int_field(ext, "behind", 0, INT64_MAX),
            int_field(ext, "sequence", 0, INT64_MAX, 0),
            int_field(ext, "runs", 0, INT32_MAX, 0),
            int_field(ext, "records", 0, MAX_BATCH_RECORDS, 0),
        )


_RUN = Struct(">QI")
RUN_BYTES = _RUN.size


def encode_sizes(sizes: npt.NDArray[np.int32]) -> bytes:
    """The table in front of records back to back: the size of each with its header, u32."""
    return sizes.astype(">u4").tobytes()


def encode_runs(runs: list[tuple[int, int]]) -> bytes:
    """The table in front of a filtered reply's records: per run of adjacent records `offset u64 | bytes u32`."""
    return b"".join(_RUN.pack(offset, length) for offset, length in runs)


def decode_runs(body: memoryview, count: int) -> list[tuple[int, memoryview]]:
    """(offset in the partition, records) of each run of a filtered reply. Raises RemoteProtocolError if cut."""
    position = count * RUN_BYTES
    if len(body) < position:
        raise RemoteProtocolError(f"filtered reply with {count} runs has a body of {len(body)} bytes only")
    runs: list[tuple[int, memoryview]] = []
    for offset, length in _RUN.iter_unpack(body[:position]):
        runs.append((offset, body[position : position + length]))
        position += length
    if position != len(body):
        raise RemoteProtocolError(f"filtered reply: runs end at byte {position} of {len(body)}")
    return runs


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
