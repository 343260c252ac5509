"""A concurrent.futures.Future without a lock of its own until somebody needs one.

A plain Future makes a Condition and an RLock for every message (2 µs, and 2 µs more to set its result): a quarter of
what an asynchronous send may cost. Most are looked at through `add_done_callback`, or after they are done.

It relies on what CPython's own Future keeps in `_state`, `_result`, `_exception`, `_waiters`, `_done_callbacks` and
`_condition` (unchanged since 3.2, used in the same way by distributed executors); the tests run the standard library's
wait, as_completed and asyncio.wrap_future against it.

Why no wake-up is lost, and none comes twice: while there is a condition the state changes only with it held, as in a
plain Future, and while there is none only with the lock held under which conditions are made. So who waits (and begins
with the condition) either finds the state final, or is told of its change.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, RUNNING
from typing import Any, TypeVar, cast

from metaq.protocol.errors import ClientError

__all__ = ["SendFuture", "refuse_in_callback"]

T = TypeVar("T")
log = logging.getLogger(__name__)
_making = threading.Lock()
_running = RUNNING
"""The state of this process's unfinished futures; those of its parent have another object, which is equal."""


def _forked() -> None:
    global _making, _running
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

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]  # an attribute there; nobody sets it
        if self._made_condition is None:
            with _making:
                if self._made_condition is None:
                    self._made_condition = threading.Condition()
        return self._made_condition

    def result(self, timeout: float | None = None) -> T:
        if self._state == FINISHED and self._exception is None:
            return cast(T, self._result)  # without a lock: most are asked for when they are done
        self._refuse_to_wait("result()", timeout)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._refuse_to_wait("exception()", timeout)
        return super().exception(timeout)

    def _refuse_to_wait(self, what: str, timeout: float | None) -> None:
        if self._state != FINISHED and timeout != 0:
            refuse_in_callback(what)
            if self._state is not _running and self._state != FINISHED:
                raise ClientError(
                    f"{what} would wait for ever: the message is on its way in the process that was forked"
                )

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
        with condition:
            if self._state == FINISHED:
                return False
            self._result, self._exception, self._state = result, exception, FINISHED
            for waiter in self._waiters:
                if exception is not None:
                    waiter.add_exception(self)
                else:
                    waiter.add_result(self)
            condition.notify_all()
        return True

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
