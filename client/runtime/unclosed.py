"""Clients that nobody has any more and nobody has closed: they say so, as files and sockets do, and are closed."""

from __future__ import annotations

import os
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable

from metaq.coordination.interrupts import begin_elsewhere

__all__ = ["Closing"]


class Closing(ABC):
    """Of a client whose threads and connections go on until `close`. None of them may refer to the client."""

    _unclosed: int | None = None
    """The process to which it belongs."""

    def _opened(self) -> None:
        """The constructor has come to its end. Makes no object: an interrupt when its constructor returns would leave
        what has begun to nobody."""
        self._unclosed = os.getpid()

    def _closes(self) -> None:
        """Somebody closes it."""
        self._unclosed = None

    @abstractmethod
    def close(self) -> None: ...

    def _end_dropped(self) -> None:
        """On a thread of its own."""
        self.close()

    def __del__(self, getpid: Callable[[], int] = os.getpid, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        """The collector may call this, so on any thread, with any lock held; and an interpreter that is about to end,
        which has taken the names `os` and `sys` away before."""
        if is_ending() or self._unclosed != getpid():
            return
        self._unclosed = None
        try:
            kind = type(self).__name__
            words = f"this {kind} was not closed: close it, for example by `with {kind}(...)`"
            warnings.warn(words, ResourceWarning, source=self, stacklevel=2)
        finally:
            begin_elsewhere((self._end_dropped,))
