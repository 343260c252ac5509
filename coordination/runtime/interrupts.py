"""Exceptions that may arise at any line of a user's thread: KeyboardInterrupt, and those raised by a signal's handler.

CPython calls signal handlers on the main thread: behind each call of a C function, where a function begins and where a
loop begins anew. So one C function is never interrupted in the middle, and neither are statements without a call.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from types import CodeType, FrameType
from typing import Any, TypeVar

__all__ = [
    "Aside",
    "BackgroundThread",
    "Bell",
    "Bells",
    "Ending",
    "begin_elsewhere",
    "interrupted_frames",
    "is_interrupt",
    "may_be_interrupted",
]

T = TypeVar("T")


_main = threading.main_thread().ident


def _forked() -> None:
    global _main
    _main = threading.main_thread().ident


os.register_at_fork(after_in_child=_forked)


def _begin_thread(action: Callable[..., object], *args: object) -> None:
    """Begin a thread that `threading` knows: otherwise the name that it makes up for the thread stays in its list for
    good."""
    threading.Thread(target=action, args=args, name="metaq-interrupted", daemon=True).start()


begin_elsewhere: Callable[[tuple[Any, ...]], object] = partial(_thread.start_new_thread, _begin_thread)
"""`begin_elsewhere((action, argument, …))`: do what must follow an interrupt, on a thread where no other interrupt
comes.

It is one call of C functions, so it is certain to be made if it is the first call behind `except`. Raises RuntimeError
when no thread can be started.
"""


def may_be_interrupted() -> bool:
    """Whether signal handlers run on this thread. If so, work that concerns others than its caller is done
    elsewhere."""
    return threading.get_ident() == _main


class Bell:
    """Wakes one waiting thread, now or later; rung several times before that, it wakes it once. Any thread.

    It uses no Event: one whose wait is interrupted may keep its lock. It uses no SimpleQueue: `get(timeout=…)` of
    CPython 3.11 never returns if a signal whose handler raises nothing, such as a profiler's, arrives when its time is
    over.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self) -> bool:
        """Ring. Return whether it had not rung yet."""
        try:
            self._lock.release()
        except RuntimeError:
            return False
        return True

    def wait(self, seconds: float | None) -> bool:
        """Wait at most `seconds`; 0 or less: not at all; None: for ever. Return whether it has rung, and forget
        that."""
        if seconds is None:
            return self._lock.acquire()
        return self._lock.acquire(True, min(max(0.0, seconds), threading.TIMEOUT_MAX))


