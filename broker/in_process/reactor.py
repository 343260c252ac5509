"""The time, the timers and the connections of one broker that shares a Twisted reactor with others. They can be moved
into the future, paused, and ended, without any effect on the other users of the reactor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..runtime.reactor import elapsed_seconds

__all__ = ["OwnReactor"]


class _OwnTimer:
    """A scheduled call. It has the methods of Twisted's IDelayedCall that the broker and Twisted's own code use."""

    def __init__(self, own: OwnReactor, due: float, call: Callable[[], object]) -> None:
        self._own = own
        self._call = call
        self._scheduled: Any = None
        self.due = due
        self.arm()

    def arm(self) -> None:
        """Schedule the call for its time, after the time or this broker's clock has changed."""
        self.disarm()
        self._scheduled = self._own.schedule(max(0.0, self.due - self._own.seconds()), self.fire)

    def disarm(self) -> None:
        """Do not make the call for now."""
        if self._scheduled is not None and self._scheduled.active():
            self._scheduled.cancel()

    def fire(self) -> None:
        """Make the call now."""
        self.disarm()
        if self._own.take(self):
            self._call()

    def active(self) -> bool:
        return self._own.has(self)

    def cancel(self) -> None:
        self.disarm()
        self._own.take(self)

    def reset(self, delay: float) -> None:
        self.due = self._own.seconds() + delay
        self.arm()

    def delay(self, more: float) -> None:
        self.due += more
        self.arm()

    def getTime(self) -> float:  # noqa: N802
        return self.due


class OwnReactor:
    """A view of a running reactor for one broker. Attributes that are not defined here are those of the reactor.
    `callFromThread` may be called on any thread, every other method only on the reactor's thread.
    """

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self.ahead = 0.0
        """How many seconds this broker's clock is ahead of the real time."""
        self._timers: set[_OwnTimer] = set()
        self._readers: set[Any] = set()
        self._writers: set[Any] = set()
        self._paused = False
        self._ended = False
        self._held: list[Callable[[], object]] = []  # calls of other threads that came while the broker was paused

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reactor, name)

    # --- time ---------------------------------------------------------------------------------------------------------

    def seconds(self) -> float:
        """Return this broker's monotonic time."""
        return elapsed_seconds() + self.ahead

    def callLater(self, delay: float, function: Callable[..., object], /, *args: Any, **named: Any) -> _OwnTimer:  # noqa: N802
        """Call a function when this broker's clock has moved by `delay` seconds."""
        timer = _OwnTimer(self, self.seconds() + delay, lambda: function(*args, **named))
        if not self._ended:
            self._timers.add(timer)
        return timer

    def advance(self, seconds: float) -> None:
        """Move the clock into the future, and make all calls that are due then, in the order of their times. A call
        that repeats is made once, not once for each time that was skipped.
        """
        self.ahead += seconds
        if self._paused:
            return
        now = self.seconds()
        for timer in sorted(self._timers, key=lambda each: each.due):
            if timer.due <= now:
                timer.fire()
            else:
                timer.arm()

    def schedule(self, delay: float, call: Callable[[], object]) -> Any:
        """Schedule a call of one of this object's timers. Return None if no timer runs now."""
        return None if self._paused or self._ended else self._reactor.callLater(delay, call)

    def has(self, timer: _OwnTimer) -> bool:
        """Return whether a timer waits for its time."""
        return timer in self._timers

    def take(self, timer: _OwnTimer) -> bool:
        """Forget a timer. Return whether it was waiting for its time."""
        waited = timer in self._timers
        self._timers.discard(timer)
        return waited

    # --- other threads ------------------------------------------------------------------------------------------------

    def callFromThread(self, function: Callable[..., object], /, *args: Any, **named: Any) -> None:  # noqa: N802
        """Call a function on the reactor's thread."""
        self._reactor.callFromThread(self._run, lambda: function(*args, **named))

    def _run(self, call: Callable[[], object]) -> None:
        if self._paused:
            self._held.append(call)
        elif not self._ended:
            call()

    # --- connections --------------------------------------------------------------------------------------------------

    def addReader(self, reader: Any) -> None:  # noqa: N802
        self._readers.add(reader)
        if not self._paused:
            self._reactor.addReader(reader)

    def removeReader(self, reader: Any) -> None:  # noqa: N802
        self._readers.discard(reader)
        if not self._paused:
            self._reactor.removeReader(reader)

    def addWriter(self, writer: Any) -> None:  # noqa: N802
        self._writers.add(writer)
        if not self._paused:
            self._reactor.addWriter(writer)

    def removeWriter(self, writer: Any) -> None:  # noqa: N802
        self._writers.discard(writer)
        if not self._paused:
            self._reactor.removeWriter(writer)

    # --- faults -------------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Make no calls and serve no connections until `resume`, like a process that SIGSTOP has stopped."""
        if self._paused:
            return
        for reader in self._readers:
            self._reactor.removeReader(reader)
        for writer in self._writers:
            self._reactor.removeWriter(writer)
        self._paused = True
        for timer in self._timers:
            timer.disarm()

    def resume(self) -> None:
        """Go on after `pause`: serve the connections again, and make all calls that have become due meanwhile."""
        if not self._paused:
            return
        self._paused = False
        for reader in self._readers:
            self._reactor.addReader(reader)
        for writer in self._writers:
            self._reactor.addWriter(writer)
        held, self._held = self._held, []
        for call in held:
            call()
        self.advance(0.0)

    def end(self) -> None:
        """Make no calls any more."""
        self._ended = True
        timers, self._timers = self._timers, set()
        for timer in timers:
            timer.disarm()
