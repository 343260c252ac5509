"""The handler of `metaq worker`: count its calls, and run coroutine functions on an event loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable
from typing import Any, Self

__all__ = ["AsyncHandlers", "Figures", "counted", "is_coroutine_function"]


class Figures:
    """Counts what the handlers of this process do. Any thread may use the object."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.state = "starting"
        """"starting", "running" or "stopping"."""
        self._clock = clock
        self._lock = threading.Lock()
        self._handled = self._failed = 0
        self._running: dict[int, float] = {}  # by thread, when its call began

    def begin(self) -> None:
        """Record that this thread calls the handler now."""
        with self._lock:
            self._running[threading.get_ident()] = self._clock()

    def end(self, messages: int, *, failed: bool) -> None:
        """Record the end of the call that this thread has begun. messages: the number of messages of the call."""
        with self._lock:
            self._running.pop(threading.get_ident(), None)
            if failed:
                self._failed += messages
            else:
                self._handled += messages

    def health(self) -> tuple[bool, dict[str, object]]:
        """Return whether the process handles messages, and its figures. `longest_seconds` is for how long the oldest
        running call has been running.
        """
        with self._lock:
            begun = list(self._running.values())
            longest = self._clock() - min(begun) if begun else 0.0
            return self.state == "running", {
                "state": self.state,
                "handled": self._handled,
                "failed": self._failed,
                "running": len(begun),
                "longest_seconds": round(longest, 3),
            }


def counted(handler: Callable[[Any], object], figures: Figures) -> Callable[[Any], object]:
    """Return a function that calls the handler and counts the call."""

    def handle(given: Any) -> None:
        messages = len(given) if isinstance(given, list) else 1
        failed = True
        figures.begin()
        try:
            handler(given)
            failed = False
        finally:
            figures.end(messages, failed=failed)

    return handle


def is_coroutine_function(handler: Callable[..., object]) -> bool:
    """Return whether a call of the handler returns a coroutine: an `async def` function, or an object whose `__call__`
    is one.
    """
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


class AsyncHandlers:
    """Runs calls of a coroutine function on one event loop, which has a thread of its own. The object itself is the
    handler: a call waits until the coroutine has ended, so as many coroutines run at once as threads call it.
    """

    def __init__(self, handler: Callable[[Any], Any]) -> None:
        self._handler = handler
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="metaq-worker-loop", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        """Cancel the coroutines that still run, and end the loop."""
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __call__(self, given: Any) -> None:
        asyncio.run_coroutine_threadsafe(self._handler(given), self._loop).result()


async def _cancel_others() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
