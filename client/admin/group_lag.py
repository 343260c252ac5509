"""Measure how far a group is behind the end of each partition."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from metaq.coordination.offsets.offset_store import Offset
from metaq.protocol.message_id import UNKNOWN_ID

from ..questions.cluster import Cluster
from ..questions.divergence import common_offset
from ..questions.partition_bounds import Bounds
from ..questions.sources import Survey
from ..questions.stored_records import waiting_from
from ..records.results import TopicPartition
from ..transport.connection import Connection

__all__ = ["GroupPartition", "group_partitions"]


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """A group's position and lag in one partition. A field is None if its value is unknown.

    committed: the committed offset; None before the first commit. bounds: the first and the end offset of the readable
    messages; None if the broker does not answer, or if the partition is closed. lag_bytes, lag_messages: the readable
    data after the committed offset; before the first commit, all readable data. lag_seconds: how long ago the first
    message after the committed offset was stored; None for a Java broker, which does not record the time. closed:
    whether an operator has closed the partition.
    missed_from: None, or the offset from which on the group may have missed messages: the message that the group has
    read right before its committed offset is lost, and the partition now has other messages there.
    """

    partition: TopicPartition
    owner: str | None
    committed: int | None
    bounds: Bounds | None
    lag_bytes: int | None = None
    lag_messages: int | None = None
    lag_seconds: int | None = None
    closed: bool = False
    missed_from: int | None = None

    @property
    def outside(self) -> bool:
        """Whether the committed offset is outside the readable bytes."""
        return (
            self.bounds is not None
            and self.committed is not None
            and not self.bounds.first <= self.committed <= self.bounds.end
        )


def group_partitions(
    cluster: Cluster, survey: Survey, group: str, topic: str, clock: Callable[[], float] = time.time
) -> list[GroupPartition]:
    """Return the group's position in each partition of `topic`, sorted by partition. The result contains all partitions
    that brokers serve. It also contains a partition of an absent broker if the group has a committed offset there.

    clock: returns seconds since 1970.
    """
    committed = (TopicPartition.parse(topic, name) for name in cluster.view.committed_partitions(group, topic))
    gone = {each for each in committed if survey.source(each) is None}
    partitions = sorted(gone.union(cluster.served(topic)))
    owners = cluster.owners(group, topic)
    offsets = cluster.committed_many(group, partitions)
    found = [
        (GroupPartition(partition, owners.get(str(partition)), None if offset is None else offset.offset, None), offset)
        for partition, offset in zip(partitions, offsets, strict=True)
    ]
    return [
        survey.attempt(each.partition, partial(_measure, found=each, stored=stored, clock=clock))
        or _closed(survey, each)
        for each, stored in found
    ]


def _closed(survey: Survey, found: GroupPartition) -> GroupPartition:
    return replace(found, closed=found.partition in survey.closed)


def _measure(
    connection: Connection,
    partition: TopicPartition,
    *,
    found: GroupPartition,
    stored: Offset | None,
    clock: Callable[[], float],
) -> GroupPartition:
    message_id = UNKNOWN_ID if stored is None else stored.message_id
    waiting = waiting_from(connection, partition, found.committed or 0, clock(), message_id)
    found = replace(found, bounds=waiting.bounds)
    if waiting.id_before != UNKNOWN_ID and found.committed is not None:
        back = common_offset(connection, partition, waiting.bounds.first, message_id)
        found = replace(found, missed_from=back if back is not None and back < found.committed else None)
    if found.committed is not None and found.committed > waiting.bounds.end:
        return found  # an offset of an earlier partition with this name: the position in this one is unknown
    seconds = None if waiting.seconds is None else int(waiting.seconds)
    return replace(found, lag_bytes=waiting.bytes, lag_messages=waiting.messages, lag_seconds=seconds)
