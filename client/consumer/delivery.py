"""From fetched bytes to messages: the tight loop of the consumer.

Every record's checksum is checked here, on the thread that polls. Measured on one core: see docs/client.md.
"""

from __future__ import annotations

from collections.abc import Container

from isal.isal_zlib import crc32

from metaq.protocol.errors import CorruptRecord
from metaq.protocol.record import ATTRIBUTE_FLAG, HEADER, HEADER_BYTES, attribute_of, decode_attribute

from ..message import Message
from ..values import TopicPartition
from .partition_state import Chunk

_make = tuple.__new__
"""Message(…) without its Python-level __new__: half the time."""

__all__ = ["has_tag", "take_messages"]


def take_messages(
    chunk: Chunk, partition: TopicPartition, limit: int, tags: Container[str] | None = None
) -> list[Message]:
    """At most `limit` messages from the front of `chunk`, which is moved past them.

    tags: hand out only messages with one of these (the broker compares hashes, so others may be among them).
    A cut last record is left out. Raises CorruptRecord for a wrong checksum once that is the first record left; before
    it returns what is good in front of it.
    """
    data, start, end = chunk.data, chunk.start, chunk.end
    shift = chunk.offset - start
    messages: list[Message] = []
    append, unpack, check = messages.append, HEADER.unpack_from, crc32
    body_start = start + HEADER_BYTES
    while body_start <= end and limit:
        length, checksum, identity, flag = unpack(data, start)
        body_end = body_start + length
        if body_end > end:
            break
        body = data[body_start:body_end]
        if check(body) & 0x7FFFFFFF != checksum or length < 0:
            if start == chunk.start:
                raise CorruptRecord(f"{partition.topic}-{partition}", start + shift, "its checksum does not match")
            break
        if tags is None or has_tag(body, flag, tags):
            append(_make(Message, (partition, start + shift, identity, flag, body)))
            limit -= 1
        start = body_end
        body_start = start + HEADER_BYTES
    chunk.offset += start - chunk.start
    chunk.start = start
    return messages


def has_tag(body: bytes, flag: int, tags: Container[str]) -> bool:
    """Whether the record's tag is among `tags`."""
    if not flag & ATTRIBUTE_FLAG:
        return False
    return decode_attribute(attribute_of(body, flag), flag).tag in tags
