"""What a broker remembers of one kind of message: tables that are made from the kind's internal log.

There is one for producers' numbers, for delayed messages, for half messages and for shared groups. Whoever starts and
stops them goes through the list of them (`Broker.memories`) and need not know the kinds.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["Memory"]


class Memory(Protocol):
    """Of one kind. Reactor thread. A broker by itself leads from the start; a node of a set follows until it leads."""

    @property
    def name(self) -> str:
        """Of the kind, for the log: `delayed messages`."""

    def read_ahead(self) -> None:
        """Read the logs while nobody waits: this node may have to lead a moment later. Raises StoreError."""

    def lead(self) -> None:
        """Read the logs to their ends, and serve and write from now on. Raises StoreError."""

    def follow(self) -> None:
        """Serve and write nothing from now on, because another node does; what it writes is read."""

    def tick(self) -> None:
        """Keep the logs short, or read on what the leader writes. To be called about once a second."""
