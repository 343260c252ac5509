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
from queue import Empty, SimpleQueue
from types import CodeType
from typing import Any

__all__ = ["BackgroundThread", "is_interrupt", "may_be_interrupted", "surely"]


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

    def join(self, timeout: float) -> None:
        """Wait for its end, at most `timeout` seconds. Any thread but itself."""
        try:
            self._ended.get(timeout=timeout)
        except Empty:
            return
        self._ended.put(None)  # for who waits next

    def _run(self) -> None:
        try:
            self._action(*self._args)
        finally:
            self._ended.put(None)


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
