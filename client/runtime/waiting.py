"""Requests in flight, threads that block for an answer, and a cheap way to wake many of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from metaq.coordination.runtime.interrupts import Bell
from metaq.protocol.client_stream import Reply
from metaq.protocol.errors import MetaqError
from metaq.protocol.frames import Frame

__all__ = ["Exchange", "OnBegun", "OnDone", "Waiter", "finish_together"]

OnDone = Callable[[Reply | None, MetaqError | None], None]
"""Callback for the answer to a request. Called once, on the thread that reads or on the background thread: it must not
block.

If KeyboardInterrupt, or another exception of a signal handler, leaves it or ends the thread's reading directly after
it, it is called once more, with BrokerUnavailable, from another thread.
"""
OnBegun = Callable[[Frame], None]
"""Called on the reading thread with an answer whose body has not arrived yet (empty here): it must not block."""

_WOKEN_AT_ONCE = 2
"""Number of threads that `finish_together` wakes itself. More would only find the interpreter's lock taken, sleep, and
be woken again (docs/decisions/086). With a single one, each thread would wait for the scheduler. Benchmark:
`blocking-64`."""


class Exchange:
    """A request, and the callbacks for its answer.

    on_done gets the answer, RequestTimedOut at `deadline` (clock time, monotonic seconds), or BrokerUnavailable when
    the connection ends. background=False promises that a thread will `drive` the connection until the answer is there.
    on_begun gets a large answer before its body is received, if the connection `expects_bulk`; on_done follows in any
    case. taken: on_done was or will be called, even if the sending thread is interrupted.
    """

    __slots__ = ("background", "deadline", "on_begun", "on_done", "opaque", "taken", "told")

    def __init__(
        self, opaque: int, on_done: OnDone, deadline: float, background: bool = True, on_begun: OnBegun | None = None
    ) -> None:
        """opaque: from Connection.new_opaque."""
        self.opaque = opaque
        self.on_done = on_done
        self.deadline = deadline
        self.background = background
        self.on_begun = on_begun
        self.taken = False
        self.told = False  # on_done was called


class Waiter:
    """An operation for which a thread blocks. Any thread may call `finish`, once."""

    __slots__ = ("_following", "_gone", "answered", "done", "mailbox")

    returns: ClassVar[bool] = False
    """Whether the thread will drive the connection again, so that nobody need read for it after its deadline."""

    def __init__(self) -> None:
        self.done = False
        self.answered = False  # another thread takes the answer and finishes this: reading on would be useless
        self.mailbox: Bell | None = None  # made only by a thread that has to park
        self._following: Waiter | None = None
        self._gone = False

    def finish(self) -> None:
        # Order matters: a parking thread makes its mailbox before it looks at `done`.
        self.done = True
        if self.mailbox is not None:
            self.mailbox.ring()

    def park(self, seconds: float) -> None:
        """Block until a message is in the mailbox (that this is finished, or the role of the reader), or `seconds` are
        over."""
        assert self.mailbox is not None
        self.mailbox.wait(seconds)

    def park_until_done(self, deadline: float, clock: Callable[[], float]) -> None:
        """Block until another thread finishes this, or the deadline has passed."""
        if self.mailbox is None:
            self.mailbox = Bell()
        try:
            while not self.done and (remaining := deadline - clock()) > 0:
                self.park(remaining)
        finally:
            self.go()

    def go(self) -> None:
        """Note that the thread no longer blocks, for any reason, and wake the thread that `finish_together` placed
        after it. May be repeated."""
        # order matters: see `finish_together`
        self._gone = True
        if self._following is not None:
            self._following.finish()


def finish_together(waiters: Sequence[Waiter]) -> None:
    """Finish waiters whose threads have parked. Wake a few of them now; each of these wakes another one, and so on.

    Threads that run Python take turns anyway, so no thread waits longer than it would otherwise. Any thread, once for
    each waiter.
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
