"""The command `metaq reload`: make a running broker, or each node of a broker set, read its server.ini again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from metaq.client.questions.admin import reload_config
from metaq.client.transport.connection import Endpoint
from metaq.coordination.sets.set_view import SetView
from metaq.protocol.errors import ClientError

from .cluster_access import Target, target_options
from .options import dry_run_option, json_option
from .output import echo, print_json
from .set_look import at_every_node, leader_last, look_at_sets, told_differences

__all__ = ["reload"]


@click.command()
@target_options
@json_option
@dry_run_option
def reload(target: Target, as_json: bool, dry_run: bool) -> None:
    """Make a broker read the topics of its server.ini again, as SIGHUP does. Changes of keys in the section [system]
    have no effect before a restart.

    In a broker set every present node reads its own file, the leader last. If a node cannot be reached, the leader does
    not read its file, and the command names that node and exits with 1. The command also exits with 1 if the files of
    the nodes differ after the reload. With --server only the process at this address reads its file.

    \b
    Example
      metaq reload --broker 0
    """
    endpoint, found = target.found()
    if found is None:
        if dry_run:
            echo(f"would ask {endpoint} to read its server.ini again")
            return
        with target.connected(endpoint) as connection:
            report = reload_config(connection)
        if as_json:
            print_json(report)
        else:
            _print(report)
        return
    _reload_set(*found, as_json, dry_run)


def _reload_set(broker_set: int, view: SetView, as_json: bool, dry_run: bool) -> None:
    names = leader_last(view)
    absent = sorted({*view.state.members} - view.nodes.keys()) if view.state is not None else []
    if absent:
        echo(
            f"metaq: not present in broker set {broker_set}: {', '.join(absent)}; a node reads its file when it "
            "starts: give it the same file",
            err=True,
        )
    if dry_run:
        for name in names:
            echo(f"would ask node {name} at {Endpoint(*view.nodes[name].address)} to read its server.ini again")
        return
    reports: dict[str, dict[str, Any]] = {}
    asked = at_every_node(broker_set, view, reload_config, "read its server.ini again", "metaq reload")
    for name, reports[name] in asked:
        if not as_json:
            echo(f"node {name}: ", nl=False)
            _print(reports[name])
    if as_json:
        print_json({**reports[names[-1]], "nodes": [{"node": name, **reports[name]} for name in names]})
    (look,) = look_at_sets({broker_set: view})
    if differences := look.differences:
        raise ClientError(f"broker set {broker_set}: {told_differences(differences)}")


def _print(report: Mapping[str, Any]) -> None:
    if not report.get("changed"):
        echo("server.ini has not changed")
        return
    echo("server.ini was loaded again")
    for name, heading in _HEADINGS.items():
        if names := report.get(name):
            echo(f"  {heading}: {', '.join(map(str, names))}")


_HEADINGS = {
    "addedTopics": "topics added",
    "changedTopics": "topics changed",
    "removedTopics": "no longer in the file, kept until a restart",
    "needsRestart": "takes effect at a restart",
    "warnings": "warnings",
}
