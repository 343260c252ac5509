"""Warn of clients that nobody refers to and nobody has closed, as files and sockets do, and close them."""

from __future__ import annotations

import os
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable

from metaq.coordination.runtime.interrupts import begin_elsewhere

__all__ = ["Closing"]


class Closing(ABC):
    """A client whose threads and connections run until `close`. None of them may refer to the client."""

    _unclosed: int | None = None
    """The process to which it belongs."""

    def _opened(self) -> None:
        """The constructor has finished. Makes no object: after an interrupt on the constructor's return nobody would
        own what it has begun."""
        self._unclosed = os.getpid()

    def _closes(self) -> None:
        """Somebody closes the client."""
        self._unclosed = None

    @abstractmethod
    def close(self) -> None: ...

    def _end_dropped(self) -> None:
        """Close the client, on a thread of its own."""
        self.close()

    def __del__(self, getpid: Callable[[], int] = os.getpid, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        """The garbage collector may call this on any thread, with any lock held; also an ending interpreter, which has
        already removed the names `os` and `sys`."""
        if is_ending() or self._unclosed != getpid():
            return
        self._unclosed = None
        try:
            kind = type(self).__name__
            words = f"this {kind} was not closed: close it, for example by `with {kind}(...)`"
            warnings.warn(words, ResourceWarning, source=self, stacklevel=2)
        finally:
            begin_elsewhere((self._end_dropped,))
