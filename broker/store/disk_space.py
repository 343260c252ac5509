"""How much room the data directories have, and which of them take no puts for want of it.

Below a reserve puts are refused, while there still is room for what must not fail: index units, checkpoints, the
journal, commits of transactions. Consuming goes on. When space returns, puts do too.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from metaq.protocol.errors import DiskFull

from .files import FailedSync, Files
from .threads import RunInThread

__all__ = ["DEFAULT_RESERVE_PART", "MAX_DEFAULT_RESERVE_BYTES", "DiskSpace", "Room", "default_reserve", "no_room"]

_log = logging.getLogger(__name__)

MAX_DEFAULT_RESERVE_BYTES = 1 << 30
DEFAULT_RESERVE_PART = 0.05
"""The default reserve is this part of the file system, at most MAX_DEFAULT_RESERVE_BYTES."""

_RETURN_FACTOR = 1.05  # free space at which puts are taken again, over the reserve: not on and off each second
_NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT))


def no_room(error: OSError) -> bool:
    """Whether a write failed for want of space: nothing is broken then. A sync may have lost something."""
    return error.errno in _NO_ROOM and not isinstance(error, FailedSync)


def default_reserve(total: int) -> int:
    """Bytes kept free on a file system of `total` bytes unless told otherwise."""
    return min(MAX_DEFAULT_RESERVE_BYTES, int(total * DEFAULT_RESERVE_PART))


class Room(NamedTuple):
    """One data directory: bytes free and kept in reserve on its file system, and whether it takes puts."""

    path: str
    free: int
    reserve: int
    takes_puts: bool


class DiskSpace:
    """Of all data directories. Lives on the owning thread, looks in a worker thread."""

    def __init__(
        self, files: Files, paths: Callable[[], Sequence[str]], run_in_thread: RunInThread, reserve: int | None = None
    ) -> None:
        """paths: the first one has the journal. reserve: bytes for each data directory, 0 to write until the disk is
        full; None for `default_reserve`.
        """
        self._files = files
        self._paths = paths
        self._run_in_thread = run_in_thread
        self._reserve = reserve
        self._rooms: dict[str, Room] = {}
        self._looking = False
        self._told = ""  # why the last look failed
        self.full: dict[str, DiskFull] = {}
        """Data path -> why puts to it are refused; empty as long as there is room."""

    def rooms(self) -> list[Room]:
        """What was found when they were looked at last."""
        return list(self._rooms.values())

    def empty(self, least: int) -> DiskFull | None:
        """Of a data directory that had fewer than `least` bytes free when it was last looked at; None: no such one."""
        return next((_full(room) for room in self._rooms.values() if room.free < least), None)

    def lacking(self, least: int) -> DiskFull | None:
        """As `empty`, also of a data directory that takes no puts."""
        return next((_full(room) for room in self._rooms.values() if not room.takes_puts), None) or self.empty(least)

    def check(self, directory: str, *, journaled: bool) -> None:
        """Raise DiskFull if puts to a partition's directory are refused. journaled: they go to the journal too."""
        error = self.full.get(os.path.dirname(directory))
        if error is None and journaled:
            error = self.full.get(self._paths()[0])
        if error is not None:
            raise DiskFull(error.place, error.cause)

    def look_now(self) -> None:
        """Look on this thread. For the start."""
        try:
            self._measured(self._measure(self._paths()))
        except OSError as error:
            self._measured(error)

    def look(self) -> None:
        """Look again, in a worker thread. To be called about once a second."""
        if not self._looking:
            self._looking = True
            self._run_in_thread(partial(self._measure, list(self._paths())), self._measured)

    def _measure(self, paths: Sequence[str]) -> dict[str, tuple[int, int]]:
        return {path: self._files.space(path) for path in paths}

    def _measured(self, result: dict[str, tuple[int, int]] | BaseException) -> None:
        self._looking = False
        if isinstance(result, BaseException):
            if str(result) != self._told:
                self._told = str(result)
                _log.error("free space of the data directories cannot be found: %s", result)
            return
        self._told = ""
        self._rooms = {path: self._judge(path, free, total) for path, (free, total) in result.items()}

    def _judge(self, path: str, free: int, total: int) -> Room:
        reserve = default_reserve(total) if self._reserve is None else self._reserve
        if free < reserve:
            if path not in self.full:
                _log.error("%s: puts are refused: %s", path, _state(free, reserve))
            self.full[path] = DiskFull(path, _state(free, reserve))
        elif path in self.full and free >= reserve * _RETURN_FACTOR:
            del self.full[path]
            _log.warning("%s: puts are taken again: %s", path, _state(free, reserve))
        return Room(path, free, reserve, path not in self.full)


def _full(room: Room) -> DiskFull:
    return DiskFull(room.path, _state(room.free, room.reserve))


def _state(free: int, reserve: int) -> str:
    return f"{free >> 20} MiB are free, {reserve >> 20} MiB are the reserve (--disk-reserve)"
