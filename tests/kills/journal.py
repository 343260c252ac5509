"""Files in which the processes of a run record events: one line of JSON each, complete or absent.

The kernel has a line before the recorded call counts as finished. So a killed process leaves a true journal.
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
"""A line: kind, time, and the values of the kind."""


class Journal:
    """A journal for writing. Any thread: a line is one write to a file that is open for appending."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, kind: str, *values: object, at: float | None = None) -> None:
        line = json.dumps([kind, round(clock() if at is None else at, 6), *values], separators=(",", ":"))
        os.write(self._file, line.encode() + b"\n")


def read_journal(path: Path) -> Iterator[Line]:
    """Yield the complete lines; none if there is no file."""
    if path.exists():
        complete, _, _ = path.read_text("utf-8").rpartition("\n")
        yield from map(json.loads, complete.splitlines())