class Ending:
    """Something ends once; any thread may wait for it."""

    def __init__(self) -> None:
        self._is_over = False
        self._bell = Bell()

    def tell(self) -> None:
        """Record that it is over. May be repeated."""
        self._is_over = True
        self._bell.ring()

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds`. Return whether it is over."""
        if not self._is_over and self._bell.wait(seconds):
            self._bell.ring()  # for the next waiting thread
        return self._is_over


class BackgroundThread:
    """A daemon thread, where no signal is handled, that begins `action` soon. Raises RuntimeError when the interpreter
    is about to exit.

    An interrupt of Thread.start() may leave a thread that ends at once. So another thread calls that, and beginning it
    is one call of a C function. If the constructor is interrupted after that call, the action runs although nobody has
    this object.
    """

    def __init__(self, action: Callable[..., object], name: str, *args: object) -> None:
        self._action = action
        self._args = args
        self._ending = Ending()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        _thread.start_new_thread(self._thread.start, ())

    @property
    def is_current(self) -> bool:
        """Whether it is the caller's thread."""
        return threading.current_thread() is self._thread

    @property
    def ident(self) -> int | None:
        """Its threading.get_ident(); None before it has begun."""
        return self._thread.ident

    def join(self, timeout: float) -> bool:
        """Wait for its end, at most `timeout` seconds. Return whether it has ended. Any thread but itself."""
        return self._ending.wait(timeout)

    def _run(self) -> None:
        try:
            self._action(*self._args)
        finally:
            self._ending.tell()


class Aside:
    """Runs actions where no interrupt comes: on another thread, if the caller's may be interrupted.

    An interrupt ends the waiting, but not the action, which may hold locks and has steps that belong together. Actions
    run in order: those of an interrupted call run before later ones. name: of those threads. drops: discard queued
    actions whose caller was interrupted, so that a later action waits for at most one of them. lingers: seconds that
    its thread waits for more actions, so that many successive calls need one thread: on busy processors a new thread
    waits milliseconds for its turn. Do not use it for objects that a forked process also uses.
    """

    def __init__(self, name: str, *, drops: bool = False, lingers: float = 0.0) -> None:
        self._name = name
        self._drops = drops
        self._lingers = lingers
        self._more = Bell()
        self._todo: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()

    @property
    def is_behind(self) -> bool:
        """Whether some queued action is not finished yet."""
        # in this order: an action is taken out and run under the lock
        return not self._todo.empty() or self._lock.locked()

    def do(self, action: Callable[..., T], *args: object, seconds: float | None = None) -> T:
        """Run `action` and return its result or raise its exception. seconds: raise Empty if it is not done by then; it
        goes on."""
        if not may_be_interrupted():
            return action(*args)
        outcome: list[tuple[T | None, BaseException | None]] = []
        bell, dropped = Bell(), False

        def act() -> None:
            if dropped:
                return
            try:
                outcome.append((action(*args), None))
            except BaseException as error:
                outcome.append((None, error))
            bell.ring()

        try:
            self.start(act)
            if not bell.wait(seconds):
                raise Empty
            result, error = outcome[0]
        except BaseException:
            dropped = self._drops
            raise
        if error is not None:
            raise error
        return result  # type: ignore[return-value]  # None is one, too

    def start(self, action: Callable[[], None]) -> None:
        """Have `action`, which must not raise, run soon; does not wait for it."""
        try:
            self._todo.put(action)
            self._begin()
        except BaseException:
            _thread.start_new_thread(self._begin_work, ())  # otherwise the action would wait for the next one
            raise

    def _begin(self) -> None:
        if self._lingers and self._lock.locked():  # the holder checks for more after releasing the lock
            self._more.ring()
            return
        try:
            _thread.start_new_thread(self._begin_work, ())
        except RuntimeError:  # the interpreter is about to exit
            self._work()

    def _begin_work(self) -> None:
        threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def _work(self) -> None:
        while not self._todo.empty() and self._lock.acquire(blocking=False):  # otherwise another thread does it all
            try:
                with suppress(Empty):
                    while True:
                        self._next()()
            finally:
                self._lock.release()

    def _next(self) -> Callable[[], None]:
        """Return the next action. Raises Empty."""
        with suppress(Empty):
            return self._todo.get_nowait()
        self._more.wait(self._lingers)
        return self._todo.get_nowait()


class Bells:
    """Wakes threads that wait for a change; all methods on any thread.

    It replaces a Condition, whose lock, taken in Python code, may stay locked for ever when its thread is interrupted.
    """

    def __init__(self) -> None:
        self.waiting: list[Bell] = []
        """Not empty while somebody waits; reading it costs no call."""

    def ring(self, most: int | None = None) -> None:
        """Have the waiting threads check again. most: only this many, not counting those that are about to check
        anyway."""
        for bell in list(self.waiting):
            if most is not None and most <= 0:
                return
            if bell.ring() and most is not None:
                most -= 1

    def wait_for(self, holds: Callable[[], object], seconds: Callable[[], float]) -> bool:
        """Wait until `holds`. Return whether it did when no `seconds` were left.

        It is checked on this thread now and after each ring, also one during a check.
        """
        bell = Bell()
        try:
            self.waiting.append(bell)
            while not holds():
                if (remaining := seconds()) <= 0:
                    return False
                bell.wait(remaining)
            return True
        finally:
            self.waiting.remove(bell)


def interrupted_frames() -> list[FrameType]:
    """Call this in a signal's handler. Return the frames it has interrupted, the innermost first; [] outside of a
    handler."""
    if not may_be_interrupted():
        return []
    outer: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        outer.append(frame)
        frame = frame.f_back
    handlers = _handlers()
    handling = next((index for index, each in enumerate(outer) if each.f_code in handlers), len(outer))
    return outer[handling + 1 :]


def is_interrupt(error: BaseException) -> bool:
    """Whether the error is not the interrupted code's own: it is no Exception, or it came out of a signal's handler, as
    the TimeoutError or the soft limit of a web worker does."""
    if not isinstance(error, Exception):
        return True
    handlers = _handlers()
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in handlers:
            return True
        traceback = traceback.tb_next
    return False


def _handlers() -> set[CodeType | None]:
    """Return the code of the signal handlers."""
    return {_code_of(each) for each in map(signal.getsignal, signal.valid_signals()) if callable(each)} - {None}


def _code_of(handler: Any) -> CodeType | None:
    """Return the code of a handler, if it is Python."""
    while (inner := getattr(handler, "__func__", None) or getattr(handler, "func", None)) is not None:
        handler = inner
    code = getattr(handler, "__code__", None) or getattr(type(handler).__call__, "__code__", None)
    return code if isinstance(code, CodeType) else None
