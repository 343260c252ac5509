"""Processes of a run. None outlives it: the kernel kills them with the thread that started them.

This uses SIGKILL, because a frozen process would not react to other signals.
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
        """prefix: a command, with its absolute path, that replaces itself by the program that follows, as `env`
        does."""
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
        """Send SIGTERM; do not wait."""
        if self.running:
            self.process.terminate()

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` for the end; return whether it came."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Send SIGKILL, to a frozen process, too."""
        if self.running:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(_END_SECONDS)


def run_program(words: Sequence[str], log: Path, seconds: float) -> int:
    """Run a Python program and return its exit code. Raises AssertionError, with its output, if it does not end in
    time."""
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

    Use as a context manager, on one thread: no process that it has started outlives it.
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
        """Return the process of the present life, or of the last one."""
        return self._children[name]

    def start(self, name: str, task: LifeTask) -> Child:
        self._lives[name] += 1
        path = self._directory / f"{name}-{self._lives[name]}"
        words = replace(task, journal=f"{path}.journal").words()
        self._children[name] = child = Child(words, path.with_suffix(".log"))
        return child

    def kill(self, *names: str) -> None:
        """Send SIGKILL. Raises AssertionError if a program has ended by itself."""
        for name in names:
            child = self._children[name]
            assert child.running, f"{name} has ended by itself, see {child.log}"
            child.kill()

    def end(self, name: str, seconds: float) -> None:
        """Send SIGTERM, unless the program has ended. Raises AssertionError if it does not end in time."""
        child = self._children[name]
        child.terminate()
        assert child.wait(seconds), f"{name} does not end, see {child.log}"

    def journals(self, name: str = "") -> list[Path]:
        """Return the journals of all lives of the programs whose names begin with `name`."""
        return sorted(self._directory.glob(f"{name}*.journal"))


class Processes(ABC):
    """The processes of a run, and which of them may end. Subclasses start them in `_start`.

    Use as a context manager, on one thread: no process that it has started outlives it.
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
        """Start all processes. Push the functions that end them on `_ending`, `_kill_all` after whatever the children
        need."""

    def _child(self, name: str, words: Sequence[str], prefix: Sequence[str] = ()) -> Child:
        child = Child(words, self.directory / f"{name}.log", prefix=prefix)
        self._children.append((name, child))
        return child

    def terminate(self, child: Child) -> None:
        """Send SIGTERM; the child may end from now on. Do not wait."""
        self._may_end.add(child)
        child.terminate()

    def kill(self, child: Child) -> None:
        """Send SIGKILL."""
        self._may_end.add(child)
        child.kill()

    def end(self, child: Child, seconds: float) -> bool:
        """Send SIGTERM; return whether the child ends in time."""
        self.terminate(child)
        return child.wait(seconds)

    def crashed(self) -> list[str]:
        """Return the children that have ended without being asked to, or with an error."""
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
    """Wait until the condition is true, at most `seconds`; return whether it is."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(poll_seconds)
    return True
