"""How a command reaches the cluster that `--zk` names: it waits for ZooKeeper as long as `--zk-timeout` says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from metaq.client.cluster import Cluster
from metaq.protocol.errors import NoPartition

from .options import ZK_TIMEOUT_SECONDS

__all__ = ["naming_topics", "open_cluster", "zk_timeout"]


def zk_timeout() -> float:
    """Seconds to wait for the first connection to ZooKeeper, by the option in front of the command."""
    context = click.get_current_context(silent=True)
    chosen = None if context is None else context.find_root().params.get("zk_timeout")
    return ZK_TIMEOUT_SECONDS if chosen is None else float(chosen)


def open_cluster(zk: str) -> Cluster:
    """zk: connect string. Raises CoordinationUnavailable."""
    return Cluster(zk, start_timeout_seconds=zk_timeout())


@contextmanager
def naming_topics(zk: str, topic: str) -> Iterator[None]:
    """Around a producer: if it finds that nobody publishes `topic`, the error names the nearest topic that there is."""
    try:
        yield
    except NoPartition:
        with open_cluster(zk) as cluster:
            cluster.partitions(topic)
        raise  # it is there now
