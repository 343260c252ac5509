"""`metaq brokers`: which brokers are registered, and what one says about itself."""

from __future__ import annotations

import click

from metaq.client.cluster import Cluster
from metaq.client.inquiry import read_stats
from metaq.client.values import TopicPartition
from metaq.coordination.brokers import BrokerAddress

from .options import json_option, zk_option
from .output import print_json, print_table

__all__ = ["brokers"]


@click.group()
def brokers() -> None:
    """List and describe brokers.

    \b
    Example
      metaq brokers list
      metaq brokers describe 0 --json
    """


@brokers.command("list")
@zk_option
@json_option
def list_brokers(zk: str, as_json: bool) -> None:
    """All brokers registered in ZooKeeper.

    \b
    Example
      metaq brokers list --zk 127.0.0.1:2181
    """
    with Cluster(zk) as cluster:
        partitions = [each for topic in cluster.topics() for each in cluster.partitions(topic)]
        found = [
            _summary(address, partitions)
            for nodes in cluster.view.brokers().values()
            for address in (nodes.master, *nodes.slaves)
            if address is not None
        ]
    if as_json:
        print_json(found)
    else:
        print_table(("BROKER", "ROLE", "ADDRESS", "TOPICS", "PARTITIONS"), [tuple(each.values()) for each in found])


def _summary(address: BrokerAddress, partitions: list[TopicPartition]) -> dict[str, object]:
    mine = [each for each in partitions if each.broker == address.broker_id]
    return {
        "broker": address.broker_id,
        "role": "master" if address.slave_id is None else f"slave {address.slave_id}",
        "address": f"{address.host}:{address.port}",
        "topics": len({each.topic for each in mine}),
        "partitions": len(mine),
    }


@brokers.command("describe")
@zk_option
@json_option
@click.argument("broker", type=click.IntRange(0))
def describe_broker(zk: str, as_json: bool, broker: int) -> None:
    """What BROKER (its id) says about itself: uptime, connections, requests, messages.

    \b
    Example
      metaq brokers describe 0
    """
    with Cluster(zk) as cluster:
        connection = cluster.connection(broker)
        figures = {name: value for name, _, value in (line.partition(" ") for line in read_stats(connection))}
        frames = connection.speaks_frames
    figures = {"address": str(connection.endpoint), "protocol": "frames" if frames else "text", **figures}
    if as_json:
        print_json(figures)
    else:
        print_table(("NAME", "VALUE"), list(figures.items()))
