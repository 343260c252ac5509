"""Do long work on the reactor thread in slices, so that the reactor can do other work between the slices."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import inf

from .. import tuning
from .reactor import ReactorTime

__all__ = ["SlicedWork"]


class SlicedWork:
    """Does tasks of one kind on the reactor thread, one task after the other. Each task is done in slices of
    WORK_SLICE_SECONDS.

    A task is an iterator, for example a generator. It must check `is_over` often, and execute `yield` when `is_over` is
    true, to end the slice. `add` does the first slice of a task at once, unless another task is unfinished.
    """

    def __init__(self, reactor: ReactorTime) -> None:
        self._reactor = reactor
        self._works: deque[Iterator[None]] = deque()
        self._until = 0.0
        self._going_on = False  # whether a slice runs or is scheduled

    def __bool__(self) -> bool:
        """Whether any task is unfinished."""
        return bool(self._works)

    @property
    def is_over(self) -> bool:
        """Whether the time of the current slice is over."""
        return self._reactor.seconds() >= self._until

    def add(self, work: Iterator[None]) -> None:
        """Begin this task now, or, if tasks that were added before are unfinished, after them."""
        self._works.append(work)
        if not self._going_on:
            self._going_on = True
            self._go_on()

    def finish(self) -> None:
        """Do all remaining work now, without pauses. Called when the broker stops; a task must not call this method."""
        self._until = inf
        while self._works:
            self._work()

    def clear(self) -> None:
        """Drop all unfinished tasks. A task must not call this method."""
        self._works.clear()

    def _go_on(self) -> None:
        if not self._works:  # all tasks are finished or were dropped
            self._going_on = False
            return
        self._until = self._reactor.seconds() + tuning.WORK_SLICE_SECONDS
        try:
            while self._work() and self._works and not self.is_over:
                pass
        finally:
            self._going_on = bool(self._works)
            if self._going_on:
                self._reactor.callLater(0, self._go_on)

    def _work(self) -> bool:
        """Continue the first task up to its next `yield` or its end. Return whether the task is finished."""
        done = True
        try:
            for _ in self._works[0]:
                done = False
                break
        finally:
            if done:
                self._works.popleft()
        return done
