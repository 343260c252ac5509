"""`metaq groups`: consumer groups, how far they are behind, and moving their offsets."""

from __future__ import annotations

from collections.abc import Sequence

import click

from metaq.client.nearest import did_you_mean
from metaq.client.questions.cluster import Cluster
from metaq.client.questions.partitions import partition_bounds
from metaq.client.questions.places import OffsetIn, Position, offset_in
from metaq.client.values import TopicPartition
from metaq.protocol.errors import BrokerUnavailable, ClientError

from .cluster import open_cluster, tell_absent, tell_empty, without
from .lag import GroupPartition, group_partitions
from .options import (
    GROUP,
    PARTITION,
    POSITION,
    TOPIC,
    PartitionName,
    confirm,
    dry_run_option,
    json_option,
    yes_option,
    zk_option,
)
from .output import UNKNOWN, print_json, print_table

__all__ = ["check_groups", "groups", "seek_group"]


@click.group()
def groups() -> None:
    """List and describe consumer groups; move their offsets, or delete them.

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
    with open_cluster(zk) as cluster:
        found = [(group, len(cluster.members(group)), cluster.group_topics(group)) for group in cluster.view.groups()]
        tell_empty(cluster)
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

    The lag is in bytes, in messages, and in seconds since the oldest waiting message was stored; before the first
    commit it is all that is there. What a Java broker does not tell is unknown. Exit code 1 if a broker is silent.

    \b
    Example
      metaq groups describe audit
    """
    with open_cluster(zk) as cluster:
        (topics,) = check_groups(cluster, [group])
        tell_absent(cluster)
        survey = cluster.survey()
        rows = [row for topic in topics for row in group_partitions(cluster, survey, group, topic)]
        members = cluster.members(group)
    if as_json:
        print_json({"group": group, "members": members, "partitions": list(map(_as_json, rows))})
    else:
        columns = ("TOPIC", "PARTITION", "OWNER", "COMMITTED", "END", "LAG BYTES", "MESSAGES", "SECONDS")
        print_table(columns, list(map(_cells, rows)))
    if survey.silent:
        raise BrokerUnavailable(without(survey.silent, [row.partition for row in rows]))


def check_groups(cluster: Cluster, groups: Sequence[str], otherwise: str = "") -> list[list[str]]:
    """The topics that each group reads. Raises ClientError for a group without a member and an offset, which names the
    nearest that has one, and ends with `otherwise`.
    """
    known = cluster.view.groups()
    topics = [cluster.group_topics(group) if group in known else [] for group in groups]
    for group, read in zip(groups, topics, strict=True):
        if not read:
            near = did_you_mean(group, known, "`metaq groups list` shows those that have")
            raise ClientError(f"group {group!r} has no members and no offsets: {near}{otherwise}")
    return topics


def left_out(cluster: Cluster, group: str, topic: str, chosen: Sequence[TopicPartition]) -> list[str]:
    """Partitions that the group has offsets of and that no registered broker serves, so that they are not `chosen`."""
    served = set(map(str, chosen))
    return [name for name in cluster.view.committed_partitions(group, topic) if name not in served]


def tell_left_out(group: str, topic: str, left: Sequence[str]) -> None:
    """Raise BrokerUnavailable if something was left out."""
    if left:
        brokers = ", ".join(sorted({name.partition("-")[0] for name in left}, key=int))
        raise BrokerUnavailable(
            f"broker {brokers} is not registered in ZooKeeper: the offsets of {group!r} in {topic} {', '.join(left)} "
            "stay as they are: start that broker and do it again"
        )


def _cells(row: GroupPartition) -> tuple[object, ...]:
    lags = (row.bounds and row.bounds.end, row.lag_bytes, row.lag_messages, row.lag_seconds)
    known = [("closed" if row.closed else UNKNOWN) if each is None else each for each in lags]
    return (row.partition.topic, str(row.partition), row.owner, row.committed, *known)


