"""Processes of a run. None outlives it: the kernel kills them with the thread that started them.

By SIGKILL: a process that is frozen would sleep through anything else.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from metaq.coordination import run_bound

__all__ = ["ROOT", "Child", "wait_until"]

ROOT = Path(__file__).parents[2]
_POLL_SECONDS = 0.05
_END_SECONDS = 10.0


class Child:
    """A Python program in a process group of its own, its output in `log`. Start it on a thread that outlives it."""

    def __init__(self, words: Sequence[str], log: Path, cwd: Path = ROOT, prefix: Sequence[str] = ()) -> None:
        """prefix: a command, with its absolute path, that becomes the program behind it, as `env` does."""
        self.log = log
        bound = [sys.executable, "-I", "-S", run_bound.__file__, str(os.getpid()), str(int(signal.SIGKILL))]
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [*bound, *prefix, sys.executable, *words],
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self.running:
            os.killpg(self.process.pid, number)

    def terminate(self) -> None:
        """SIGTERM; does not wait."""
        if self.running:
            self.process.terminate()

    def wait(self, seconds: float) -> bool:
        """Whether it ends within so many seconds."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """SIGKILL, frozen or not."""
        if self.running:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(_END_SECONDS)


def wait_until(condition: Callable[[], bool], seconds: float, poll_seconds: float = _POLL_SECONDS) -> bool:
    """Whether the condition comes true within so many seconds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(poll_seconds)
    return True
