"""A kind of concurrent.futures.Future: SendFuture. The futures of one batch share one state, their Outcome.

This is cheaper than the standard library's Future, which creates a Condition and an RLock for every message, and whose
result must be set in each future separately. A SendFuture holds only an index into its Outcome. The result is set once
in the Outcome, for all messages of a batch, and only futures with a waiting thread or callbacks are notified. The
SendResult of a message is created when the program reads it from the future.

The module relies on private attributes of CPython's Future: `_state`, `_result`, `_exception`, `_waiters`,
`_done_callbacks` and `_condition`. CPython has not changed them since version 3.2, and the executors of other libraries
rely on them, too. The tests run the standard library's wait, as_completed and asyncio.wrap_future with SendFutures.

The thread that sets the result of an Outcome also reads brokers' answers for other callers, so nothing may block it for
long. But it needs locks that other threads use: the lock of a future's condition, and the locks of the standard
library's `wait` and `as_completed`. If an interrupt (interrupts.py) hits a thread that holds such a lock, the lock
stays locked forever. So the thread that sets the result waits for such a lock at most half a second, and then leaves
the remaining work to another thread. A thread that waits in `result` does not use these locks, but a wake-up object of
its own (Bells).

Why every waiting thread is woken, and only once: if a thread waits for a future, or if the future has callbacks, the
future is in the list `watched` of its Outcome. The lock that guards this list is also held while the Outcome becomes
finished. So a future is put into the list either before the Outcome is finished, or not at all. A future with a
condition has its own state, which changes only while the condition's lock is held, as in the standard library's Future.
So a waiting thread, which acquires this lock first, either finds that the future has ended, or is notified when it
ends.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, RUNNING
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from metaq.coordination.runtime.interrupts import BackgroundThread, Bells, interrupted_frames
from metaq.coordination.runtime.logs import get_log
from metaq.protocol.errors import ClientError

from . import tuning

__all__ = ["Callbacks", "Outcome", "SendFuture", "Watcher", "refuse_in_callback", "refuse_in_handler"]

_FOLDER = os.path.dirname(__file__)

T = TypeVar("T")
log = get_log(__name__)
_making = threading.Lock()
_running = RUNNING
"""The state of all unfinished futures that this process has created: they share this one object. After a fork, the
child process replaces the object by a new one, which is equal but not identical to the parent's object. So the child
recognizes unfinished futures of its parent, whose results it will never get: their state is not the child's own object.
"""


class _Tellers:
    """Runs jobs on a background thread, in the order in which they were added. If a job never ends, another thread runs
    the later jobs.
    """

    def __init__(self) -> None:
        self._todo: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: BackgroundThread | None = None
        self._since = 0.0  # when the thread began its current job; 0: it waits for one

    def tell(self, action: Callable[[], None]) -> None:
        with self._lock:
            stuck = self._since and time.monotonic() - self._since > tuning.CONDITION_SECONDS
            if self._thread is None or stuck:
                self._since = 0.0
                self._thread = BackgroundThread(self._run, "metaq-futures")
        self._todo.put(action)

    def _run(self) -> None:
        while True:
            action = self._todo.get()
            with self._lock:
                if self._thread is None or not self._thread.is_current:  # it was stuck, and another thread works now
                    self._todo.put(action)
                    return
                self._since = time.monotonic()
            action()
            with self._lock:
                if self._thread is not None and self._thread.is_current:
                    self._since = 0.0


_tellers = _Tellers()


def _forked() -> None:
    global _making, _running, _tellers
    _tellers = _Tellers()
    _making = threading.Lock()  # a thread of the parent may have held the previous lock
    _running = "".join(list(RUNNING))


os.register_at_fork(after_in_child=_forked)


class _Thread(threading.local):
    runs_callbacks = False


_thread = _Thread()


def refuse_in_callback(what: str) -> None:
    """Raise ClientError if this thread is running callbacks of a send. The thread that runs callbacks also reads the
    brokers' answers, so a callback that waited for an answer would wait forever.
    """
    if _thread.runs_callbacks:
        raise ClientError(
            f"{what} cannot wait in a callback of a send, whose thread reads the answers: use send_async there, "
            "or hand the work to a thread of your own"
        )


def refuse_in_handler(what: str, producer: object) -> None:
    """Raise ClientError if the caller runs in a signal handler that has interrupted a call of `producer`, or of one of
    its transactions. The interrupted call may hold a lock that the handler's call would need, and it cannot release the
    lock before the handler returns.
    """
    for depth, frame in enumerate(interrupted_frames()):
        folder, file = os.path.split(frame.f_code.co_filename)
        if folder != _FOLDER:
            continue
        if file == "futures.py":
            inside = depth == 0  # otherwise that call waits, and holds no lock
        else:
            inside = file in ("transaction.py", "xa.py") or frame.f_locals.get("self") is producer
        if inside:
            raise ClientError(
                f"{what} in a signal's handler that has interrupted a call of this producer would wait for that call "
                "for ever: set a flag in the handler, or raise SystemExit, and close in the main program"
            )


class Callbacks:
    """Context manager for a block that runs callbacks of a send. Inside the block, `refuse_in_callback` raises
    ClientError on the current thread.
    """

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before, _thread.runs_callbacks = _thread.runs_callbacks, True

    def __exit__(self, *_: object) -> None:
        _thread.runs_callbacks = self._before


class Watcher(Protocol):
    """An object that an Outcome notifies: a SendFuture, or the futures of an event loop."""

    def settled(self) -> None: ...


class Outcome:
    """The common result or error of the messages of one send, or of several sends whose messages went in one batch. Any
    thread may use it.

    state: RUNNING until the result or the error is set, then FINISHED. result: if several futures share the Outcome, a
    sequence with the result of each future at the future's index; otherwise the result of the only future. watched: the
    watched futures of the Outcome, or other objects whose method `settled` it calls.
    """

    __slots__ = ("error", "result", "state", "watched")

    def __init__(self) -> None:
        self.state = _running
        self.result: Any = None
        self.error: BaseException | None = None
        self.watched: list[Watcher] | None = None  # few outcomes have watched futures

    @property
    def is_settled(self) -> bool:
        """Whether the result or the error is set."""
        return self.state == FINISHED

    def settle(self, error: BaseException | None, result: Any) -> None:
        """Set the result or the error, and notify the watched futures. Only the first call has an effect; for example,
        an answer that comes after the deadline changes nothing.
        """
        with _making:
            if self.state == FINISHED:
                return
            self.result, self.error, self.state = result, error, FINISHED
        for future in self.watched or ():
            future.settled()
        self.watched = None  # the list and this object would keep each other alive


class SendFuture(Future[T]):
    """The future of a message's SendResult. It counts as running from its creation, so `cancel()` always returns False:
    the message may be in flight already.

    place: index of the message's result in the Outcome. It is None if the Outcome's whole result belongs to this
        future.
    """

    # Few futures have these, so they are set only where needed.
    _is_watched = False
    _made_condition: threading.Condition | None = None
    _own_state: str | None = None  # set for a future with a condition
    _made_waiters: list[Any] | None = None
    _made_callbacks: list[Callable[[Future[Any]], object]] | None = None
    _bells: Bells | None = None  # wakes the threads that wait for the end

    def __init__(self, outcome: Outcome | None = None, place: int | None = None) -> None:
        self.outcome = outcome or Outcome()
        self._place = place

    # --- what the standard library looks at -------------------------------------------------------------------------

    @property
    def _state(self) -> str:  # type: ignore[override]  # these are attributes there, which nobody else sets
        return self._own_state or self.outcome.state

    @property
    def _result(self) -> T | None:  # type: ignore[override]
        result = self.outcome.result
        return result if self._place is None or result is None else result[self._place]  # type: ignore[no-any-return]

    @property
    def _exception(self) -> BaseException | None:  # type: ignore[override]
        return self.outcome.error

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        if self._made_waiters is None:
            with _making:
                if self._made_waiters is None:
                    self._made_waiters = []
        return self._made_waiters

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        if self._made_condition is None:
            self._make_condition(threading.Condition())
        assert self._made_condition is not None
        return self._made_condition

    def _make_condition(self, condition: threading.Condition) -> None:
        self._watch()
        with _making:
            if self._made_condition is None:
                self._own_state = self.outcome.state
                self._made_condition = condition

    # --- what users call --------------------------------------------------------------------------------------------

    def result(self, timeout: float | None = None) -> T:
        outcome = self.outcome
        if outcome.state != FINISHED:
            self._wait_for_end("result()", timeout)
        if outcome.error is not None:
            try:
                raise outcome.error
            finally:
                self = outcome = None  # type: ignore[assignment]  # as in a plain Future: no cycle with its traceback
        place = self._place
        return outcome.result if place is None else outcome.result[place]  # type: ignore[no-any-return]

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if self.outcome.state != FINISHED:
            self._wait_for_end("exception()", timeout)
        return self.outcome.error

    def done(self) -> bool:
        return self.outcome.state == FINISHED

    def set_result(self, result: T) -> None:
        """Set the result of a future that shares its Outcome with no other future. Only the first call of set_result or
        set_exception has an effect.
        """
        self.outcome.settle(None, result)

    def set_exception(self, exception: BaseException | None) -> None:
        """Set the error of a future that shares its Outcome with no other future; see set_result."""
        self.outcome.settle(exception, None)

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        with _making:
            if self._made_callbacks is None:
                self._made_callbacks = []
        self._made_callbacks.append(fn)
        self._watch()
        if self.outcome.state == FINISHED:
            self._run_callbacks(Exception)  # other exceptions belong to this thread: an interrupt, or its end

    # --- who waits --------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Add this future to its Outcome's list `watched`, so that the Outcome notifies the future when the result or
        error is set. Do nothing if the result or error is already set. A repeated call does no harm.
        """
        outcome = self.outcome
        with _making:
            if not self._is_watched and outcome.state != FINISHED:
                if outcome.watched is None:
                    outcome.watched = [self]
                else:
                    outcome.watched.append(self)
                self._is_watched = True

    def _wait_for_end(self, what: str, timeout: float | None) -> None:
        """Wait until the Outcome has its result or error. Raises TimeoutError if that takes more than `timeout`
        seconds; None means no limit. The method does not wait on the future's condition, because an interrupt of the
        waiting thread could leave the condition locked. what: the caller's method, for the text of an error.
        """
        outcome = self.outcome
        if timeout is None or timeout > 0:
            refuse_in_callback(what)
            if outcome.state is not _running and outcome.state != FINISHED:
                raise ClientError(
                    f"{what} would wait for ever: the message is on its way in the process that was forked"
                )
            deadline = math.inf if timeout is None else time.monotonic() + timeout
            with _making:
                self._bells = self._bells or Bells()
            self._watch()
            self._bells.wait_for(lambda: outcome.state == FINISHED, lambda: deadline - time.monotonic())
        if outcome.state != FINISHED:
            raise TimeoutError

    def settled(self) -> None:
        """Wake the threads that wait for this future, and run its callbacks. The Outcome calls this when it has got its
        result or error. A repeated call does no harm.
        """
        condition = self._made_condition
        if condition is not None and not self._end_with(condition, tuning.CONDITION_SECONDS):
            _tellers.tell(partial(self._end_late, condition))
        if self._bells is not None:
            self._bells.ring()
        if self._made_callbacks:
            with Callbacks():
                self._run_callbacks(BaseException)  # also SystemExit: it would end this thread's work for others

    def _end_with(self, condition: threading.Condition, seconds: float) -> bool:
        """Acquire the condition's lock, and mark the future as finished. Return False, without marking it, if the lock
        does not become free within `seconds`.
        """
        if not condition.acquire(timeout=seconds):
            return False
        try:
            self._end()
        finally:
            condition.release()
        return True

    def _end_late(self, condition: threading.Condition) -> None:
        """Mark this future as finished. Called if the future's condition was still locked when the Outcome got its
        result. The condition may be locked for long: the standard library's `wait` on very many futures holds the
        conditions of all of them while it counts the unfinished ones. If a future were marked during this counting
        without the lock, `wait` would miscount, and return too early. So this method waits for the lock.
        """
        if not self._end_with(condition, tuning.LEFT_LOCKED_SECONDS):
            self._end()  # the thread that locked it was interrupted, and never unlocks it

    def _end(self) -> None:
        if self._own_state != FINISHED:
            self._own_state = FINISHED
            if self._made_waiters:
                _tellers.tell(partial(self._tell_waiters, list(self._made_waiters)))

    def _tell_waiters(self, waiters: Sequence[Any]) -> None:
        """Notify the waiters: objects that the functions `wait` and `as_completed` of concurrent.futures have put into
        the future. This method runs as a job of `_Tellers`, because an interrupt may have left the lock of a waiter
        locked forever.
        """
        for waiter in waiters:
            if self.outcome.error is not None:
                waiter.add_exception(self)
            else:
                waiter.add_result(self)

    def _run_callbacks(self, logged: type[BaseException]) -> None:
        """Run the future's callbacks. Each callback is removed before it runs, so it runs only once. A callback runs on
        the thread that sets the result. If the result is already set when the callback is added, it runs on the thread
        that adds it.
        """
        callbacks = self._made_callbacks
        while callbacks:
            try:
                callback = callbacks.pop(0)
            except IndexError:
                return  # the other thread took the last one
            try:
                callback(self)
            except logged:
                log.exception("a callback of a send failed")
