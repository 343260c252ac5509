"""A request that is served by calls of its method `step` until it has an answer. The request may have to wait for data
that do not exist yet.

The result of `step` decides when `step` is called again. After WAIT the session parks the request. After AGAIN the
session first does other work, and then continues the request.
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
    """The reason why a step has returned no answer."""

    WAIT = "wait"
    """The request cannot be answered before more data arrive."""
    AGAIN = "again"
    """The records examined so far do not suffice for an answer, and there are more records to examine."""


class Loading(NamedTuple):
    """The step needs data that are not in memory or that must be searched for. The step must be repeated when `done`
    fires; `done` never fails.
    """

    done: Deferred[None]


class Parkable:
    """A request that `step` advances, while it is being served. Lives on the reactor thread. The class is not an ABC,
    because `isinstance`, which is called for every answer, takes several times as long for an ABC as for another class.

    opaque: the opaque of the request's frame. key: names what the request waits for (long_poll.py). deadline: when the
    request's wait ends, in seconds of the reactor's clock. held_bytes: the bytes of memory that the request takes while
    it waits.
    """

    __slots__ = ()

    repeatable = True
    """Whether the client can repeat the request and get the same or newer data. If so, the broker may refuse to send a
    large answer (as for Verb.repeatable).
    """

    opaque: int
    key: Hashable
    deadline: float
    held_bytes: int

    @property
    @abstractmethod
    def expired(self) -> bool:
        """Whether the request's wait is over."""

    @property
    @abstractmethod
    def max_bytes(self) -> int:
        """The most bytes of data that an answer may carry; a single record may be larger."""

    @property
    def follower_place(self) -> tuple[str, int, int] | None:
        """Topic, partition and byte offset of a pull that a follower of a broker set may answer; None: only the leader
        may answer.
        """
        return None

    @abstractmethod
    def step(self) -> Bytes | Deferred[Bytes] | Step | Loading:
        """Advance the request. Return the answer, or the reason why there is none yet. Raises MetaqError."""

    def put_aside(self) -> bool:
        """Free the data that can be read again. Called when other requests of the connection are served first. Return
        whether the request already has data for an answer; then the caller should answer with `nothing`.
        """
        return False

    @abstractmethod
    def nothing(self) -> Bytes:
        """Return the answer for a request whose wait has ended. Raises MetaqError."""
