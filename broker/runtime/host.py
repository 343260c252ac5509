"""What each part of a broker may use of the process that it runs in.

Rooms that need more say so in their own `host.py`. The broker (assembly/broker.py) implements all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from twisted.internet.defer import Deferred

from .dialing import P
from .reactor import ReactorTime

__all__ = ["Host"]

T = TypeVar("T")


class Host(Protocol):
    """Time, and threads that may wait. Reactor thread."""

    @property
    def reactor(self) -> ReactorTime: ...

    def now_ms(self) -> int:
        """Return the time by the wall clock, Unix milliseconds."""

    def in_thread(self, function: Callable[[], T]) -> Deferred[T]:
        """Run a function that may wait for the disk in a thread, and give its result."""

    def dial(self, host: str, port: int, seconds: float, make: Callable[[], P]) -> Deferred[P]:
        """Connect to another broker: see `Dialer.dial`."""
