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
def broker(ini: Path) -> int:
    """Run one broker until SIGTERM or Ctrl-C; it prints one line once it serves.

    \b
    Example
      metaq broker -f conf/server.ini
    """
    from metaq.broker.main import run  # Twisted: only for this command

    return run(str(ini))
