"""Measure the free space of the data directories, and decide which of them are so full that puts to them are refused.
Each directory has a reserve, a number of bytes. If its file system has fewer free bytes than the reserve, puts to the
directory are refused; consumers can still read. The reserve is kept free for writes that must not fail: index units,
checkpoints, the journal, commits of transactions.

Puts are accepted again when the free bytes are 5 % more than the reserve.
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
from .worker_turns import RunInThread

__all__ = ["DEFAULT_RESERVE_PART", "MAX_DEFAULT_RESERVE_BYTES", "DiskSpace", "Room", "default_reserve", "no_room"]

_log = logging.getLogger(__name__)

MAX_DEFAULT_RESERVE_BYTES = 1 << 30
DEFAULT_RESERVE_PART = 0.05
"""The default reserve as a fraction of the file system's size. The default reserve is at most
MAX_DEFAULT_RESERVE_BYTES.
"""

_RETURN_FACTOR = 1.05  # puts return at this multiple of the reserve, so that they do not go on and off each second
_NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT))


def no_room(error: OSError) -> bool:
    """Return whether the error means that a write failed because the disk is full. Such a failed write loses no data
    that were stored before. Return False for a failed sync, which may have lost data whatever its cause.
    """
    return error.errno in _NO_ROOM and not isinstance(error, FailedSync)


def default_reserve(total: int) -> int:
    """Return the default reserve, in bytes, for a file system of `total` bytes."""
    return min(MAX_DEFAULT_RESERVE_BYTES, int(total * DEFAULT_RESERVE_PART))


class Room(NamedTuple):
    """The space of one data directory: the free bytes and the reserve of its file system, and whether the directory
    accepts puts.
    """

    path: str
    free: int
    reserve: int
    takes_puts: bool


class DiskSpace:
    """Measures the free space of all data directories and decides which puts are refused. Only the thread that owns the
    store may use this object; a worker thread measures the space.
    """

    def __init__(
        self, files: Files, paths: Callable[[], Sequence[str]], run_in_thread: RunInThread, reserve: int | None = None
    ) -> None:
        """paths: returns the data directories; the first one contains the journal. reserve: how many bytes puts must
        leave free in the file system of each data directory. 0 means that puts are accepted until the disk is full.
        None means `default_reserve`.
        """
        self._files = files
        self._paths = paths
        self._run_in_thread = run_in_thread
        self._reserve = reserve
        self._rooms: dict[str, Room] = {}
        self._looking = False
        self._told = ""  # why the last measurement failed
        self.full: dict[str, DiskFull] = {}
        """A dict of the data paths that accept no puts. The key is the data path, the value is the error that its puts
        get. The dict is empty while all data paths have enough free space.
        """

    def rooms(self) -> list[Room]:
        """Return the results of the last measurement: one `Room` for each data directory."""
        return list(self._rooms.values())

    def empty(self, least: int) -> DiskFull | None:
        """Return the DiskFull error of a data directory that had fewer than `least` free bytes at the last measurement,
        or None if there is no such directory.
        """
        return next((_full(room) for room in self._rooms.values() if room.free < least), None)

    def lacking(self, least: int) -> DiskFull | None:
        """If puts to any data directory are refused, return the DiskFull error of one such directory; else return the
        result of `empty(least)`.
        """
        return next((_full(room) for room in self._rooms.values() if not room.takes_puts), None) or self.empty(least)

    def check(self, directory: str, *, journaled: bool) -> None:
        """Raise DiskFull if puts to a partition's directory are refused. journaled: whether the puts are also written
        to the journal. If they are, the data directory with the journal must accept puts, too; otherwise, also raise
        DiskFull.
        """
        error = self.full.get(os.path.dirname(directory))
        if error is None and journaled:
            error = self.full.get(self._paths()[0])
        if error is not None:
            raise DiskFull(error.place, error.cause)

    def look_now(self) -> None:
        """Measure the free space on this thread. Called at the start of the broker."""
        try:
            self._measured(self._measure(self._paths()))
        except OSError as error:
            self._measured(error)

    def look(self) -> None:
        """Let a worker thread measure the free space again. Do nothing if the last measurement has not ended. Call this
        about once a second.
        """
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
