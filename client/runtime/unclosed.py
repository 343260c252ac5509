"""Close clients that nobody refers to any more and nobody has closed, and warn about them, as Python does for files and
sockets.
"""

from __future__ import annotations

import os
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable

from metaq.coordination.runtime.interrupts import begin_elsewhere

__all__ = ["Closing"]


class Closing(ABC):
    """Base class of clients whose threads and connections run until `close`. The threads and connections must not refer
    to the client.
    """

    _unclosed: int | None = None
    """The id of the process to which the open client belongs; None before the constructor has finished and after
    `close`.
    """

    def _opened(self) -> None:
        """Note that the constructor has finished, so that an unclosed client is closed later. This makes no separate
        object: if an interrupt came when the constructor returns, nobody would own the threads and connections that the
        constructor has started.
        """
        self._unclosed = os.getpid()

    def _closes(self) -> None:
        """Note that the client is being closed."""
        self._unclosed = None

    @abstractmethod
    def close(self) -> None: ...

    def _end_dropped(self) -> None:
        """Close the client, which nobody refers to any more. This runs on a thread of its own."""
        self.close()

    def __del__(self, getpid: Callable[[], int] = os.getpid, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        """Warn and close the client, unless it is closed. The garbage collector may call this method on any thread,
        while that thread holds any lock. An ending interpreter may call it even when the names `os` and `sys` do not
        exist any more.
        """
        if is_ending() or self._unclosed != getpid():
            return
        self._unclosed = None
        try:
            kind = type(self).__name__
            words = f"this {kind} was not closed: close it, for example by `with {kind}(...)`"
            warnings.warn(words, ResourceWarning, source=self, stacklevel=2)
        finally:
            begin_elsewhere((self._end_dropped,))
