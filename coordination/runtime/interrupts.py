"""Handle interrupts: exceptions that may come at any line of a user's thread. An interrupt is a KeyboardInterrupt, or
an exception that a signal handler raises.

CPython calls signal handlers on the main thread, and only at certain points: after a call of a C function, at the
beginning of a function, and at each new iteration of a loop. So neither a C function nor a statement without a call is
ever interrupted in the middle.
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
    """Run `action` on a new thread that is started through `threading`. The thread that calls this function was not
    started through `threading`. If the action ran on that thread, `threading` would add a dummy entry for the thread to
    its list of threads, and never remove the entry.
    """
    threading.Thread(target=action, args=args, name="metaq-interrupted", daemon=True).start()


begin_elsewhere: Callable[[tuple[Any, ...]], object] = partial(_thread.start_new_thread, _begin_thread)
"""`begin_elsewhere((action, argument, …))` runs `action` on a new thread that no interrupt reaches. Use it for an
action that must be executed even after an interrupt.

The call executes C functions only. So if the call is the first one in the `except` block that handles an interrupt, a
second interrupt cannot prevent it. Raises RuntimeError if no thread can be started.
"""


def may_be_interrupted() -> bool:
    """Return whether signal handlers run on the calling thread. If they do, an interrupt may stop any work on this
    thread halfway. So work whose half-done state would harm other threads must be done on a thread that no interrupt
    reaches.
    """
    return threading.get_ident() == _main


class Bell:
    """Wakes one waiting thread. If no thread is waiting when the bell is rung, the next call of wait() returns at once.
    Several rings before this call count as one: only one call of wait() returns because of them. Any thread may call
    the methods.

    A Bell does not use a threading.Event, because an Event's lock may stay locked after an interrupted wait. A Bell
    does not use a SimpleQueue either. In CPython 3.11, `get(timeout=…)` of a SimpleQueue never returns if a signal
    arrives just when the timeout ends and the signal's handler raises nothing (a profiler's handler, for example).
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self) -> bool:
        """Wake the waiting thread. Return False if the bell was already rung, and no call of wait() has returned since
        that ring.
        """
        try:
            self._lock.release()
        except RuntimeError:
            return False
        return True

    def wait(self, seconds: float | None) -> bool:
        """Wait at most `seconds` for a ring. With 0 or less, do not wait; with None, wait without a limit. Return
        whether the bell was rung, and forget this ring.
        """
        if seconds is None:
            return self._lock.acquire()
        return self._lock.acquire(True, min(max(0.0, seconds), threading.TIMEOUT_MAX))


