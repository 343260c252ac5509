"""Sending: routing, natural batching, retries."""

from .partitioner import PartitionSelector, RoundRobinSelector, partition_for_key
from .producer import Producer

__all__ = ["PartitionSelector", "Producer", "RoundRobinSelector", "partition_for_key"]
