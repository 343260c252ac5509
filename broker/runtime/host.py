"""What each part of a broker may ask of the process that it runs in.

Rooms that need more say so in a `host.py` of theirs. The broker (assembly/broker.py) is all of these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from twisted.internet.defer import Deferred

from .reactor import ReactorTime

__all__ = ["Host"]

T = TypeVar("T")


class Host(Protocol):
    """Time, and threads that may wait. Reactor thread."""

    @property
    def reactor(self) -> ReactorTime: ...

    def now_ms(self) -> int:
        """Wall clock, Unix milliseconds."""

    def in_thread(self, function: Callable[[], T]) -> Deferred[T]:
        """The result of a function that may wait for the disk."""
