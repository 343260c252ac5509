"""The command `metaq zookeeper`: run a ZooKeeper server in the foreground, for development and tests."""

from __future__ import annotations

import threading
from pathlib import Path

import click

from metaq.coordination.servers.free_ports import ready_port
from metaq.coordination.servers.local_zookeeper import ZooKeeperProcess
from metaq.protocol.errors import CoordinationUnavailable

from .options import PORT
from .output import echo
from .servers import locked_directory, stop_signal
from .zookeepers import local_zookeeper, zookeeper_server_option

__all__ = ["zookeeper"]

HOST = "127.0.0.1"


@click.command()
@click.option("--port", type=PORT, default=2181, show_default=True, help="TCP port; 0 chooses a free one.")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    default=Path("metaq-zookeeper"),
    show_default=True,
    help="Where it keeps its data.",
)
@zookeeper_server_option
def zookeeper(port: int, data_dir: Path, apache_jars: Path | None) -> None:
    """Run one ZooKeeper server until SIGTERM or Ctrl-C. The command prints one line when the server is ready to serve
    clients.

    In production run an ensemble of Apache's ZooKeeper.

    \b
    Example
      metaq zookeeper --port 2181 --data-dir /var/tmp/zk
    """
    with stop_signal() as stop, locked_directory("--data-dir", data_dir) as directory:
        server = local_zookeeper(directory, ready_port("--port", port), HOST, apache_jars)
        server.start()
        try:
            echo(f"zookeeper serves at {server.connect_string}")
            _watch(server, stop)
        finally:
            server.stop()


def _watch(server: ZooKeeperProcess, stop: threading.Event) -> None:
    while not stop.wait(0.5):
        if not server.running:
            raise CoordinationUnavailable("the ZooKeeper server has ended: see its log")
