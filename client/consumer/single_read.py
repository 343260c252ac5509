"""Messages of one partition in one round trip, without a group's state."""

from __future__ import annotations

from metaq.protocol.errors import CorruptRecord

from ..damage import located
from ..inquiry import Asked, read_bytes
from ..message import Message
from ..values import TopicPartition
from .chunk import Chunk

__all__ = ["decode_records", "read_messages"]


def read_messages(
    connection: Asked, partition: TopicPartition, offset: int, max_bytes: int, timeout: float | None = None
) -> list[Message]:
    """The messages from byte `offset` on that fit into `max_bytes`, at least one; [] at the end.

    timeout: seconds (default: the connection's request timeout). Raises OffsetOutOfRange; CorruptRecord, with the end
    of the damage, if the first record is damaged (a later one ends the list: the next read begins with it);
    BrokerUnavailable, RequestTimedOut, RequestRefused.
    """
    try:
        return decode_records(read_bytes(connection, partition, offset, max_bytes, timeout), partition, offset)
    except CorruptRecord as error:
        raise located(connection, partition, error, timeout) from None


def decode_records(data: memoryview, partition: TopicPartition, offset: int) -> list[Message]:
    """The complete records of `data`, which begins at byte `offset` of `partition`.

    Raises CorruptRecord for a first record that is damaged (a later one ends the list), and for bytes without one
    complete record, because brokers send the first whole.
    """
    messages = Chunk.of(data, offset, offset + len(data)).take(partition, len(data))
    if data and not messages:
        raise CorruptRecord.of(partition, offset, f"no complete message in {len(data)} bytes: does one begin there?")
    return messages
