"""Work that goes on beside a test, on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self

from tests.waiting import DEADLINE, eventually

__all__ = ["Repeating"]


class Repeating(threading.Thread):
    """Calls `step` with 0, 1, 2, … within `with`. done: how many of them raised nothing; errors: what others raised."""

    def __init__(self, step: Callable[[int], object], pause_seconds: float = 0.005) -> None:
        super().__init__(daemon=True)
        self.done = 0
        self.errors: list[Exception] = []
        self._step = step
        self._pause_seconds = pause_seconds
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(self._pause_seconds):
            try:
                self._step(self.done + len(self.errors))
                self.done += 1
            except Exception as error:
                self.errors.append(error)

    def wait_for(self, more: int) -> None:
        goal = self.done + more
        eventually(lambda: self.done >= goal, what=f"{more} more steps, behind {self.errors}")

    def end(self) -> None:
        self._ended.set()
        self.join(DEADLINE)
        assert not self.is_alive()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
