"""How far a group is behind in a partition, in messages, bytes and seconds; what is not known is None, never 0."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from metaq.client.connection import Connection
from metaq.client.questions.brokers import Survey
from metaq.client.questions.cluster import Cluster
from metaq.client.questions.partitions import Bounds
from metaq.client.questions.records import waiting_from
from metaq.client.values import TopicPartition

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
    cluster: Cluster, survey: Survey, group: str, topic: str, clock: Callable[[], float] = time.time
) -> list[GroupPartition]:
    """How far `group` is in each partition of `topic` that is served, or of which it has an offset while the broker has
    left, in numeric order. clock: seconds since 1970.
    """
    committed = (TopicPartition.parse(topic, name) for name in cluster.view.committed_partitions(group, topic))
    gone = {each for each in committed if survey.source(each) is None}
    partitions = sorted(gone.union(cluster.served(topic)))
    owners = cluster.owners(group, topic)
    offsets = cluster.committed_many(group, partitions)
    found = [
        GroupPartition(partition, owners.get(str(partition)), None if offset is None else offset.offset, None)
        for partition, offset in zip(partitions, offsets, strict=True)
    ]
    return [
        survey.ask(each.partition, partial(_measure, found=each, clock=clock)) or _closed(survey, each)
        for each in found
    ]


def _closed(survey: Survey, found: GroupPartition) -> GroupPartition:
    return found._replace(closed=found.partition in survey.closed)


def _measure(
    connection: Connection, partition: TopicPartition, *, found: GroupPartition, clock: Callable[[], float]
) -> GroupPartition:
    waiting = waiting_from(connection, partition, found.committed or 0, clock())
    found = found._replace(bounds=waiting.bounds)
    if found.committed is not None and found.committed > waiting.bounds.end:
        return found  # of another life of the partition: what was read of this one is not known
    seconds = None if waiting.seconds is None else int(waiting.seconds)
    return found._replace(lag_bytes=waiting.bytes, lag_messages=waiting.messages, lag_seconds=seconds)
