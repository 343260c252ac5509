"""Decide which of the threads that share a connection reads from it.

Usually no background thread reads a connection. Instead, **one of the threads that wait for an answer reads the answers
for all of them**; this thread is called the leader (of this connection's readers, not of a broker set). When an answer
for another thread comes, the leader completes that thread's request. When its own answer has come, it gives the reading
role to another waiting thread (a follower). So if only one thread sends and waits, it reads its answer itself, and no
switch between threads is needed. A background thread reads only if requests are in flight for which no thread waits in
`drive` (futures, long polls), and no other thread reads.

Invariants (`_mutex` guards the role):
- the thread in `leader` has the role: it is reading, or it has just got the role and will read soon; - a sender adds
its request to the stream before it checks whether a thread has the role. A thread that gives up the
  role checks afterwards whether the stream contains requests. So a request that needs a background reader always gets
  one;
- if an interrupt (interrupts.py) makes a thread leave `drive`, another thread calls `_leave`, which gives up the first
  thread's role.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from metaq.coordination.runtime.interrupts import BackgroundThread, Bell, begin_elsewhere
from metaq.coordination.runtime.logs import get_log
from metaq.protocol.client_stream import ClientStream

from ..runtime.waiting import Exchange, Waiter
from .wire import TICK, Wire

__all__ = ["HANDLER_FAILED", "ReadingRole"]

log = get_log(__name__)

HANDLER_FAILED = "a handler of an answer failed"
"""The text that is logged if the handler of an answer raises an exception. That is a bug; the reading thread logs it
and goes on, because answers to other requests may follow.
"""


class _Background:
    """The class has only one object. While the background thread has the reading role, the attribute `leader` is this
    object.
    """


_BACKGROUND = _Background()


class ReadingRole:
    """Manages which thread has the role of reading from one connection. Any thread may call the methods."""

    def __init__(
        self,
        name: str,
        wire: Wire,
        stream: ClientStream[Exchange],
        read: Callable[[float], None],
        end: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        """name: the name of the background thread. read: a function that receives data once, for at most the given
        number of seconds, and calls the handlers of requests that have ended. `read` is called only on the thread that
        has the reading role. end: a function that ends all requests of a connection that has failed. The background
        thread calls `end`, perhaps several times.
        """
        self.leader: Waiter | _Background | None = None
        self.has_ended = False
        """Whether the connection has failed and all its requests were ended. The function `end` sets this to True.
        """
        self._name = name
        self._wire = wire
        self._stream = stream
        self._read = read
        self._end = end
        self._clock = clock
        self._mutex = threading.Lock()
        self._followers: dict[Waiter, None] = {}
        self._orphans = False  # a caller gave up waiting, but its request is or will be in flight
        self._background: SimpleQueue[None] | None = None  # wakes the background thread; None: there is none
        self._thread: BackgroundThread | None = None

    @property
    def has_thread(self) -> bool:
        """Whether the background thread is running."""
        return self._background is not None

    @property
    def is_background(self) -> bool:
        """Whether the calling thread is the background thread."""
        return self._thread is not None and self._thread.is_current

    def read_for(self, request: Exchange) -> None:
        """Ensure that some thread reads the answer to this request, which was just sent, even if no thread waits for
        the answer. If the connection has failed, ensure that the request is ended.
        """
        if self._wire.failure is not None or ((request.background or self._orphans) and self.leader is None):
            self.wake_background()

    def free_followers(self) -> None:
        """Wake all followers, because the connection has ended and no answer will come."""
        with self._mutex:
            followers = list(self._followers)
            self._followers.clear()
        for follower in followers:
            assert follower.mailbox is not None
            follower.mailbox.ring()

    def drive(self, waiter: Waiter, deadline: float) -> None:
        """Block until `waiter` is done or the deadline has passed; `waiter.done` tells which of the two has happened.
        Meanwhile, read the answers for all callers if no other thread reads. The caller must have checked that the
        current process has made the connection.
        """
        following = False
        try:
            while not waiter.done:
                if waiter.answered:
                    self._hand_over(waiter)  # the waiter may have received the role meanwhile
                    self.read_in_background()  # this thread may have promised to read for others
                    waiter.park_until_done(deadline, self._clock)
                    break
                following = not self._take_role(waiter)
                if following:
                    waiter.park(deadline - self._clock())
                else:
                    self._lead(waiter, deadline)
                    self._hand_over(waiter)
                if not waiter.done and self._clock() >= deadline:
                    break
            if following or not waiter.done:
                self._leave(waiter)
            else:
                waiter.go()
        except BaseException:
            begin_elsewhere((self._leave, waiter))
            raise

    def read_in_background(self) -> None:
        """Ensure that some thread reads the answers to all requests in flight. Call this method if a thread that has
        sent a request with background=False will not call `drive` to read the answer.
        """
        self._orphans = True
        self.look_again()

    def _take_role(self, waiter: Waiter) -> bool:
        """Try to take the reading role for the calling thread. Return True if the thread has the role and must read
        now. Return False if another thread has the role; the calling thread is then a follower and must wait until its
        bell (`waiter.mailbox`) is rung.
        """
        with self._mutex:
            if self.leader is waiter:  # the role was handed over while the thread was parked
                return True
            if self.leader is None and self._wire.failure is None:
                self.leader = waiter
                if waiter.mailbox is not None:
                    self._followers.pop(waiter, None)
                return True
            if waiter.mailbox is None:
                waiter.mailbox = Bell()
            self._followers[waiter] = None
        if waiter.done:
            waiter.mailbox.ring()  # the waiter was finished before it had a mailbox
        return False

    def _leave(self, waiter: Waiter) -> None:
        """Called when the thread of `waiter` leaves `drive`: remove it from the followers or, if it has the reading
        role, give the role to another thread. Any thread may call this, any number of times.
        """
        waiter.go()
        if not waiter.done and not waiter.returns:
            self._orphans = True
        self._hand_over(waiter)

    def _lead(self, waiter: Waiter, deadline: float) -> None:
        while not (waiter.done or waiter.answered) and self._wire.failure is None:
            remaining = deadline - self._clock()
            if remaining <= 0:
                return
            self._read(remaining)

    def _hand_over(self, giver: Waiter | _Background) -> None:
        """If `giver` has the reading role, take the role away from it. The role goes to a follower if there is one. If
        there is no follower, but a request needs a reader, the role goes to the background thread. Otherwise no thread
        has the role. Further calls with the same `giver` do no harm.
        """
        with self._mutex:
            if isinstance(giver, Waiter) and giver.mailbox is not None:
                self._followers.pop(giver, None)
            if self.leader is giver:
                self.leader = self._wake_heir() if self._followers and self._wire.failure is None else None
        # This check comes last: the sender of a request that was entered meanwhile saw a leader, and relies on this
        # check.
        if self.leader is None and (self._stream.pending or self._has_unfinished or self._wire.failure is not None):
            self.look_again()

    def _wake_heir(self) -> Waiter | None:
        """Choose the follower that will be the next leader, wake its thread, and return the follower. Return None if
        there is no follower. The caller must then give the role to this follower. The woken thread cannot act before
        the caller has given it the role, because it must first take the mutex, which the caller holds. A woken follower
        that does not get the role waits for its bell again.
        """
        while self._followers:
            heir = next(iter(self._followers))
            if not heir.done:  # a waiter that is done would only pass the role on
                assert heir.mailbox is not None
                heir.mailbox.ring()
                return heir  # it is removed from the followers when it takes or passes on the role
            self._followers.pop(heir, None)
        return None

    def look_again(self) -> None:
        """If the connection needs work that no other thread will do (reading answers, or ending a failed connection),
        make the background thread do this work. Any thread may call this method, any number of times.
        """
        if self.leader is not None:
            return
        if self._wire.failure is not None:
            if self._stream.pending or self._stream.outcomes or not self.has_ended:
                self.wake_background()
            else:
                # Not earlier: a reader may have been inside recv, and the file descriptor may be reused.
                self._wire.close()
            return
        if self._has_unfinished or (self._stream.pending and self._needs_background()):
            self.wake_background()

    @property
    def _has_unfinished(self) -> bool:
        """Whether an interrupted thread has left work for the next reading thread: requests that have ended but whose
        handlers were not called yet, or received data that was processed only in part.
        """
        return bool(self._stream.outcomes) or self._stream.torn

    def _needs_background(self) -> bool:
        return self._orphans or any(request.background for request in list(self._stream.pending.values()))

    def wake_background(self) -> None:
        """Make the background thread read the answers if no other thread reads. If the connection has failed, make the
        background thread end it.
        """
        with self._mutex:
            if self.leader is not None and self._wire.failure is None:
                return
            if self._background is None:
                wake: SimpleQueue[None] = SimpleQueue()
                try:
                    thread = BackgroundThread(self._background_loop, self._name, wake)
                except RuntimeError as error:  # the interpreter is about to exit
                    log.debug("no %s: %s", self._name, error)
                    return
                self._background, self._thread = wake, thread
            self._background.put(None)  # before it has the role, as in `_wake_heir`
            if self.leader is None and (self._stream.outcomes or self._wire.failure is None):
                self.leader = _BACKGROUND

    def _background_loop(self, wake: SimpleQueue[None]) -> None:
        with self._mutex:
            if self._background is not wake:
                return  # the start of this thread was interrupted, and another thread has replaced it
        while True:
            wake.get()
            with self._mutex:
                leads = self.leader is _BACKGROUND
            if leads:
                self._lead_in_background()
            if self._wire.failure is not None:
                self._end()
                with self._mutex:
                    if wake.empty():
                        self._background = None
                        return

    def _lead_in_background(self) -> None:
        stream = self._stream
        while self._wire.failure is None or stream.outcomes:
            try:
                self._read(TICK)
            except BaseException:  # for example a callback's SystemExit, which must not end the reading
                log.exception(HANDLER_FAILED)
            if not stream.pending and not stream.outcomes:
                self._orphans = False
                break
            if not (self._needs_background() or stream.outcomes):
                break
        self._hand_over(_BACKGROUND)
