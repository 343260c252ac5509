"""A Twisted reactor for servers that run inside another program's process. A single daemon thread runs the reactor and
all these servers.

The process's own reactor (`twisted.internet.reactor`) is neither imported nor run.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from twisted.internet.epollreactor import EPollReactor

__all__ = ["call", "shared_reactor"]

Result = TypeVar("Result")

_lock = threading.Lock()
_shared: tuple[int, Any] | None = None


def shared_reactor() -> Any:
    """Return the reactor that all servers of this process share; start it if it does not run. After a fork, the child
    process starts its own reactor.
    """
    global _shared
    with _lock:
        if _shared is None or _shared[0] != os.getpid():
            reactor = EPollReactor()  # type: ignore[no-untyped-call]
            _shared = os.getpid(), reactor
            threading.Thread(target=_run, args=(reactor,), name="metaq standalone zookeeper", daemon=True).start()
        return _shared[1]


def _run(reactor: Any) -> None:
    reactor.run(installSignalHandlers=False)


def call(reactor: Any, function: Callable[[], Result]) -> Result:
    """Run a function on the reactor's thread, wait until it has ended, and return its result or raise its exception.
    Must not be called on the reactor's thread.
    """
    results: list[Result] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)
        done.set()

    reactor.callFromThread(run)
    done.wait()
    if errors:
        raise errors[0]
    return results[0]
