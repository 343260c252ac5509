"""Protocols with the methods of Twisted's reactors and transports that the broker uses. They are needed because a type
checker cannot use Twisted's own interfaces.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from metaq.protocol.access import Principal
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
the machine sleeps. A broker set needs a clock that counts the time of a machine's sleep. The reason is the grants, with
which followers promise the leader not to stand for election for some time. When a leader's machine wakes up after a
longer sleep, this clock shows the leader that the grants have expired.
"""


class Timer(Protocol):
    """A scheduled call of a function, which can be cancelled."""

    def cancel(self) -> object: ...


class ReactorTime(Protocol):
    """The methods of a reactor that give the time in monotonic seconds and call functions later. Twisted's task.Clock
    is such an object.
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
    """Set `elapsed_seconds` as the clock of a Twisted reactor, and return the reactor. To be called before any timer of
    the reactor is scheduled.

    Twisted's own clock is the wall clock. If the reactor used the wall clock and somebody set it back by an hour, all
    timers would be called an hour late, and the grants of a broker set would be valid an hour longer.
    """
    reactor.seconds = elapsed_seconds
    return reactor


class _FewEvents:
    """An epoll object that reports at most a given number of events at once. The remaining events are reported by the
    next calls of `poll`.
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

    By default, Twisted serves all ready descriptors between two checks. With this default, timers were called up to 90
    ms late when 4,000 connections ended at once. A reactor without epoll is not changed.
    """
    if hasattr(select, "epoll") and isinstance(poller := getattr(reactor, "_poller", None), select.epoll):
        reactor._poller = _FewEvents(poller, most)  # Twisted has no setting for it
    return reactor


class Transport(Protocol):
    """The methods of a TCP connection that a session uses."""

    certified_hosts: frozenset[str]
    principal: Principal
    is_encrypted: bool
    sent_bytes: int
    """How many bytes of answers have been sent on this connection after they had waited in the transport's buffer.
    Bytes that the socket took at once do not count.
    """

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
        """Receive data once and process them, even if the reactor has not reported that there are data to receive."""
