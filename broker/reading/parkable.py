"""A request that is advanced by `step` until it has an answer, and may have to wait for what is not there yet.

What `step` says decides who calls it again: the session parks one that WAITs, and comes back at once, after other work,
to one that must go on (AGAIN).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable
from enum import Enum
from typing import NamedTuple

from twisted.internet.defer import Deferred

from .answers import Bytes

__all__ = ["Loading", "Parkable", "Step"]


class Step(Enum):
    """Why a step gave no answer."""

    WAIT = "wait"
    """Nothing to give before there is more."""
    AGAIN = "again"
    """Records were looked at and did not match; there are more."""


class Loading(NamedTuple):
    """A step needs what is not in memory, or must be searched for. Take it again when `done` fires; it never fails."""

    done: Deferred[None]


class Parkable:
    """One such request under way. Lives on the reactor thread. No ABC: that would make `isinstance`, which every answer
    passes, several times as slow.

    opaque: of its frame. key: what it waits for (long_poll.py). deadline: when its wait is over, seconds of the
    reactor's clock. held_bytes: memory that it takes while it waits.
    """

    __slots__ = ()

    repeatable = True
    """As Verb.repeatable."""

    opaque: int
    key: Hashable
    deadline: float
    held_bytes: int

    @property
    @abstractmethod
    def expired(self) -> bool:
        """Whether its wait is over."""

    @property
    @abstractmethod
    def max_bytes(self) -> int:
        """How much data an answer may carry; one record may be larger."""

    @property
    def follower_place(self) -> tuple[str, int, int] | None:
        """Topic, partition and byte offset of what a follower of a broker set may answer; None: only the leader may."""
        return None

    @abstractmethod
    def step(self) -> Bytes | Deferred[Bytes] | Step | Loading:
        """The answer, or why there is none yet. Raises MetaqError."""

    def put_aside(self) -> bool:
        """It waits until other requests of its connection are served: forget what can be read again. Whether it has
        something to give already, which it had better give now, as `nothing`."""
        return False

    @abstractmethod
    def nothing(self) -> Bytes:
        """The answer when the wait has ended. Raises MetaqError."""
