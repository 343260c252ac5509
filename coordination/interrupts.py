"""Exceptions that come out of any line of a user's thread: KeyboardInterrupt, and what a signal's handler raises.

CPython calls the handlers of signals on the main thread, behind each call of a C function, where a function begins and
where a loop begins anew. So what one C function does is not divided, and neither are statements without a call.
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
    """A thread that `threading` knows, or else a name that it makes up for it stays in its list for good."""
    threading.Thread(target=action, args=args, name="metaq-interrupted", daemon=True).start()


begin_elsewhere: Callable[[tuple[Any, ...]], object] = partial(_thread.start_new_thread, _begin_thread)
"""`begin_elsewhere((action, argument, …))`: what must follow an interrupt, on a thread where no other one comes. It is
one call of C functions, so it is made in any case if it is the first call behind `except`. Raises RuntimeError when no
thread can be started."""


def may_be_interrupted() -> bool:
    """Whether the handlers of signals run on this thread. What concerns others than its caller is done elsewhere."""
    return threading.get_ident() == _main


class Bell:
    """Wakes one thread that waits, now or later; rung several times before that it wakes it once. Any thread.

    No Event: one whose wait is interrupted may keep its lock. No SimpleQueue: `get(timeout=…)` of CPython 3.11 never
    returns if a signal whose handler raises nothing, as a profiler's, meets it when its time is over.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self) -> bool:
        """Whether it had not rung yet."""
        try:
            self._lock.release()
        except RuntimeError:
            return False
        return True

    def wait(self, seconds: float | None) -> bool:
        """At most `seconds`, 0 or less: not at all; None: for ever. Whether it has rung, which is forgotten then."""
        if seconds is None:
            return self._lock.acquire()
        return self._lock.acquire(True, min(max(0.0, seconds), threading.TIMEOUT_MAX))


class Ending:
    """Something ends once; any thread may wait for that."""

    def __init__(self) -> None:
        self._is_over = False
        self._bell = Bell()

    def tell(self) -> None:
        """It is over. May be repeated."""
        self._is_over = True
        self._bell.ring()

    def wait(self, seconds: float) -> bool:
        """At most `seconds`; whether it is over."""
        if not self._is_over and self._bell.wait(seconds):
            self._bell.ring()  # for the thread that waits beside
        return self._is_over


class BackgroundThread:
    """A daemon thread, where no signal is handled, that begins to do `action` soon. Raises RuntimeError when the
    interpreter is about to exit.

    An interrupt of Thread.start() may leave a thread that ends at once. So another thread calls that, and beginning it
    is one call of a C function. If the constructor is interrupted behind it, the action runs although nobody has this.
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
        """As threading.get_ident() on it; None before it has begun."""
        return self._thread.ident

    def join(self, timeout: float) -> bool:
        """Wait for its end, at most `timeout` seconds; whether it has ended. Any thread but itself."""
        return self._ending.wait(timeout)

    def _run(self) -> None:
        try:
            self._action(*self._args)
        finally:
            self._ending.tell()


class Aside:
    """Does things where no interrupt comes: on another thread, if the caller's may be interrupted. That ends the
    waiting then, not the action, which may hold locks and has steps that belong together. All of them in their order:
    what an interrupted call asked for is done before what is asked for next. name: of those threads. drops: not what
    had not begun when its caller was interrupted, so that what is asked for next waits for one of them at most.
    lingers: seconds that its thread waits for more, so that many calls one after another begin one thread: where the
    processors are busy, a new one waits for its turn for milliseconds. Not for what a forked process uses, too.
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
        """Whether something that it was asked for is not done yet."""
        return not self._todo.empty() or self._lock.locked()  # in this order: what is taken out is done under the lock

    def do(self, action: Callable[..., T], *args: object, seconds: float | None = None) -> T:
        """Return or raise what `action` does. seconds: raise Empty if it is not done by then; it goes on."""
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
        """Have `action`, which raises nothing, done soon; does not wait for it."""
        try:
            self._todo.put(action)
            self._begin()
        except BaseException:
            _thread.start_new_thread(self._begin_work, ())  # else what was put would wait for the next one
            raise

    def _begin(self) -> None:
        if self._lingers and self._lock.locked():  # its holder looks for more once it has released it
            self._more.ring()
            return
        try:
            _thread.start_new_thread(self._begin_work, ())
        except RuntimeError:  # the interpreter is about to exit
            self._work()

    def _begin_work(self) -> None:
        threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def _work(self) -> None:
        while not self._todo.empty() and self._lock.acquire(blocking=False):  # else another one does it all
            try:
                with suppress(Empty):
                    while True:
                        self._next()()
            finally:
                self._lock.release()

    def _next(self) -> Callable[[], None]:
        """Raises Empty."""
        with suppress(Empty):
            return self._todo.get_nowait()
        self._more.wait(self._lingers)
        return self._todo.get_nowait()


class Bells:
    """Wakes threads that wait for a change; all methods on any thread. A Condition's lock, which is taken in Python
    code, may stay locked for ever when its thread is interrupted; this has none.
    """

    def __init__(self) -> None:
        self.waiting: list[Bell] = []
        """Not empty while somebody waits; a look at it costs no call."""

    def ring(self, most: int | None = None) -> None:
        """Have those that wait look again. most: so many of them, those left out that are about to look anyway."""
        for bell in list(self.waiting):
            if most is not None and most <= 0:
                return
            if bell.ring() and most is not None:
                most -= 1

    def wait_for(self, holds: Callable[[], object], seconds: Callable[[], float]) -> bool:
        """Wait until `holds`; whether it did when no `seconds` were left. It is looked at on this thread now and
        after each ring, also one that came during a look."""
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
    """What a signal's handler, in which this is called, has interrupted, the innermost first; [] outside of one."""
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
    """Whether it is none of the interrupted code's own: no Exception, or one that came out of a signal's handler, as
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
    """What runs when signals come."""
    return {_code_of(each) for each in map(signal.getsignal, signal.valid_signals()) if callable(each)} - {None}


def _code_of(handler: Any) -> CodeType | None:
    """What runs when it is called, if that is Python."""
    while (inner := getattr(handler, "__func__", None) or getattr(handler, "func", None)) is not None:
        handler = inner
    code = getattr(handler, "__code__", None) or getattr(type(handler).__call__, "__code__", None)
    return code if isinstance(code, CodeType) else None
