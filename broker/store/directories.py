"""Create the data directories of a broker, lock them against a second broker, and scan them for partitions (storage.md
§1).
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from metaq.protocol.errors import ConfigError, DirectoryInUse, InvalidName, StoreError
from metaq.protocol.limits import INT32_MAX, check_topic

from .files import Files

__all__ = [
    "LOCK_NAME",
    "PartitionDirectory",
    "lock_data_path",
    "lock_empty_path",
    "partition_path",
    "scan_data_paths",
    "what_others_may",
]

_log = logging.getLogger(__name__)

LOCK_NAME = ".metaq.lock"
"""The name of the lock file in a data directory. The lock is a file and not a directory, because the Java broker
ignores plain files in a data directory.
"""


class PartitionDirectory(NamedTuple):
    """A directory `<topic>-<partition>`, which contains the files of one partition."""

    topic: str
    partition: int
    path: str


def partition_path(data_path: str, topic: str, partition: int) -> str:
    """Return the directory of a partition.

    Raises InvalidName if the topic is not a safe directory name, ValueError if the partition is negative.
    """
    if not 0 <= partition <= INT32_MAX:
        raise ValueError(f"partition {partition} of {topic} is not in 0 … {INT32_MAX}")
    return os.path.join(data_path, f"{check_topic(topic)}-{partition}")


def lock_data_path(files: Files, path: str) -> int:
    """Create the data directory if needed and lock it. The lock ends when the returned descriptor is closed.

    Raises ConfigError if the directory cannot be used, DirectoryInUse if another broker has locked it.
    """
    lock_path = os.path.join(path, LOCK_NAME)
    try:
        _make(files, path)
        fd = files.lock(lock_path)
    except BlockingIOError:
        raise DirectoryInUse(
            f"data directory {path} is in use by another broker (it holds {lock_path}): "
            "stop that broker or set another dataPath"
        ) from None
    except OSError as error:
        remedy = f"cannot be used ({error.strerror}): make it a writable directory or set another dataPath"
        raise ConfigError("dataPath", path, remedy) from error
    return fd


def what_others_may(path: str) -> str | None:
    """Return a warning if users other than the owner may open a data directory, else None. New directories belong to
    the owner alone, but nothing changes the mode of a directory that exists. Raises OSError.
    """
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if not mode & 0o077:
        return None
    return f"users other than the owner of {path} may read or change it (mode {mode:03o}): chmod -R go= {path}"


def _make(files: Files, path: str) -> None:
    """Create the missing directories of the path. Sync the parent of each new directory, so that the new directory's
    name is on the disk. Without this sync, files in a new directory would not survive a power cut. Raises OSError.
    """
    missing, above = [], os.path.abspath(path)
    while not files.is_directory(above):
        missing.append(above)
        above = os.path.dirname(above)
    files.make_directory(path)
    for made in missing:
        files.fsync_directory(os.path.dirname(made))


def lock_empty_path(files: Files, path: str) -> int:
    """Do the same as `lock_data_path`, for a data directory that is added while the broker is running. In addition,
    raises ConfigError if the directory contains partitions, because a running broker does not open partitions that it
    finds in a new directory.
    """
    fd = lock_data_path(files, path)
    try:
        found = next(_scan(files, path), None)
    except OSError as error:
        files.close(fd)
        raise ConfigError("dataPath", path, f"cannot be read ({error.strerror})") from error
    if found is not None:
        files.close(fd)
        raise ConfigError("dataPath", path, f"holds partitions ({found.topic}-{found.partition}): restart the broker")
    return fd


def scan_data_paths(files: Files, data_paths: Sequence[str]) -> list[PartitionDirectory]:
    """Return all partition directories in these data directories, sorted by name. Log a warning for each other
    directory and skip it (metaq 1.x would refuse to start).

    Raises StoreError if two data directories contain the same partition.
    """
    found: dict[tuple[str, int], PartitionDirectory] = {}
    for data_path in data_paths:
        for entry in _scan(files, data_path):
            other = found.setdefault((entry.topic, entry.partition), entry)
            if other is not entry:
                raise StoreError(
                    f"partition {entry.topic}-{entry.partition} is in {other.path} and in {entry.path}: "
                    "keep one of them in the data directories and move the other away"
                )
    return sorted(found.values())


def _scan(files: Files, data_path: str) -> Iterator[PartitionDirectory]:
    for name in sorted(files.list_directory(data_path)):
        path = os.path.join(data_path, name)
        topic, dash, number = name.rpartition("-")
        if not dash or not files.is_directory(path):
            continue
        try:
            check_topic(topic)
        except InvalidName as error:
            _log.warning("%s is skipped: it is no partition directory (%s)", path, error)
            continue
        if not (number.isascii() and number.isdecimal()) or str(int(number)) != number or int(number) > INT32_MAX:
            _log.warning("%s is skipped: %r after the last '-' is no partition number", path, number)
            continue
        yield PartitionDirectory(topic, int(number), path)
