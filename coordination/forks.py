"""A process that was forked off (os.fork, multiprocessing's "fork") and what its parent has made.

The child has copies of sockets, sessions and locks, and none of the threads that work on them. What it sent on such a
socket would get in between the parent's bytes; a lock may have been held by a thread that the child does not have. So
whatever owns such things has a ForkGuard, asks it before it takes a lock, and does nothing in the child but refuse.
"""

from __future__ import annotations

import os

from metaq.protocol.errors import ClientError

__all__ = ["ForkGuard", "keep_for_ever"]

_generation = 0
"""How often this process, or one of its ancestors, was forked off: a look at it costs less than os.getpid()."""


class ForkGuard:
    """Knows the process that made it. what: names its owner in errors, as in "Producer"."""

    __slots__ = ("_generation", "_process", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._process = os.getpid()
        self._generation = _generation

    @property
    def is_elsewhere(self) -> bool:
        """Whether this process was forked off the one that made it."""
        return self._generation != _generation

    def check(self) -> None:
        """Raise ClientError in a process that was forked off."""
        if self._generation != _generation:
            raise ClientError(
                f"this {self._what} belongs to process {self._process}, and process {os.getpid()} was forked off it: "
                "make another one in the child, after the fork"
            )


def keep_for_ever(thing: object) -> None:
    """Have it never freed, not even when the interpreter ends."""
    import ctypes  # only local stores keep anything

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _forked() -> None:
    global _generation
    _generation += 1


os.register_at_fork(after_in_child=_forked)
