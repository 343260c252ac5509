"""Where a topic's partitions are: the producer's picture of the cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from .connection import Endpoint
from .values import TopicPartition

__all__ = ["Metadata", "TopicView"]


class TopicView(NamedTuple):
    """A topic at one moment: its partitions, ordered by the numbers (broker, partition), and where each broker is."""

    partitions: tuple[TopicPartition, ...]
    endpoints: Mapping[int, Endpoint]


class Metadata(Protocol):
    """What a producer needs to know. Implementations: ZooKeeperMetadata, testing.FakeCluster."""

    def view(self, topic: str) -> TopicView:
        """The topic's partitions that take messages, kept current from the first call on. Any thread.

        Raises CoordinationUnavailable if it was never read and ZooKeeper does not answer.
        """

    def on_change(self, listener: Callable[[str], None]) -> None:
        """Have `listener(topic)` called whenever the view of a topic changed (any thread, must not block)."""

    def close(self, timeout: float = 10.0) -> None:
        """End the session behind it, within `timeout` seconds. Idempotent."""
