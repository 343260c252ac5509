"""Programs of metaq, and the Pythons of Spark, as processes that need not import it: each is forked off one that has.

`python -m tests.integration.forked_processes SOCKET MODULE…` is that one, with these modules imported. It has a single
thread, runs no program itself, and ends when its stdin does.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from tests.broker_process import RunningBroker
from tests.integration import forking
from tests.waiting import DEADLINE

__all__ = ["ForkedBroker", "forked", "forked_spark", "spark_python", "stop_forked"]

_METAQ = (
    "metaq.broker.main",
    "metaq.broker.moving.moves",
    "metaq.broker.partitions.registration",
    "metaq.broker.sets.node",
    "metaq.broker.sets.status",
    "metaq.cli.broker",
    "metaq.cli.produce",
    "metaq.cli.consume",
    "metaq.cli.topics",
    "metaq.cli.groups",
    "metaq.cli.brokers",
    "metaq.cli.dead_letters",
    "metaq.cli.shared",
    "metaq.cli.offsets",
    "metaq.cli.halves",
    "metaq.cli.delayed",
    "metaq.coordination.session.zk_session",
)

_SPARK = ("pandas", "pyarrow", "metaq.spark_connector", "pyspark.daemon", "pyspark.worker")
"""What all of Spark's Pythons import, which takes each a second of the processor."""

_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""NumPy and PyArrow start no thread when they are imported. A process with threads must not fork."""


class ForkedBroker(RunningBroker):
    """A RunningBroker for tests to which it does not matter how it was started."""

    def _begin(self, words: Sequence[str], errors: IO[bytes]) -> Any:
        flag, module, *arguments = words
        assert flag == "-m"
        return forked().start(module, arguments, errors, self.directory)


class ForkedProcess:
    """What tests use of subprocess.Popen. stdin and stdout are pipes."""

    def __init__(self, connection: socket.socket, pid: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.pid, self.stdin, self.stdout = pid, stdin, stdout
        self.returncode: int | None = None
        self._connection = connection

    def wait(self, timeout: float | None = None) -> int:
        """The exit code (negative: the signal that ended it). Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            with self._connection, self._connection.makefile("r") as answer:
                self.returncode = int(answer.readline())
        return self.returncode

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkedProcesses:
    """The side of the tests: any thread."""

    def __init__(self, imported: Sequence[str]) -> None:
        """imported: the modules that the processes find imported."""
        self.directory = Path(tempfile.mkdtemp(prefix="metaq-forked-"))
        self.path = str(self.directory / "socket")
        program = [sys.executable, "-m", "tests.integration.forked_processes", self.path, *imported]
        self._process = subprocess.Popen(
            program,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            env=os.environ | _ONE_THREAD,
        )
        atexit.register(self._process.kill)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    def stop(self) -> None:
        """Wait for its end, so that the processor time of all that were forked off counts as that of a child."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(DEADLINE)

    def start(self, module: str, arguments: Sequence[str], errors: IO[bytes], directory: Path) -> ForkedProcess:
        """`python -m MODULE ARGUMENTS…` in a directory, with what it says on stderr in a file."""
        stdin, ours = os.pipe()
        theirs, stdout = os.pipe()
        try:
            files = [stdin, stdout, errors.fileno()]
            connection, pid = self._ask(module, arguments, os.environ, directory, files)
        finally:
            os.close(stdin)
            os.close(stdout)
        return ForkedProcess(connection, pid, open(ours, "wb"), open(theirs, "rb"))

    def run(
        self, arguments: Sequence[str], stdin: bytes, env: Mapping[str, str], timeout: float
    ) -> tuple[int, bytes, bytes]:
        """A command of `metaq`: its exit code, stdout, stderr. Raises subprocess.TimeoutExpired."""
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            given.write(stdin)
            given.seek(0)
            files = [each.fileno() for each in (given, out, err)]
            process = ForkedProcess(*self._ask("metaq", arguments, env, Path.cwd(), files), given, out)
            try:
                code = process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
            for each in (out, err):
                each.seek(0)
            return code, out.read(), err.read()

    def _ask(
        self, module: str, arguments: Sequence[str], env: Mapping[str, str], directory: Path, files: Sequence[int]
    ) -> tuple[socket.socket, int]:
        return forking.ask(self.path, module, arguments, env, str(directory), files, DEADLINE)


@cache
def forked() -> ForkedProcesses:
    return ForkedProcesses(_METAQ)


@cache
def forked_spark() -> ForkedProcesses:
    return ForkedProcesses(_SPARK)


@cache
def spark_python() -> str:
    """A program that Spark can start as its `python`; it does not import again what _SPARK names."""
    program = forked_spark().directory / "python"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -IS {forking.__file__} {forked_spark().path} "$@"\n')
    program.chmod(0o755)
    return str(program)


def stop_forked() -> None:
    """Ends what of this has been started."""
    for each in (forked, forked_spark):
        if each.cache_info().currsize:
            each().stop()


class _Program(BaseException):
    """Unwinds the stack, so that the interpreter ends as that of any other program."""


def _serve(path: str, imported: Sequence[str]) -> None:
    for name in imported:
        import_module(name)
    assert "twisted.internet.reactor" not in sys.modules, "processes that are forked off cannot share a reactor"
    assert len(threads := list(Path("/proc/self/task").iterdir())) == 1, f"would fork with {len(threads)} threads"
    gc.collect()
    gc.freeze()  # else each process copies the pages of all objects when it first collects garbage
    ended, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup)
    running: dict[int, socket.socket] = {}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        print("ready", flush=True)
        while sys.stdin not in (ready := select.select([listener, sys.stdin, ended], [], [])[0]):
            if ended in ready:
                os.read(ended, 4096)
                _tell_ends(running)
            if listener in ready:
                connection, _ = listener.accept()
                size, files, _, _ = socket.recv_fds(connection, 4, 3)
                with connection.makefile("rb") as request:
                    wanted = json.loads(request.read(int.from_bytes(size)))
                if (pid := os.fork()) == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for each in (listener, connection, *running.values()):
                        each.close()
                    os.close(ended)
                    os.close(wakeup)
                    _become(wanted, files)
                for file in files:
                    os.close(file)
                running[pid] = connection
                connection.sendall(pid.to_bytes(4))


def _tell_ends(running: dict[int, socket.socket]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with running.pop(pid) as connection, suppress(OSError):  # nobody may want to know any more
            connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _become(wanted: dict[str, Any], files: Sequence[int]) -> None:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False, buffering=1)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(wanted["env"])
    os.chdir(wanted["directory"])
    sys.argv = [wanted["module"], *wanted["arguments"]]
    raise _Program


if __name__ == "__main__":
    try:
        _serve(sys.argv[1], sys.argv[2:])
    except _Program:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
