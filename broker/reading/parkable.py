"""A request that is served by calls of its method `step` until it has an answer. Sometimes such a request must wait for
data that do not exist yet.

If `step` returns no answer, its result decides when the session calls it again: after WAIT, the session parks the
request; after AGAIN, the session first does other work.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable
from enum import Enum
from typing import NamedTuple

from twisted.internet.defer import Deferred

from metaq.protocol.access import Need

from .answers import Bytes

__all__ = ["Loading", "Parkable", "Step"]


class Step(Enum):
    """The reason why a step has returned no answer."""

    WAIT = "wait"
    """The request cannot be answered before more data arrive."""
    AGAIN = "again"
    """The request has examined records, but not yet chosen enough of them for an answer; more records can be examined
    at once.
    """


class Loading(NamedTuple):
    """A result of `step`, which says that `step` needs data that a worker thread must first load or search for. The
    caller must call `step` again when `done` fires; `done` never fails.
    """

    done: Deferred[None]


class Parkable:
    """A request that is being served by calls of `step`. Used only on the reactor thread. The class is not an ABC,
    because `isinstance`, which is called for every answer, takes several times as long for an ABC as for another class.

    opaque: the opaque of the request's frame. key: names what the request waits for (long_poll.py). deadline: the time
    until which the request may wait, in seconds of the reactor's clock. held_bytes: the bytes of memory that the
    request takes while it waits.
    """

    __slots__ = ()

    repeatable = True
    """Whether the client, if it gets no answer, can repeat the request and gets the same or newer data. If so, the
    broker is permitted to refuse a large answer when memory is scarce (like Verb.repeatable).
    """

    opaque: int
    key: Hashable
    deadline: float
    held_bytes: int

    @property
    @abstractmethod
    def expired(self) -> bool:
        """Whether the time for which the request may wait is over."""

    @property
    @abstractmethod
    def max_bytes(self) -> int:
        """The most bytes of records in an answer; but an answer with a single record may have more."""

    @property
    def follower_place(self) -> tuple[str, int, int] | None:
        """The topic, the partition and the byte offset from which the request reads, or None if no follower of a broker
        set may answer this request.
        """
        return None

    @property
    @abstractmethod
    def need(self) -> Need:
        """What the sender of the request must be permitted to do."""

    @abstractmethod
    def step(self) -> Bytes | Deferred[Bytes] | Step | Loading:
        """Advance the request. Return the answer, or the reason why there is none yet. Raises MetaqError."""

    def put_aside(self) -> bool:
        """Called when other requests of the connection are served before this one. Free the memory of data that can be
        read again. Return True if records for the answer were chosen already. The caller should then end the request
        with the answer that `nothing` returns, which has these records.
        """
        return False

    @abstractmethod
    def nothing(self) -> Bytes:
        """Return the answer for a request whose wait has ended. Raises MetaqError."""
