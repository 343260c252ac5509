"""What the driver asks the cluster once per query: which partitions there are, and what they hold now."""

from __future__ import annotations

from metaq.client.cluster import Cluster
from metaq.client.config import check_protocol
from metaq.client.inquiry import partition_bounds
from metaq.client.values import TopicPartition

from .offsets import OffsetRange, PartitionState, plan_ranges
from .options import ReadOptions, WriteOptions

__all__ = ["check_published", "plan_query"]


def plan_query(options: ReadOptions) -> list[OffsetRange]:
    """The ranges of a batch query; their ends are those of this moment.

    Raises CoordinationUnavailable, NoPartition for a topic that no live broker has, BrokerUnavailable, and what
    plan_ranges raises.
    """
    protocol = check_protocol(options.protocol)
    with Cluster(options.zookeeper, root=options.root, protocol=protocol) as cluster:
        states = [
            _state(cluster, partition, options.group)
            for topic in options.topics
            for partition in cluster.partitions(topic)
        ]
    return plan_ranges(options, states)


def check_published(options: WriteOptions) -> None:
    """Raise NoPartition if no live broker takes messages of the option's topic; CoordinationUnavailable.

    Topics that rows name are not known before the tasks run.
    """
    if options.topic is not None:
        protocol = check_protocol(options.protocol)
        with Cluster(options.zookeeper, root=options.root, protocol=protocol) as cluster:
            cluster.partitions(options.topic)


def _state(cluster: Cluster, partition: TopicPartition, group: str | None) -> PartitionState:
    bounds = partition_bounds(cluster.connection(partition.broker), partition)
    endpoint = cluster.endpoint(partition.broker)
    offset = cluster.committed(group, partition) if group else None
    return PartitionState(
        partition, endpoint.host, endpoint.port, bounds.first, bounds.end, offset.offset if offset else None
    )
