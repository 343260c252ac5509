"""Copies of what a start found damaged, beside the file that had it."""

from __future__ import annotations

import os

from ..store.files import Files, naming, read_exactly, replace_file

__all__ = ["keep_copy", "read_file"]


def keep_copy(files: Files, directory: str, name: str, data: bytes) -> str:
    """Write a copy, unless there is one with these bytes already; its path. A copy of something else is left alone.

    Blocks until it is on the disk. Raises OSError.
    """
    path = os.path.join(directory, name)
    number = 1
    while (found := read_file(files, path)) is not None:
        if found == data:
            return path
        number += 1
        path = os.path.join(directory, f"{name}.{number}")
    replace_file(files, path, data)
    return path


def read_file(files: Files, path: str) -> bytes | None:
    """A whole file; None if there is none. Blocks. Raises OSError."""
    try:
        fd = files.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        with naming(path):
            return read_exactly(files, fd, files.status(path).size, 0)
    finally:
        files.close(fd)
