"""Asks for a process that is forked off one with its imports done, and stands in for a `python` that Spark starts.

Spark starts a Python with `-m MODULE`, and ends it by closing its stdin or by SIGTERM. `python -IS forking.py SOCKET -m
MODULE…` can be that Python: the module runs in a process that is forked off (forked_processes.py), and this process
waits for its end. Spark's own worker needs a second of the processor for its imports, and this file 0.02 s.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

__all__ = ["ask"]


def ask(
    path: str,
    module: str,
    arguments: Sequence[str],
    env: Mapping[str, str],
    directory: str,
    files: Sequence[int],
    timeout: float,
) -> tuple[socket.socket, int]:
    """Have `python -m MODULE ARGUMENTS…` forked off the process that listens at `path`, a Unix socket.

    files: descriptors of its stdin, stdout and stderr. timeout: seconds that an answer may take. Returns a connection,
    on which its exit code will come as a line, and its process id.
    """
    connection = socket.socket(socket.AF_UNIX)
    with ExitStack() as undo:
        undo.callback(connection.close)
        connection.settimeout(timeout)
        connection.connect(path)
        request = {"module": module, "arguments": list(arguments), "env": dict(env), "directory": directory}
        data = json.dumps(request).encode()
        socket.send_fds(connection, [len(data).to_bytes(4, "big")], files)
        connection.sendall(data)
        pid = int.from_bytes(connection.recv(4), "big")
        connection.setblocking(True)
        undo.pop_all()
    return connection, pid


def _stand_in(path: str, arguments: Sequence[str]) -> int:
    """Returns the exit code, as a shell says it."""
    if arguments[0] != "-m":  # Spark asks for the version by -c
        os.execv(sys.executable, [sys.executable, *arguments])
    connection, pid = ask(path, arguments[1], arguments[2:], os.environ, os.getcwd(), [0, 1, 2], 60.0)
    signal.signal(signal.SIGTERM, lambda number, _frame: os.kill(pid, number))
    with connection, connection.makefile("r") as answer:
        code = int(answer.readline())
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(_stand_in(sys.argv[1], sys.argv[2:]))
