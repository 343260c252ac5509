"""`metaq zookeeper`: ZooKeeper's own server in the foreground, for development and tests."""

from __future__ import annotations

import threading
from pathlib import Path

import click

from metaq.coordination.embedded import EmbeddedZooKeeper
from metaq.coordination.ports import ready_port
from metaq.protocol.errors import CoordinationUnavailable

from .options import PORT
from .output import echo
from .servers import locked_directory, stop_signal

__all__ = ["zookeeper"]


@click.command()
@click.option("--port", type=PORT, default=2181, show_default=True, help="TCP port; 0 chooses a free one.")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    default=Path("metaq-zookeeper"),
    show_default=True,
    help="Where it keeps its data.",
)
def zookeeper(port: int, data_dir: Path) -> None:
    """Run one ZooKeeper server until SIGTERM or Ctrl-C; it prints one line once it serves.

    The server comes from the jars of PySpark and needs Java 17. In production run a real ensemble.

    \b
    Example
      metaq zookeeper --port 2181 --data-dir /var/tmp/zk
    """
    with stop_signal() as stop, locked_directory("--data-dir", data_dir) as directory:
        server = EmbeddedZooKeeper(directory, port=ready_port("--port", port))
        server.start()
        try:
            echo(f"zookeeper serves at {server.connect_string}")
            _watch(server, stop)
        finally:
            server.stop()


def _watch(server: EmbeddedZooKeeper, stop: threading.Event) -> None:
    while not stop.wait(0.5):
        if not server.running:
            raise CoordinationUnavailable("the ZooKeeper server has ended: see its log")
