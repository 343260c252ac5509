"""The command `metaq delayed`: list, count and cancel messages that wait for their time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from metaq.client.admin.delayed_admin import DelayedAdmin, DelayedMessage, brokers_to_ask
from metaq.client.questions.cluster import Cluster
from metaq.client.records.results import TopicPartition
from metaq.protocol.delays import Cancelled
from metaq.protocol.errors import ClientError

from .cluster_access import open_cluster, tell_absent
from .options import PARTITION, STORED_TOPIC, PartitionName, confirm, dry_run_option, json_option, yes_option, zk_option
from .output import counted, preview_fields, say, show

__all__ = ["asked_brokers", "delayed"]


@click.group()
def delayed() -> None:
    """List and count messages that wait for their time, and cancel them.

    \b
    Example
      metaq delayed count
      metaq delayed list --topic orders
      metaq delayed cancel --topic orders --partition 0-1 1661382018505637889
    """


_topic_option = click.option("--topic", "-t", type=STORED_TOPIC, help="Of this topic; by default of all.")
_broker_option = click.option("--broker", type=click.IntRange(0), help="Ask this broker only; by default all.")


def asked_brokers(cluster: Cluster, broker: int | None) -> Sequence[int]:
    """Return what `brokers_to_ask` returns. If `broker` is not given, also report absent brokers on stderr."""
    if broker is None:
        tell_absent(cluster)
    return brokers_to_ask(cluster, broker)


@delayed.command("count")
@zk_option
@_topic_option
@_broker_option
@json_option
def count_delayed(zk: str, topic: str | None, broker: int | None, as_json: bool) -> None:
    """Count the waiting messages by topic.

    LATE: number of messages whose time has come, but which their partition does not accept; WHY: the reason for this.
    If a broker does not answer, the exit code is 1, and only the messages of the other brokers are counted.

    \b
    Example
      metaq delayed count --topic orders
    """
    with open_cluster(zk) as cluster:
        if broker is None:
            tell_absent(cluster)
        found = DelayedAdmin(cluster).count(topic=topic, broker=broker)
    rows = [asdict(each) for each in found.topics]
    show(as_json, rows, ("TOPIC", "COUNT", "LATE", "WHY"), (tuple(row.values()) for row in rows))
    found.check_complete()


@delayed.command("list")
@zk_option
@_topic_option
@_broker_option
@click.option("--limit", "-n", type=click.IntRange(1), default=100, show_default=True, help="Maximum number.")
@json_option
def list_of_delayed(zk: str, topic: str | None, broker: int | None, limit: int, as_json: bool) -> None:
    """List the next messages to be delivered, in the order of their times (UTC).

    If a broker does not answer, the exit code is 1, and only the messages of the other brokers are shown.

    \b
    Example
      metaq delayed list --topic orders --limit 20
    """
    with open_cluster(zk) as cluster:
        if broker is None:
            tell_absent(cluster)
        found = DelayedAdmin(cluster).list(topic=topic, broker=broker, limit=limit)
    columns = ("ID", "TOPIC", "PARTITION", "DUE", "TAKEN", "BYTES", "KEYS", "PAYLOAD")
    show(as_json, [_json(each) for each in found.messages], columns, (_row(each) for each in found.messages))
    found.check_complete()


def _json(found: DelayedMessage) -> dict[str, Any]:
    message = found.message
    return {
        "id": message.id,
        "topic": message.topic,
        "partition": str(found.partition),
        "due": message.due.isoformat(timespec="milliseconds"),
        "taken": None if message.taken is None else message.taken.isoformat(timespec="milliseconds"),
        "bytes": message.size,
        **preview_fields(message.preview),
    }


def _row(found: DelayedMessage) -> tuple[object, ...]:
    number, *others, keys, payload = _json(found).values()
    return (str(number), *others, " ".join(keys), payload)  # users copy the number: do not group it by thousands


@delayed.command("cancel")
@zk_option
@dry_run_option
@yes_option
@json_option
@click.option("--topic", "-t", type=STORED_TOPIC, required=True, help="Their topic.")
@click.option("--partition", "-p", type=PARTITION, required=True, help="Their partition, as `list` shows it.")
@click.argument("ids", type=click.IntRange(1), nargs=-1, required=True, metavar="ID...")
def cancel_delayed(
    zk: str, dry_run: bool, yes: bool, as_json: bool, topic: str, partition: PartitionName, ids: Sequence[int]
) -> None:
    """Cancel messages, so that they are not delivered. The exit code is 1 unless all of these messages are cancelled.

    With --dry-run, the command only asks the broker which of the messages still wait. The exit code is then 1 unless
    all of them still wait.

    \b
    Example
      metaq delayed cancel --topic orders --partition 0-1 1661382018505637889 --yes
    """
    place = TopicPartition(topic, partition.broker_id, partition.partition)
    if not dry_run:
        confirm(f"Cancel {counted(len(ids), 'delayed message')} of {topic} {partition}?", yes=yes)
    with open_cluster(zk) as cluster:
        states = DelayedAdmin(cluster).cancel(place, ids, dry_run=dry_run)
    said = {**_SAID, Cancelled.CANCELLED: "would be cancelled"} if dry_run else _SAID
    shown = {each: _WAITING if dry_run and state is Cancelled.CANCELLED else state for each, state in states.items()}
    say(as_json, shown, "\n".join(f"{each}: {said[state]}" for each, state in states.items()))
    left = sum(state is not Cancelled.CANCELLED for state in states.values())
    if left:
        verb = "would not be" if dry_run else "is not" if left == 1 else "are not"
        raise ClientError(f"{left} of {counted(len(ids), 'message')} {verb} cancelled")


_WAITING = "waiting"
_SAID = {
    Cancelled.CANCELLED: "cancelled",
    Cancelled.LATE: "its time is over: if there was such a message, it is delivered",
    Cancelled.UNKNOWN: "no such message waits for this partition",
}
