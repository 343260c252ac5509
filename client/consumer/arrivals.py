"""Which partitions have something to hand out, and what wakes a thread that waits in poll()."""

from __future__ import annotations

import threading

from metaq.coordination.interrupts import Bell

from ..connection import Connection
from ..waiting import Waiter
from .partition_state import PartitionState

__all__ = ["Arrivals"]


class _PollWaiter(Waiter):
    __slots__ = ()
    returns = True


class Arrivals:
    """Partitions that may have fetched data, in the order in which they got it. Any thread adds; one thread takes and
    waits.

    A partition stays here until the taking thread has looked at it and found nothing. Waking takes nothing away: who is
    woken looks at what is there, so that data which may not be handed out now is found later.

    The taking thread calls `listen`, looks, and then waits: what is added after `listen` ends that wait. While it waits
    it may read a connection: then data comes in on the thread that is going to use it, which saves the hand-over
    between two threads and leaves it in that core's cache.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ready: dict[PartitionState, None] = {}
        self._rung = False
        self._bell = Bell()  # in front of it `_rung`
        self._waiter: Waiter | None = None

    def put(self, state: PartitionState | None) -> None:
        """This one has got data; None for anything else that poll() should look at. Wakes the waiting thread, at the
        latest at the end of the system call in which it reads.
        """
        with self._lock:
            if state is not None:
                self._ready[state] = None
            if not self._rung:
                self._bell.ring()  # first: rung for nothing it wakes in vain, which is no loss
                self._rung = True
            waiter = self._waiter
        if waiter is not None:
            waiter.finish()

    def first(self) -> PartitionState | None:
        """The one whose turn it is, left in place; None if there is none."""
        with self._lock:
            return next(iter(self._ready), None)

    def pass_over(self, state: PartitionState) -> None:
        """The others first."""
        with self._lock:
            if state in self._ready:
                del self._ready[state]
                self._ready[state] = None

    def discard(self, state: PartitionState) -> None:
        """Somebody else looks at it from now on: data that came before this call is not announced again."""
        with self._lock:
            self._ready.pop(state, None)

    def discard_unless_ready(self, state: PartitionState) -> None:
        """It had nothing. It stays if it has by now: that is one step, which no interrupt (interrupts.py) divides."""
        with self._lock:
            if not state.has_next:
                self._ready.pop(state, None)

    def listen(self) -> None:
        """Forget what has rung so far."""
        if self._rung:
            with self._lock:
                self._rung = False
                self._bell.wait(0.0)  # one that an exception ended has taken it

    def wait(self, seconds: float) -> None:
        """Until something was put since `listen`, or `seconds` are over."""
        self._bell.wait(seconds)

    def wait_reading(self, connection: Connection, deadline: float) -> None:
        """The same until `deadline` (the connection's clock), reading `connection` if nobody else does."""
        waiter = self._waiter = _PollWaiter()
        try:
            if not self._rung:  # it may have rung before the waiter was there to be told
                connection.drive(waiter, deadline)
        finally:
            self._waiter = None
