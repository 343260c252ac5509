"""The disks of nodes: file systems of their own that can be filled up, and syncs that can be made to fail."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.kills.preload import build_library

from .isolation import is_isolated, tool

__all__ = ["Disk"]

_DISK_BYTES = 640 << 20
_PIECES = (16 << 20, 1 << 20, 1 << 16, 1 << 12)
_SOURCE = Path(__file__).with_name("broken_sync.c")


class Disk:
    """The directory `path` of a node. In namespaces of ours it is a file system of its own, of 640 MB."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "disk"
        self.path.mkdir(parents=True)
        self._control = directory / "syncs-fail"
        self._ballast = self.path / "ballast"
        self._image = directory / "disk.img"
        self._mounted = is_isolated()
        if self._mounted:
            with self._image.open("wb") as image:
                image.truncate(_DISK_BYTES)
            subprocess.run([tool("mkfs.ext4"), "-q", "-m", "0", str(self._image)], check=True)
            subprocess.run([tool("mount"), "-o", "loop", str(self._image), str(self.path)], check=True)

    @property
    def prefix(self) -> Sequence[str]:
        """Of the command of a process whose syncs can be made to fail."""
        return tool("env"), f"LD_PRELOAD={build_library(_SOURCE)}", f"METAQ_BROKEN_SYNC={self._control}"

    def fill(self) -> None:
        """Leave no block free."""
        assert self._mounted
        fd = os.open(self._ballast, os.O_WRONLY | os.O_CREAT)
        try:
            end = 0
            for size in _PIECES:
                while _allocated(fd, end, size):
                    end += size
        finally:
            os.close(fd)

    def break_syncs(self) -> None:
        """From now on every sync of the node's process fails."""
        self._control.touch()

    def repair(self) -> None:
        """There is room, and syncs work."""
        self._ballast.unlink(missing_ok=True)
        self._control.unlink(missing_ok=True)

    def unmount(self) -> None:
        """No process uses it any more."""
        if self._mounted:
            subprocess.run([tool("umount"), str(self.path)], check=True)
            self._image.unlink()


def _allocated(fd: int, offset: int, size: int) -> bool:
    try:
        os.posix_fallocate(fd, offset, size)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
    return True
