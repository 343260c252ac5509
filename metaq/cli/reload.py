"""`metaq reload`: a running broker reads its server.ini again."""

from __future__ import annotations

import click

from metaq.client.questions.admin import reload_config

from .cluster import Target, target_options
from .options import dry_run_option, json_option
from .output import print_json

__all__ = ["reload"]


@click.command()
@target_options
@json_option
@dry_run_option
def reload(target: Target, as_json: bool, dry_run: bool) -> None:
    """Let a broker read the topics of its server.ini again, as SIGHUP does. [system] keys wait for a restart.

    \b
    Example
      metaq reload --broker 0
    """
    if dry_run:
        click.echo(f"would ask {target.endpoint()} to read its server.ini again")
        return
    with target.connected() as connection:
        report = reload_config(connection)
    if as_json:
        print_json(report)
        return
    if not report.get("changed"):
        click.echo("server.ini has not changed")
        return
    click.echo("server.ini was loaded again")
    for name, heading in _HEADINGS.items():
        if names := report.get(name):
            click.echo(f"  {heading}: {', '.join(map(str, names))}")


_HEADINGS = {
    "addedTopics": "topics added",
    "changedTopics": "topics changed",
    "removedTopics": "no longer in the file, kept until a restart",
    "needsRestart": "takes effect at a restart",
    "warnings": "warnings",
}
