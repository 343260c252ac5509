"""The command `metaq groups`: list consumer groups, show their lag, and change their committed offsets."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import click

from metaq.client.browsing.dead_letters import count_dead_letters
from metaq.client.questions.cluster import Cluster
from metaq.client.questions.delayed import list_delayed
from metaq.client.questions.divergence import common_offset
from metaq.client.questions.partition_bounds import Bounds, partition_bounds
from metaq.client.questions.places import OffsetIn, Position, check_begins_message, offset_in
from metaq.client.questions.sources import Survey
from metaq.client.questions.stored_records import waiting_from
from metaq.client.records.results import TopicPartition
from metaq.client.runtime.nearest import did_you_mean
from metaq.client.transport.connection import Connection
from metaq.coordination.offsets.offset_store import Offset
from metaq.protocol.errors import BrokerUnavailable, ClientError, CoordinationError, MetaqError
from metaq.protocol.message_id import UNKNOWN_ID
from metaq.protocol.own_topics import RETRY_PREFIX

from .ahead import commanded
from .cluster_access import check_complete, open_cluster, tell_absent, tell_empty
from .known import shared_partitions
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

__all__ = ["GroupPartition", "check_groups", "group_partitions", "groups", "left_out", "seek_group", "tell_left_out"]


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
        found = [(group, len(cluster.members(group)), cluster.group_topics(group)) for group in cluster.view.groups()]
        tell_empty(cluster)
    rows = [dict(zip(("group", "members", "topics"), each, strict=True)) for each in found]
    show(as_json, rows, ("GROUP", "MEMBERS", "TOPICS"), [(*each, ", ".join(topics)) for *each, topics in found])


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
        (topics,) = check_groups(cluster, [group])
        tell_absent(cluster)
        survey = cluster.survey()
        rows = [row for topic in topics for row in group_partitions(cluster, survey, group, topic)]
        members = cluster.members(group)
        zones = _Zones(cluster.view.consumer_zones(group), cluster.view.broker_zones())
        dead = _dead_letters(cluster, group)
        waiting = _waiting_retries(cluster, group, topics)
    columns = ["TOPIC", "PARTITION", "OWNER", "COMMITTED", "END", "LAG BYTES", "MESSAGES", "SECONDS"]
    value = {
        "group": group,
        "members": members,
        "zones": zones.members,
        "waiting_retries": waiting,
        "dead_letters": dead,
        "partitions": [{**_as_json(row), **zones.as_json(row)} for row in rows],
    }
    shown = [_cells(row) for row in rows]
    if zones.members:
        columns.append("ZONE")
        shown = [[*cells, zones.cell(row)] for cells, row in zip(shown, rows, strict=True)]
    show(as_json, value, columns, shown)
    if waiting != 0 and not as_json:
        verb = "waits for its" if waiting == 1 else "wait for their"
        echo(f"{counted(waiting, 'failed message')} {verb} time")
    if dead != 0 and not as_json:
        echo(f"{counted(dead, 'dead letter')}: see `metaq dead-letters list --group {group}`")
    for row in rows:
        if row.missed_from is not None:
            echo(f"metaq: {missed(group, row.partition, row.missed_from)}", err=True)
    check_complete(survey, [row.partition for row in rows])


def _waiting_retries(cluster: Cluster, group: str, topics: Sequence[str]) -> int | None:
    """Return the number of failed messages of a group that still wait for another attempt, or None if a broker does not
    report this number. The result is 0 if `topics`, the topics that the group reads, do not contain the group's topic
    of failed messages.
    """
    topic = RETRY_PREFIX + group
    if topic not in topics:
        return 0
    count = 0
    for broker_id in {each.broker for each in cluster.readable(topic)}:
        try:
            count += cluster.ask(
                TopicPartition(topic, broker_id, 0), lambda connection: list_delayed(connection, topic, limit=0).total
            )
        except CoordinationError:
            raise
        except MetaqError:
            return None
    return count


def _dead_letters(cluster: Cluster, group: str) -> int | None:
    """Return the number of dead letters of a group, or None if a broker that has some of them does not answer."""
    try:
        return count_dead_letters(cluster, group)
    except CoordinationError:
        raise
    except MetaqError:
        return None


def check_groups(cluster: Cluster, groups: Sequence[str], otherwise: str = "") -> list[list[str]]:
    """Return for each group the topics that it reads.

    Raises ClientError for a group that has neither a member nor an offset. The error text names the most similar known
    group, and ends with the text `otherwise`. If the group is a shared group, the error text names the command for
    shared groups instead.
    """
    known = cluster.view.groups()
    topics = [cluster.group_topics(group) if group in known else [] for group in groups]
    for group, read in zip(groups, topics, strict=True):
        if not read:
            shared, _ = shared_partitions(cluster, group)
            if shared:
                raise ClientError(f"group {group!r} is a shared group: see `metaq shared describe {group}`")
            near = did_you_mean(group, known, "`metaq groups list` shows those that have")
            raise ClientError(f"group {group!r} has no members and no offsets: {near}{otherwise}")
    return topics


def left_out(cluster: Cluster, group: str, topic: str, chosen: Sequence[TopicPartition]) -> list[str]:
    """Return the names of the partitions of `topic` in which the group has committed offsets and which no registered
    broker serves. chosen: all partitions of `topic` that registered brokers serve.
    """
    served = set(map(str, chosen))
    return [name for name in cluster.view.committed_partitions(group, topic) if name not in served]


def tell_left_out(group: str, topic: str, left: Sequence[str]) -> None:
    """Raise BrokerUnavailable if `left`, the result of `left_out`, contains any partition."""
    if left:
        brokers = ", ".join(sorted({name.partition("-")[0] for name in left}, key=int))
        raise BrokerUnavailable(
            f"broker {brokers} is not registered in ZooKeeper: the offsets of {group!r} in {topic} {', '.join(left)} "
            "stay as they are: start that broker and do it again"
        )


class _Zones(NamedTuple):
    """The zones of the consumers of a group (by consumer id) and of the brokers (by broker id)."""

    members: dict[str, str]
    brokers: dict[int, str]

    def as_json(self, row: GroupPartition) -> dict[str, object]:
        """Return the JSON fields about zones for a partition. zone: the zone of the partition's broker. across_zones:
        whether the partition's owner is in another zone than the broker; None means that one of the two zones is
        unknown.
        """
        broker, owner = self._of(row)
        return {"zone": broker, "across_zones": None if broker is None or owner is None else broker != owner}

    def cell(self, row: GroupPartition) -> str | None:
        broker, owner = self._of(row)
        return broker if owner in (None, broker) else f"{broker or '-'}, read in {owner}"

    def _of(self, row: GroupPartition) -> tuple[str | None, str | None]:
        return self.brokers.get(row.partition.broker), self.members.get(row.owner or "")


def _as_json(row: GroupPartition) -> dict[str, object]:
    found = {**row._asdict(), "end": row.bounds and row.bounds.end}
    names = ("owner", "committed", "end", "lag_bytes", "lag_messages", "lag_seconds", "missed_from", "closed")
    return {"topic": row.partition.topic, "partition": str(row.partition), **{name: found[name] for name in names}}


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
        offsets = {partition: _target(cluster, partition, offset_of, isinstance(target, int)) for partition in chosen}
        if not dry_run:
            cluster.commit(group, offsets)
    rows = [{"partition": str(partition), "offset": offset} for partition, offset in offsets.items()]
    value = {"group": group, "topic": topic, "dry_run": dry_run, "partitions": rows}
    show(as_json, value, ("PARTITION", "WOULD BE" if dry_run else "OFFSET"), [tuple(row.values()) for row in rows])
    tell_left_out(group, topic, left)


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
        if group not in (known := cluster.view.groups()):
            near = did_you_mean(group, known, "`metaq groups list` shows all")
            raise ClientError(f"there is no group {group!r}: {near}")
        if broker is not None:
            _delete_offsets(cluster, group, broker, dry_run, yes)
            return
        if members := cluster.members(group):
            raise _live(group, members)
        offsets = {topic: cluster.view.committed_partitions(group, topic) for topic in cluster.group_topics(group)}
        told = ", ".join(f"{topic}: {len(partitions)}" for topic, partitions in offsets.items()) or "none"
        if dry_run:
            echo(f"would delete group {group} and its offsets ({told})")
            return
        confirm(f"Delete group {group} and its offsets ({told})?", yes=yes)
        cluster.delete_group(group)
        echo(f"deleted group {group} and its offsets ({told})")


def _delete_offsets(cluster: Cluster, group: str, broker: int, dry_run: bool, yes: bool) -> None:
    if broker in cluster.view.brokers():
        raise ClientError(
            f"broker {broker} is registered: `metaq groups seek {group}` moves the offsets that it serves"
        )
    gone = cluster.begun_partitions(group, broker)
    if not gone:
        raise ClientError(f"group {group!r} has no offsets of broker {broker}")
    told = f"the offsets of group {group} of broker {broker} ({', '.join(f'{each.topic} {each}' for each in gone)})"
    if dry_run:
        echo(f"would delete {told}")
        return
    confirm(f"Delete {told}?", yes=yes)
    cluster.delete_offsets(group, gone)
    echo(f"deleted {told}")


def _live(group: str, members: Sequence[str]) -> ClientError:
    return ClientError(
        f"group {group!r} has {counted(len(members), 'live member')} ({', '.join(members)}): stop them first"
    )


def _target(cluster: Cluster, partition: TopicPartition, offset_of: OffsetIn, is_byte: bool) -> int:
    def target(connection: Connection) -> int:
        bounds = partition_bounds(connection, partition)
        offset = offset_of(connection, partition, bounds)
        if is_byte and bounds.first < offset < bounds.end:
            check_begins_message(connection, partition, offset)
        return offset

    return cluster.ask(partition, target)


# --- how far a group is behind ----------------------------------------------------------------------------------------


class GroupPartition(NamedTuple):
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


def missed(group: str, partition: TopicPartition, missed_from: int) -> str:
    """Return a sentence for an operator about the messages that a group may have missed."""
    return (
        f"group {group} has read messages of {partition.topic} {partition} that are lost, and skips the messages that "
        f"took their place: stop its members, and run `{commanded(group, partition, missed_from)}`"
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
    return found._replace(closed=found.partition in survey.closed)


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
    found = found._replace(bounds=waiting.bounds)
    if waiting.id_before != UNKNOWN_ID and found.committed is not None:
        back = common_offset(connection, partition, waiting.bounds.first, message_id)
        found = found._replace(missed_from=back if back is not None and back < found.committed else None)
    if found.committed is not None and found.committed > waiting.bounds.end:
        return found  # an offset of an earlier partition with this name: the position in this one is unknown
    seconds = None if waiting.seconds is None else int(waiting.seconds)
    return found._replace(lag_bytes=waiting.bytes, lag_messages=waiting.messages, lag_seconds=seconds)
