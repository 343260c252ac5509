"""A concurrent.futures.Future without a lock of its own until somebody needs one.

A plain Future makes a Condition and an RLock for every message (2 µs, and 2 µs more to set its result): a quarter of
what an asynchronous send may cost. Most are looked at through `add_done_callback`, or after they are done.

It relies on what CPython's own Future keeps in `_state`, `_result`, `_exception`, `_waiters`, `_done_callbacks` and
`_condition` (unchanged since 3.2, used in the same way by distributed executors); the tests run the standard library's
wait, as_completed and asyncio.wrap_future against it.

The thread that sets a future reads for everybody, so nothing may hold it up. Who waits in `result` has a bell of its
own; the locks of the condition, and of the standard library's `wait` and `as_completed`, may stay locked for ever when
an interrupt (interrupts.py) comes in between: they are waited for at most half a second, and told on another thread.

Why no wake-up is lost, and none comes twice: while there is a condition the state changes only with it held, as in a
plain Future, and while there is none only with the lock held under which conditions are made. So who waits (and begins
with the condition) either finds the state final, or is told of its change.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, RUNNING
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from metaq.coordination.interrupts import BackgroundThread, Bell
from metaq.coordination.logs import get_log
from metaq.protocol.errors import ClientError

__all__ = ["SendFuture", "refuse_in_callback"]

T = TypeVar("T")
log = get_log(__name__)
_making = threading.Lock()
_running = RUNNING
"""The state of this process's unfinished futures; those of its parent have another object, which is equal."""


_CONDITION_SECONDS = 0.5
"""The standard library holds a future's condition for microseconds, or for ever if an interrupt came in between."""


class _Tellers:
    """Does things in their order on a thread of its own; if one never ends, the others go on on another thread."""

    def __init__(self) -> None:
        self._todo: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: BackgroundThread | None = None
        self._since = 0.0  # when the thread began with what it does now; 0: it waits

    def tell(self, action: Callable[[], None]) -> None:
        with self._lock:
            stuck = self._since and time.monotonic() - self._since > _CONDITION_SECONDS
            if self._thread is None or stuck:
                self._since = 0.0
                self._thread = BackgroundThread(self._run, "metaq-futures")
        self._todo.put(action)

    def _run(self) -> None:
        while True:
            action = self._todo.get()
            with self._lock:
                if self._thread is None or not self._thread.is_current:  # it was stuck: another one works
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
    _making = threading.Lock()  # a thread of the parent may have had the other one
    _running = "".join(list(RUNNING))


os.register_at_fork(after_in_child=_forked)


class _Thread(threading.local):
    runs_callbacks = False


_thread = _Thread()


def refuse_in_callback(what: str) -> None:
    """Raise ClientError if this thread is running callbacks of a send: it reads the answers, so to wait for one here
    would be to wait for ever."""
    if _thread.runs_callbacks:
        raise ClientError(
            f"{what} cannot wait in a callback of a send, whose thread reads the answers: use send_async there, "
            "or hand the work to a thread of your own"
        )


class SendFuture(Future[T]):
    """A future that is running from the start: `cancel()` is always False, the message may be on its way."""

    def __init__(self) -> None:
        self._state = _running
        self._result: T | None = None
        self._exception: BaseException | None = None
        self._waiters: list[Any] = []
        self._done_callbacks: list[Callable[[Future[T]], object]] = []
        self._made_condition: threading.Condition | None = None
        self._bells: tuple[Bell, ...] = ()  # of those who wait for the end

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]  # an attribute there; nobody sets it
        if self._made_condition is None:
            with _making:
                if self._made_condition is None:
                    self._made_condition = threading.Condition()
        return self._made_condition

    def result(self, timeout: float | None = None) -> T:
        if self._state != FINISHED:
            self._wait_for_end("result()", timeout)
        if self._exception is not None:
            try:
                raise self._exception
            finally:
                self = None  # type: ignore[assignment]  # as in a plain Future: no cycle with its own traceback
        return cast(T, self._result)  # without a lock: most are asked for when they are done

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if self._state != FINISHED:
            self._wait_for_end("exception()", timeout)
        return self._exception

    def _wait_for_end(self, what: str, timeout: float | None) -> None:
        """Raises TimeoutError. Without the condition, which an interrupt of the waiting thread may leave locked."""
        if timeout is None or timeout > 0:
            refuse_in_callback(what)
            if self._state is not _running and self._state != FINISHED:
                raise ClientError(
                    f"{what} would wait for ever: the message is on its way in the process that was forked"
                )
            bell = Bell()
            with _making:
                self._bells = (*self._bells, bell)
            try:
                if self._state != FINISHED:  # looked at last, as `_finish` looks at the bells last
                    bell.wait(timeout)
            finally:  # who asks again and again until it is there leaves no bell each time
                with _making:
                    self._bells = tuple(each for each in self._bells if each is not bell)
        if self._state != FINISHED:
            raise TimeoutError

    def done(self) -> bool:
        return self._state == FINISHED

    def set_result(self, result: T) -> None:
        """Once: what comes after a result or an exception changes nothing (an answer after the deadline)."""
        self._finish(result, None)

    def set_exception(self, exception: BaseException | None) -> None:
        """As set_result."""
        self._finish(None, exception)

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        self._done_callbacks.append(fn)
        if self._state == FINISHED:
            self._run_callbacks()

    def _finish(self, result: T | None, exception: BaseException | None) -> None:
        with _making:
            if self._state == FINISHED:
                return
            condition = self._made_condition
            if condition is None:
                self._result, self._exception, self._state = result, exception, FINISHED
        if condition is not None and not self._finish_waited_for(condition, result, exception):
            return
        for bell in self._bells:
            bell.ring()
        if self._done_callbacks:
            before, _thread.runs_callbacks = _thread.runs_callbacks, True
            try:
                self._run_callbacks()
            finally:
                _thread.runs_callbacks = before

    def _finish_waited_for(
        self, condition: threading.Condition, result: T | None, exception: BaseException | None
    ) -> bool:
        """False: another thread was faster."""
        locked = condition.acquire(timeout=_CONDITION_SECONDS)
        try:
            if self._state == FINISHED:
                return False
            self._result, self._exception, self._state = result, exception, FINISHED
            if self._waiters:
                _tellers.tell(partial(self._tell_waiters, list(self._waiters)))
        finally:
            if locked:
                condition.release()
        return True

    def _tell_waiters(self, waiters: Sequence[Any]) -> None:
        """Those of concurrent.futures.wait and as_completed, whose locks an interrupt may leave locked as well."""
        for waiter in waiters:
            if self._exception is not None:
                waiter.add_exception(self)
            else:
                waiter.add_result(self)

    def _run_callbacks(self) -> None:
        """Each is popped, so it runs once, whoever of the setter and the adder comes first."""
        while self._done_callbacks:
            try:
                callback = self._done_callbacks.pop(0)
            except IndexError:
                return  # the other thread took the last one
            try:
                callback(self)
            except Exception:
                log.exception("a callback of a send failed")
