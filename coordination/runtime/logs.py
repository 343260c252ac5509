"""Loggers for code that may run on a user's thread. The loggers ensure that no interrupt (interrupts.py) comes while a
log line is written.

The module `logging` takes the lock of a log handler in Python code. If an interrupt comes after the lock was taken, the
lock may never be released. Then every thread that writes to the log hangs for ever, including the threads that fetch,
rebalance and commit.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from queue import Empty
from typing import Any

from .interrupts import Aside, may_be_interrupted

__all__ = ["Log", "get_log"]

_WRITE_SECONDS = 1.0
"""Another thread writes the log line of a caller that may be interrupted. The caller waits at most this number of
seconds until its line is written. The wait is limited to avoid a deadlock. A log handler may itself send messages with
metaq, so the caller may wait here while it holds the lock of a log handler that the other thread needs. In this case
the other thread writes the line later, when the caller has stopped waiting and released the lock.
"""


class Log(logging.LoggerAdapter[logging.Logger]):
    """Writes log lines to a logger. Each line names the source file and the line number of the calling code. If the
    caller's thread may be interrupted, another thread writes the line.
    """

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Write a log line as logging.Logger.log does. exc_info is the only allowed keyword argument. An exception that
        a log handler raises is passed on to the caller.
        """
        if not may_be_interrupted():
            self.logger.log(level, msg, *args, stacklevel=2, **kwargs)
            return
        error = kwargs.pop("exc_info", None)
        if error is True:
            error = sys.exception()
        file, line, function, _ = self.logger.findCaller(stacklevel=2)
        trace = None if error is None else (type(error), error, error.__traceback__)
        record = self.logger.makeRecord(self.logger.name, level, file, line, msg, args, trace, function)
        with suppress(Empty):
            _aside.do(self._write, level, record, seconds=_WRITE_SECONDS)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, kwargs

    def _write(self, level: int, record: logging.LogRecord) -> None:
        if self.logger.isEnabledFor(level):
            self.logger.handle(record)


_aside = Aside("metaq log")


def _forked() -> None:
    global _aside
    _aside = Aside("metaq log")  # the old one may stay locked: its thread is not in the child


os.register_at_fork(after_in_child=_forked)


def get_log(name: str) -> Log:
    """Return the Log object of the module whose __name__ is `name`."""
    return Log(logging.getLogger(name), {})
