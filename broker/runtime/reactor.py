"""Protocols for the parts of a reactor and of a transport that the broker uses. These protocols exist because a type
checker cannot use Twisted's own interfaces.
"""

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
"""A clock in seconds that never goes back or jumps, even if the wall clock is set. On Linux it continues to run while
the machine sleeps. In a broker set, a follower's grant is a promise not to stand for election for some time. So when a
leader's machine wakes up, the leader sees that the grants have expired.
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
        """Schedule a call of `function` in `delay` seconds. Return a Timer (declared as Any, because Twisted declares
        its own type).
        """


class Reactor(ReactorTime, Protocol):
    """A reactor: it gives the time and makes delayed calls, and other threads can call functions on its thread."""

    def callFromThread(self, function: Callable[..., Any], /, *args: Any) -> object: ...  # noqa: N802


def measures_elapsed_time(reactor: Any) -> Any:
    """Set `elapsed_seconds` as the clock of a Twisted reactor, and return the reactor. When this function is called, no
    timer of the reactor may be scheduled yet.

    Twisted's own clock is the wall clock. With that clock, if somebody sets it back by an hour, all timers would stop
    for an hour, and the grants of a broker set would last an hour longer.
    """
    reactor.seconds = elapsed_seconds
    return reactor


class _FewEvents:
    """An epoll object that reports at most a given number of events at once. At the next poll, the kernel first reports
    the events that were left out.
    """

    def __init__(self, poller: Any, most: int) -> None:
        self._most = most
        self._wait = poller.poll
        self.register, self.modify, self.unregister = poller.register, poller.modify, poller.unregister

    def poll(self, timeout: float, most: int) -> list[tuple[int, int]]:
        events: list[tuple[int, int]] = self._wait(timeout, min(most, self._most))
        return events


def serves_few_at_once(reactor: Any, most: int) -> Any:
    """Make a Twisted epoll reactor serve at most `most` file descriptors between two checks of its timers. Return the
    reactor.

    By default, Twisted serves all ready descriptors between two checks. When 4,000 connections ended at once, Twisted
    did not check its timers for 90 ms. A reactor without epoll is not changed.
    """
    if hasattr(select, "epoll") and isinstance(poller := getattr(reactor, "_poller", None), select.epoll):
        reactor._poller = _FewEvents(poller, most)  # Twisted has no setting for it
    return reactor


class Transport(Protocol):
    """The methods of a TCP connection that a session uses."""

    certified_hosts: frozenset[str]
    sent_bytes: int
    """How many bytes of answers had to wait in the transport's buffer and have been sent since then."""

    def write(self, data: Buffer) -> None: ...
    def writeSequence(self, iovec: Iterable[Buffer]) -> None: ...  # noqa: N802
    def registerProducer(self, producer: object, streaming: bool) -> object: ...  # noqa: N802
    def unregisterProducer(self) -> object: ...  # noqa: N802
    def pauseProducing(self) -> object: ...  # noqa: N802
    def resumeProducing(self) -> object: ...  # noqa: N802
    def loseConnection(self) -> object: ...  # noqa: N802
    def abortConnection(self) -> object: ...  # noqa: N802
    def getPeer(self) -> object: ...  # noqa: N802
    def is_reset(self) -> bool:
        """Return whether the client has reset the connection since the last call."""

    def read_once(self) -> object:
        """Receive data once and process them, without asking the reactor first whether there are any data."""
