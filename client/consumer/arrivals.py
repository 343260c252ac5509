"""What wakes a thread that waits in poll()."""

from __future__ import annotations

from queue import Empty, SimpleQueue

from ..connection import Connection
from ..waiting import Waiter
from .partition_state import PartitionState

__all__ = ["Arrivals"]


class _PollWaiter(Waiter):
    __slots__ = ()
    returns = True


class Arrivals:
    """Partitions that have got data, in order; None for anything else a waiting poll() should look at. Any thread.

    Whoever waits may read a connection meanwhile: then data comes in on the thread that is going to use it, which saves
    the hand-over between two threads and leaves it in that core's cache.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[PartitionState | None] = SimpleQueue()
        self._waiter: Waiter | None = None

    def put(self, state: PartitionState | None) -> None:
        """Add one; wakes the waiting thread, at the latest at the end of the system call in which it reads."""
        self._queue.put(state)
        waiter = self._waiter
        if waiter is not None:
            waiter.finish()

    def get_nowait(self) -> PartitionState | None:
        """The next one. Raises Empty."""
        return self._queue.get_nowait()

    def get(self, seconds: float) -> PartitionState | None:
        """The next one within `seconds`. Raises Empty."""
        return self._queue.get(timeout=max(0.0, seconds))

    def get_reading(self, connection: Connection, deadline: float) -> PartitionState | None:
        """The same until `deadline` (the connection's clock), reading `connection` if nobody else does."""
        while True:
            waiter = self._waiter = _PollWaiter()
            try:
                return self._queue.get_nowait()  # it may have come before the waiter was there to be told
            except Empty:
                connection.drive(waiter, deadline)
            finally:
                self._waiter = None
            try:
                return self._queue.get_nowait()
            except Empty:
                if not waiter.done:
                    raise
                # told of one that the last call had taken from the queue before
