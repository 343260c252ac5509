"""Requests for messages by id and by key, and their answer (docs/protocol.md); remoting.py has the other frames."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple, Self

from .errors import RemoteProtocolError
from .fields import Ext, int_field, text_field
from .limits import INT32_MAX, INT64_MAX, MAX_FOUND_MESSAGES, MAX_KEY_CHARACTERS
from .record import HEADER_BYTES

__all__ = [
    "ALL_PARTITIONS",
    "DEFAULT_FOUND_MESSAGES",
    "FOUND_ROW_BYTES",
    "FoundReply",
    "FoundRow",
    "QueryMessageRequest",
    "ViewMessageRequest",
    "decode_found",
    "encode_found",
]

ALL_PARTITIONS = -1
DEFAULT_FOUND_MESSAGES = 32


class ViewMessageRequest(NamedTuple):
    """VIEW_MESSAGE_BY_ID: the message with an id. partition: -1 = look into all partitions that the broker has."""

    topic: str
    message_id: int
    partition: int = ALL_PARTITIONS

    def to_ext(self) -> dict[str, str | int]:
        return {"topic": self.topic, "msgId": self.message_id, "partition": self.partition}

    @classmethod
    def from_ext(cls, ext: Ext) -> Self:
        return cls(
            text_field(ext, "topic"),
            int_field(ext, "msgId", -INT64_MAX - 1, INT64_MAX),
            int_field(ext, "partition", ALL_PARTITIONS, INT32_MAX, ALL_PARTITIONS),
        )


class QueryMessageRequest(NamedTuple):
    """QUERY_MESSAGE: the newest (or oldest) `max_messages` with a key, stored at `begin_ms` … `end_ms` (Unix ms).

    max_messages: 1 … MAX_FOUND_MESSAGES. partition: as in ViewMessageRequest.
    """

    topic: str
    key: str
    max_messages: int = DEFAULT_FOUND_MESSAGES
    begin_ms: int = 0
    end_ms: int = INT64_MAX
    partition: int = ALL_PARTITIONS
    oldest_first: bool = False

    def to_ext(self) -> dict[str, str | int]:
        return {
            "topic": self.topic,
            "key": self.key,
            "maxNum": self.max_messages,
            "beginTimestamp": self.begin_ms,
            "endTimestamp": self.end_ms,
            "partition": self.partition,
            "oldest": int(self.oldest_first),
        }

    @classmethod
    def from_ext(cls, ext: Ext) -> Self:
        key = text_field(ext, "key")
        if not key or len(key) > MAX_KEY_CHARACTERS:
            raise RemoteProtocolError(f"extFields.key has {len(key)} characters, not 1 … {MAX_KEY_CHARACTERS}")
        return cls(
            text_field(ext, "topic"),
            key,
            int_field(ext, "maxNum", 1, MAX_FOUND_MESSAGES, DEFAULT_FOUND_MESSAGES),
            int_field(ext, "beginTimestamp", 0, INT64_MAX, 0),
            int_field(ext, "endTimestamp", 0, INT64_MAX, INT64_MAX),
            int_field(ext, "partition", ALL_PARTITIONS, INT32_MAX, ALL_PARTITIONS),
            bool(int_field(ext, "oldest", 0, 1, 0)),
        )


class FoundReply(NamedTuple):
    """Answer to both, SUCCESS or QUERY_NOT_FOUND; the body is `encode_found`'s, of `messages` rows.

    unsearched: bytes of data that were not looked at, 0 = everything was. more: there are more messages with the key.
    """

    messages: int
    unsearched: int = 0
    more: bool = False

    def to_ext(self) -> dict[str, str | int]:
        return {"count": self.messages, "unsearched": self.unsearched, "more": int(self.more)}

    @classmethod
    def from_ext(cls, ext: Ext) -> Self:
        return cls(
            int_field(ext, "count", 0, MAX_FOUND_MESSAGES),
            int_field(ext, "unsearched", 0, INT64_MAX),
            bool(int_field(ext, "more", 0, 1)),
        )


class FoundRow(NamedTuple):
    """Where a found record is. time_ms: when it was stored (Unix ms); negative: at -time_ms or earlier (Java's)."""

    partition: int
    offset: int
    time_ms: int
    size: int


_ROW = Struct(">IQqI")
FOUND_ROW_BYTES = _ROW.size


def encode_found(rows: Sequence[FoundRow]) -> bytes:
    """The table in front of the records: `partition u32 | offset u64 | time i64 | bytes u32` for each."""
    return b"".join(_ROW.pack(*row) for row in rows)


def decode_found(body: memoryview, count: int) -> list[tuple[FoundRow, memoryview]]:
    """The rows and their records. Raises RemoteProtocolError if they do not fill the body."""
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
