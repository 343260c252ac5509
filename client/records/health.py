"""What `health()` of a producer or a consumer returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["ConsumerHealth", "ProducerHealth"]


@dataclass(frozen=True, slots=True)
class ProducerHealth:
    """The state of a producer now, as far as the producer itself knows; no server is asked.

    zookeeper: whether the producer is connected to ZooKeeper; None if it does not use ZooKeeper itself. brokers_down:
    addresses of brokers that it cannot reach now; it tries again in the background. buffered_messages, buffered_bytes:
    the messages that it has accepted and that no broker has answered yet. closed: whether close() was called.
    """

    zookeeper: bool | None
    brokers_down: Sequence[str]
    buffered_messages: int
    buffered_bytes: int
    closed: bool

    @property
    def ok(self) -> bool:
        """Whether the producer is open, connected to ZooKeeper, and can reach all brokers that it has used."""
        return not self.closed and self.zookeeper is not False and not self.brokers_down


@dataclass(frozen=True, slots=True)
class ConsumerHealth:
    """The state of a consumer now, as far as the consumer itself knows; no server is asked.

    zookeeper: whether the consumer is connected to ZooKeeper. brokers_down: addresses of brokers that it cannot reach
    now; it tries again in the background. membership: what the consumer is doing in its group; "stable" if it owns all
    partitions that are assigned to it, otherwise for example "joining" or "claiming". trouble: why the last step in the
    group has failed, if the consumer is waiting to repeat this step; otherwise "". partitions: number of owned
    partitions. paused: number of these partitions that are paused. in_doubt: whether nothing is delivered because other
    members may own the partitions by now. closed: whether the consumer is closed.
    """

    zookeeper: bool
    brokers_down: Sequence[str]
    membership: str
    trouble: str
    partitions: int
    paused: int
    in_doubt: bool
    closed: bool

    @property
    def ok(self) -> bool:
        """Whether the consumer is open and connected to ZooKeeper, reaches all brokers that it has used, owns what is
        assigned to it, and may deliver messages.
        """
        return (
            not self.closed
            and self.zookeeper
            and not self.brokers_down
            and self.membership == "stable"
            and not self.in_doubt
        )
