"""How a command reaches the cluster that `--zk` names, and what it says of brokers that are not there.

It waits for ZooKeeper as long as `--zk-timeout` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import click

from metaq.client.questions.cluster import Cluster
from metaq.client.values import TopicPartition
from metaq.protocol.errors import NoPartition

from .options import ZK_TIMEOUT_SECONDS

__all__ = ["naming_topics", "open_cluster", "tell_absent", "tell_empty", "without", "zk_timeout"]


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
    """Around a producer: if no broker publishes `topic`, the error names the nearest topic that there is."""
    try:
        yield
    except NoPartition:
        with open_cluster(zk) as cluster:
            cluster.partitions(topic)
        raise  # it is there now


def tell_absent(cluster: Cluster, how: str = "not shown") -> None:
    """Say on stderr which brokers are absent, and how what only they have is left out."""
    tell_empty(cluster)
    absent = ", ".join(map(str, cluster.view.absent_brokers(cluster.view.brokers())))
    if absent:
        click.echo(f"metaq: not registered in ZooKeeper now: broker {absent}; what only it has is {how}", err=True)


def tell_empty(cluster: Cluster) -> None:
    """Say on stderr that no broker is or ever was there: an empty table may be another chroot's than was meant."""
    if not cluster.view.broker_ids():
        click.echo(f"metaq: no broker is registered at {cluster.zookeeper}: start one, or name another --zk", err=True)


def without(silent: Mapping[int, str], partitions: Iterable[TopicPartition]) -> str:
    """The sentence for what is missing because brokers are silent (Survey.silent)."""
    missing = ", ".join(f"{each.topic} {each}" for each in partitions if each.broker in silent)
    reasons = "; ".join(f"broker {broker_id} {reason}" for broker_id, reason in silent.items())
    return f"{reasons}: without {missing}: start that broker"
