"""How far a group is behind in a partition, in messages, bytes and seconds; what is not known is None, never 0."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from metaq.client.cluster import Cluster
from metaq.client.connection import Connection
from metaq.client.consumer.single_read import read_messages
from metaq.client.inquiry import Bounds, messages_before, partition_bounds
from metaq.client.values import TopicPartition
from metaq.coordination.records import parse_partition_name
from metaq.protocol.errors import CorruptRecord, OffsetOutOfRange, PartitionClosed

from .reach import Reach

__all__ = ["GroupPartition", "group_partitions"]


class GroupPartition(NamedTuple):
    """How far a group is in one partition. None: not known.

    committed: None before the first commit. bounds: None if the broker does not answer, or if it is closed. lag_bytes,
    lag_messages: what is readable behind the offset; before the first commit, all that is there. lag_seconds: how long
    ago the first of these messages was stored; a Java broker's have no date. closed: by an operator.
    """

    partition: TopicPartition
    owner: str | None
    committed: int | None
    bounds: Bounds | None
    lag_bytes: int | None = None
    lag_messages: int | None = None
    lag_seconds: int | None = None
    closed: bool = False

    @property
    def outside(self) -> bool:
        """Whether the committed offset points outside the readable bytes."""
        return (
            self.bounds is not None
            and self.committed is not None
            and not self.bounds.first <= self.committed <= self.bounds.end
        )


def group_partitions(
    cluster: Cluster, reach: Reach, group: str, topic: str, clock: Callable[[], float] = time.time
) -> list[GroupPartition]:
    """How far `group` is in each partition of `topic` that is served, or of which it has an offset while the broker has
    left, in numeric order. clock: seconds since 1970.
    """
    committed = (
        TopicPartition(topic, *parse_partition_name(name)) for name in cluster.view.committed_partitions(group, topic)
    )
    gone = {each for each in committed if reach.source(each) is None}
    partitions = sorted(gone.union(cluster.served(topic)))
    owners = cluster.owners(group, topic)
    offsets = cluster.committed_many(group, partitions)
    found = [
        GroupPartition(partition, owners.get(str(partition)), None if offset is None else offset.offset, None)
        for partition, offset in zip(partitions, offsets, strict=True)
    ]
    return [reach.ask(each.partition, partial(_measure, found=each, clock=clock)) or each for each in found]


def _measure(connection: Connection, *, found: GroupPartition, clock: Callable[[], float]) -> GroupPartition:
    partition, committed = found.partition, found.committed
    try:
        bounds = partition_bounds(connection, partition)
    except PartitionClosed:
        return found._replace(closed=True)
    found = found._replace(bounds=bounds)
    if committed is not None and committed > bounds.end:
        return found  # of another life of the partition: nobody knows what was read of this one
    position = bounds.first if committed is None else max(committed, bounds.first)
    if position == bounds.end:
        return found._replace(lag_bytes=0, lag_messages=0, lag_seconds=0)
    before = messages_before(connection, partition, position)
    messages = None if before is None or bounds.messages is None else bounds.messages - before
    stored = _stored_ms(connection, partition, position)
    seconds = None if stored is None else max(0, int(clock() - stored / 1000))
    return found._replace(lag_bytes=bounds.end - position, lag_messages=messages, lag_seconds=seconds)


def _stored_ms(connection: Connection, partition: TopicPartition, offset: int) -> int | None:
    """When the message at `offset` was stored; None if no good one begins there, or if it has no date."""
    try:
        messages = read_messages(connection, partition, offset, 1)
    except (CorruptRecord, OffsetOutOfRange):
        return None
    return messages[0].timestamp_ms if messages else None
