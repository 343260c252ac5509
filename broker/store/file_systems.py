"""Sync all files of a file system with one call. This module finds the file systems that contain the partitions, and
keeps one file descriptor open for each of them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable

from .files import Files

__all__ = ["FileSystems"]


class FileSystems:
    """Syncs whole file systems, each through one file descriptor. The descriptors stay open between the syncs, because
    Linux then reports with each sync every write that has failed since the last sync of the same descriptor.

    (A descriptor that is opened only for one sync would miss an error that syncfs(2) of another process has reported
    before the opening.) Partition directories may be links to other disks. Any thread may use this object.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._descriptors: dict[int, int] = {}  # by device

    def add(self, directories: Iterable[str]) -> None:
        """Open a descriptor for each file system that contains one of these directories, if there is none yet. Raises
        OSError.
        """
        with self._lock:
            self._descriptors_of(directories)

    def sync(self, directories: Iterable[str]) -> None:
        """Wait until all data written to the file systems of these directories is on the disk. Raises OSError."""
        with self._lock:
            for fd in self._descriptors_of(directories):
                self._files.sync_filesystem_of(fd)

    def _descriptors_of(self, directories: Iterable[str]) -> list[int]:
        found = {}
        for directory in directories:
            device = self._files.device(directory)
            if device not in self._descriptors:
                self._descriptors[device] = self._files.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            found[device] = self._descriptors[device]
        return list(found.values())

    def close(self) -> None:
        """Close the descriptors."""
        with self._lock:
            descriptors, self._descriptors = self._descriptors, {}
        for fd in descriptors.values():
            self._files.close(fd)
