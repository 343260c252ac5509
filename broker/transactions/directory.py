"""Access the directory of the transaction log: find files by name, and keep copies of data that were found damaged when
the broker started. The directory is the same as in metaq 1.x.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from ..store.files import Files, naming, read_exactly, replace_file

__all__ = [
    "CHECKPOINT_PREFIX",
    "DAMAGED_PREFIX",
    "DIRECTORY",
    "REDO_PREFIX",
    "RedoPosition",
    "keep_copy",
    "numbered_files",
    "read_file",
]

DIRECTORY = "transactions"
"""The name of the transaction log's directory in the directory dataLogPath."""
REDO_PREFIX = "redo."
CHECKPOINT_PREFIX = "checkpoint."
DAMAGED_PREFIX = "damaged-"
"""If data cannot be read when the broker starts, they are copied to a file; the file's name has this prefix."""


class RedoPosition(NamedTuple):
    """A position in the log: the number of the redo file, and the byte offset in it."""

    number: int
    offset: int


def numbered_files(files: Files, directory: str, prefix: str) -> dict[int, str]:
    """Return the paths of the files named `<prefix><n>` in a directory. The keys are the numbers n, in ascending order.
    Other files are ignored. Raises OSError.
    """
    found = {}
    for name in files.list_directory(directory):
        number = name.removeprefix(prefix)
        if name.startswith(prefix) and number.isascii() and number.isdecimal() and str(int(number)) == number:
            found[int(number)] = os.path.join(directory, name)
    return dict(sorted(found.items()))


def keep_copy(files: Files, directory: str, name: str, data: bytes) -> str:
    """Write a file with a copy of `data`, and return the file's path. If a copy with the same bytes exists already,
    return that copy's path instead. An existing file with other bytes is not changed.

    Blocks until the copy is on the disk. Raises OSError.
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
    """Return the content of a file, or None if there is no such file. Blocks. Raises OSError."""
    try:
        fd = files.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        with naming(path):
            return read_exactly(files, fd, files.status(path).size, 0)
    finally:
        files.close(fd)
