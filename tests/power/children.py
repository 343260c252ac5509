"""Running a function in a forked process: it may die, hang, or leave threads behind, and the next one starts clean."""

from __future__ import annotations

import os
import pickle
import select
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .history import Broken

__all__ = ["Outcome", "run_in_child"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """kind: `ok`, `broken` (a promise; value says which), `error` (an exception nobody expected), `killed` (by the
    shim, as planned), `died`, `timeout`.
    """

    kind: str
    value: Any = None


def run_in_child(function: Callable[[], Any], timeout: float = 20.0) -> Outcome:
    """The calling process must have one thread. timeout: seconds."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        _run(function, writer)
    os.close(writer)
    try:
        data = _read_all(reader, time.monotonic() + timeout)
    finally:
        os.close(reader)
        if data is None:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if data is None:
        return Outcome("timeout", f"no end after {timeout:.0f} s")
    if data:
        kind, value = pickle.loads(data)
        return Outcome(kind, value)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return Outcome("killed")
    return Outcome("died", f"wait status {status}")


def _run(function: Callable[[], Any], writer: int) -> None:
    try:
        try:
            answer = ("ok", function())
        except Broken as error:
            answer = ("broken", str(error))
        except BaseException:
            answer = ("error", traceback.format_exc(limit=-8))
        data = memoryview(pickle.dumps(answer))
        while data:
            data = data[os.write(writer, data) :]
    finally:
        os._exit(0)


def _read_all(fd: int, deadline: float) -> bytes | None:
    parts: list[bytes] = []
    while True:
        ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        data = os.read(fd, 1 << 20)
        if not data:
            return b"".join(parts)
        parts.append(data)
