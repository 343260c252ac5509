"""Lock, check, delete and rename partition directories of a stopped broker."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from metaq.protocol.errors import ConfigError, DirectoryInUse, StoreError
from metaq.protocol.limits import INT32_MAX

from ..sets.history import NodeFile
from ..store.directories import lock_data_path
from ..store.files import REAL_FILES
from ..store.journal_format import read_journal
from ..transactions.directory import DIRECTORY, REDO_PREFIX, numbered_files
from ..transactions.redo_reader import RedoReader
from .data_directory import is_in_use

__all__ = ["DataDirectory", "RenamedDirectory", "delete_directory", "move_directories"]


class RenamedDirectory(NamedTuple):
    """The old and the new path of one directory."""

    old: Path
    new: Path


class DataDirectory:
    """A data directory (dataPath), as a context manager. While the context is open, no metaq broker can use the
    directory.

    A Java broker takes no lock. So if a Java broker has used the directory, the operator must have stopped it. With
    lock=False the directory is not locked; entering the context only checks whether a broker holds the lock. Entering
    the context raises DirectoryInUse if a broker holds the lock.
    """

    def __init__(self, path: Path, *, lock: bool) -> None:
        self.path = path
        self._lock = lock
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        if self._lock:
            self._descriptor = lock_data_path(REAL_FILES, str(self.path))
        elif is_in_use(self.path):
            raise DirectoryInUse(f"data directory {self.path} is in use by another broker: stop it")
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._descriptor is not None:
            REAL_FILES.close(self._descriptor)

    def existing(self, topic: str, partitions: Sequence[int]) -> list[Path]:
        """Return the directories of these partitions. Raises StoreError if one of the directories does not exist, or if
        the journal has messages of one of the partitions: the next start of a broker would write these messages into
        the partition again.
        """
        journaled = read_journal(REAL_FILES, str(self.path)).entries
        for name in (f"{topic}-{partition}" for partition in partitions):
            if name in journaled:
                raise StoreError(
                    f"{self.path} has messages of {name} in its journal, which the next start would put back: "
                    "start the broker and stop it by SIGTERM first"
                )
        paths = [self.path / f"{topic}-{partition}" for partition in partitions]
        missing = [path for path in paths if not path.is_dir()]
        if missing:
            raise StoreError(f"{missing[0]} does not exist: choose --start and --end from those in `metaq check`")
        return paths

    def plan_move(self, topic: str, partitions: Sequence[int], offset: int) -> list[RenamedDirectory]:
        """Plan to add `offset` to the numbers of these partitions: return the renames of their directories. The order
        of the renames is such that no rename overwrites a directory that a later rename needs.

        Raises ConfigError for partition numbers out of range. Raises StoreError if a directory to rename is missing or
        a new name is already in use.
        """
        if not offset:
            raise ConfigError("--offset", offset, "moves nothing: choose a number other than 0")
        if partitions[0] + offset < 0 or partitions[-1] + offset > INT32_MAX:
            raise ConfigError("--offset", offset, f"would make partition {partitions[0] + offset}: stay at 0 or above")
        sources = self.existing(topic, partitions)
        targets = [self.path / f"{topic}-{partition + offset}" for partition in partitions]
        for target in targets:
            if target not in sources and os.path.lexists(target):
                raise StoreError(f"{target} exists already: choose another --offset, or move it away first")
        moves = [RenamedDirectory(*each) for each in zip(sources, targets, strict=True)]
        return moves if offset < 0 else moves[::-1]

    def replayed(self, topic: str, partitions: Sequence[int]) -> list[str]:
        """Return the names of the given partitions that have commits in the transaction log. If an operator deletes or
        renames such a partition, the next start of a broker creates the partition again under its old name and writes
        the messages of these commits to it.
        """
        log = self.path / DIRECTORY
        if not log.is_dir():
            return []
        stores = {
            location.store
            for path in numbered_files(REAL_FILES, str(log), REDO_PREFIX).values()
            for entry in RedoReader(REAL_FILES, path)
            for location in entry.locations
        }
        return sorted(stores.intersection(f"{topic}-{partition}" for partition in partitions))


def delete_directory(path: Path) -> None:
    """Delete a partition's directory with its content, and sync the change to the disk. Raises OSError, StoreError."""
    _forget(path.parent, [path.name])
    shutil.rmtree(path)
    REAL_FILES.fsync_directory(str(path.parent))


def _forget(data_path: Path, names: Sequence[str]) -> None:
    """A broker set's node stores the end offsets of its partitions in a file. Remove the partitions `names` from this
    file; otherwise the node's next start would report that the messages of these partitions are lost. Raises
    StoreError.
    """
    file = NodeFile(REAL_FILES, str(data_path))
    file.read()
    if not file.ends.keys().isdisjoint(names):
        file.remember({name: end for name, end in file.ends.items() if name not in names})


def move_directories(data_path: Path, moves: Sequence[RenamedDirectory]) -> None:
    """Rename directories, and sync the changes to the disk. If a rename fails, the renames that were already done are
    undone. Raises OSError, StoreError.
    """
    _forget(data_path, [move.old.name for move in moves])
    done: list[RenamedDirectory] = []
    try:
        for move in moves:
            move.old.rename(move.new)
            done.append(move)
    except OSError:
        for move in reversed(done):
            move.new.rename(move.old)
        raise
    REAL_FILES.fsync_directory(str(data_path))
