"""Where a replay may begin: in our own file for us, in `checkpoint.<n>` for the Java broker (storage.md §7).

1.4.6.2 writes the newest open transaction's place where the oldest one's is meant, so its checkpoints are never read
here: ours lies in `metaq.json`, with the decisions operators have made (heuristics). Whatever a Java broker has
appended meanwhile lies behind that place, so it stays right.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import simplejson

from metaq.protocol.errors import StoreError
from metaq.protocol.transactions import parse_key

from ..store.files import Files, read_exactly, replace_file
from .redo import CHECKPOINT_PREFIX, numbered_files
from .redo_file import RedoPosition

__all__ = ["STATE_NAME", "Checkpoints", "Heuristic", "SavedState", "read_state", "write_state"]

_log = logging.getLogger(__name__)

STATE_NAME = "metaq.json"
"""Ours alone; the Java broker leaves it alone."""

Heuristic = str
"""`commit`, `rollback` or `complete`: what an operator has decided about a prepared transaction."""

HEURISTICS = ("commit", "rollback", "complete")


@dataclass(frozen=True, slots=True)
class SavedState:
    """What metaq.json says. replay_from: None = from the beginning."""

    replay_from: RedoPosition | None = None
    heuristics: Mapping[str, Heuristic] = field(default_factory=dict)


def read_state(files: Files, directory: str) -> SavedState:
    """Blocks. Raises StoreError if the file is there but no state, OSError if it cannot be read."""
    path = os.path.join(directory, STATE_NAME)
    data = _read(files, path)
    if data is None:
        return SavedState()
    try:
        saved = simplejson.loads(data)
        position = saved["replay_from"]
        heuristics = {parse_key(key): decision for key, decision in saved["heuristics"].items()}
        if None in heuristics or not set(heuristics.values()) <= set(HEURISTICS):
            raise ValueError("a decision that is none")
        return SavedState(RedoPosition(int(position["number"]), int(position["offset"])), heuristics)  # type: ignore[arg-type]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            f"{path} is damaged ({error}): move it away; the log is then replayed from its beginning, and decisions of "
            "operators on prepared transactions are forgotten"
        ) from error


def write_state(files: Files, directory: str, state: SavedState) -> None:
    """Blocks until it is on the disk. Raises OSError."""
    position = state.replay_from or RedoPosition(0, 0)
    text = simplejson.dumps(
        {"replay_from": position._asdict(), "heuristics": dict(state.heuristics)}, indent=1, sort_keys=True
    )
    replace_file(files, os.path.join(directory, STATE_NAME), text.encode() + b"\n")


class Checkpoints:
    """The Java broker's files: written so that it can take the directory over at any time, never read for a replay."""

    def __init__(self, files: Files, directory: str, max_files: int) -> None:
        """max_files: maxCheckpoints, at least 1."""
        self._files = files
        self._directory = directory
        self._max_files = max(1, max_files)
        self._numbers: list[int] = []
        self.last: RedoPosition | None = None
        """What the newest file says; RedoPosition(-1, 0) for a file that is no checkpoint, None if it is empty."""

    def open(self) -> None:
        """Look at what is there. Blocks. Raises OSError."""
        found = numbered_files(self._files, self._directory, CHECKPOINT_PREFIX)
        self._numbers = list(found)
        for path in found.values():
            self.last = self._parse(path)

    def next(self, position: RedoPosition) -> Callable[[], None]:
        """What a worker is to do so that `position` is the newest checkpoint; it blocks and may raise OSError."""
        if self._numbers and self.last is None:
            number = self._numbers[-1]  # Java leaves its first one empty
        else:
            number = max(self._numbers, default=0) + 1
            self._numbers.append(number)
        surplus, self._numbers = self._numbers[: -self._max_files], self._numbers[-self._max_files :]
        self.last = position
        return partial(self._write, number, position, surplus)

    def _write(self, number: int, position: RedoPosition, surplus: Sequence[int]) -> None:
        text = simplejson.dumps(position._asdict(), separators=(",", ":"))
        replace_file(self._files, self._path(number), text.encode())
        for old in surplus:
            self._files.unlink(self._path(old))

    def _path(self, number: int) -> str:
        return os.path.join(self._directory, f"{CHECKPOINT_PREFIX}{number}")

    def _parse(self, path: str) -> RedoPosition | None:
        data = _read(self._files, path)
        if not data:
            return None
        try:
            saved: Any = simplejson.loads(data)
            return RedoPosition(int(saved["number"]), int(saved["offset"]))
        except (ValueError, KeyError, TypeError) as error:
            _log.warning("%s is no checkpoint: %s", path, error)
            return RedoPosition(-1, 0)


def _read(files: Files, path: str) -> bytes | None:
    try:
        fd = files.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return read_exactly(files, fd, files.status(path).size, 0)
    finally:
        files.close(fd)
