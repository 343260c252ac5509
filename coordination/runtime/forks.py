"""Protect objects that were made before a fork (os.fork, multiprocessing's "fork") from being used in the child
process.

The child has copies of the sockets, sessions and locks, but none of the threads that use them. If the child sent bytes
on such a socket, these bytes would mix with the parent's bytes. A lock that one of the parent's threads held during the
fork stays locked in the child for ever, because the child does not have the thread that would release it. So each class
that has a socket, a session or a lock also has a ForkGuard, and its methods call ForkGuard.check() before they take a
lock. In the child process, the methods of such a class only raise errors.
"""

from __future__ import annotations

import os

from metaq.protocol.errors import ClientError

__all__ = ["ForkGuard", "keep_for_ever"]

_generation = 0
"""Number of forks between the process that imported this module and the current process. A guard compares this number
with the number at its own creation to find out whether the process is a forked child. The comparison costs less than a
call of os.getpid().
"""


class ForkGuard:
    """Remembers which process has made the guard. what: the guarded object's name in errors, such as "Producer"."""

    __slots__ = ("_generation", "_process", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._process = os.getpid()
        self._generation = _generation

    @property
    def is_elsewhere(self) -> bool:
        """Whether the current process is a forked child of the process that made the guard."""
        return self._generation != _generation

    def check(self) -> None:
        """Raise ClientError if the current process is a forked child of the process that made the guard."""
        if self._generation != _generation:
            raise ClientError(
                f"this {self._what} belongs to process {self._process}, and process {os.getpid()} was forked off it: "
                "make another one in the child, after the fork"
            )


def keep_for_ever(thing: object) -> None:
    """Ensure that `thing` is never freed, not even when the interpreter ends."""
    import ctypes  # only local stores need it

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _forked() -> None:
    global _generation
    _generation += 1


os.register_at_fork(after_in_child=_forked)
