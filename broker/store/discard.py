"""Taking old segments' files away, in a worker thread.

A segment is gone as soon as its data file is: what is derived from it goes afterwards, and whatever of that stays is
left over, never a segment. Each data file's going is synced before the next one's begins, so that a power cut leaves no
gap.
"""

from __future__ import annotations

import errno
import logging
import os
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from .files import Files, opened
from .index import FRESH_SUFFIX
from .retention import Disposal
from .segment import DATA_SUFFIX, INDEX_SUFFIX, KEYS_SUFFIX

__all__ = ["Discarded", "discard"]

_log = logging.getLogger(__name__)

_DERIVED = (INDEX_SUFFIX, INDEX_SUFFIX + FRESH_SUFFIX, KEYS_SUFFIX)
_UNFINISHED = f"{DATA_SUFFIX}.zip.part"


class _Unreadable(Exception):
    """The disk does not give the segment's bytes."""


@dataclass(slots=True)
class Discarded:
    """What became of a partition's segments."""

    gone: int = 0
    """How many of them, oldest first, have no data file any more."""
    error: Exception | None = None
    """What stopped it; the others are as they were."""
    left_over: list[str] = field(default_factory=list)
    """Files that belong to no segment any more and could not be removed, each with its reason."""


def discard(files: Files, directory: str, paths: Sequence[str], action: Disposal, first_kept: int) -> Discarded:
    """Delete or archive segment files, oldest first; stop at the first data file that stays: no gap may arise.

    Removes what lies beside them too, and what earlier runs have left over. Any thread, one at a time for a partition.
    first_kept: byte offset where the partition begins afterwards. Never raises.
    """
    result = Discarded()
    try:
        for path in paths:
            _take_away(files, directory, path, action)
            result.gone += 1
    except Exception as error:  # a bug of ours, too, must not let the log forget segments that are there
        result.error = error
        result.gone += sum(not _is_there(files, path) for path in paths[result.gone : result.gone + 1])
    try:
        _sweep(files, directory, first_kept, result)
    except OSError as error:
        result.left_over.append(f"{directory} ({error})")
    return result


def _take_away(files: Files, directory: str, path: str, action: Disposal) -> None:
    try:
        if action is Disposal.ARCHIVE:
            files.rename(path, f"{path}.arc")
        else:
            if action is Disposal.COMPRESS:
                _zip(files, path)
                files.fsync_directory(directory)
            files.unlink(path)
    except _Unreadable as error:  # nor will it be later: the log must not stay for it, and what can be read is kept
        _log.error("%s cannot be compressed, it is archived as it is: %s", path, error)
        files.rename(path, f"{path}.arc")
    except FileNotFoundError:
        if _is_there(files, path):
            raise
        _log.warning("%s was gone already", path)
    files.fsync_directory(directory)


def _sweep(files: Files, directory: str, first_kept: int, result: Discarded) -> None:
    """Remove what belongs to no segment: derived files of those that are gone, and unfinished archives."""
    names = set(files.list_directory(directory))
    for name in sorted(names):
        stem, dot, suffix = name.partition(".")
        derived = (
            dot + suffix in _DERIVED
            and stem.isascii()
            and stem.isdecimal()
            and int(stem) < first_kept
            and f"{stem}{DATA_SUFFIX}" not in names
        )
        if derived or name.endswith(_UNFINISHED):
            path = os.path.join(directory, name)
            try:
                with suppress(FileNotFoundError):
                    files.unlink(path)
            except OSError as error:
                result.left_over.append(f"{path} ({error.strerror})")


def _is_there(files: Files, path: str) -> bool:
    """Whether the file exists; taken for granted if that cannot be told."""
    try:
        files.status(path)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def _zip(files: Files, path: str) -> None:
    """Write `<path>.zip` completely, or nothing under that name. Raises OSError, _Unreadable."""
    unfinished = path.removesuffix(DATA_SUFFIX) + _UNFINISHED
    with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED, allowZip64=True) as archive:
        try:
            archive.write(path, os.path.basename(path))
        except OSError as error:
            if error.errno == errno.EIO:
                raise _Unreadable(str(error)) from error
            raise
    with opened(files, unfinished, os.O_RDWR) as fd:
        files.fdatasync(fd)
    files.rename(unfinished, f"{path}.zip")
