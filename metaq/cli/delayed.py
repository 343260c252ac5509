"""The command `metaq delayed`: list, count and cancel messages that wait for their time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from heapq import merge
from itertools import islice
from typing import Any

import click

from metaq.client.producer.cancelling import cancel_at
from metaq.client.questions.cluster import Cluster
from metaq.client.questions.delayed import WaitingMessage, each_delayed, list_delayed
from metaq.client.records.results import TopicPartition
from metaq.client.transport.connection import Connection
from metaq.protocol.delays import Cancelled, due_ms
from metaq.protocol.errors import ClientError

from .cluster_access import ask_brokers, open_cluster, tell_absent, tell_silent
from .known import check_known_topic
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


def asked_brokers(cluster: Cluster, broker: int | None) -> list[int]:
    """Return the ids of the brokers to ask: only `broker` if it is given, otherwise all registered brokers. If `broker`
    is not given, also report absent brokers on stderr. Raises the errors of `Cluster.endpoint`.
    """
    if broker is not None:
        cluster.endpoint(broker)
        return [broker]
    tell_absent(cluster)
    return sorted(number for number, nodes in cluster.view.brokers().items() if nodes.master is not None)


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
    counts: Counter[str] = Counter()
    late: Counter[str] = Counter()
    why: dict[str, str] = {}
    with open_cluster(zk) as cluster:
        found, silent = ask_brokers(
            cluster, asked_brokers(cluster, broker), lambda connection, _: list_delayed(connection, topic or "", 0)
        )
        for each, page in found.items():
            counts.update({name: count for name, count in page.topics.items() if topic in (None, name)})
            for place, said in page.late.items():
                name = place.rpartition("-")[0]
                if topic in (None, name):
                    late[name] += int(said["count"])
                    why[name] = f"{each}-{place.rpartition('-')[2]}: {said['why']}"
        if topic is not None and not counts:
            check_known_topic(cluster, topic)
    rows = [
        {"topic": name, "count": count, "late": late[name], "why": why.get(name)}
        for name, count in sorted(counts.items())
    ]
    show(as_json, rows, ("TOPIC", "COUNT", "LATE", "WHY"), (tuple(row.values()) for row in rows))
    tell_silent(silent)


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
        found, silent = ask_brokers(
            cluster,
            asked_brokers(cluster, broker),
            lambda connection, _: list(each_delayed(connection, topic or "", limit)),
        )
        each_broker = (_each(*answer) for answer in found.items())
        chosen = list(islice(merge(*each_broker, key=lambda pair: pair[1].due), limit))
        if topic is not None and not chosen:
            check_known_topic(cluster, topic)
    columns = ("ID", "TOPIC", "PARTITION", "DUE", "TAKEN", "BYTES", "KEYS", "PAYLOAD")
    show(as_json, [_json(*pair) for pair in chosen], columns, (_row(*pair) for pair in chosen))
    tell_silent(silent)


def _each(broker: int, messages: Sequence[WaitingMessage]) -> Iterator[tuple[int, WaitingMessage]]:
    return ((broker, message) for message in messages)


def _json(broker: int, message: WaitingMessage) -> dict[str, Any]:
    return {
        "id": message.id,
        "topic": message.topic,
        "partition": f"{broker}-{message.partition}",
        "due": message.due.isoformat(timespec="milliseconds"),
        "taken": None if message.taken is None else message.taken.isoformat(timespec="milliseconds"),
        "bytes": message.size,
        **preview_fields(message.preview),
    }


def _row(broker: int, message: WaitingMessage) -> tuple[object, ...]:
    number, *others, keys, payload = _json(broker, message).values()
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
    question = _would_cancel if dry_run else cancel_at
    with open_cluster(zk) as cluster:
        check_known_topic(cluster, topic)
        states = {each: cluster.ask(place, partial(question, partition=place, message_id=each)) for each in ids}
    said = {**_SAID, Cancelled.CANCELLED: "would be cancelled"} if dry_run else _SAID
    shown = {each: _WAITING if dry_run and state is Cancelled.CANCELLED else state for each, state in states.items()}
    say(as_json, shown, "\n".join(f"{each}: {said[state]}" for each, state in states.items()))
    left = sum(state is not Cancelled.CANCELLED for state in states.values())
    if left:
        verb = "would not be" if dry_run else "is not" if left == 1 else "are not"
        raise ClientError(f"{left} of {counted(len(ids), 'message')} {verb} cancelled")


def _would_cancel(connection: Connection, partition: TopicPartition, message_id: int) -> Cancelled:
    """Return the result that `cancel_at` would have, without cancelling the message. There is one difference: for a
    message that was cancelled earlier, this function returns that the message does not wait.
    """
    page = list_delayed(connection, limit=1, after=message_id - 1)  # messages are in the order of their ids
    for each in page.messages:
        if (each.id, each.topic, each.partition) == (message_id, partition.topic, partition.partition):
            return Cancelled.CANCELLED
    return Cancelled.LATE if due_ms(message_id) <= time.time() * 1000 else Cancelled.UNKNOWN


_WAITING = "waiting"
_SAID = {
    Cancelled.CANCELLED: "cancelled",
    Cancelled.LATE: "its time is over: if there was such a message, it is delivered",
    Cancelled.UNKNOWN: "no such message waits for this partition",
}
