"""The command `metaq replication`: show the progress of a replication, from its master or its slave, and make a slave
reconnect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from metaq.client.questions.admin import replication_status, restart_replication

from .cluster_access import Target, target_options
from .options import dry_run_option, json_option
from .output import echo, moment, print_json
from .tables import print_table

__all__ = ["replication"]

CONNECTED_ROLES = ("slave", "sync-master", "joining", "candidate", "waiting", "stopped")
"""The roles in which a broker needs a connection to another broker. If a broker in one of these roles reports no
connection, the command reports that the connection is lost. The command decides by the role, and not by the other
broker's address in the report, whether a connection is needed: a slave reports no address while its master is not
registered in ZooKeeper.
"""
TROUBLED = ("troubled", "stopped")


@click.group()
def replication() -> None:
    """Show the replication of a metaq master or slave; make a slave reconnect and check all partitions again.

    \b
    Example
      metaq replication status --broker 0 --slave 1
      metaq replication restart --server 127.0.0.1:8124
    """


@replication.command("status")
@target_options
@json_option
def status(target: Target, as_json: bool) -> int:
    """Show a broker's role, the other broker to or from which it copies messages, and the progress of each partition.
    The exit code is 1 if the connection between the two brokers is lost or replication has an error.

    \b
    Example
      metaq replication status --broker 0 --slave 1
    """
    with target.connected() as connection:
        found = replication_status(connection)
    _print(found, as_json)
    partitions = found.get("partitions") or []
    lost = found.get("role") in CONNECTED_ROLES and not found.get("connected")
    return 1 if lost or any(each.get("state") in TROUBLED for each in partitions) else 0


@replication.command("restart")
@target_options
@dry_run_option
@json_option
def restart(target: Target, dry_run: bool, as_json: bool) -> None:
    """Make a broker connect again to the other broker with which it replicates, and check all partitions again.

    \b
    Example
      metaq replication restart --broker 0 --slave 1
    """
    if dry_run:
        echo(f"would ask {target.endpoint()} to connect to its master or slave anew")
        return
    with target.connected() as connection:
        found = restart_replication(connection)
    _print(found, as_json)


_COLUMNS = {
    "topic": "TOPIC",
    "partition": "PARTITION",
    "state": "STATE",
    "offset": "OFFSET",
    "masterEnd": "MASTER END",
    "lagBytes": "LAG BYTES",
    "lagMessages": "LAG MESSAGES",
    "sinceMs": "SINCE",
    "error": "ERROR",
}

_NODE_COLUMNS = {
    "name": "NODE",
    "inSync": "IN SYNC",
    "connected": "CONNECTED",
    "live": "LIVE",
    "lagBytes": "LAG BYTES",
    "lagSeconds": "LAG SECONDS",
    "sinceMs": "SINCE",
    "error": "ERROR",
}
_TABLES = ("partitions", "nodes")


def _print(found: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    figures = {**found, "sinceMs": moment(found.get("sinceMs"))}
    print_table(("NAME", "VALUE"), [(name, value) for name, value in figures.items() if name not in _TABLES])
    partitions = found.get("partitions") or []
    if partitions:
        rows = [{**each, "sinceMs": moment(each.get("sinceMs"))} for each in partitions]
        print_table(list(_COLUMNS.values()), [[row.get(name) for name in _COLUMNS] for row in rows])
    nodes = [{**each, "sinceMs": moment(each.get("sinceMs"))} for each in found.get("nodes") or []]
    if nodes:
        print_table(list(_NODE_COLUMNS.values()), [[each.get(name) for name in _NODE_COLUMNS] for each in nodes])
