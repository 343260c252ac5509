"""The protocol Host, through which all packages of a broker get the time, worker threads and connections to other
brokers.

A package that needs more methods of the broker declares a protocol of its own in its own `host.py`. The class Broker
(assembly/broker.py) implements all of these protocols.
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
    """Gives the time, runs functions in worker threads, and connects to other brokers. Its methods are called on the
    reactor thread.
    """

    @property
    def reactor(self) -> ReactorTime: ...

    def now_ms(self) -> int:
        """Return the wall clock's time in Unix milliseconds."""

    def in_thread(self, function: Callable[[], T]) -> Deferred[T]:
        """Run `function`, which may wait for the disk, in a worker thread. The Deferred gives its result."""

    def dial(self, host: str, port: int, seconds: float, make: Callable[[], P]) -> Deferred[P]:
        """Connect to another broker; `Dialer.dial` describes the arguments."""
