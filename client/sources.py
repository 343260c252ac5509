"""From which broker a partition, or a whole topic, is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from metaq.coordination.brokers import BrokerAddress, BrokerNodes, ClusterView
from metaq.protocol.errors import NoPartition

from .connection import Endpoint
from .nearest import published_nowhere
from .values import TopicPartition

__all__ = ["Sources", "brokers_of", "endpoint_at", "source_of"]


def source_of(brokers: Mapping[int, BrokerNodes], partition: TopicPartition) -> Endpoint | None:
    """Where a partition is read: its master; while there is none, one of its slaves, always the same."""
    nodes = brokers.get(partition.broker)
    if nodes is None:
        return None
    if nodes.master is not None:
        return endpoint_at(nodes.master)
    return endpoint_at(nodes.slaves[partition.partition % len(nodes.slaves)]) if nodes.slaves else None


class Sources(NamedTuple):
    """Where a topic can be read, by broker id; and the brokers that were registered once and are not now: nobody knows
    whether they have it.
    """

    endpoints: dict[int, Endpoint]
    absent: tuple[int, ...] = ()


def brokers_of(view: ClusterView, topic: str) -> Sources:
    """Raises NoPartition if the topic can be read nowhere."""
    nodes = view.brokers()
    found: dict[int, Endpoint] = {}
    for broker_id, number in view.topic_partitions(topic, publish=False):
        endpoint = source_of(nodes, TopicPartition(topic, broker_id, number))
        if endpoint is not None:
            found[broker_id] = endpoint
    if not found:
        raise NoPartition(published_nowhere(topic, view.live_topics()))
    return Sources(found, tuple(view.absent_brokers(nodes)))


def endpoint_at(address: BrokerAddress) -> Endpoint:
    """Where a registered broker listens."""
    return Endpoint(address.host, address.port)
