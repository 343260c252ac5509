"""What the broker asks of a reactor and of a transport. Twisted's own interfaces say nothing to a type checker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from metaq.protocol.record import Buffer

__all__ = ["Reactor", "ReactorTime", "Timer", "Transport", "elapsed_seconds", "measures_elapsed_time"]

elapsed_seconds: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
"""Seconds that never go back or leap, whatever is done to the wall clock; on Linux those that the machine sleeps count,
so that a grant of a broker set has run out when a leader wakes up."""


class Timer(Protocol):
    """A call to come."""

    def cancel(self) -> object: ...


class ReactorTime(Protocol):
    """Monotonic seconds and delayed calls. Twisted's task.Clock is one."""

    def seconds(self) -> float: ...
    def callLater(self, delay: float, function: Callable[..., Any], /, *args: Any) -> Any:  # noqa: N802
        """Returns a Timer (Any: Twisted declares its own type)."""


class Reactor(ReactorTime, Protocol):
    """Time, and calls from other threads."""

    def callFromThread(self, function: Callable[..., Any], /, *args: Any) -> object: ...  # noqa: N802


def measures_elapsed_time(reactor: Any) -> Any:
    """The reactor, one of Twisted's that has nothing scheduled yet, with `elapsed_seconds` in the place of its clock.

    Its own is the wall clock: set back by an hour, it stops all timers for an hour, and lets grants run for longer.
    """
    reactor.seconds = elapsed_seconds
    return reactor


class Transport(Protocol):
    """One TCP connection as a session sees it."""

    sent_bytes: int
    """What was sent of answers that had to wait in its buffer."""

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
        """Receive once and have it served, though the reactor was not asked whether there is something."""
