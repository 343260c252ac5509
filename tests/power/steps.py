"""Worker threads that go on step by step, in an order that a seed decides: one seed, one trace.

A worker stops before each change that it makes to the disk and while each sync of its is under way, and waits there for
its next turn; so the owner's appends fall between the steps of a checkpoint as they do in a broker. One thread runs at
any time.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from .shim import Shim

__all__ = ["SteppedThreads"]

_Call = tuple[Callable[[], Any], Callable[[Any], None]]


class _Worker:
    def __init__(self, call: _Call, pool: _Pool) -> None:
        self.call = call
        self.pool = pool
        self.go = threading.Lock()
        self.go.acquire()
        self.finished = False
        self.result: Any = None
        self.thread: threading.Thread | None = None


class _Pool:
    def __init__(self, size: int) -> None:
        self.size = size
        self.running = 0
        self.waiting: deque[_Call] = deque()


class SteppedThreads:
    """`run_in_thread` is a pool of four; `run_journal` one thread of its own."""

    def __init__(self, rng: random.Random, shim: Shim) -> None:
        self._rng = rng
        self._pools = [_Pool(4), _Pool(1)]
        self._workers: list[_Worker] = []
        self._by_thread: dict[int, _Worker] = {}
        self._back = threading.Lock()
        self._back.acquire()
        shim.hook(self._paused)

    def run_in_thread(self, function: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._pools[0].waiting.append((function, done))

    def run_journal(self, function: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._pools[1].waiting.append((function, done))

    def step(self) -> bool:
        """Let one worker go on to its next change, or hand over a result; False if there is nothing to do."""
        startable = [pool for pool in self._pools if pool.waiting and pool.running < pool.size]
        chosen = self._rng.randrange(len(startable) + len(self._workers)) if startable or self._workers else -1
        if chosen < 0:
            return False
        if chosen < len(startable):
            self._start(startable[chosen])
            return True
        worker = self._workers[chosen - len(startable)]
        if worker.finished:
            self._workers.remove(worker)
            worker.pool.running -= 1
            worker.call[1](worker.result)
        else:
            self._resume(worker)
        return True

    def run_all(self) -> None:
        while self.step():
            pass

    def _start(self, pool: _Pool) -> None:
        pool.running += 1
        worker = _Worker(pool.waiting.popleft(), pool)
        self._workers.append(worker)
        worker.thread = threading.Thread(target=self._work, args=(worker,), daemon=True)
        worker.thread.start()
        self._resume(worker)

    def _resume(self, worker: _Worker) -> None:
        worker.go.release()
        self._back.acquire()

    def _work(self, worker: _Worker) -> None:
        worker.go.acquire()
        self._by_thread[threading.get_ident()] = worker
        try:
            worker.result = worker.call[0]()
        except Exception as error:  # handed on, as the real one does
            worker.result = error
        worker.finished = True
        del self._by_thread[threading.get_ident()]
        self._back.release()

    def _paused(self, what: int) -> None:
        """Called by the shim in the thread that is about to change the disk."""
        worker = self._by_thread.get(threading.get_ident())
        if worker is not None:
            self._back.release()
            worker.go.acquire()
