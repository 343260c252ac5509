"""Child processes of the benchmark and of the tests that need a Java peer: servers, and load generators that execute
commands from standard input.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from metaq.coordination.servers.free_ports import ready_port

__all__ = ["ProcessFailed", "Server", "Worker", "cpu_seconds", "free_port"]

START_SECONDS = 180.0
STOP_SECONDS = 60.0
POLL_SECONDS = 0.02


class ProcessFailed(RuntimeError):
    """A child process ended, answered with an error or was not ready in time. The message ends with the last part of
    its log.
    """

    def __init__(self, what: str, log: Path) -> None:
        super().__init__(f"{what}\n--- end of {log}\n{_tail(log)}")


def free_port() -> int:
    """Return a free TCP port on the loopback interface. Other callers do not get it while this process runs."""
    return ready_port("port", 0)


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process and its threads so far: proc(5)'s utime and stime."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _tail(log: Path, size: int = 4000) -> str:
    return log.read_text("utf-8", "replace")[-size:] if log.exists() else "(no log)"


class _Child:
    """A child process. When close() has returned, the process has ended."""

    process: subprocess.Popen[Any]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self.process.pid

    def close(self) -> None:
        """Send SIGTERM; send SIGKILL if the process has not ended after STOP_SECONDS. Return when it is reaped."""
        self.process.terminate()
        self._reap()

    def kill(self) -> None:
        """Send SIGKILL, as in a crash; return when the process is reaped."""
        self.process.kill()
        self.process.wait()

    def _reap(self) -> None:
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()


class Server(_Child):
    """A server process that prints a line when it is ready to serve.

    command: the whole command line; ready: a text that this line contains; log: the file for standard output and error,
    which is overwritten. Raises ProcessFailed when the process ends or START_SECONDS pass before the line appears.
    """

    def __init__(self, command: Sequence[str], log: Path, ready: str, cwd: Path | None = None) -> None:
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            self._await(ready)
        except BaseException:
            self.kill()
            raise

    def _await(self, ready: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while ready not in self.log.read_text("utf-8", "replace"):
            if self.process.poll() is not None:
                raise ProcessFailed(f"{self._name} ended with code {self.process.returncode}", self.log)
            if time.monotonic() > deadline:
                raise ProcessFailed(f"{self._name} did not print {ready!r} within {START_SECONDS:.0f} s", self.log)
            time.sleep(POLL_SECONDS)

    @property
    def _name(self) -> str:
        return " ".join(map(str, self.process.args))[-200:] if isinstance(self.process.args, list) else "server"


class Worker(_Child):
    """A process that answers each line of words with one line of JSON, as metaq.peer.Peer and bench.worker do."""

    def __init__(self, command: Sequence[str], log: Path, cwd: Path | None = None) -> None:
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, text=True, bufsize=1
            )

    def call(self, *words: object, seconds: float | None = None) -> dict[str, Any]:
        """Execute one command and return its answer. Raises ProcessFailed if the answer is an error, or if the process
        ends.

        seconds: if the process has not answered after this time, it is killed, and ProcessFailed is raised; None: wait
        without limit.
        """
        if seconds is None:
            return self._call(words)
        late = threading.Event()

        def kill() -> None:
            late.set()
            self.process.kill()

        killer = threading.Timer(seconds, kill)
        killer.daemon = True
        killer.start()
        try:
            return self._call(words)
        except ProcessFailed as failure:
            if late.is_set():
                raise ProcessFailed(
                    f"no answer to {' '.join(map(str, words))!r} in {seconds:g} s", self.log
                ) from failure
            raise
        finally:
            killer.cancel()

    def _call(self, words: Sequence[object]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        line = " ".join(map(str, words))
        try:
            self.process.stdin.write(line + "\n")
        except BrokenPipeError:
            raise ProcessFailed(f"worker is gone before {line!r}", self.log) from None
        raw = self.process.stdout.readline()
        if not raw:
            raise ProcessFailed(f"worker ended with code {self.process.wait()} at {line!r}", self.log)
        answer: dict[str, Any] = json.loads(raw)
        if "error" in answer:
            raise ProcessFailed(f"{line!r}: {answer['error']}", self.log)
        return answer

    def close(self) -> None:
        """Close the process's input, which makes it end. Kill it if it has not ended after STOP_SECONDS."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.close()
        except BrokenPipeError:  # the process ended with an unread line; only its end matters here
            os.sched_yield()
        self._reap()
        self.process.stdout.close()
