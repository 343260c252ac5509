"""The command `metaq brokers`: show the registered brokers, and a single broker's own report."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import click

from metaq.client.questions.partition_bounds import read_stats
from metaq.client.records.results import TopicPartition
from metaq.client.settings.config import ConnectionConfig
from metaq.client.transport.connection import Endpoint, open_connection
from metaq.coordination.brokers.cluster_view import BrokerAddress, BrokerNodes
from metaq.coordination.sets.set_view import read_sets
from metaq.protocol.errors import MetaqError

from .broker_sets import elect_node, forget_broker_set, hand_over_set, list_sets, prefer_node
from .cluster_access import open_cluster, open_session, tell_empty
from .moving import drain_broker
from .options import json_option, zk_option
from .output import show
from .set_look import is_led

__all__ = ["brokers"]

_FIELDS = ("broker", "role", "node", "address", "topics", "partitions", "config_checksum", "version")

MAX_ASKED = 16
"""The command asks at most this number of brokers for their version at the same time."""


@click.group()
def brokers() -> None:
    """List and describe brokers; show broker sets and choose their leaders; take brokers out of service.

    \b
    Example
      metaq brokers list
      metaq brokers describe 0 --json
      metaq brokers sets
      metaq brokers hand-over 0
      metaq brokers drain 0
    """


@brokers.command("list")
@zk_option
@json_option
def list_brokers(zk: str, as_json: bool) -> None:
    """List all brokers and slaves registered in ZooKeeper: their partitions, version and configuration.

    A broker that was registered earlier and is not registered now has the role `gone`, and its other columns are empty.
    CONFIG is the checksum of the server.ini that a master has registered. VERSION is `-` if the broker does not answer.
    Of a broker set only the leader is listed, with the role master; NODE is its name. `metaq brokers sets` shows all
    nodes.

    \b
    Example
      metaq brokers list --zk 127.0.0.1:2181
    """
    with open_cluster(zk) as cluster:
        partitions = [each for topic in cluster.topics() for each in cluster.partitions(topic)]
        registered = cluster.view.brokers()
        checksums = dict(zip(registered, cluster.view.config_checksums(list(registered)), strict=True))
        addresses = [each for nodes in registered.values() for each in (nodes.master, *nodes.slaves) if each]
        gone = cluster.view.absent_brokers(registered)
        tell_empty(cluster)
    with open_session(zk) as session:
        views = read_sets(session)
    leaders = {broker_id: view.state.leader for broker_id, view in views.items() if view.state and is_led(view)}
    with ThreadPoolExecutor(MAX_ASKED) as pool:
        versions = pool.map(_version, addresses)
        found = [
            {
                **_summary(address, partitions, leaders),
                "config_checksum": checksums[address.broker_id] if address.slave_id is None else None,
                "version": version,
            }
            for address, version in zip(addresses, versions, strict=True)
        ]
    found += [dict.fromkeys(_FIELDS) | {"broker": each, "role": "gone"} for each in gone]
    columns = ("BROKER", "ROLE", "NODE", "ADDRESS", "TOPICS", "PARTITIONS", "CONFIG", "VERSION")
    named = {"broker", "config_checksum"}  # these numbers identify something, so their digits are not grouped
    rows = [
        [str(value) if name in named and value is not None else value for name, value in each.items()] for each in found
    ]
    show(as_json, found, columns, rows)


def _version(address: BrokerAddress) -> str | None:
    """Return the version that the broker process at this address reports, or None if the process does not answer."""
    try:
        connection = open_connection(Endpoint(address.host, address.port), ConnectionConfig())
    except MetaqError:
        return None
    connection.close()
    return connection.peer_version


def _summary(address: BrokerAddress, partitions: list[TopicPartition], leaders: Mapping[int, str]) -> dict[str, object]:
    mine = [each for each in partitions if each.broker == address.broker_id]
    return {
        "broker": address.broker_id,
        "role": "master" if address.slave_id is None else f"slave {address.slave_id}",
        "node": leaders.get(address.broker_id) if address.slave_id is None else None,
        "address": f"{address.host}:{address.port}",
        "topics": len({each.topic for each in mine}),
        "partitions": len(mine),
    }


@brokers.command("describe")
@zk_option
@json_option
@click.argument("broker", type=click.IntRange(0))
def describe_broker(zk: str, as_json: bool, broker: int) -> None:
    """Show what the broker with the id BROKER reports: uptime, connections, requests, messages.

    \b
    Example
      metaq brokers describe 0
    """
    with open_cluster(zk) as cluster:
        (registered,) = cluster.view.config_checksums([broker])
        slaves = cluster.view.brokers().get(broker, BrokerNodes(None)).slaves
        connection = cluster.connection(broker)
        figures = {name: value for name, _, value in (line.partition(" ") for line in read_stats(connection))}
        frames = connection.speaks_frames
    figures = {
        "address": str(connection.endpoint),
        "protocol": "frames" if frames else "text",
        "slaves": " ".join(f"{each.slave_id}={each.host}:{each.port}" for each in slaves),
        "registered_checksum": "" if registered is None else str(registered),
        **figures,
    }
    show(as_json, figures, ("NAME", "VALUE"), list(figures.items()))


for _command in (list_sets, hand_over_set, prefer_node, elect_node, forget_broker_set, drain_broker):
    brokers.add_command(_command)
