"""Exceptions that come out of any line of a user's thread: KeyboardInterrupt, and what a signal's handler raises.

CPython calls the handlers of signals on the main thread, behind each call of a C function, where a function begins and
where a loop begins anew. So what one C function does is not divided, and neither are statements without a call.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import CodeType
from typing import Any

__all__ = ["is_interrupt", "surely"]


def surely(action: Callable[..., object], *args: object) -> None:
    """Do what may be repeated; once more if it was interrupted."""
    try:
        action(*args)
    except BaseException:
        action(*args)
        raise


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
