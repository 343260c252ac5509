"""What moving partitions needs from the broker that it runs in."""

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
    """The leadership of a broker set's node (sets/leader.py)."""

    @property
    def draining(self) -> bool:
        """Whether a hand-over is under way: no messages are taken then."""

    @property
    def leads_now(self) -> bool:
        """Whether no other node can have been elected until now."""

    def replicate(self, entries: tuple[()], lane: Lane, done: Callable[[MetaqError | None], None], /) -> None:
        """Call `done` once the in-sync nodes have all data that were appended before."""


class SetPart(Protocol):
    """This broker's node of its set (sets/node.py)."""

    @property
    def leader(self) -> Leadership | None:
        """The leadership while this node leads; else None."""

    def refusal(self) -> NotLeader | None:
        """Why clients are not served now; None if they are."""


class MovingHost(CopyHost, Protocol):
    """A broker that gives partitions away and takes them over."""

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
