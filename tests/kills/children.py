"""Processes of a run. None outlives it: the kernel kills them with the thread that started them.

By SIGKILL: a process that is frozen would sleep through anything else.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Self

from metaq.coordination.servers import run_bound

from .programs import LifeTask

__all__ = ["ROOT", "Child", "Crew", "Processes", "run_program", "wait_until"]

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


def run_program(words: Sequence[str], log: Path, seconds: float) -> int:
    """The exit code of a Python program. Raises AssertionError, with what it wrote, if it does not end in time."""
    child = Child(words, log)
    try:
        assert child.wait(seconds), log.read_text()
    finally:
        child.terminate()
        child.wait(_END_SECONDS)
        child.kill()
    return child.process.returncode


class Crew:
    """Programs by name, each in one life after the other, with a journal and a log of its own for each life.

    Use as a context manager, on one thread: nothing that it has started outlives it.
    """

    def __init__(self, directory: Path) -> None:
        """directory: gets the logs, and the journals as `<name>-<life>.journal`."""
        self._directory = directory
        self._lives: Counter[str] = Counter()
        self._children: dict[str, Child] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children.values():
            child.kill()

    def __getitem__(self, name: str) -> Child:
        """The life of now, or the last one."""
        return self._children[name]

    def start(self, name: str, task: LifeTask) -> Child:
        self._lives[name] += 1
        path = self._directory / f"{name}-{self._lives[name]}"
        words = replace(task, journal=f"{path}.journal").words()
        self._children[name] = child = Child(words, path.with_suffix(".log"))
        return child

    def kill(self, *names: str) -> None:
        """SIGKILL. Raises AssertionError if one has ended by itself."""
        for name in names:
            child = self._children[name]
            assert child.running, f"{name} has ended by itself, see {child.log}"
            child.kill()

    def end(self, name: str, seconds: float) -> None:
        """SIGTERM, unless it has ended. Raises AssertionError if it does not end in time."""
        child = self._children[name]
        child.terminate()
        assert child.wait(seconds), f"{name} does not end, see {child.log}"

    def journals(self, name: str = "") -> list[Path]:
        """Those of all lives of the names that begin so."""
        return sorted(self._directory.glob(f"{name}*.journal"))


class Processes(ABC):
    """What a run has started, and who of it is allowed to end. `_start` of the heirs starts it.

    Use as a context manager, on one thread: nothing that it has started outlives it.
    """

    def __init__(self, directory: Path) -> None:
        """directory: gets the logs."""
        self.directory = directory
        self._children: list[tuple[str, Child]] = []
        self._may_end: set[Child] = set()
        self._ending = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._ending.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    @abstractmethod
    def _start(self) -> None:
        """Start everything; `_ending` gets what ends it, `_kill_all` behind what the children need."""

    def _child(self, name: str, words: Sequence[str], prefix: Sequence[str] = ()) -> Child:
        child = Child(words, self.directory / f"{name}.log", prefix=prefix)
        self._children.append((name, child))
        return child

    def terminate(self, child: Child) -> None:
        """SIGTERM; it may end from now on. Does not wait."""
        self._may_end.add(child)
        child.terminate()

    def kill(self, child: Child) -> None:
        """SIGKILL."""
        self._may_end.add(child)
        child.kill()

    def end(self, child: Child, seconds: float) -> bool:
        """SIGTERM; whether it ends in time."""
        self.terminate(child)
        return child.wait(seconds)

    def crashed(self) -> list[str]:
        """Who has ended and was not asked to, or with an error."""
        return [text for _, text in self._crashes()]

    def _crashes(self) -> list[tuple[Child, str]]:
        return [
            (child, f"{name} ended with {code}, see {child.log}")
            for name, child in self._children
            if (code := child.process.poll()) is not None and (child not in self._may_end or code > 0)
        ]

    def _kill_all(self) -> None:
        for _, child in self._children:
            child.kill()


def wait_until(condition: Callable[[], bool], seconds: float, poll_seconds: float = _POLL_SECONDS) -> bool:
    """Whether the condition comes true within so many seconds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(poll_seconds)
    return True
