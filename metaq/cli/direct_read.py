"""Reading a topic without a group: no state in ZooKeeper, every partition from a position to the end there was."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from metaq.client.cluster import Cluster
from metaq.client.consumer.single_read import read_messages
from metaq.client.inquiry import partition_bounds
from metaq.client.message import Message
from metaq.client.values import TopicPartition
from metaq.protocol.errors import CorruptRecord

from .options import PartitionName, Position
from .positions import OffsetIn, offset_in

__all__ = ["read_topic"]

READ_BYTES = 1 << 20
IDLE_SECONDS = 0.1
"""Pause of a following reader after a round over all partitions that brought nothing."""


@dataclass(slots=True)
class _Cursor:
    """The next byte to read in one partition; end: where to stop, None to follow."""

    partition: TopicPartition
    offset: int
    end: int | None

    @property
    def done(self) -> bool:
        return self.end is not None and self.offset >= self.end


def read_topic(
    cluster: Cluster,
    topic: str,
    start: Position,
    only: Sequence[PartitionName] = (),
    follow: bool = False,
    idle: Callable[[], bool] = lambda: True,
    sleep: Callable[[float], None] = time.sleep,
    on_damaged: Callable[[CorruptRecord], None] | None = None,
) -> Iterator[Message]:
    """Messages of `topic` from `start` on, in order within a partition, partitions in turns of one block.

    only: these partitions, default all. follow: go on after the end; `idle` is then called whenever there is nothing
    new and says whether to wait on. on_damaged: told of damaged bytes, behind which the reading goes on. Raises
    NoPartition, OffsetOutOfRange; CorruptRecord for damage without on_damaged, or whose end is not known.
    """
    chosen = cluster.choose_partitions(topic, [TopicPartition(topic, *name) for name in only])
    offset_of = offset_in(start, cluster, topic)
    cursors = [_cursor(cluster, partition, offset_of, follow) for partition in chosen]
    while cursors:
        progress = False
        for cursor in cursors:
            try:
                for message in _next_block(cluster, cursor):
                    progress = True
                    yield message
            except CorruptRecord as error:
                if on_damaged is None or error.end is None:
                    raise
                on_damaged(error)
                cursor.offset, progress = error.end, True
        cursors = [cursor for cursor in cursors if not cursor.done]
        if not progress and cursors:
            if not idle():
                return
            sleep(IDLE_SECONDS)


def _cursor(cluster: Cluster, partition: TopicPartition, offset_of: OffsetIn, follow: bool) -> _Cursor:
    connection = cluster.connection(partition.broker)
    bounds = partition_bounds(connection, partition)
    offset = offset_of(connection, partition, bounds)
    return _Cursor(partition, offset, None if follow else bounds.end)


def _next_block(cluster: Cluster, cursor: _Cursor) -> Iterator[Message]:
    connection = cluster.connection(cursor.partition.broker)
    for message in read_messages(connection, cursor.partition, cursor.offset, READ_BYTES):
        if cursor.done:
            return
        cursor.offset = message.next_offset
        yield message
