"""Store the position in the transaction log where a replay may begin; older records need not be replayed. This broker
reads the position from `metaq.json`; a Java broker reads it from `checkpoint.<n>` (storage.md §7).

The Java broker 1.4.6.2 by mistake writes the position of the newest open transaction instead of the oldest one. So a
replay of this broker never uses the checkpoint files. The file `metaq.json` contains this broker's position and the
operators' decisions (heuristics). While a Java broker uses the directory, it only appends records after this position.
So the position in `metaq.json` is still correct when this broker uses the directory again. The file contains a checksum
over all its other fields.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import simplejson

from metaq.protocol.errors import RemoteProtocolError
from metaq.protocol.record import checksum
from metaq.protocol.transactions import is_xa, parse_key

from ..store.files import Files
from .changes import REMOVED, REPLACED, LogChange, make_change
from .directory import CHECKPOINT_PREFIX, RedoPosition, numbered_files, read_file

__all__ = [
    "STATE_NAME",
    "Checkpoints",
    "Heuristic",
    "SavedState",
    "parse_checkpoint",
    "read_state",
    "state_change",
    "write_state",
]

_log = logging.getLogger(__name__)

STATE_NAME = "metaq.json"
"""The name of this broker's own file. The Java broker ignores it."""

Heuristic = str
"""An operator's decision on a prepared transaction: `commit`, `rollback` or `complete`."""

HEURISTICS = ("commit", "rollback", "complete")

_CHECKSUM = "checksum"
_STATE_FIELDS = {"replay_from", "heuristics", _CHECKSUM}
_NOT_SAID = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, RemoteProtocolError)
"""The exceptions that can be raised while metaq.json is read, if its text is not JSON or is JSON with unexpected
content.
"""


_DECISION = re.compile(r'"(XID:[^"]*)": ?"(commit|rollback|complete)"')


@dataclass(frozen=True, slots=True)
class SavedState:
    """The content of metaq.json. replay_from: the position in the log where a replay begins. None means the beginning
    of the log.
    """

    replay_from: RedoPosition | None = None
    heuristics: Mapping[str, Heuristic] = field(default_factory=dict)
    damage: str | None = None
    """What is wrong with the file. It is None if the file is good. If it is damaged, replay_from is None, and the state
    contains only the decisions that could be read.
    """


def read_state(files: Files, directory: str) -> SavedState:
    """Read metaq.json. Blocks. Raises OSError if the file exists but cannot be read."""
    path = os.path.join(directory, STATE_NAME)
    data = read_file(files, path)
    if data is None:
        return SavedState()
    try:
        saved = simplejson.loads(data)
        # the first releases of this broker wrote no checksum
        if saved.keys() != _STATE_FIELDS and saved.keys() != _STATE_FIELDS - {_CHECKSUM}:
            raise ValueError("fields that no broker writes")
        if _CHECKSUM in saved and saved.pop(_CHECKSUM) != _checksum(saved):
            raise ValueError("a wrong checksum")
        position = RedoPosition(int(saved["replay_from"]["number"]), int(saved["replay_from"]["offset"]))
        heuristics = {_xa_key(key): decision for key, decision in saved["heuristics"].items()}
        if min(position) < 0 or not set(heuristics.values()) <= set(HEURISTICS):
            raise ValueError("an invalid decision or position")
        return SavedState(position, heuristics)
    except _NOT_SAID as error:
        return SavedState(None, _legible_decisions(data), f"{path} is damaged: {error}")


def write_state(files: Files, directory: str, state: SavedState) -> None:
    """Write metaq.json. Blocks until it is on the disk. Raises OSError."""
    make_change(files, directory, state_change(state))


def state_change(state: SavedState) -> LogChange:
    """Return the file change that writes `state` to metaq.json."""
    position = state.replay_from or RedoPosition(0, 0)
    saved: dict[str, object] = {"replay_from": position._asdict(), "heuristics": dict(state.heuristics)}
    saved[_CHECKSUM] = _checksum(saved)
    text = simplejson.dumps(saved, indent=1, sort_keys=True)
    return LogChange(STATE_NAME, REPLACED, [text.encode() + b"\n"])


def _checksum(saved: Mapping[str, object]) -> int:
    return checksum(simplejson.dumps(saved, sort_keys=True, separators=(",", ":")).encode())


def _xa_key(text: str) -> str:
    key = parse_key(text)
    if key is None or not is_xa(key):
        raise ValueError(f"a decision about {text!r}")
    return key


def _legible_decisions(data: bytes) -> dict[str, Heuristic]:
    found = {}
    for key, decision in _DECISION.findall(data.decode("utf-8", "replace")):
        with suppress(ValueError, RemoteProtocolError):
            found[_xa_key(simplejson.loads(f'"{key}"'))] = decision
    return found


class Checkpoints:
    """Write the checkpoint files of the Java broker. They allow a Java broker to take over the directory at any time;
    this broker never uses them for a replay.
    """

    def __init__(self, files: Files, directory: str, max_files: int) -> None:
        """max_files: the value of the setting maxCheckpoints, the number of checkpoint files that are kept. A value
        below 1 counts as 1.
        """
        self._files = files
        self._directory = directory
        self._max_files = max(1, max_files)
        self._numbers: list[int] = []
        self.last: RedoPosition | None = None
        """The position in the newest checkpoint file. It is RedoPosition(-1, 0) if the file's content is not a
        checkpoint. It is None if the file is empty or there is no checkpoint file.
        """

    def open(self) -> None:
        """Read the existing checkpoint files. Blocks. Raises OSError."""
        found = numbered_files(self._files, self._directory, CHECKPOINT_PREFIX)
        self._numbers = list(found)
        for path in found.values():
            self.last = self._parse(path)

    def next(self, position: RedoPosition) -> list[LogChange]:
        """Return the file changes that make `position` the newest checkpoint and remove surplus checkpoint files. A
        worker thread makes the changes later.
        """
        if self._numbers and self.last is None:
            number = self._numbers[-1]  # Java leaves its first file empty
        else:
            number = max(self._numbers, default=0) + 1
            self._numbers.append(number)
        surplus, self._numbers = self._numbers[: -self._max_files], self._numbers[-self._max_files :]
        self.last = position
        text = simplejson.dumps(position._asdict(), separators=(",", ":"))
        new = LogChange(f"{CHECKPOINT_PREFIX}{number}", REPLACED, [text.encode()])
        return [new, *(LogChange(f"{CHECKPOINT_PREFIX}{old}", REMOVED) for old in surplus)]

    def _parse(self, path: str) -> RedoPosition | None:
        data = read_file(self._files, path)
        if not data:
            return None
        try:
            return parse_checkpoint(data)
        except ValueError as error:
            _log.warning("%s is not a checkpoint: %s; a Java broker cannot begin there", path, error)
            return RedoPosition(-1, 0)


def parse_checkpoint(data: bytes) -> RedoPosition:
    """Return the position that the content of a checkpoint file states. Raises ValueError if the bytes are not a
    checkpoint.
    """
    try:
        saved: Any = simplejson.loads(data)
        position = RedoPosition(int(saved["number"]), int(saved["offset"]))
    except _NOT_SAID as error:
        raise ValueError(str(error)) from error
    if min(position) < 0:
        raise ValueError(f"the place {position}")
    return position
