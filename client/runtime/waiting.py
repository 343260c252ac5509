"""Classes for requests in flight, and for operations for whose end a thread blocks. Also a function that wakes many
blocked threads cheaply.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from metaq.coordination.runtime.interrupts import Bell
from metaq.protocol.client_stream import Reply
from metaq.protocol.errors import MetaqError
from metaq.protocol.frames import Frame

__all__ = ["Exchange", "OnBegun", "OnDone", "Waiter", "finish_together"]

OnDone = Callable[[Reply | None, MetaqError | None], None]
"""A callback for the answer to a request. It is called once. It must not block, because it runs on the thread that
reads the connection, and so other answers would wait.

Only in one case it is called a second time, on another thread, with BrokerUnavailable: if a signal handler raises an
exception, such as KeyboardInterrupt, inside the callback or directly after it.
"""
OnBegun = Callable[[Frame], None]
"""A callback for an answer whose header has arrived and whose body is still on the way. The callback gets the answer
with an empty body. The callback is called on the thread that reads from the connection, so it must not block.
"""

_WOKEN_AT_ONCE = 2
"""Number of threads that `finish_together` itself wakes. If it woke more threads, they would all wait for the
interpreter's lock, and have to be woken a second time (docs/decisions/086). If it woke only one thread, each further
thread would be woken only after the operating system has run the thread before it, which takes longer. The number was
measured by the benchmark `blocking-64`.
"""


class Exchange:
    """A request, and the callbacks for its answer.

    on_done: called with the answer, with RequestTimedOut at `deadline` (in monotonic seconds), or with
    BrokerUnavailable when the connection ends. background: True if a background thread must read the answer when no
    other thread does; False if the caller's thread will call the connection's `drive` until the answer has arrived.
    on_begun: called with a large answer before its body is received, if the connection `expects_bulk`; on_done is
    called afterwards in any case. taken: true if on_done was or will be called, even if the sending thread is
    interrupted.
    """

    __slots__ = ("background", "deadline", "on_begun", "on_done", "opaque", "taken", "told")

    def __init__(
        self, opaque: int, on_done: OnDone, deadline: float, background: bool = True, on_begun: OnBegun | None = None
    ) -> None:
        """opaque: the request's opaque number, which Connection.new_opaque has returned."""
        self.opaque = opaque
        self.on_done = on_done
        self.deadline = deadline
        self.background = background
        self.on_begun = on_begun
        self.taken = False
        self.told = False  # on_done was called


class Waiter:
    """An operation that a thread waits for. Any thread may call `finish`, which is called only once."""

    __slots__ = ("_following", "_gone", "answered", "done", "mailbox")

    returns: ClassVar[bool] = False
    """Whether the waiting thread will call the connection's `drive` again after a call that has ended at its deadline.
    If it will, no other thread has to read the answer between the two calls.
    """

    def __init__(self) -> None:
        self.done = False
        self.answered = False  # another thread takes the answer and finishes this: reading on would be useless
        self.mailbox: Bell | None = None  # made only by a thread that has to park
        self._following: Waiter | None = None
        self._gone = False

    def finish(self) -> None:
        # `done` must be set before this looks for a mailbox: a parking thread makes its mailbox before it looks at
        # `done`.
        self.done = True
        if self.mailbox is not None:
            self.mailbox.ring()

    def park(self, seconds: float) -> None:
        """Block until another thread wakes this one by the bell in the attribute `mailbox`, or `seconds` are over.
        Another thread rings the bell when this operation is finished, or when this thread must read from the connection
        in place of the thread that has read so far.
        """
        assert self.mailbox is not None
        self.mailbox.wait(seconds)

    def park_until_done(self, deadline: float, clock: Callable[[], float]) -> None:
        """Block until another thread finishes this operation, or the deadline has passed."""
        if self.mailbox is None:
            self.mailbox = Bell()
        try:
            while not self.done and (remaining := deadline - clock()) > 0:
                self.park(remaining)
        finally:
            self.go()

    def go(self) -> None:
        """Record that the waiting thread no longer blocks, for whatever reason. If `finish_together` has told this
        thread to wake another one, wake that one. A repeated call does no harm.
        """
        # order matters: see `finish_together`
        self._gone = True
        if self._following is not None:
            self._following.finish()


def finish_together(waiters: Sequence[Waiter]) -> None:
    """Finish several waiters whose threads are blocked in `park`. This function wakes a few of the threads itself; each
    woken thread wakes another one, and so on.

    Although the threads are woken one after the other, none waits longer than if all were woken at once, because only
    one thread at a time can run Python code. Any thread may call this function, but only once for the same waiter.
    """
    for waiter, following in zip(waiters, waiters[_WOKEN_AT_ONCE:], strict=False):
        waiter._following = following
    for waiter in waiters:
        waiter.done = True
    for waiter in waiters[:_WOKEN_AT_ONCE]:
        waiter.finish()
    # A thread that gave up marks itself as gone before it looks for a follower, so one of the two sees the other.
    for waiter in waiters:
        if waiter._gone and waiter._following is not None:
            waiter._following.finish()
