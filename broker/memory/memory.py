"""A broker's memory of one kind of message: tables made from the kind's internal log.

There is one each for producers' numbers, delayed messages, half messages and shared groups. The code that starts and
stops them iterates over `Broker.memories` and need not know the kinds.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["Memory"]


class Memory(Protocol):
    """The memory of one kind. Reactor thread. A single broker leads from the start; a set's node follows until it
    leads."""

    @property
    def name(self) -> str:
        """The kind's name for the log: `delayed messages`."""

    def read_ahead(self) -> None:
        """Read the logs while nobody waits, because this node may soon have to lead. Raises StoreError."""

    def lead(self) -> None:
        """Read the logs to their ends, then serve and write. Raises StoreError."""

    def follow(self) -> None:
        """Stop serving and writing, because another node leads; read what that node writes."""

    def tick(self) -> None:
        """Keep the logs short, or read what the leader has written. To be called about once a second."""
