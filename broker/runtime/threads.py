"""Worker threads: one thread for the journal, and pools for calls that can take long. They are daemon threads, so the
process can end although they run.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool

from .reactor import Reactor

__all__ = ["DaemonThreads", "DiskThread", "fire", "in_own_thread", "run_coroutine", "run_in_pool"]

T = TypeVar("T")


def run_in_pool(reactor: Reactor, pool: ThreadPool, function: Callable[[], Any], done: Callable[[Any], None]) -> None:
    """Run `function` in a thread of the pool, then call `done(its result or exception)` on the reactor thread."""

    def finished(success: bool, result: Any) -> None:
        reactor.callFromThread(done, result if success else result.value)

    pool.callInThreadWithCallback(finished, function)


def run_coroutine(begin: Callable[[], Coroutine[Deferred[Any], Any, Any]], done: Callable[[Any], None]) -> None:
    """Run the coroutine that `begin` returns on this thread, then call `done(its result or failure)`. This function can
    be passed to the class `Turns` (store/worker_turns.py) as `run_in_thread`. A `Turns` object limits how many of its
    jobs run at the same time. With this function, the jobs are coroutines on this thread instead of functions in worker
    threads.
    """
    ensureDeferred(begin()).addBoth(done)


def fire(reactor: Reactor, deferred: Deferred[T], function: Callable[[], T]) -> None:
    """Call `function` on this thread (not the reactor thread); then let `deferred` fire on the reactor thread with the
    result or the exception.
    """
    try:
        result = function()
    except BaseException:
        reactor.callFromThread(deferred.errback, Failure())  # type: ignore[no-untyped-call]
    else:
        reactor.callFromThread(deferred.callback, result)


def in_own_thread(reactor: Reactor, name: str, function: Callable[[], T]) -> Deferred[T]:
    """Start a new thread that runs `function`. The Deferred gives its result or exception. Used for ZooKeeper calls,
    which can take so long that they would block the threads of a pool.
    """
    deferred: Deferred[T] = Deferred()
    _Daemon(target=fire, name=name, args=(reactor, deferred, function)).start()
    return deferred


class _Daemon(Thread):
    """A thread that does not keep the process from ending."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, daemon=True, **kwargs)


class DaemonThreads(ThreadPool):
    """A pool of threads for users' filters, or for reads of data that are not in the page cache. Call the object itself
    with a function to run and a callback for the result: it has the type `RunInThread` (store/worker_turns.py). Its
    threads are separate from those that sync files, so that slow filters and reads do not delay syncs. The pool has at
    most `limit` threads. A thread is started when it is first needed, and runs until the process ends.
    """

    threadFactory = _Daemon  # noqa: N815

    def __init__(self, reactor: Reactor, name: str, limit: int) -> None:
        super().__init__(0, limit, name)
        self._reactor = reactor

    def __call__(self, function: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run `function` in a thread of this pool, as `run_in_pool` does. Must be called on the reactor thread."""
        if not self.started:
            self.start()
        run_in_pool(self._reactor, self, function, done)


class DiskThread:
    """A thread that only the journal uses. So the journal's writes and syncs, for which acknowledgements wait, never
    wait for other disk work. The object has the type `RunInThread` (store/worker_turns.py). The thread runs the
    functions that callers pass to it one after the other. Passing a function to this thread costs less time than
    passing it to a thread pool.

    The first call starts the thread. The process can end while the thread runs a function, so a caller that needs the
    result must wait for it before the process ends.
    """

    def __init__(self, reactor: Reactor, name: str) -> None:
        self._reactor = reactor
        self._name = name
        self._calls: SimpleQueue[tuple[Callable[[], Any], Callable[[Any], None]] | None] = SimpleQueue()
        self._thread: Thread | None = None

    def __call__(self, function: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run `function` in the thread, then call `done(its result or exception)` on the reactor thread. Must be called
        on the reactor thread.
        """
        self._calls.put((function, done))
        if self._thread is None:
            self._thread = Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread after the calls that it has already got. May be called on any thread."""
        self._calls.put(None)

    def _run(self) -> None:
        while True:
            queued = self._calls.get()
            if queued is None:
                return
            function, done = queued
            try:
                result = function()
            except BaseException as error:  # handed on: the caller decides
                result = error
            self._reactor.callFromThread(done, result)
            del queued, function, done, result  # keep nothing alive until the next call
