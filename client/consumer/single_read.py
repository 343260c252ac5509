"""Messages of one partition in one round trip, without a group's state."""

from __future__ import annotations

from ..inquiry import Asked, read_bytes
from ..message import Message
from ..values import TopicPartition
from .chunk import Chunk

__all__ = ["read_messages"]


def read_messages(
    connection: Asked, partition: TopicPartition, offset: int, max_bytes: int, timeout: float | None = None
) -> list[Message]:
    """The messages from byte `offset` on that fit into `max_bytes`, at least one; [] at the end.

    timeout: seconds (default: the connection's request timeout). Raises OffsetOutOfRange, CorruptRecord,
    BrokerUnavailable, RequestTimedOut, RequestRefused.
    """
    data = read_bytes(connection, partition, offset, max_bytes, timeout)
    return Chunk.of(data, offset, offset + len(data)).take(partition, len(data))