def _as_json(row: GroupPartition) -> dict[str, object]:
    return {
        "topic": row.partition.topic,
        "partition": str(row.partition),
        "owner": row.owner,
        "committed": row.committed,
        "end": row.bounds and row.bounds.end,
        "lag_bytes": row.lag_bytes,
        "lag_messages": row.lag_messages,
        "lag_seconds": row.lag_seconds,
        "closed": row.closed,
    }


@groups.command("seek")
@zk_option
@json_option
@dry_run_option
@click.option("--topic", "-t", type=TOPIC, required=True, help="Topic whose offsets to move.")
@click.option("--to", "target", type=POSITION, required=True, help="Where the group continues.")
@click.option("--partition", "-p", "only", type=PARTITION, multiple=True, help="Only this partition; repeat for more.")
@click.option(
    "--new", is_flag=True, help="For a group, or a topic, without members and offsets yet: where it will begin."
)
@click.argument("group", type=GROUP)
def seek_group(
    zk: str,
    as_json: bool,
    dry_run: bool,
    topic: str,
    target: Position,
    only: tuple[PartitionName, ...],
    new: bool,
    group: str,
) -> None:
    """Move the committed offsets of GROUP, which must have no live members: they would write theirs over it.

    \b
    Example
      metaq groups seek audit --topic trades --to 2024-05-01T00:00:00Z
      metaq groups seek audit --topic trades --partition 0-3 --to 4096
      metaq groups seek audit --topic trades --to key:order-7
    """
    with open_cluster(zk) as cluster:
        if not new:
            (read,) = check_groups(cluster, [group], "; --new gives a new group its offsets")
        if members := cluster.members(group):
            raise _live(group, members)
        chosen = cluster.choose_partitions(topic, [TopicPartition(topic, *name) for name in only])
        if not new and topic not in read:
            raise ClientError(
                f"group {group!r} has no offsets of topic {topic!r}, it reads {', '.join(read)}: --new gives it some"
            )
        if not only:
            tell_absent(cluster, "left as it is")
        left = [] if only else left_out(cluster, group, topic, chosen)
        offset_of = offset_in(target, topic, cluster.finder())
        offsets = {partition: _target(cluster, partition, offset_of) for partition in chosen}
        if not dry_run:
            cluster.commit(group, offsets)
    rows = [{"partition": str(partition), "offset": offset} for partition, offset in offsets.items()]
    if as_json:
        print_json({"group": group, "topic": topic, "dry_run": dry_run, "partitions": rows})
    else:
        print_table(("PARTITION", "WOULD BE" if dry_run else "OFFSET"), [tuple(row.values()) for row in rows])
    tell_left_out(group, topic, left)


@groups.command("delete")
@zk_option
@dry_run_option
@yes_option
@click.argument("group", type=GROUP)
def delete_group(zk: str, dry_run: bool, yes: bool, group: str) -> None:
    """Remove GROUP, which must have no live members, with all its offsets.

    A consumer that joins it later begins as a new group does.

    \b
    Example
      metaq groups delete audti --yes
    """
    with open_cluster(zk) as cluster:
        if group not in (known := cluster.view.groups()):
            near = did_you_mean(group, known, "`metaq groups list` shows all")
            raise ClientError(f"there is no group {group!r}: {near}")
        if members := cluster.members(group):
            raise _live(group, members)
        offsets = {topic: cluster.view.committed_partitions(group, topic) for topic in cluster.group_topics(group)}
        told = ", ".join(f"{topic}: {len(partitions)}" for topic, partitions in offsets.items()) or "none"
        if dry_run:
            click.echo(f"would delete group {group} and its offsets ({told})")
            return
        confirm(f"Delete group {group} and its offsets ({told})?", yes=yes)
        cluster.delete_group(group)
        click.echo(f"deleted group {group} and its offsets ({told})")


def _live(group: str, members: Sequence[str]) -> ClientError:
    return ClientError(f"group {group!r} has {len(members)} live members ({', '.join(members)}): stop them first")


def _target(cluster: Cluster, partition: TopicPartition, offset_of: OffsetIn) -> int:
    connection = cluster.connection(partition.broker)
    return offset_of(connection, partition, partition_bounds(connection, partition))
