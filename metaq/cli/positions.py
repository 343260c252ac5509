"""From a position on the command line (`earliest`, a time, `id:…` …) to a byte offset of a partition."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from metaq.client.cluster import Cluster
from metaq.client.connection import Connection
from metaq.client.inquiry import Bounds
from metaq.client.places import AtKey, AtMessage, Last, Place, locate
from metaq.client.values import TopicPartition
from metaq.protocol.errors import ClientError

from .options import Position

__all__ = ["OffsetIn", "offset_in", "place_of"]

OffsetIn = Callable[[Connection, TopicPartition, Bounds], int]
"""The offset in a partition whose readable bytes are the bounds.

Raises ClientError for an offset outside of them; RequestRefused for what a Java broker cannot look up.
"""


def place_of(position: Position) -> Place | None:
    """The client's value for a time, a count, an id or a key; None for the others."""
    if position.kind == "time":
        return datetime.fromtimestamp(position.value / 1000, UTC)
    if position.kind == "count":
        return Last(position.value)
    if position.kind == "id":
        return AtMessage(position.value)
    return AtKey(position.text) if position.kind == "key" else None


def offset_in(position: Position, cluster: Cluster, topic: str) -> OffsetIn:
    """How to find `position` in the partitions of `topic`. A message is searched for here: raises MessageNotFound,
    SearchIncomplete and what else MessageFinder raises.
    """
    place = place_of(position)
    if place is not None:
        find = locate(place, [topic], cluster.finder())
        return lambda connection, partition, bounds: min(max(find(connection, partition), bounds.first), bounds.end)
    return lambda connection, partition, bounds: _bounded(position, partition, bounds)


def _bounded(position: Position, partition: TopicPartition, bounds: Bounds) -> int:
    if position.kind == "earliest":
        return bounds.first
    if position.kind == "latest":
        return bounds.end
    if not bounds.first <= position.value <= bounds.end:
        raise ClientError(
            f"offset {position.value} is outside [{bounds.first}, {bounds.end}], the readable bytes of "
            f"{partition.topic} {partition}: choose one of them, earliest, latest or a time"
        )
    return position.value
