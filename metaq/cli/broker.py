"""`metaq broker`: one broker process in the foreground."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["broker"]


@click.command()
@click.option(
    "-f",
    "--file",
    "ini",
    required=True,
    type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path),
    metavar="SERVER.INI",
    help="Configuration, the Java broker's format.",
)
@click.option(
    "--filters",
    type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path),
    metavar="FILTERS.INI",
    help="Python callables for the Java filter classes in SERVER.INI.  [default: filters.ini beside it]",
)
@click.option(
    "--admin-from",
    type=click.Choice(["loopback", "any"]),
    default="loopback",
    show_default=True,
    help="Where admin requests (reload, closing partitions …) are taken from: this machine, or any address.",
)
def broker(ini: Path, filters: Path | None, admin_from: str) -> int:
    """Run one broker until SIGTERM or Ctrl-C; it prints one line once it serves. SIGHUP: read SERVER.INI again.

    \b
    Example
      metaq broker -f conf/server.ini
    """
    from metaq.broker.main import run  # Twisted: only for this command

    return run(
        str(ini),
        filters_path=None if filters is None else str(filters),
        admin_from="any" if admin_from == "any" else "loopback",
    )
