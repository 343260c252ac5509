"""The command `metaq groups`: list consumer groups, show their lag, and change their committed offsets."""

from __future__ import annotations

from dataclasses import asdict

import click

from metaq.client.admin.group_admin import GroupAdmin, GroupDescription
from metaq.client.admin.group_lag import GroupPartition
from metaq.client.questions.places import Position
from metaq.client.records.results import TopicPartition

from .ahead import commanded
from .cluster_access import open_cluster, tell_absent, tell_empty
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
from .output import UNKNOWN, counted, echo, show

__all__ = ["groups", "missed", "seek_group"]


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
    """List all groups that ever had a member or an offset.

    \b
    Example
      metaq groups list --json
    """
    with open_cluster(zk) as cluster:
        found = GroupAdmin(cluster).list()
        tell_empty(cluster)
    rows = [(each.group, each.members, ", ".join(each.topics)) for each in found]
    show(as_json, [asdict(each) for each in found], ("GROUP", "MEMBERS", "TOPICS"), rows)


@groups.command("describe")
@zk_option
@json_option
@click.argument("group", type=GROUP)
def describe_group(zk: str, as_json: bool, group: str) -> None:
    """Show owner, committed offset and lag of each partition that GROUP reads.

    The lag is shown in bytes and in messages. It is also shown as a time: the seconds since the oldest message after
    the committed offset was stored. If the group has not committed an offset yet, all stored messages count as lag.
    Values that a Java broker does not report are shown as unknown. The exit code is 1 if a broker does not answer.

    The failed messages that are ready for another attempt are in the topic %RETRY%GROUP, which is shown like the
    group's other topics. Two numbers are shown after the partitions: the failed messages that still wait for their next
    attempt, and the dead letters.

    If the group's members assign partitions by zones, the zone of each partition's broker is shown, and the owner's
    zone if it differs from the broker's.

    \b
    Example
      metaq groups describe audit
    """
    with open_cluster(zk) as cluster:
        tell_absent(cluster)
        found = GroupAdmin(cluster).describe(group)
    columns = ["TOPIC", "PARTITION", "OWNER", "COMMITTED", "END", "LAG BYTES", "MESSAGES", "SECONDS"]
    value = {
        "group": group,
        "members": found.members,
        "zones": found.member_zones,
        "waiting_retries": found.waiting_retries,
        "dead_letters": found.dead_letters,
        "partitions": [{**_as_json(row), **_zones_as_json(found, row)} for row in found.partitions],
    }
    shown = [_cells(row) for row in found.partitions]
    if found.member_zones:
        columns.append("ZONE")
        shown = [[*cells, _zones_cell(found, row)] for cells, row in zip(shown, found.partitions, strict=True)]
    show(as_json, value, columns, shown)
    if found.waiting_retries != 0 and not as_json:
        verb = "waits for its" if found.waiting_retries == 1 else "wait for their"
        echo(f"{counted(found.waiting_retries, 'failed message')} {verb} time")
    if found.dead_letters != 0 and not as_json:
        echo(f"{counted(found.dead_letters, 'dead letter')}: see `metaq dead-letters list --group {group}`")
    for row in found.partitions:
        if row.missed_from is not None:
            echo(f"metaq: {missed(group, row.partition, row.missed_from)}", err=True)
    found.check_complete()


def _zones(found: GroupDescription, row: GroupPartition) -> tuple[str | None, str | None]:
    """Return the zone of the partition's broker and the zone of its owner. None means unknown."""
    return found.broker_zones.get(row.partition.broker), found.member_zones.get(row.owner or "")


def _zones_as_json(found: GroupDescription, row: GroupPartition) -> dict[str, object]:
    """Return the JSON fields about zones for a partition. zone: the zone of the partition's broker. across_zones:
    whether the partition's owner is in another zone than the broker; None means that one of the two zones is unknown.
    """
    broker, owner = _zones(found, row)
    return {"zone": broker, "across_zones": None if broker is None or owner is None else broker != owner}


