"""What the broker needs from a reactor and from a transport. A type checker cannot use Twisted's own interfaces."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from metaq.protocol.record import Buffer

__all__ = [
    "Reactor",
    "ReactorTime",
    "Timer",
    "Transport",
    "elapsed_seconds",
    "measures_elapsed_time",
    "serves_few_at_once",
]

elapsed_seconds: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
"""Seconds that never go back or jump, even if the wall clock is set. On Linux the time while the machine sleeps counts,
so a broker set's grant has expired when a leader's machine wakes up.
"""


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> object: ...


class ReactorTime(Protocol):
    """The part of a reactor that gives monotonic seconds and makes delayed calls. Twisted's task.Clock is such an
    object.
    """

    def seconds(self) -> float: ...
    def callLater(self, delay: float, function: Callable[..., Any], /, *args: Any) -> Any:  # noqa: N802
        """Schedule a call. Returns a Timer (Any: Twisted declares its own type)."""


class Reactor(ReactorTime, Protocol):
    """A reactor: it gives the time and makes delayed calls, and other threads can call functions on its thread."""

    def callFromThread(self, function: Callable[..., Any], /, *args: Any) -> object: ...  # noqa: N802


def measures_elapsed_time(reactor: Any) -> Any:
    """Set `elapsed_seconds` as the clock of a Twisted reactor, and return the reactor. It must have nothing scheduled
    yet.

    Twisted's own clock is the wall clock. If the wall clock is set back by an hour, all timers stop for an hour, and
    grants last longer.
    """
    reactor.seconds = elapsed_seconds
    return reactor


class _FewEvents:
    """An epoll object that reports at most a given number of events at once. The kernel reports the others first the
    next time.
    """

    def __init__(self, poller: Any, most: int) -> None:
        self._most = most
        self._wait = poller.poll
        self.register, self.modify, self.unregister = poller.register, poller.modify, poller.unregister

    def poll(self, timeout: float, most: int) -> list[tuple[int, int]]:
        events: list[tuple[int, int]] = self._wait(timeout, min(most, self._most))
        return events


def serves_few_at_once(reactor: Any, most: int) -> Any:
    """Make a Twisted epoll reactor serve at most `most` descriptors between two checks of its timers, and return the
    reactor.

    Without this, Twisted serves all ready descriptors at once: when 4,000 connections ended, that was one step of 90
    ms. A reactor without epoll stays as it is.
    """
    if hasattr(select, "epoll") and isinstance(poller := getattr(reactor, "_poller", None), select.epoll):
        reactor._poller = _FewEvents(poller, most)  # Twisted has no setting for it
    return reactor


class Transport(Protocol):
    """One TCP connection as a session sees it."""

    certified_hosts: frozenset[str]
    sent_bytes: int
    """How many bytes of answers were sent after they had to wait in the transport's buffer."""

    def write(self, data: Buffer) -> None: ...
    def writeSequence(self, iovec: Iterable[Buffer]) -> None: ...  # noqa: N802
    def registerProducer(self, producer: object, streaming: bool) -> object: ...  # noqa: N802
    def unregisterProducer(self) -> object: ...  # noqa: N802
    def pauseProducing(self) -> object: ...  # noqa: N802
    def resumeProducing(self) -> object: ...  # noqa: N802
    def loseConnection(self) -> object: ...  # noqa: N802
    def abortConnection(self) -> object: ...  # noqa: N802
    def getPeer(self) -> object: ...  # noqa: N802
    def read_once(self) -> object:
        """Receive once and process the data, without asking the reactor whether there are any."""
