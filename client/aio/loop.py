"""What a client on an event loop uses in place of threads: timers, a queue for waiting tasks, and one thread for calls
that block.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

from metaq.coordination.runtime.logs import get_log
from metaq.protocol.errors import RequestTimedOut

__all__ = ["BlockingThread", "LoopTimers", "WaitingTasks", "on_loop"]

log = get_log(__name__)

T = TypeVar("T")

_BUSY_SECONDS = 5.0
"""A thread that waits for an event loop waits this much longer than the work on the loop may take, because the loop may
be busy with other work.
"""


def on_loop(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], seconds: float) -> T:
    """Run `work`, which ends within `seconds`, on the event loop. Block the calling thread, which must not be the
    loop's, until it has ended; return its result or raise its exception. Raises RequestTimedOut if the loop does not
    run any more, or has been busy for so long.
    """
    try:
        return asyncio.run_coroutine_threadsafe(work, loop).result(seconds + _BUSY_SECONDS)
    except (RuntimeError, CancelledError):  # the loop is closed, or was closed meanwhile
        work.close()
        raise RequestTimedOut("the event loop of this client is closed") from None
    except TimeoutError:
        raise RequestTimedOut(f"the event loop of this client has been busy or stopped for {seconds:g} s") from None


class LoopTimers:
    """Runs delayed actions on the event loop, as Timers does on a thread. Any thread may call the methods."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.get_ident()
        self._closed = False

    def call_later(self, seconds: float, action: Callable[[], None]) -> None:
        """Run `action` on the event loop after `seconds` seconds. If `close` is called before that time, or if the loop
        has been closed, the action is dropped.
        """
        if self._closed:
            return
        if threading.get_ident() == self._thread:
            self._set(seconds, action)
            return
        with suppress(RuntimeError):  # the loop is closed, so nothing will run on it any more
            self._loop.call_soon_threadsafe(self._set, seconds, action)

    def close(self, timeout: float = 1.0) -> None:
        """Drop the waiting actions. timeout: ignored, because the method does not wait."""
        self._closed = True

    def _set(self, seconds: float, action: Callable[[], None]) -> None:
        if seconds > 0:
            self._loop.call_later(seconds, self._run, action)
        else:
            self._loop.call_soon(self._run, action)

    def _run(self, action: Callable[[], None]) -> None:
        if self._closed:
            return
        try:
            action()
        except Exception:  # one action's bug must not end up in the loop's handler without its place
            log.exception("an action of the event loop failed")


class WaitingTasks:
    """Wakes tasks that wait for a change, in the order in which they began to wait. All methods are called on the event
    loop's thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __bool__(self) -> bool:
        """Whether any task waits."""
        return bool(self._waiting)

    def wake_first(self) -> None:
        """Wake the task that waits longest. It wakes the next one if it changes nothing for it (`wait_for`)."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def wake_all(self) -> None:
        while self._waiting:
            self.wake_first()

    async def wait_for(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Wait until the condition `holds` is true, at most `seconds` seconds. Return whether it is true. The condition
        is checked at once, and each time this task is woken. When the wait ends, however it ends, the next task is
        woken, because there may be room for it, too.
        """
        if holds():
            return True
        end = self._loop.time() + seconds
        is_first = False
        try:
            while not holds():
                left = end - self._loop.time()
                if left <= 0:
                    return False
                waiter = self._loop.create_future()
                if is_first:
                    self._waiting.appendleft(waiter)  # it has been woken, but others took the room
                else:
                    self._waiting.append(waiter)
                timer = self._loop.call_later(left, _end, waiter)
                try:
                    await waiter
                finally:
                    timer.cancel()
                    if not waiter.done() or waiter.cancelled():
                        with suppress(ValueError):
                            self._waiting.remove(waiter)
                is_first = True
            return True
        finally:
            self.wake_first()


def _end(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class BlockingThread:
    """One daemon thread that runs calls that block, such as those of ZooKeeper, one after the other. The thread starts
    with the first call. All methods are called on the event loop's thread.
    """

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._name = name
        self._loop = loop
        self._todo: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def run(self, action: Callable[[], T]) -> T:
        """Run `action` on the thread, and return its result or raise its exception. If this task is cancelled before
        the action has begun, the action does not run; if the action has begun, it runs to its end.
        """
        return await self.begin(action)

    def begin(self, action: Callable[[], T]) -> asyncio.Future[T]:
        """Let the thread run `action`, and return a future of its result. A cancelled future as in `run`."""
        future: asyncio.Future[T] = self._loop.create_future()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self._todo.put(lambda: self._do(action, future))
        return future

    def close(self) -> None:
        """End the thread after the calls that were made before. Does not wait."""
        self._todo.put(None)

    def _work(self) -> None:
        while (job := self._todo.get()) is not None:
            job()
            del job  # what it refers to must not live until the next call

    def _do(self, action: Callable[[], T], future: asyncio.Future[T]) -> None:
        if future.cancelled():
            return
        result: T | None = None
        error: BaseException | None = None
        try:
            result = action()
        except BaseException as raised:  # its caller gets it
            error = raised
        with suppress(RuntimeError):  # the loop is closed, so nobody waits
            self._loop.call_soon_threadsafe(_settle, future, result, error)


def _settle(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return  # its task was cancelled
    if error is None:
        future.set_result(result)
    elif isinstance(error, StopIteration):
        future.set_exception(RuntimeError(f"a blocking call raised {error!r}"))
    else:
        future.set_exception(error)
