"""Building and steering shim.c: the test process runs with it preloaded, and its children record themselves."""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.kills.preload import build_library

from .trace import encode_mark

__all__ = ["Shim", "encode_lost", "environment", "is_loaded", "mark_in", "restart_with_shim"]

_SOURCE = Path(__file__).with_name("shim.c")
_HOOK = ctypes.CFUNCTYPE(None, ctypes.c_int)


def environment() -> dict[str, str]:
    """That of a process with the shim. Hashes are the same in all of them, so that a seed means the same."""
    return {**os.environ, "LD_PRELOAD": str(build_library(_SOURCE)), "PYTHONHASHSEED": "0", "METAQ_POWER": "1"}


def is_loaded() -> bool:
    return "METAQ_POWER" in os.environ


def restart_with_shim(module: str, arguments: Sequence[str]) -> None:
    """Replace this process by `python -m module arguments` with the shim."""
    os.execve(sys.executable, [sys.executable, "-m", module, *arguments], environment())


def mark_in(trace: Path, values: Mapping[str, object]) -> None:
    """Put a marker into the trace of another process, behind everything that it has done up to now."""
    data = json.dumps(values, separators=(",", ":")).encode()
    fd = os.open(trace, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(fd, encode_mark(data))
    finally:
        os.close(fd)


def encode_lost(pages: Iterable[tuple[str, int, bytes]]) -> bytes:
    """For `Shim.lose`: path, position, what the disk has there."""
    return b"".join(
        struct.pack("=I", len(path.encode())) + path.encode() + struct.pack("=qI", position, len(data)) + data
        for path, position, data in pages
    )


class Shim:
    """The shim of this process."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        if not hasattr(self._library, "power_begin"):
            raise RuntimeError("this process was not started with the shim")
        self._library.power_mark.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        self._library.power_begin.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
        for name in ("power_fail_sync", "power_fail_write", "power_kill"):
            getattr(self._library, name).argtypes = [ctypes.c_long] * (3 if name == "power_fail_sync" else 1)
        self._library.power_fail_write.argtypes = [ctypes.c_long, ctypes.c_int]
        self._hook: Any = None

    def begin(self, root: Path, trace: Path) -> None:
        """Record what happens below `root`."""
        self._library.power_begin(os.fsencode(os.path.realpath(root)), os.fsencode(trace))

    def mark(self, **values: object) -> None:
        """Put a marker between the changes."""
        data = json.dumps(values, separators=(",", ":")).encode()
        self._library.power_mark(data, len(data))

    def hook(self, function: Callable[[int], None]) -> None:
        """Have a function called before each change and while each sync is under way, in the thread that does it."""
        self._hook = _HOOK(function)
        self._library.power_hook(self._hook)

    def fail_sync(self, at: int, how_many: int = 1, errno: int = 5) -> None:
        """The `at`-th sync from now on fails, and the `how_many`-1 behind it."""
        self._library.power_fail_sync(at, how_many, errno)

    def fail_write(self, at: int, errno: int) -> None:
        """The `at`-th write from now on writes half and fails; with errno 0 it says how much it wrote."""
        self._library.power_fail_write(at, errno)

    def lose(self, lost: Path) -> None:
        """Pages that failed syncs have left in the cache only (`encode_lost`): dropped, they read as the disk has them.

        Whether pages are cached is emulated from now on.
        """
        self._library.power_lose(os.fsencode(lost))

    def kill(self, at: int) -> None:
        """The process dies at its `at`-th change from now on, in the middle of it if it is a write."""
        self._library.power_kill(at)
