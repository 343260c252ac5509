"""Threads that call the `execute` functions (the local work) of transactions begun with send_in_transaction_async,
whose callers do not wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from metaq.coordination.runtime.interrupts import BackgroundThread

__all__ = ["LocalWork"]

T = TypeVar("T")


class LocalWork(Generic[T]):
    """The queue and the threads for the local work of one producer's transactions. Any thread may call the methods."""

    def __init__(
        self, most: int, do: Callable[[T], None], rest: Callable[[], None], clock: Callable[[], float]
    ) -> None:
        """most: maximum number of threads. do: a function that does one item of work; a thread calls it with the item.
        rest: a function that a thread calls each time that it finds the queue empty. `do` and `rest` must not raise
        exceptions.
        """
        self._most = most
        self._do = do
        self._rest = rest
        self._clock = clock
        self._todo: SimpleQueue[T | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[BackgroundThread] = []
        self._idle = 0  # number of threads without work; irrelevant once all threads exist
        self._closed = False

    def add(self, item: T) -> bool:
        """Add an item of work to the queue, without blocking. If `close` was called, add nothing and return False. Call
        it on a thread that cannot be interrupted.
        """
        with self._lock:
            if self._closed:
                return False
            number = len(self._threads)
            if self._idle:
                self._idle -= 1
            elif number < self._most:
                self._threads.append(BackgroundThread(self._run, f"metaq-transactions-{number}"))
            self._todo.put(item)
        return True

    def close(self, seconds: float) -> list[T]:
        """Let no thread begin a further item of work, and wait at most `seconds` until the items that were begun are
        done. Return the items of work that were not begun.
        """
        with self._lock:
            self._closed = True
            threads = list(self._threads)
        left = self._take_all()
        for _ in threads:
            self._todo.put(None)
        deadline = self._clock() + seconds
        for thread in threads:
            if not thread.is_current:
                thread.join(max(0.0, deadline - self._clock()))
        return left + self._take_all()

    def _take_all(self) -> list[T]:
        found: list[T] = []
        while True:
            try:
                item = self._todo.get_nowait()
            except Empty:
                return found
            if item is not None:
                found.append(item)

    # --- the threads --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        todo = self._todo
        while (item := todo.get()) is not None:
            self._do(item)
            if todo.empty():
                self._rest()
            with self._lock:
                self._idle += 1
