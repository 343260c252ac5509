"""The command `metaq shared`: list shared groups and the messages that they have not acknowledged, and delete shared
groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import click

from metaq.client.admin.completeness import tell_silent
from metaq.client.admin.known import shared_partitions
from metaq.client.questions.shared import SharedPartition, forget_shared_group
from metaq.client.records.results import TopicPartition
from metaq.client.runtime.nearest import did_you_mean
from metaq.protocol.errors import ClientError

from .cluster_access import open_cluster, tell_absent
from .options import STORED_GROUP, confirm, dry_run_option, json_option, yes_option, zk_option
from .output import UNKNOWN, counted, echo, show

__all__ = ["members_text", "shared"]

_NAMED = 5
"""A line of a table lists the names of at most this many members. With --json all members are printed."""


@click.group()
def shared() -> None:
    """List, describe and delete the groups of shared consumers.

    \b
    Example
      metaq shared list
      metaq shared describe thumbnails
    """


@shared.command("list")
@zk_option
@json_option
def list_shared(zk: str, as_json: bool) -> None:
    """List all shared groups: members, messages that are not acknowledged, and how many of them are leased.

    \b
    Example
      metaq shared list --json
    """
    with open_cluster(zk) as cluster:
        tell_absent(cluster)
        found, silent = shared_partitions(cluster)
    names = sorted({each.group for each in found})
    rows: list[dict[str, Any]] = []
    for name in names:
        parts = [each for each in found if each.group == name]
        rows.append(
            {
                "group": name,
                "topics": sorted({each.partition.topic for each in parts}),
                "members": len({member for each in parts for member in each.members}),
                "left": sum(each.left for each in parts),
                "leased": sum(each.leased for each in parts),
            }
        )
    cells = [(row["group"], ", ".join(row["topics"]), row["members"], row["left"], row["leased"]) for row in rows]
    show(as_json, rows, ("GROUP", "TOPICS", "MEMBERS", "LEFT", "LEASED"), cells)
    tell_silent(silent)


@shared.command("describe")
@zk_option
@json_option
@click.argument("group", type=STORED_GROUP)
def describe_shared(zk: str, as_json: bool, group: str) -> None:
    """Show the state of GROUP in each partition, and its members.

    LEFT: number of messages that are not acknowledged. LEASED: how many of these messages are leased by members.
    DELAYED: how many of them a member has released with a delay that is not over yet. ATTEMPTS: how often the broker
    has leased the message of LEFT that it has leased most often. OLDEST S: seconds since the oldest message of LEFT was
    stored. MEMBERS: the five members with the most leased messages, and the number of messages that each has leased
    (--json: all members).

    \b
    Example
      metaq shared describe thumbnails
    """
    with open_cluster(zk) as cluster:
        tell_absent(cluster)
        found, silent = shared_partitions(cluster, group)
        if not found and not silent:
            others = sorted({each.group for each in shared_partitions(cluster)[0]})
            raise _unknown(group, others)
    members: Counter[str] = Counter()
    for each in found:
        members.update(each.members)
    value = {"group": group, "members": dict(sorted(members.items())), "partitions": [_as_json(each) for each in found]}
    columns = ("TOPIC", "PARTITION", "LEFT", "LEASED", "DELAYED", "ATTEMPTS", "OLDEST S", "MEMBERS")
    show(as_json, value, columns, [_cells(each) for each in found])
    tell_silent(silent)


@shared.command("delete")
@zk_option
@dry_run_option
@yes_option
@click.argument("group", type=STORED_GROUP)
def delete_shared(zk: str, dry_run: bool, yes: bool, group: str) -> None:
    """Delete GROUP on all brokers. The group must have no members. If members join later, the group begins anew.

    \b
    Example
      metaq shared delete thumbnials --yes
    """
    with open_cluster(zk) as cluster:
        tell_absent(cluster, "not changed")
        found, silent = shared_partitions(cluster, group)
        if not found and not silent:
            raise _unknown(group, sorted({each.group for each in shared_partitions(cluster)[0]}))
        left = counted(sum(each.left for each in found), "message")
        what = f"{group}, which has {left} left"
        if dry_run:
            members = sorted({name for each in found for name in each.members})
            if members:
                raise _live(group, members)
            echo(f"would forget group {what}, on {counted(len(found), 'partition')}")
            tell_silent(silent)
            return
        confirm(f"Forget group {what}?", yes=yes)
        count = 0
        for broker_id in sorted({each.partition.broker for each in found}):
            forget = partial(forget_shared_group, broker_id=broker_id, group=group)
            count += cluster.ask(TopicPartition("", broker_id, 0), forget)
    echo(f"forgot group {group} on {counted(count, 'partition')}")
    tell_silent(silent)


def _unknown(group: str, others: Sequence[str]) -> ClientError:
    near = did_you_mean(group, others, "`metaq shared list` shows those that there are")
    return ClientError(f"there is no shared group {group!r}: {near}")


def _live(group: str, members: Sequence[str]) -> ClientError:
    what = counted(len(members), "live member")
    return ClientError(f"group {group!r} has {what} ({', '.join(members)}): stop them first")


def _as_json(each: SharedPartition) -> dict[str, object]:
    return {
        "topic": each.partition.topic,
        "partition": str(each.partition),
        "left": each.left,
        "leased": each.leased,
        "delayed": each.delayed,
        "most_attempts": each.most_attempts,
        "oldest_seconds": None if each.oldest_ms is None else each.oldest_ms / 1000,
        "ordered_by_key": each.ordered,
        "damaged_bytes": each.damaged_bytes,
        "members": dict(each.members),
    }


def _cells(each: SharedPartition) -> tuple[object, ...]:
    oldest = ("" if not each.left else UNKNOWN) if each.oldest_ms is None else f"{each.oldest_ms / 1000:.1f}"
    figures = each.left, each.leased, each.delayed, each.most_attempts
    return each.partition.topic, str(each.partition), *figures, oldest, members_text(each.members)


def members_text(members: Mapping[str, int]) -> str:
    """Return a text about the members of a group. The text names the members that have leased the most messages, each
    with its number of messages, and tells how many other members there are.
    """
    names = sorted(members, key=lambda name: (-members[name], name))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(f"{name} {members[name]}" for name in names[:_NAMED]) + more