def _zones_cell(found: GroupDescription, row: GroupPartition) -> str | None:
    broker, owner = _zones(found, row)
    return broker if owner in (None, broker) else f"{broker or '-'}, read in {owner}"


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
        "missed_from": row.missed_from,
        "closed": row.closed,
    }


def _cells(row: GroupPartition) -> list[object]:
    topic, partition, owner, committed, *lags, _missed_from, closed = _as_json(row).values()
    unknown = "closed" if closed else UNKNOWN
    return [topic, partition, owner, committed, *(unknown if each is None else each for each in lags)]


@groups.command("seek")
@zk_option
@json_option
@dry_run_option
@click.option("--topic", "-t", type=TOPIC, required=True, help="Topic whose offsets to move.")
@click.option("--to", "target", type=POSITION, required=True, help="Where the group continues.")
@click.option("--partition", "-p", "only", type=PARTITION, multiple=True, help="Only this partition; repeat for more.")
@click.option(
    "--new", is_flag=True, help="Set where a group will begin that has no members and no offsets of the topic yet."
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
    """Move the committed offsets of GROUP. The command refuses this while the group has live members, because they
    would overwrite the offsets.

    If you give a byte offset, it must be the beginning of a message or the end of the partition.

    \b
    Example
      metaq groups seek audit --topic trades --to 2024-05-01T00:00:00Z
      metaq groups seek audit --topic trades --partition 0-3 --to 4096
      metaq groups seek audit --topic trades --to key:order-7
    """
    with open_cluster(zk) as cluster:
        found = GroupAdmin(cluster).seek(group, topic, target, partitions=map(str, only), new=new, dry_run=dry_run)
        if not only:
            tell_absent(cluster, "left as it is")
    rows = [{"partition": str(each.partition), "offset": each.offset} for each in found.partitions]
    value = {"group": group, "topic": topic, "dry_run": dry_run, "partitions": rows}
    show(as_json, value, ("PARTITION", "WOULD BE" if dry_run else "OFFSET"), [tuple(row.values()) for row in rows])
    found.check_complete()


@groups.command("delete")
@zk_option
@dry_run_option
@yes_option
@click.option("--broker", "-b", type=click.IntRange(0), help="Remove only its offsets of this broker's partitions.")
@click.argument("group", type=GROUP)
def delete_group(zk: str, dry_run: bool, yes: bool, broker: int | None, group: str) -> None:
    """Remove GROUP, which must have no live members, with all its offsets.

    If a consumer joins the group later, the group begins anew, without offsets. With --broker, the group stays, and
    only its offsets in the partitions of that broker are removed. Use --broker for a broker that was removed
    permanently, because clients look for its partitions as long as ZooKeeper has offsets for them.

    \b
    Example
      metaq groups delete audti --yes
      metaq groups delete audit --broker 7
    """
    with open_cluster(zk) as cluster:
        admin = GroupAdmin(cluster)
        if broker is None:
            found = admin.delete(group, dry_run=True)
            told = ", ".join(f"{topic}: {len(partitions)}" for topic, partitions in found.offsets.items()) or "none"
            what = f"group {group} and its offsets ({told})"
        else:
            gone = admin.delete_offsets(group, broker, dry_run=True)
            told = ", ".join(f"{each.topic} {each}" for each in gone)
            what = f"the offsets of group {group} of broker {broker} ({told})"
        if dry_run:
            echo(f"would delete {what}")
            return
        confirm(f"Delete {what}?", yes=yes)
        if broker is None:
            admin.delete(group)
        else:
            admin.delete_offsets(group, broker)
        echo(f"deleted {what}")


def missed(group: str, partition: TopicPartition, missed_from: int) -> str:
    """Return a sentence for an operator about the messages that a group may have missed."""
    return (
        f"group {group} has read messages of {partition.topic} {partition} that are lost, and skips the messages that "
        f"took their place: stop its members, and run `{commanded(group, partition, missed_from)}`"
    )
