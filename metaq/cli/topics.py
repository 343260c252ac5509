"""The command `metaq topics`: list topics, and the content of their partitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from metaq.client.questions.sources import Survey
from metaq.client.records.results import TopicPartition
from metaq.protocol.own_topics import OWN_MARK

from .cluster_access import check_complete, open_cluster, tell_absent
from .options import TOPIC, json_option, zk_option
from .output import UNKNOWN, show

if TYPE_CHECKING:
    from metaq.client.questions.partition_bounds import Bounds

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
        names = [name for name in cluster.view.topics() if with_own or not name.startswith(OWN_MARK)]
        served = cluster.served_many(names)
        tell_absent(cluster)
    found = [_summary(topic, partitions) for topic, partitions in served.items() if partitions]
    show(as_json, found, ("TOPIC", "PARTITIONS", "BROKERS"), [tuple(each.values()) for each in found])


def _summary(topic: str, partitions: Sequence[TopicPartition]) -> dict[str, object]:
    return {"topic": topic, "partitions": len(partitions), "brokers": len({each.broker for each in partitions})}


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
    from metaq.client.questions.partition_bounds import partition_bounds  # `list` does not need it

    with open_cluster(zk) as cluster:
        tell_absent(cluster)
        partitions = cluster.choose_partitions(topic)
        survey = cluster.survey()
        bounds = survey.ask_each(partitions, partition_bounds)
        rows = [_describe(survey, each, bounds.get(each)) for each in partitions]
    columns = ("PARTITION", "BROKER", "FIRST", "END", "BYTES", "MESSAGES")
    show(as_json, {"topic": topic, "partitions": rows}, columns, map(_cells, rows))
    check_complete(survey, partitions)


def _cells(row: dict[str, object]) -> list[object]:
    *cells, closed = row.values()
    return [("closed" if closed else UNKNOWN) if each is None else each for each in cells]


def _describe(survey: Survey, partition: TopicPartition, bounds: Bounds | None) -> dict[str, object]:
    source = survey.source(partition)
    return {
        "partition": str(partition),
        "broker": str(source.endpoint) if source else "none",
        "first_offset": bounds and bounds.first,
        "end_offset": bounds and bounds.end,
        "bytes": bounds and bounds.end - bounds.first,
        "messages": bounds and bounds.messages,
        "closed": partition in survey.closed,
    }
