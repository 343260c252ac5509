"""The files of a data directory that a broker changes meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

__all__ = ["contents", "segments"]


def contents(paths: Iterable[Path], below: Path) -> dict[str, bytes]:
    """What is in the files, by their path in `below`; a file that goes before it is read is left out."""
    found = {}
    for path in sorted(paths):
        with suppress(FileNotFoundError):
            found[str(path.relative_to(below))] = path.read_bytes()
    return found


def segments(data: Path) -> dict[str, bytes]:
    """The segments of all partitions by their path in the data directory."""
    return contents(data.glob("*/*.meta"), data)
