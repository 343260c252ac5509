"""Exceptions that come out of any line of a user's thread: KeyboardInterrupt, and what a signal's handler raises.

CPython calls the handlers of signals on the main thread, behind each call of a C function, where a function begins and
where a loop begins anew. So what one C function does is not divided, and neither are statements without a call.
"""

from __future__ import annotations

import _thread
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import CodeType
from typing import Any, TypeVar

__all__ = ["Aside", "BackgroundThread", "Bells", "is_interrupt", "may_be_interrupted", "surely"]

T = TypeVar("T")


_main = threading.main_thread().ident


def _forked() -> None:
    global _main
    _main = threading.main_thread().ident


os.register_at_fork(after_in_child=_forked)


def may_be_interrupted() -> bool:
    """Whether the handlers of signals run on this thread. What concerns others than its caller is done elsewhere."""
    return threading.get_ident() == _main


def surely(action: Callable[..., object], *args: object) -> None:
    """Do what may be repeated; once more if it was interrupted."""
    try:
        action(*args)
    except BaseException:
        action(*args)
        raise


class BackgroundThread:
    """A daemon thread, where no signal is handled, that begins to do `action` soon. Raises RuntimeError when the
    interpreter is about to exit.

    An interrupt of Thread.start() may leave a thread that ends at once. So another thread calls that, and beginning it
    is one call of a C function. If the constructor is interrupted behind it, the action runs although nobody has this.
    """

    def __init__(self, action: Callable[..., object], name: str, *args: object) -> None:
        self._action = action
        self._args = args
        self._ended: SimpleQueue[None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        _thread.start_new_thread(self._thread.start, ())

    @property
    def is_current(self) -> bool:
        """Whether it is the caller's thread."""
        return threading.current_thread() is self._thread

    @property
    def ident(self) -> int | None:
        """As threading.get_ident() on it; None before it has begun."""
        return self._thread.ident

    def join(self, timeout: float) -> bool:
        """Wait for its end, at most `timeout` seconds; whether it has ended. Any thread but itself."""
        try:
            self._ended.get(timeout=timeout)
        except Empty:
            return False
        self._ended.put(None)  # for who waits next
        return True

    def _run(self) -> None:
        try:
            self._action(*self._args)
        finally:
            self._ended.put(None)


class Aside:
    """Does things where no interrupt comes: on another thread, if the caller's may be interrupted. That ends the
    waiting then, not the action, which may hold locks and has steps that belong together. All of them in their order:
    what an interrupted call asked for is done before what is asked for next. name: of those threads. drops: not what
    had not begun when its caller was interrupted, so that what is asked for next waits for one of them at most.
    """

    def __init__(self, name: str, *, drops: bool = False) -> None:
        self._name = name
        self._drops = drops
        self._todo: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()

    def do(self, action: Callable[..., T], *args: object, seconds: float | None = None) -> T:
        """Return or raise what `action` does. seconds: raise Empty if it is not done by then; it goes on."""
        if not may_be_interrupted():
            return action(*args)
        outcome: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()
        dropped = False

        def act() -> None:
            if dropped:
                return
            try:
                outcome.put((action(*args), None))
            except BaseException as error:
                outcome.put((None, error))

        try:
            self.start(act)
            result, error = outcome.get(timeout=seconds)
        except BaseException:
            dropped = self._drops
            raise
        if error is not None:
            raise error
        return result  # type: ignore[return-value]  # None is one, too

    def start(self, action: Callable[[], None]) -> None:
        """Have `action`, which raises nothing, done soon; does not wait for it."""
        try:
            self._todo.put(action)
            self._begin()
        except BaseException:
            surely(self._begin)  # else what was put would wait for the next one
            raise

    def _begin(self) -> None:
        try:
            _thread.start_new_thread(self._begin_work, ())  # one call of a C function, which is not divided
        except RuntimeError:  # the interpreter is about to exit
            self._work()

    def _begin_work(self) -> None:
        threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def _work(self) -> None:
        while not self._todo.empty() and self._lock.acquire(blocking=False):  # else another one does it all
            try:
                with suppress(Empty):
                    while True:
                        self._todo.get_nowait()()
            finally:
                self._lock.release()


class Bells:
    """Wakes threads that wait for a change; all methods on any thread. A Condition's lock, which is taken in Python
    code, may stay locked for ever when its thread is interrupted; this has none.
    """

    def __init__(self) -> None:
        self.waiting: list[SimpleQueue[None]] = []
        """Not empty while somebody waits; a look at it costs no call."""

    def ring(self) -> None:
        """Have those that wait look again."""
        for bell in list(self.waiting):
            bell.put(None)

    def wait_for(self, holds: Callable[[], object], seconds: Callable[[], float]) -> bool:
        """Wait until `holds`; whether it did when no `seconds` were left. It is looked at on this thread now and
        after each ring, also one that came during a look."""
        bell: SimpleQueue[None] = SimpleQueue()
        self.waiting.append(bell)
        try:
            while not holds():
                if (remaining := seconds()) <= 0:
                    return False
                with suppress(Empty):
                    bell.get(timeout=remaining)
            return True
        finally:
            self.waiting.remove(bell)


def is_interrupt(error: BaseException) -> bool:
    """Whether it is none of the interrupted code's own: no Exception, or one that came out of a signal's handler, as
    the TimeoutError or the soft limit of a web worker does."""
    if not isinstance(error, Exception):
        return True
    handlers = {_code_of(each) for each in map(signal.getsignal, signal.valid_signals()) if callable(each)} - {None}
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in handlers:
            return True
        traceback = traceback.tb_next
    return False


def _code_of(handler: Any) -> CodeType | None:
    """What runs when it is called, if that is Python."""
    while (inner := getattr(handler, "__func__", None) or getattr(handler, "func", None)) is not None:
        handler = inner
    code = getattr(handler, "__code__", None) or getattr(type(handler).__call__, "__code__", None)
    return code if isinstance(code, CodeType) else None
