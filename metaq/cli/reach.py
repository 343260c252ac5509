"""Asking the brokers of a cluster where one may be dead: what the others say is had, and what is missing is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import click

from metaq.client.cluster import Cluster
from metaq.client.connection import Connection, Endpoint
from metaq.client.sources import source_of
from metaq.client.values import TopicPartition
from metaq.coordination.brokers import BrokerNodes
from metaq.protocol.errors import BrokerUnavailable, RequestTimedOut

__all__ = ["Reach", "tell_absent", "tell_empty", "without"]

_T = TypeVar("_T")


class Reach:
    """Asks each partition's broker: its master, or a slave while there is none. One that did not answer is not asked
    again: whoever has many partitions on a broker that hangs waits for it once. One thread.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._brokers: Mapping[int, BrokerNodes] | None = None
        self.silent: dict[int, str] = {}
        """What is wrong with each broker that could not be asked, by its id; reads on behind its name."""

    def source(self, partition: TopicPartition) -> Endpoint | None:
        """Where the partition's broker listens; None if it has left ZooKeeper."""
        if self._brokers is None:
            self._brokers = self._cluster.view.brokers()
        return source_of(self._brokers, partition)

    def ask(self, partition: TopicPartition, question: Callable[[Connection], _T]) -> _T | None:
        """The answer of a partition's broker; None, with the reason in `silent`, if there is none.

        Raises what the question does, but for BrokerUnavailable and RequestTimedOut, and CoordinationUnavailable.
        """
        if partition.broker in self.silent:
            return None
        endpoint = self.source(partition)
        if endpoint is None:
            self.silent[partition.broker] = "is not registered in ZooKeeper"
            return None
        try:
            return question(self._cluster.connect(endpoint))
        except (BrokerUnavailable, RequestTimedOut) as error:
            self.silent[partition.broker] = f"does not answer ({error})"
            return None

    def ask_again(self) -> None:
        """Forget who was silent and where brokers are: they may be back."""
        self.silent.clear()
        self._brokers = None


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
    """The sentence for what is missing because brokers are silent."""
    missing = ", ".join(f"{each.topic} {each}" for each in partitions if each.broker in silent)
    reasons = "; ".join(f"broker {broker_id} {reason}" for broker_id, reason in silent.items())
    return f"{reasons}: without {missing}: start that broker"
