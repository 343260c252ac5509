"""Close clients that were garbage collected without a call of close(), and warn about them, as Python does for files
and sockets.
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
    """Base class of clients whose threads and connections exist until `close` is called. The threads and connections
    must not refer to the client, because otherwise Python would never garbage collect a client that the program has
    forgotten to close.
    """

    _unclosed: int | None = None
    """The id of the process that owns the open client. It is None before the constructor has finished and after
    `close`.
    """

    def _opened(self) -> None:
        """Record that the constructor has finished, so that `__del__` closes the client if its user does not. If an
        interrupt comes just when the constructor returns, the constructor's caller does not get the client. But this
        record is an attribute of the client itself. So when the client is garbage collected, it is closed, with its
        threads and connections.
        """
        self._unclosed = os.getpid()

    def _closes(self) -> None:
        """Record that the client is being closed, so that `__del__` does not warn."""
        self._unclosed = None

    @abstractmethod
    def close(self) -> None: ...

    def _end_dropped(self) -> None:
        """Close the client, because nobody refers to it any more. This method runs on a separate thread."""
        self.close()

    def __del__(self, getpid: Callable[[], int] = os.getpid, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        """If the client is not closed, issue a warning and close the client. The garbage collector may call this method
        on any thread, even on a thread that holds a lock. `getpid` and `is_ending` are default arguments, because at
        the interpreter's end this method may be called when the names `os` and `sys` do not exist any more.
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
