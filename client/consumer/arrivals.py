"""Which partitions have something to hand out, and what wakes a thread that waits in poll()."""

from __future__ import annotations

import threading
from contextlib import suppress
from queue import Empty, SimpleQueue

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
        self._bell: SimpleQueue[None] = SimpleQueue()  # at most one, in front of it `_rung`
        self._waiter: Waiter | None = None

    def put(self, state: PartitionState | None) -> None:
        """This one has got data; None for anything else that poll() should look at. Wakes the waiting thread, at the
        latest at the end of the system call in which it reads.
        """
        with self._lock:
            if state is not None:
                self._ready[state] = None
            if not self._rung:
                self._rung = True
                self._bell.put(None)
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
        """It had nothing. Look at it once more afterwards: data that came before this call is not announced again."""
        with self._lock:
            self._ready.pop(state, None)

    def listen(self) -> None:
        """Forget what has rung so far."""
        if self._rung:
            with self._lock:
                self._rung = False
                with suppress(Empty):  # a wait that an exception ended has taken it
                    self._bell.get_nowait()

    def wait(self, seconds: float) -> None:
        """Until something was put since `listen`, or `seconds` are over."""
        with suppress(Empty):
            self._bell.get(timeout=max(0.0, seconds))

    def wait_reading(self, connection: Connection, deadline: float) -> None:
        """The same until `deadline` (the connection's clock), reading `connection` if nobody else does."""
        waiter = self._waiter = _PollWaiter()
        try:
            if not self._rung:  # it may have rung before the waiter was there to be told
                connection.drive(waiter, deadline)
        finally:
            self._waiter = None
