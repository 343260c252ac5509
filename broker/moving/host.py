"""Protocols that describe the broker and its objects: the attributes and methods that the package moving/ uses."""

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
    """The leadership of a broker set's node. The object exists while the node leads (sets/leader.py)."""

    @property
    def draining(self) -> bool:
        """Whether the node is handing its leadership over to another node, and so accepts no messages now."""

    @property
    def leads_now(self) -> bool:
        """Whether it is certain that this node is the leader at this moment and that no other node was elected in the
        meantime.
        """

    def replicate(self, entries: tuple[()], lane: Lane, done: Callable[[MetaqError | None], None], /) -> None:
        """Call `done` when the in-sync nodes have all data that this node appended before the call of `replicate`."""


class SetPart(Protocol):
    """This broker's role as a node of a broker set (sets/node.py)."""

    @property
    def leader(self) -> Leadership | None:
        """The Leadership object while this node leads; otherwise None."""

    def refusal(self) -> NotLeader | None:
        """If the node refuses clients' requests now, return the error with which it refuses them; otherwise return
        None.
        """


class MovingHost(CopyHost, Protocol):
    """A broker that can take part in moves of partitions, as the source or as the target."""

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
        """The object that makes this broker a node of a broker set, or None for a single broker."""
