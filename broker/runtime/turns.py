"""Work that takes long, done in slices: others are served in between."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

from twisted.internet.defer import Deferred

from .. import tuning
from .reactor import ReactorTime

__all__ = ["in_turns"]

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
