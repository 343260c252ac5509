"""The files in which the processes of a run write down what happens: a line of JSON each, whole or not there.

A line is with the kernel before the call that it tells of counts as over, so that a process that is killed leaves a
true journal.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

__all__ = ["Journal", "Line", "clock", "read_journal"]

clock = time.monotonic

Line = Sequence[Any]
"""Kind, time, and what belongs to the kind."""


class Journal:
    """Any thread: a line is one write to a file that is open for appending."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, kind: str, *values: object, at: float | None = None) -> None:
        line = json.dumps([kind, round(clock() if at is None else at, 6), *values], separators=(",", ":"))
        os.write(self._file, line.encode() + b"\n")


def read_journal(path: Path) -> Iterator[Line]:
    """The complete lines; none if there is no file."""
    if path.exists():
        complete, _, _ = path.read_text("utf-8").rpartition("\n")
        yield from map(json.loads, complete.splitlines())
