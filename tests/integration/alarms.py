"""Interrupts of calls on the main thread, as a web worker's time limit makes them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

from tests.raising import raising

__all__ = ["Alarm", "Limit", "interrupted_behind"]

_AGAIN_SECONDS = 1e-4


class Limit(Exception):
    """What the handler of the signal raises."""


class Alarm:
    """Handles SIGALRM while it is entered. Main thread. armed: an action may set it to False to end undisturbed."""

    def __init__(self) -> None:
        self.armed = False
        self._when: Callable[[], object] = lambda: True
        self._former: Any = None
        self._hook = sys.unraisablehook

    def __enter__(self) -> Self:
        self._former = signal.signal(signal.SIGALRM, self._end)
        sys.unraisablehook = self._ignore_limits
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._former)
        sys.unraisablehook = self._hook

    def _ignore_limits(self, unraisable: Any) -> None:
        """One that came while an object was deleted ends nothing."""
        if unraisable.exc_type is not Limit:
            self._hook(unraisable)

    def interrupts(
        self,
        action: Callable[[], object],
        seconds: float,
        *,
        every: float = 0.0,
        when: Callable[[], object] = lambda: True,
    ) -> bool:
        """Call `action`, which an interrupt ends after `seconds`; whether it did. every: seconds to further interrupts,
        which meet what the first one left to do. when: not before this is true.
        """
        self._when = when
        try:
            self.armed = True
            signal.setitimer(signal.ITIMER_REAL, seconds, every)
            action()
        except Limit:
            return True
        finally:
            self.armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
        return False

    def _end(self, _: int, frame: FrameType | None) -> None:
        # a signal that another thread takes may come after the timer was stopped
        if not self.armed or (frame is not None and frame.f_code.co_filename == __file__):
            return
        if not self._when():
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
            return
        raise Limit


class _BehindCall:
    """Raises a signal behind the so many-th call of a C function, which is where CPython looks for signals."""

    def __init__(self, passed: int) -> None:
        self.has_come = False
        self._left = passed

    def __call__(self, frame: FrameType, event: str, called: object) -> None:
        if event == "c_return" and called is not sys.setprofile:
            self._left -= 1
            if self._left < 0:
                self.has_come = True
                sys.setprofile(None)
                signal.raise_signal(signal.SIGALRM)


def interrupted_behind(action: Callable[[], object], passed: int) -> bool:
    """Call `action` on the main thread with one interrupt, behind `passed` calls of C functions and one more; whether
    it has so many. Count up from 0 to interrupt it wherever that is possible, the waits within a C function excepted.
    """

    former = signal.signal(signal.SIGALRM, raising(Limit))
    behind = _BehindCall(passed)
    try:
        sys.setprofile(behind)
        action()
    except Limit:
        pass
    finally:
        sys.setprofile(None)
        signal.signal(signal.SIGALRM, former)
    return behind.has_come
