"""`metaq groups`: consumer groups, how far they are behind, and moving their offsets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import click

from metaq.client.cluster import Cluster
from metaq.client.inquiry import messages_before, partition_bounds
from metaq.client.values import TopicPartition
from metaq.protocol.errors import ClientError

from .options import (
    GROUP,
    PARTITION,
    POSITION,
    TOPIC,
    PartitionName,
    Position,
    dry_run_option,
    json_option,
    zk_option,
)
from .output import print_json, print_table
from .positions import OffsetIn, offset_in

__all__ = ["GroupPartition", "group_partition", "groups", "seek_group"]


class GroupPartition(NamedTuple):
    """How far a group is in one partition. committed: None before the first commit, when all that is there is ahead."""

    partition: TopicPartition
    owner: str | None
    committed: int | None
    end: int
    lag_bytes: int
    lag_messages: int | None


def group_partition(
    cluster: Cluster, group: str, partition: TopicPartition, owners: Mapping[str, str]
) -> GroupPartition:
    """Ask ZooKeeper and the broker. lag_messages is None if the broker cannot count (Java)."""
    connection = cluster.connection(partition.broker)
    bounds = partition_bounds(connection, partition)
    offset = cluster.committed(group, partition)
    position = bounds.first if offset is None else min(max(offset.offset, bounds.first), bounds.end)
    before = messages_before(connection, partition, position)
    lag = None if before is None or bounds.messages is None else bounds.messages - before
    committed = None if offset is None else offset.offset
    return GroupPartition(partition, owners.get(str(partition)), committed, bounds.end, bounds.end - position, lag)


@click.group()
def groups() -> None:
    """List and describe consumer groups; move their offsets.

    \b
    Example
      metaq groups list
      metaq groups describe audit
      metaq groups seek audit --topic trades --to earliest
    """


@groups.command("list")
@zk_option
@json_option
def list_groups(zk: str, as_json: bool) -> None:
    """All groups that ever had a member or an offset.

    \b
    Example
      metaq groups list --json
    """
    with Cluster(zk) as cluster:
        found = [(group, len(cluster.members(group)), cluster.group_topics(group)) for group in cluster.view.groups()]
    if as_json:
        print_json([dict(zip(("group", "members", "topics"), each, strict=True)) for each in found])
    else:
        print_table(("GROUP", "MEMBERS", "TOPICS"), [(*each, ", ".join(topics)) for *each, topics in found])


@groups.command("describe")
@zk_option
@json_option
@click.argument("group", type=GROUP)
def describe_group(zk: str, as_json: bool, group: str) -> None:
    """Owner, committed offset and lag of each partition that GROUP reads.

    \b
    Example
      metaq groups describe audit
    """
    with Cluster(zk) as cluster:
        rows = [
            group_partition(cluster, group, partition, owners)
            for topic in _known_topics(cluster, group)
            for owners in [cluster.owners(group, topic)]
            for partition in cluster.partitions(topic)
        ]
        members = cluster.members(group)
    if as_json:
        print_json({"group": group, "members": members, "partitions": list(map(_as_json, rows))})
        return
    columns = ("TOPIC", "PARTITION", "OWNER", "COMMITTED", "END", "LAG BYTES", "LAG MESSAGES")
    print_table(columns, [(row.partition.topic, str(row.partition), *row[1:]) for row in rows])


def _known_topics(cluster: Cluster, group: str) -> list[str]:
    topics = cluster.group_topics(group)
    if not topics:
        known = ", ".join(sorted(cluster.view.groups())) or "there is none"
        raise ClientError(f"group {group!r} has no members and no offsets: choose from {known}")
    published = set(cluster.topics())
    return [topic for topic in topics if topic in published]


def _as_json(row: GroupPartition) -> dict[str, object]:
    return {"topic": row.partition.topic, **row._asdict(), "partition": str(row.partition)}


@groups.command("seek")
@zk_option
@json_option
@dry_run_option
@click.option("--topic", "-t", type=TOPIC, required=True, help="Topic whose offsets to move.")
@click.option("--to", "target", type=POSITION, required=True, help="Where the group shall go on.")
@click.option("--partition", "-p", "only", type=PARTITION, multiple=True, help="Only this partition; repeat for more.")
@click.argument("group", type=GROUP)
def seek_group(
    zk: str,
    as_json: bool,
    dry_run: bool,
    topic: str,
    target: Position,
    only: tuple[PartitionName, ...],
    group: str,
) -> None:
    """Move the committed offsets of GROUP, which must have no live members: they would write theirs over it.

    \b
    Example
      metaq groups seek audit --topic trades --to 2024-05-01T00:00:00Z
      metaq groups seek audit --topic trades --partition 0-3 --to 4096
      metaq groups seek audit --topic trades --to key:order-7
    """
    with Cluster(zk) as cluster:
        members = cluster.members(group)
        if members:
            raise ClientError(
                f"group {group!r} has {len(members)} live members ({', '.join(members)}): stop them first"
            )
        chosen = cluster.choose_partitions(topic, [TopicPartition(topic, *name) for name in only])
        offset_of = offset_in(target, cluster, topic)
        offsets = {partition: _target(cluster, partition, offset_of) for partition in chosen}
        if not dry_run:
            cluster.commit(group, offsets)
    rows = [{"partition": str(partition), "offset": offset} for partition, offset in offsets.items()]
    if as_json:
        print_json({"group": group, "topic": topic, "dry_run": dry_run, "partitions": rows})
    else:
        print_table(("PARTITION", "WOULD BE" if dry_run else "OFFSET"), [tuple(row.values()) for row in rows])


def _target(cluster: Cluster, partition: TopicPartition, offset_of: OffsetIn) -> int:
    connection = cluster.connection(partition.broker)
    return offset_of(connection, partition, partition_bounds(connection, partition))
