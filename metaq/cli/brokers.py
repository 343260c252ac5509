"""The command `metaq brokers`: show the registered brokers, and a single broker's own report."""

from __future__ import annotations

from dataclasses import asdict

import click

from metaq.client.admin.broker_admin import BrokerAdmin

from .broker_sets import elect_node, forget_broker_set, hand_over_set, list_sets, prefer_node
from .cluster_access import open_cluster, tell_empty
from .moving import drain_broker
from .options import json_option, zk_option
from .output import show

__all__ = ["brokers"]


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
        found = [asdict(each) for each in BrokerAdmin(cluster).list()]
        tell_empty(cluster)
    columns = ("BROKER", "ROLE", "NODE", "ADDRESS", "TOPICS", "PARTITIONS", "CONFIG", "VERSION")
    named = {"broker", "config_checksum"}  # these numbers identify something, so their digits are not grouped
    rows = [
        [str(value) if name in named and value is not None else value for name, value in each.items()] for each in found
    ]
    show(as_json, found, columns, rows)


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
        found = BrokerAdmin(cluster).describe(broker)
    figures = {
        "address": found.address,
        "protocol": found.protocol,
        "slaves": " ".join(f"{number}={address}" for number, address in found.slaves.items()),
        "registered_checksum": "" if found.registered_checksum is None else str(found.registered_checksum),
        **found.figures,
    }
    show(as_json, figures, ("NAME", "VALUE"), list(figures.items()))


for _command in (list_sets, hand_over_set, prefer_node, elect_node, forget_broker_set, drain_broker):
    brokers.add_command(_command)
