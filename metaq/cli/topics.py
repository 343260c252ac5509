"""`metaq topics`: which topics there are, and what their partitions hold."""

from __future__ import annotations

import click

from metaq.client.cluster import Cluster
from metaq.client.inquiry import partition_bounds
from metaq.client.values import TopicPartition

from .options import TOPIC, json_option, zk_option
from .output import print_json, print_table

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
def list_topics(zk: str, as_json: bool) -> None:
    """All topics that live brokers publish, with their number of partitions.

    \b
    Example
      metaq topics list --zk 127.0.0.1:2181
    """
    with Cluster(zk) as cluster:
        found = [_summary(cluster, topic) for topic in cluster.topics()]
    if as_json:
        print_json(found)
    else:
        print_table(("TOPIC", "PARTITIONS", "BROKERS"), [tuple(each.values()) for each in found])


def _summary(cluster: Cluster, topic: str) -> dict[str, object]:
    partitions = cluster.partitions(topic)
    return {"topic": topic, "partitions": len(partitions), "brokers": len({each.broker for each in partitions})}


@topics.command("describe")
@zk_option
@json_option
@click.argument("topic", type=TOPIC)
def describe_topic(zk: str, as_json: bool, topic: str) -> None:
    """Each partition of TOPIC: its broker, its readable bytes and its messages.

    \b
    Example
      metaq topics describe trades
    """
    with Cluster(zk) as cluster:
        rows = [_describe(cluster, partition) for partition in cluster.partitions(topic)]
    if as_json:
        print_json({"topic": topic, "partitions": rows})
    else:
        print_table(("PARTITION", "BROKER", "FIRST", "END", "BYTES", "MESSAGES"), [tuple(row.values()) for row in rows])


def _describe(cluster: Cluster, partition: TopicPartition) -> dict[str, object]:
    bounds = partition_bounds(cluster.connection(partition.broker), partition)
    endpoint = cluster.endpoint(partition.broker)
    return {
        "partition": str(partition),
        "broker": f"{endpoint.host}:{endpoint.port}",
        "first_offset": bounds.first,
        "end_offset": bounds.end,
        "bytes": bounds.end - bounds.first,
        "messages": bounds.messages,
    }
