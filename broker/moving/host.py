"""Protocols for what the moving of partitions needs from its broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from metaq.protocol.errors import MetaqError, NotLeader
from metaq.protocol.replication_stream import Lane

from ..configuration.settings import BrokerConfig
from ..memory.memory import Memory
from ..replication.host import CopyHost
from ..transactions.transactions import Transactions
from ..writing.writing import Writing

__all__ = ["Leadership", "MovingHost", "SetPart"]


class Leadership(Protocol):
    """The leadership of a broker set's node, which exists while the node leads (sets/leader.py)."""

    @property
    def draining(self) -> bool:
        """Whether the node is handing its leadership over, so that it takes no messages."""

    @property
    def leads_now(self) -> bool:
        """Whether it is certain that no other node has been elected until now."""

    def replicate(self, entries: tuple[()], lane: Lane, done: Callable[[MetaqError | None], None], /) -> None:
        """Call `done` when the in-sync nodes have all data that were appended before this call."""


class SetPart(Protocol):
    """The broker set's node that this broker is (sets/node.py)."""

    @property
    def leader(self) -> Leadership | None:
        """The leadership while this node leads; otherwise None."""

    def refusal(self) -> NotLeader | None:
        """Return the error with which clients are refused now; None if they are served."""


class MovingHost(CopyHost, Protocol):
    """A broker from which and to which partitions can move."""

    @property
    def config(self) -> BrokerConfig: ...
    @property
    def writing(self) -> Writing: ...
    @property
    def memories(self) -> Sequence[Memory[Any]]: ...
    @property
    def transactions(self) -> Transactions: ...
    @property
    def member(self) -> SetPart | None:
        """The broker's node of its set; None for a single broker."""
