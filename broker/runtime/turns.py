"""Work that takes long, done in slices: others are served in between."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import TypeVar

from twisted.internet.defer import Deferred

from .. import tuning
from .reactor import ReactorTime

__all__ = ["ConnectionTurns", "in_turns"]

T = TypeVar("T")


def in_turns(reactor: ReactorTime, work: Generator[None, None, T]) -> Deferred[T]:
    """What the work returns, or raises: it goes on for TURN_SECONDS in each turn of the reactor, and to its end even if
    nobody wants its result any more. Reactor thread."""
    result: Deferred[T] = Deferred()

    def go_on() -> None:
        until = reactor.seconds() + tuning.TURN_SECONDS
        try:
            while True:
                next(work)
                if reactor.seconds() >= until:
                    break
        except StopIteration as done:
            result.callback(done.value)
        except Exception:
            result.errback()
        else:
            reactor.callLater(0, go_on)

    go_on()
    return result


class ConnectionTurns:
    """The turns of all connections: one iteration of the reactor takes some of them, and the others come in the next
    ones, in their order. Reactor thread.

    A connection is *busy*, not 0, if it has lately had more to do than one turn. The others go first, so that a single
    request does not wait for all who send thousands; of both each iteration takes one at least.
    """

    def __init__(self, reactor: ReactorTime) -> None:
        self._reactor = reactor
        self._seconds = reactor.seconds
        self._waiting: deque[Callable[[], None]] = deque()
        self._busy: deque[Callable[[], None]] = deque()
        self._timed = False  # the iteration is one whose time counts: `_take_turns` comes at the beginning of the next
        self._until = 0.0  # which takes nothing more then

    def wait(self, turn: Callable[[], None], busy: int) -> None:
        """Call this in one of the next iterations. Of the same connection nothing may wait."""
        (self._busy if busy else self._waiting).append(turn)
        self._time()

    def defers(self, busy: int) -> bool:
        """Whether a connection that has something to do is to `wait` with it."""
        return self._timed and ((bool(busy) and len(self._busy) >= tuning.FEW_BUSY) or self._seconds() >= self._until)

    def has_worked(self, since: float) -> None:
        """A connection did since then what came in: much of that by many is one iteration's work, too."""
        if self._seconds() >= since + tuning.COUNTED_SECONDS:
            self._time()

    def _time(self) -> None:
        if not self._timed:
            self._timed = True
            self._until = self._seconds() + tuning.ITERATION_SECONDS
            self._reactor.callLater(0, self._take_turns)

    def _take_turns(self) -> None:
        until = self._seconds() + tuning.ITERATION_SECONDS
        chosen = [(queue, len(queue)) for queue in (self._waiting, self._busy)]  # what comes meanwhile is not
        for queue, count in chosen:
            for _ in range(count):
                queue.popleft()()
                if self._seconds() >= until:
                    break
        self._timed = False
        if self._waiting or self._busy:
            self._time()
