"""Show the committed offsets of groups, copy them to another broker, and skip unread messages."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from metaq.coordination.offsets.offset_store import Offset
from metaq.protocol.errors import ClientError, ConfigError
from metaq.protocol.limits import check_zookeeper_group, check_zookeeper_topic

from ..questions.cluster import Cluster
from ..questions.partition_bounds import partition_bounds
from ..records.results import TopicPartition
from ..runtime.nearest import did_you_mean
from .group_admin import MovedOffset, MovedOffsets, PartitionsGiven, check_groups, left_out, named_partitions

__all__ = ["CopiedOffset", "OffsetAdmin", "StoredOffset", "stored_offsets"]


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """The committed offset of a group in one partition. message_id: the id of the last message that the group has
    processed. owner: the consumer that owns the partition now, or None.
    """

    group: str
    partition: TopicPartition
    offset: int
    message_id: int
    owner: str | None


@dataclass(frozen=True, slots=True)
class CopiedOffset:
    """An offset of a group in the partition `source`, which was copied to the partition `target`. copied: whether it
    was copied; false if the group already had an offset in `target`. offset: the offset in `target`.
    """

    group: str
    source: TopicPartition
    target: TopicPartition
    offset: int
    copied: bool


class OffsetAdmin:
    """The calls about the committed offsets of groups; `GroupAdmin.seek` moves them. Only one thread may use this
    object at a time. All calls raise CoordinationUnavailable if ZooKeeper does not answer.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def list(
        self, *, group: str | None = None, topic: str | None = None, partitions: Collection[TopicPartition | str] = ()
    ) -> Sequence[StoredOffset]:
        """Return the committed offsets of all groups. No broker is asked, so no lag is known.

        group, topic, partitions: only the offsets of this group, of this topic, and in these partitions (by names such
        as "0-3"). Raises ClientError for an unknown group, and for a topic without stored offsets.
        """
        cluster = self._cluster
        if group is not None:
            check_groups(cluster, [check_zookeeper_group(group)])
        groups = cluster.view.groups() if group is None else [group]
        only = set(map(str, partitions))
        found = [row for name in groups for row in self._stored(name, topic, only)]
        if topic is not None and not found:
            self._check_topic(topic, groups)
        return found

    def _check_topic(self, topic: str, groups: Sequence[str]) -> None:
        known = {each for group in groups for each in self._cluster.view.committed_topics(group)}
        if topic not in known:
            near = did_you_mean(topic, known, "`metaq offsets show` alone lists all that are")
            raise ClientError(f"no offset of topic {topic!r} is stored: {near}")

    def _stored(self, group: str, topic: str | None, only: Collection[str]) -> Sequence[StoredOffset]:
        cluster, found = self._cluster, []
        for name in cluster.view.committed_topics(group):
            if topic not in (None, name):
                continue
            owners = cluster.owners(group, name)
            partitions = [
                TopicPartition.parse(name, each)
                for each in cluster.view.committed_partitions(group, name)
                if not only or each in only
            ]
            found += stored_offsets(group, partitions, cluster.committed_many(group, partitions), owners)
        return found

    def copy(
        self,
        topic: str,
        source: int,
        target: int,
        numbers: range,
        *,
        target_start: int = 0,
        groups: Iterable[str] = (),
        dry_run: bool = False,
    ) -> Sequence[CopiedOffset]:
        """Copy the offsets of groups from partitions of one broker to partitions of another broker. An offset that a
        group already has in a target partition is not changed. The result does not contain partitions in which a group
        has never committed an offset.

        source, target: the ids of the brokers. numbers: the numbers of the source partitions, for example range(4, 8).
        target_start: the number of the target partition for the first of `numbers`; the others follow it. groups: only
        these groups; by default all. dry_run: change nothing. Raises ConfigError if a partition would be source and
        target.
        """
        check_zookeeper_topic(topic)
        sources = [TopicPartition(topic, source, number) for number in numbers]
        targets = [TopicPartition(topic, target, target_start + n) for n in range(len(sources))]
        if set(sources) & set(targets):
            raise ConfigError("target_start", target_start, "makes a partition source and target: choose another range")
        rows: list[CopiedOffset] = []
        for group in tuple(groups) or self._cluster.view.groups():
            rows += self._copy_group(check_zookeeper_group(group), sources, targets, dry_run)
        return rows

    def _copy_group(
        self, group: str, sources: Sequence[TopicPartition], targets: Sequence[TopicPartition], dry_run: bool
    ) -> Sequence[CopiedOffset]:
        cluster = self._cluster
        pairs = zip(sources, cluster.committed_many(group, sources), strict=True)
        there = zip(targets, cluster.committed_many(group, targets), strict=True)
        rows, wanted = [], {}
        for (source, offset), (target, existing) in zip(pairs, there, strict=True):
            if offset is None:
                continue
            if existing is None:
                wanted[target] = offset
            rows.append(CopiedOffset(group, source, target, (existing or offset).offset, existing is None))
        if not dry_run:
            cluster.commit(group, wanted)
        return rows

    def skip(self, group: str, topic: str, *, partitions: PartitionsGiven = (), dry_run: bool = False) -> MovedOffsets:
        """Move the committed offset of a group in each partition to the partition's end, so that the group skips all
        messages that it has not read yet. Return the offsets.

        partitions: the partitions to change; by default all that live brokers serve. The offsets in partitions of
        absent brokers then stay as they are; `check_complete` of the result raises an error. dry_run: change nothing.
        Raises ClientError if a consumer owns one of the partitions. Raises NoPartition and BrokerUnavailable.
        """
        cluster = self._cluster
        cluster.look_again()
        check_groups(cluster, [check_zookeeper_group(group)])
        only = named_partitions(check_zookeeper_topic(topic), partitions)
        chosen = cluster.choose_partitions(topic, only)
        owners = cluster.owners(group, topic)
        owned = [f"{each} by {owners[str(each)]}" for each in chosen if str(each) in owners]
        if owned:
            raise ClientError(f"group {group!r} reads {', '.join(owned)}: stop these consumers first")
        ends = {each: cluster.ask(each, partial(partition_bounds, partition=each)).end for each in chosen}
        left = [] if only else left_out(cluster, group, topic, chosen)
        before = cluster.committed_many(group, chosen)
        if not dry_run:
            cluster.commit(group, ends)
        moved = [
            MovedOffset(each, None if old is None else old.offset, ends[each])
            for each, old in zip(chosen, before, strict=True)
        ]
        return MovedOffsets(group, topic, dry_run, moved, left)


def stored_offsets(
    group: str, partitions: Sequence[TopicPartition], offsets: Sequence[Offset | None], owners: Mapping[str, str]
) -> list[StoredOffset]:
    """Return a StoredOffset for each partition that has an offset. offsets: the offset of each partition, in order.
    owners: the owners of partitions, by the partition's name.
    """
    return [
        StoredOffset(group, partition, offset.offset, offset.message_id, owners.get(str(partition)))
        for partition, offset in zip(partitions, offsets, strict=True)
        if offset is not None
    ]
