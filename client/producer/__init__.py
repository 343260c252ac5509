"""Send messages: choose their partitions, batch them and retry failed sends."""

from .producer import Producer
from .routing import PartitionSelector, RoundRobinSelector, partition_for_key

__all__ = ["PartitionSelector", "Producer", "RoundRobinSelector", "partition_for_key"]