class Ending:
    """Lets threads wait for an event that happens once, such as the end of an action. Any number of threads may
    wait.
    """

    def __init__(self) -> None:
        self._is_over = False
        self._bell = Bell()

    def tell(self) -> None:
        """Record that the event has happened, and wake the waiting threads. Further calls do nothing."""
        self._is_over = True
        self._bell.ring()

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` for the event. Return whether the event was recorded."""
        if not self._is_over and self._bell.wait(seconds):
            self._bell.ring()  # wakes the next waiting thread
        return self._is_over


class BackgroundThread:
    """A daemon thread that runs `action` soon. No signal handler runs on this thread. The constructor raises
    RuntimeError if the interpreter is about to exit.

    If Thread.start() is interrupted, the new thread may end at once without running the action. So the constructor
    starts a helper thread by one call of a C function, and the helper thread calls Thread.start(). If the constructor
    is interrupted after the start of the helper thread, the action runs although the caller has not received the
    BackgroundThread object.
    """

    def __init__(self, action: Callable[..., object], name: str, *args: object) -> None:
        self._action = action
        self._args = args
        self._ending = Ending()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        _thread.start_new_thread(self._thread.start, ())

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is this thread."""
        return threading.current_thread() is self._thread

    @property
    def ident(self) -> int | None:
        """The thread's identifier as threading.get_ident() returns it, or None before the thread has begun."""
        return self._thread.ident

    def join(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for the thread's end. Return whether the thread has ended. Any other thread
        may call this method, but not the thread itself.
        """
        return self._ending.wait(timeout)

    def _run(self) -> None:
        try:
            self._action(*self._args)
        finally:
            self._ending.tell()


class Aside:
    """Runs actions on threads that no interrupt reaches. An action runs on another thread if the caller's thread may be
    interrupted, otherwise on the caller's thread.

    An interrupt ends only the caller's wait for the action, not the action itself. To stop the action halfway would do
    harm, because the action may hold locks, and some of its steps may belong together. Actions run in the order of the
    calls, even after an interrupt: the action of an interrupted call runs before the actions of later calls. name: the
    name of the threads. drops: whether to discard an action that is still queued when its caller is interrupted. If it
    is true, a later action waits at most for the action that is already running, and not for queued actions of
    interrupted callers.
    lingers: seconds for which a thread that has run its actions waits for more actions. If another action comes during
    this time, no new thread is needed; on busy processors a new thread needs milliseconds until it runs. Do not use an
    Aside for an object that is also used in a forked child process, because the child does not have the Aside's
    threads.
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
        """Whether any action is queued or running now."""
        # The order matters, because an action is taken from the queue and run while the lock is held.
        return not self._todo.empty() or self._lock.locked()

    def do(self, action: Callable[..., T], *args: object, seconds: float | None = None) -> T:
        """Run `action`, and return its result or raise its exception. seconds: longest time to wait for the action. If
        the action has not ended after this time, the method raises Empty. An action that is running continues; an
        action that is still queued runs later, or is discarded if `drops` is true.
        """
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
        """Run `action` soon, without waiting for it. The action must not raise an exception."""
        try:
            self._todo.put(action)
            self._begin()
        except BaseException:
            _thread.start_new_thread(self._begin_work, ())  # otherwise this action would run only with the next
            raise

    def _begin(self) -> None:
        if self._lingers and self._lock.locked():  # the holder looks for actions again after releasing it
            self._more.ring()
            return
        try:
            _thread.start_new_thread(self._begin_work, ())
        except RuntimeError:  # the interpreter is about to exit
            self._work()

    def _begin_work(self) -> None:
        threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def _work(self) -> None:
        while not self._todo.empty() and self._lock.acquire(blocking=False):  # else the holder does it
            try:
                with suppress(Empty):
                    while True:
                        self._next()()
            finally:
                self._lock.release()

    def _next(self) -> Callable[[], None]:
        """Return the next queued action. If the queue is empty, wait up to `lingers` seconds for an action. Raises
        Empty if no action comes in this time.
        """
        with suppress(Empty):
            return self._todo.get_nowait()
        self._more.wait(self._lingers)
        return self._todo.get_nowait()


class Bells:
    """Wakes threads that wait for a change. Any thread may call the methods.

    The class replaces threading.Condition, which takes its lock in Python code: if the thread is interrupted in this
    code, the lock may stay locked for ever.
    """

    def __init__(self) -> None:
        self.waiting: list[Bell] = []
        """The bells of the waiting threads. The attribute is public, so that a caller can check without a function call
        whether any thread waits.
        """

    def ring(self, most: int | None = None) -> None:
        """Make the waiting threads check their conditions again. most: the largest number of threads to wake; None
        wakes all. A thread that an earlier ring() has woken, and that has not checked its condition yet, is not
        counted.
        """
        for bell in list(self.waiting):
            if most is not None and most <= 0:
                return
            if bell.ring() and most is not None:
                most -= 1

    def wait_for(self, holds: Callable[[], object], seconds: Callable[[], float]) -> bool:
        """Wait until the condition `holds` returns a true value, and then return True. Return False if the time is over
        before the condition is true.
        seconds: a function that returns the remaining number of seconds; 0 or less means that the time is over.

        The calling thread checks the condition at once, and again after each ring. If ring() is called during a check,
        the condition is checked once more.
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
    """Return the stack frames that the running signal handler has interrupted, the innermost first. Return [] if no
    signal handler is running.
    """
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
    """Return whether the error came from an interrupt, and not from the code that was running. An error is an interrupt
    if it is not an Exception (for example KeyboardInterrupt), or if a signal handler has raised it. A signal handler
    may raise, for example, TimeoutError or the soft time limit of a web worker.
    """
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
    """Return the code objects of all signal handlers."""
    return {_code_of(each) for each in map(signal.getsignal, signal.valid_signals()) if callable(each)} - {None}


def _code_of(handler: Any) -> CodeType | None:
    """Return the code object of a signal handler, or None if the handler is not written in Python."""
    while (inner := getattr(handler, "__func__", None) or getattr(handler, "func", None)) is not None:
        handler = inner
    code = getattr(handler, "__code__", None) or getattr(type(handler).__call__, "__code__", None)
    return code if isinstance(code, CodeType) else None
