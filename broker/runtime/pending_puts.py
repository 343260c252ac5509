"""Limit the memory for puts (of all connections) that are not safe yet. A put is safe when it is synced or copied as
far as is required before the broker may acknowledge it. While the puts that are not safe have more bytes together than
a limit, the broker stops reading from each connection that sends a further put.
"""

from __future__ import annotations

from collections.abc import Callable

from ..store.worker_turns import call_safely
from .reactor import ReactorTime

__all__ = ["PUT_OVERHEAD_BYTES", "PendingPuts"]

PUT_OVERHEAD_BYTES = 256
"""How many bytes of memory a put takes in addition to its body while it is not safe. These bytes are counted, too."""


class PendingPuts:
    """Counts the bytes of puts that are not safe yet, and tells connections when to wait and when to continue. This
    object is used by the reactor thread only.

    When the limit is exceeded, `full` becomes True. A session that gets a put while `full` is True must call `wait`,
    and must accept no puts until the function `resume`, which it passes to `wait`, is called. When the bytes have
    fallen to three quarters of the limit, the waiting sessions are resumed in the order of their `wait` calls, until
    the limit is exceeded again. No session waits forever, because each counted put becomes safe or fails.
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
        """The number of sessions that have called `wait` and were not resumed yet."""
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
        """Let the session `who` wait: call `resume` once, when its turn has come. The sessions are resumed in the order
        of their `wait` calls, after the bytes have fallen to three quarters of the limit. `resume` is never called
        before `wait` has returned.
        """
        self._waiting[who] = resume

    def drop(self, who: object) -> None:
        """Cancel the `wait` of the session `who`: never call its `resume`."""
        self._waiting.pop(who, None)

    def _wake(self) -> None:
        self._waking = False
        for who in list(self._waiting):
            if self.full:
                return  # a later `settle` wakes the rest
            resume = self._waiting.pop(who, None)
            if resume is not None:
                call_safely(resume)
