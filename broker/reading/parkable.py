"""A request that `step` advances until it has an answer; it may have to wait for data that are not there yet.

The result of `step` decides when it is called again. At WAIT the session parks the request; at AGAIN it continues the
request as soon as other work was done.
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
    """There is no answer before more data come."""
    AGAIN = "again"
    """The records looked at did not match; there are more."""


class Loading(NamedTuple):
    """A step needs data that are not in memory or must be searched for. Repeat it when `done` fires, which never
    fails."""

    done: Deferred[None]


class Parkable:
    """Such a request under way. Lives on the reactor thread. No ABC: `isinstance`, which every answer passes, would be
    several times as slow.

    opaque: of its frame. key: what it waits for (long_poll.py). deadline: when its wait is over, seconds of the
    reactor's clock. held_bytes: the memory that it takes while it waits.
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
        """The most data that an answer may carry; a single record may be larger."""

    @property
    def follower_place(self) -> tuple[str, int, int] | None:
        """Topic, partition and byte offset of a pull that a set's follower may answer; None: only the leader may."""
        return None

    @abstractmethod
    def step(self) -> Bytes | Deferred[Bytes] | Step | Loading:
        """Return the answer, or why there is none yet. Raises MetaqError."""

    def put_aside(self) -> bool:
        """Forget data that can be read again, because other requests of the connection are served first. Return whether
        there are data to give already; the caller then had better answer with `nothing`."""
        return False

    @abstractmethod
    def nothing(self) -> Bytes:
        """Return the answer when the wait has ended. Raises MetaqError."""
