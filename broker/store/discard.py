"""Taking old segments' files away, in a worker thread."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from contextlib import suppress

from .files import Files
from .index import FRESH_SUFFIX
from .retention import Action
from .segment import DATA_SUFFIX, INDEX_SUFFIX, KEYS_SUFFIX

__all__ = ["discard"]

_COPY_BYTES = 4 << 20


def discard(files: Files, directory: str, paths: Sequence[str], action: Action) -> tuple[int, OSError | None]:
    """Delete or archive segment files, oldest first, with what lies beside them; stop at the first error:
    no gap may arise.

    Any thread. Returns how many are gone and what stopped it.
    """
    done = 0
    try:
        for path in paths:
            _discard_one(files, path, action)
            done += 1
        files.fsync_directory(directory)
    except OSError as error:
        return done, error
    return done, None


def _discard_one(files: Files, path: str, action: Action) -> None:
    if action is Action.ARCHIVE:
        files.rename(path, f"{path}.arc")
    else:
        if action is Action.COMPRESS:
            _zip(files, path)
        files.unlink(path)
    for suffix in (INDEX_SUFFIX, INDEX_SUFFIX + FRESH_SUFFIX, KEYS_SUFFIX):
        with suppress(FileNotFoundError):
            files.unlink(path.removesuffix(DATA_SUFFIX) + suffix)


def _zip(files: Files, path: str) -> None:
    """Write `<path>.zip` completely, or nothing under that name."""
    unfinished = f"{path}.zip.part"
    with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED, allowZip64=True) as archive:
        archive.write(path, os.path.basename(path))
    fd = files.open(unfinished, os.O_RDWR)
    try:
        files.fdatasync(fd)
    finally:
        files.close(fd)
    files.rename(unfinished, f"{path}.zip")
