"""Close clients that nobody refers to and nobody has closed, and warn of them, as Python does for files and sockets."""

from __future__ import annotations

import os
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable

from metaq.coordination.runtime.interrupts import begin_elsewhere

__all__ = ["Closing"]


class Closing(ABC):
    """Base of clients whose threads and connections run until `close`. None of these may refer to the client."""

    _unclosed: int | None = None
    """The process to which the client belongs."""

    def _opened(self) -> None:
        """Note that the constructor has finished. This makes no object: after an interrupt on the constructor's return,
        nobody would own what was begun."""
        self._unclosed = os.getpid()

    def _closes(self) -> None:
        """Note that the client is being closed."""
        self._unclosed = None

    @abstractmethod
    def close(self) -> None: ...

    def _end_dropped(self) -> None:
        """Close the dropped client, on a thread of its own."""
        self.close()

    def __del__(self, getpid: Callable[[], int] = os.getpid, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        """Warn and close, unless the client is closed. The garbage collector may call this on any thread, with any lock
        held; an ending interpreter may call it, too, after the names `os` and `sys` are gone."""
        if is_ending() or self._unclosed != getpid():
            return
        self._unclosed = None
        try:
            kind = type(self).__name__
            words = f"this {kind} was not closed: close it, for example by `with {kind}(...)`"
            warnings.warn(words, ResourceWarning, source=self, stacklevel=2)
        finally:
            begin_elsewhere((self._end_dropped,))
