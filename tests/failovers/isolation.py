"""Namespaces of our own: whatever a run mounts, connects or starts is gone with its first process, however that ends.

As root only; without it there are no faults of the network and no full disks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

__all__ = ["can_isolate", "enter_isolation", "is_isolated", "tool"]

_MARK = "METAQ_FAILOVERS_ISOLATED"
_OPTIONS = ("--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")


def tool(name: str) -> str:
    """The absolute path of a program. Raises RuntimeError if it is not installed."""
    found = shutil.which(name)
    if found is None:
        raise RuntimeError(f"{name} is not installed: faults of the network need iproute2, e2fsprogs and util-linux")
    return found


def is_isolated() -> bool:
    """Whether this process is in namespaces that enter_isolation() has made."""
    return os.environ.get(_MARK) == "1"


def can_isolate() -> bool:
    """Whether this user may make the namespaces."""
    if os.getuid() or shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    return not subprocess.run([tool("unshare"), *_OPTIONS, "true"], check=False, capture_output=True).returncode


def enter_isolation(module: str, arguments: Sequence[str]) -> None:
    """Replace this process by `python -m module arguments` in namespaces of its own."""
    environment = {**os.environ, _MARK: "1"}
    program = [tool("unshare"), *_OPTIONS, sys.executable, "-m", module, *arguments]
    os.execve(program[0], program, environment)
