"""Runs commands of `metaq` as processes that need not import it: each is forked off one that has.

`python -m tests.integration.command_processes SOCKET` is that one. It has a single thread, runs no command itself, and
ends when its stdin does.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

from tests.waiting import DEADLINE

_COMMANDS = (
    "produce",
    "consume",
    "topics",
    "groups",
    "brokers",
    "dead_letters",
    "shared",
    "offsets",
    "halves",
    "delayed",
)


class CommandProcesses:
    """The client's side: `run` may be called by several threads at once."""

    def __init__(self) -> None:
        path = str(Path(tempfile.mkdtemp(prefix="metaq-commands-"), "socket"))
        program = [sys.executable, "-m", "tests.integration.command_processes", path]
        root = Path(__file__).parents[2]
        self._process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root)
        atexit.register(self._process.kill)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        self._path = path

    def run(
        self, arguments: Sequence[str], stdin: bytes, env: Mapping[str, str], timeout: float
    ) -> tuple[int, bytes, bytes]:
        """Exit code (negative: the signal that ended it), stdout, stderr. Raises subprocess.TimeoutExpired."""
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            given.write(stdin)
            given.seek(0)
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(DEADLINE)
                connection.connect(self._path)
                request = json.dumps({"arguments": arguments, "env": dict(env), "cwd": os.getcwd()}).encode()
                socket.send_fds(connection, [len(request).to_bytes(4)], [each.fileno() for each in (given, out, err)])
                connection.sendall(request)
                answers = connection.makefile("r")
                pid = int(answers.readline())
                connection.settimeout(timeout)
                try:
                    code = int(answers.readline())
                except TimeoutError:
                    os.kill(pid, signal.SIGKILL)
                    raise subprocess.TimeoutExpired(arguments, timeout) from None
            for each in (out, err):
                each.seek(0)
            return code, out.read(), err.read()


def _serve(path: str) -> None:
    for name in _COMMANDS:
        import_module(f"metaq.cli.{name}")
    assert "twisted.internet.reactor" not in sys.modules, "processes that are forked off cannot share a reactor"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        print("ready", flush=True)
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            with connection:
                if os.fork() == 0:
                    listener.close()
                    _answer(connection)


def _answer(connection: socket.socket) -> None:
    """Start the command, and tell its pid and, when it has ended, its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, files, _, _ = socket.recv_fds(connection, 4, 3)
    request = json.loads(connection.makefile("rb").read(int.from_bytes(size)))
    pid = os.fork()
    if pid == 0:
        connection.close()
        _become(request, files)
    connection.sendall(f"{pid}\n".encode())
    _, status = os.waitpid(pid, 0)
    connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _become(request: dict, files: Sequence[int]) -> None:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False, buffering=1)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = ["metaq", *request["arguments"]]
    raise _Command


class _Command(BaseException):
    """Unwinds the stack, so that the interpreter ends as that of any other program."""


if __name__ == "__main__":
    try:
        _serve(sys.argv[1])
    except _Command:
        from metaq.cli.app import main

        main(sys.argv[1:])
