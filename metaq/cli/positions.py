"""From a position on the command line (`earliest`, `latest`, a time, an offset) to a byte offset of a partition."""

from __future__ import annotations

from metaq.client.connection import Connection
from metaq.client.inquiry import Bounds, offset_at_time
from metaq.client.values import TopicPartition
from metaq.protocol.errors import OffsetOutOfRange

from .options import Position

__all__ = ["offset_of"]


def offset_of(position: Position, connection: Connection, partition: TopicPartition, bounds: Bounds) -> int:
    """Where `position` is in `partition`, whose readable bytes are `bounds`.

    Raises OffsetOutOfRange for an offset outside the bounds; RequestRefused for a time on a Java broker.
    """
    if position.kind == "earliest":
        return bounds.first
    if position.kind == "latest":
        return bounds.end
    if position.kind == "time":
        return offset_at_time(connection, partition, position.value)
    if not bounds.first <= position.value <= bounds.end:
        raise OffsetOutOfRange(position.value, bounds.first, bounds.end)
    return position.value
