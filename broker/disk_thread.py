"""A thread for the journal alone, so that an acknowledgement never waits for other work of the disk."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any

from .reactor import Reactor

__all__ = ["DiskThread"]


class DiskThread:
    """A `RunInThread` (store/flush.py): one call after the other, with less work per call than a pool has.

    Started at the first call. It does not keep the process from ending: who needs its last call waits for it.
    """

    def __init__(self, reactor: Reactor, name: str) -> None:
        self._reactor = reactor
        self._name = name
        self._calls: SimpleQueue[tuple[Callable[[], Any], Callable[[Any], None]]] = SimpleQueue()
        self._thread: Thread | None = None

    def __call__(self, function: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Reactor thread: run `function` in the thread, then `done(its result or exception)` on the reactor's."""
        self._calls.put((function, done))
        if self._thread is None:
            self._thread = Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            function, done = self._calls.get()
            try:
                result = function()
            except BaseException as error:  # handed on: the caller decides
                result = error
            self._reactor.callFromThread(done, result)
            del function, done, result  # nothing is kept until the next call
