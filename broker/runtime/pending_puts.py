"""Limit the puts of all connections that are not safe yet. A put is safe when it is stored as its acknowledgement
promises. If the puts that are not safe have more bytes together than a limit, the broker stops reading from connections
that bring more puts.
"""

from __future__ import annotations

from collections.abc import Callable

from ..store.worker_turns import call_safely
from .reactor import ReactorTime

__all__ = ["PUT_OVERHEAD_BYTES", "PendingPuts"]

PUT_OVERHEAD_BYTES = 256
"""The bytes of memory that a waiting put uses in addition to its body. These bytes count against the limit, too."""


class PendingPuts:
    """Counts the bytes of puts that are not safe yet, and wakes waiting connections. This object is used by the reactor
    thread only.

    A caller that finds `full` set calls `wait` and accepts no more puts. When a quarter of the limit is free again,
    callers are woken in the order of their `wait` calls, until the limit is exceeded again. No caller waits forever,
    because each counted put becomes safe or fails.
    """

    def __init__(self, limit: int, reactor: ReactorTime) -> None:
        """limit: the limit in bytes."""
        self.limit = limit
        self.bytes = 0
        self.full = False
        self._reactor = reactor
        self._waiting: dict[object, Callable[[], None]] = {}  # an ordered map
        self._waking = False

    @property
    def waiting(self) -> int:
        """The number of callers of `wait` that still wait."""
        return len(self._waiting)

    def add(self, size: int) -> None:
        """Add the size of data that are not safe yet, in bytes."""
        self.bytes += size
        self.full = self.full or self.bytes > self.limit

    def settle(self, size: int) -> None:
        """Subtract the size of data that are safe now or have failed, in bytes."""
        self.bytes -= size
        if self.full and self.bytes <= self.limit * 3 // 4:
            self.full = False
            if self._waiting and not self._waking:
                self._waking = True
                self._reactor.callLater(0, self._wake)

    def wait(self, who: object, resume: Callable[[], None]) -> None:
        """Call `resume` once, when a quarter of the limit is free again and the callers that wait longer than this one
        have been woken. `resume` is never called before `wait` has returned.
        """
        self._waiting[who] = resume

    def drop(self, who: object) -> None:
        """Remove a waiting caller, so that its `resume` is not called."""
        self._waiting.pop(who, None)

    def _wake(self) -> None:
        self._waking = False
        for who in list(self._waiting):
            if self.full:
                return  # a later `settle` wakes the rest
            resume = self._waiting.pop(who, None)
            if resume is not None:
                call_safely(resume)
