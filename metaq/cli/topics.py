"""The command `metaq topics`: list topics, and the content of their partitions."""

from __future__ import annotations

from dataclasses import asdict

import click

from metaq.client.admin.topic_admin import PartitionDescription, TopicAdmin

from .cluster_access import open_cluster, tell_absent
from .options import TOPIC, json_option, zk_option
from .output import UNKNOWN, show

__all__ = ["topics"]


@click.group()
def topics() -> None:
    """List and describe topics.

    \b
    Example
      metaq topics list
      metaq topics describe trades --json
    """


@topics.command("list")
@zk_option
@json_option
@click.option("--all", "with_own", is_flag=True, help="Also metaq's own topics, whose names begin with %.")
def list_topics(zk: str, as_json: bool, with_own: bool) -> None:
    """List all topics that live brokers offer to producers or to consumers, with their number of partitions.

    Topics of metaq itself (failed messages, dead letters, replies) are listed with --all.

    \b
    Example
      metaq topics list --zk 127.0.0.1:2181
    """
    with open_cluster(zk) as cluster:
        found = [asdict(each) for each in TopicAdmin(cluster).list(with_own=with_own)]
        tell_absent(cluster)
    show(as_json, found, ("TOPIC", "PARTITIONS", "BROKERS"), [tuple(each.values()) for each in found])


@topics.command("describe")
@zk_option
@json_option
@click.argument("topic", type=TOPIC)
def describe_topic(zk: str, as_json: bool, topic: str) -> None:
    """Show each partition of TOPIC: its broker, the offsets of its readable bytes, and its number of messages.

    If a broker does not answer, the exit code is 1, and only the partitions of the other brokers are shown.

    \b
    Example
      metaq topics describe trades
    """
    with open_cluster(zk) as cluster:
        tell_absent(cluster)
        described = TopicAdmin(cluster).describe(topic)
    rows = [_row(each) for each in described.partitions]
    columns = ("PARTITION", "BROKER", "FIRST", "END", "BYTES", "MESSAGES")
    show(as_json, {"topic": topic, "partitions": rows}, columns, map(_cells, rows))
    described.check_complete()


def _cells(row: dict[str, object]) -> list[object]:
    *cells, closed = row.values()
    return [("closed" if closed else UNKNOWN) if each is None else each for each in cells]


def _row(described: PartitionDescription) -> dict[str, object]:
    bounds = described.bounds
    return {
        "partition": str(described.partition),
        "broker": described.address or "none",
        "first_offset": bounds and bounds.first,
        "end_offset": bounds and bounds.end,
        "bytes": bounds and bounds.end - bounds.first,
        "messages": bounds and bounds.messages,
        "closed": described.closed,
    }
