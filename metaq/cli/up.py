"""`metaq up`: a development cluster from one command."""

from __future__ import annotations

from pathlib import Path

import click

from metaq.coordination.ports import ready_port, ready_ports

from .local_cluster import ClusterPlan, LocalCluster
from .options import BYTES, PORT, TOPIC_WITH_PARTITIONS, TopicSpec
from .servers import locked_directory, stop_signal

__all__ = ["up"]


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    default=Path("metaq-data"),
    show_default=True,
    help="Where ZooKeeper and the brokers keep their data; kept for the next start.",
)
@click.option("--brokers", type=click.IntRange(1, 64), default=1, show_default=True, help="Number of broker processes.")
@click.option(
    "--port",
    type=PORT,
    default=8123,
    show_default=True,
    help="TCP port of the first broker, the others follow; 0 chooses free ones.",
)
@click.option(
    "--zookeeper-port", type=PORT, default=2181, show_default=True, help="TCP port of ZooKeeper; 0: a free one."
)
@click.option(
    "--topic",
    "topics",
    type=TOPIC_WITH_PARTITIONS,
    multiple=True,
    default=("test:1",),
    show_default=True,
    help="Topic and its partitions on each broker; repeat for more.",
)
@click.option(
    "--flush",
    type=click.Choice(("sync", "async")),
    default="sync",
    show_default=True,
    help="sync: acknowledged means on disk. async: faster, the last second may be lost when the machine fails.",
)
@click.option(
    "--session-timeout",
    type=click.FloatRange(2, 60),
    default=30,
    show_default=True,
    metavar="SECONDS",
    help="ZooKeeper session timeout of the brokers.",
)
@click.option(
    "--disk-reserve",
    type=BYTES,
    help="Brokers refuse puts when the disk has less room than this; 0: never.  [default: 5 % of the disk, at most 1g]",
)
def up(
    data_dir: Path,
    brokers: int,
    port: int,
    zookeeper_port: int,
    topics: tuple[TopicSpec, ...],
    flush: str,
    session_timeout: float,
    disk_reserve: int | None,
) -> None:
    """Run ZooKeeper and brokers until SIGTERM or Ctrl-C; prints one line with the addresses once all serve.

    \b
    Example: two brokers with four partitions of `trades` each
      metaq up --brokers 2 --topic trades:4
    """
    names = [topic.name for topic in topics]
    if len(set(names)) < len(names):
        raise click.BadParameter(
            f"{', '.join(names)}: a topic is given twice: name each one once", param_hint="--topic"
        )
    with stop_signal() as stop, locked_directory("--data-dir", data_dir) as directory:
        plan = ClusterPlan(
            data_dir=directory.resolve(),
            ports=ready_ports("--port", port, brokers),
            zookeeper_port=ready_port("--zookeeper-port", zookeeper_port),
            topics=topics,
            durable=flush == "sync",
            session_timeout_ms=round(session_timeout * 1000),
            disk_reserve=disk_reserve,
        )
        with LocalCluster(plan) as cluster:
            listed = ", ".join(f"{broker_id} at {address}" for broker_id, address in enumerate(cluster.addresses))
            click.echo(f"zookeeper serves at {cluster.connect_string}; brokers {listed}; topics {', '.join(names)}")
            cluster.watch(stop.wait)
