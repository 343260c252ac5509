"""Requests for messages by id and by key, and their answer (docs/protocol.md); remoting.py has the other frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Annotated, NamedTuple

from .errors import RemoteProtocolError
from .fields import INT64_MIN, ExtFields, Field, TopicField, flag, number
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


def _read_key(text: str) -> str:
    if not 1 <= len(text) <= MAX_KEY_CHARACTERS:
        raise RemoteProtocolError(f"extFields.key has {len(text)} characters, not 1 … {MAX_KEY_CHARACTERS}")
    return text


SearchedPartition = Annotated[int, number("partition", ALL_PARTITIONS, INT32_MAX)]


@dataclass(slots=True)
class ViewMessageRequest(ExtFields):
    """VIEW_MESSAGE_BY_ID: the message with an id. partition: -1 = look into all partitions that the broker has."""

    topic: TopicField
    message_id: Annotated[int, number("msgId", INT64_MIN, INT64_MAX)]
    partition: SearchedPartition = ALL_PARTITIONS


@dataclass(slots=True)
class QueryMessageRequest(ExtFields):
    """QUERY_MESSAGE: the newest (or oldest) `max_messages` with a key, stored at `begin_ms` … `end_ms` (Unix ms).

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
    """Answer to both, SUCCESS or QUERY_NOT_FOUND; the body is `encode_found`'s, of `messages` rows.

    unsearched: bytes of data that were not looked at, 0 = everything was. more: there are more messages with the key.
    """

    messages: Annotated[int, number("count", 0, MAX_FOUND_MESSAGES)]
    unsearched: Annotated[int, number("unsearched", 0, INT64_MAX)]
    more: Annotated[bool, flag("more")]


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
