"""A process that was forked off (os.fork, multiprocessing's "fork"), and objects that its parent has made.

The child has copies of sockets, sessions and locks, but none of the threads that work on them. Bytes that it sent on
such a socket would mix with the parent's; a thread that the child does not have may have held a lock. So each owner of
such things has a ForkGuard, checks it before it takes a lock, and only refuses in the child.
"""

from __future__ import annotations

import os

from metaq.protocol.errors import ClientError

__all__ = ["ForkGuard", "keep_for_ever"]

_generation = 0
"""How often this process, or one of its ancestors, was forked off: reading it costs less than os.getpid()."""


class ForkGuard:
    """Knows the process that made it. what: names its owner in errors, as in "Producer"."""

    __slots__ = ("_generation", "_process", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._process = os.getpid()
        self._generation = _generation

    @property
    def is_elsewhere(self) -> bool:
        """Whether this process was forked off the one that made the guard."""
        return self._generation != _generation

    def check(self) -> None:
        """Raise ClientError in a process that was forked off."""
        if self._generation != _generation:
            raise ClientError(
                f"this {self._what} belongs to process {self._process}, and process {os.getpid()} was forked off it: "
                "make another one in the child, after the fork"
            )


def keep_for_ever(thing: object) -> None:
    """Never free it, not even when the interpreter ends."""
    import ctypes  # only local stores use this

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _forked() -> None:
    global _generation
    _generation += 1


os.register_at_fork(after_in_child=_forked)
