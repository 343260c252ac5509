"""What a node of a set remembers of its epochs: `<first data directory>/metaqset/history.json`.

`{"instance": text, "epoch": the highest one seen, "boot": text, "history": [[epoch, {partition: end, ...}], ...],
"checksum": n}`, where "boot" is the start of the machine in which the node was last known to have everything.

An epoch's ends say where each partition ended when it began. Only the ends that differ from those of the epoch before
are written. The file is replaced as a whole and synced, so there is always the old one or the new one.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from zlib import crc32

import simplejson

from metaq.protocol.errors import DiskFull, StoreError

from ..store.disk_space import no_room
from ..store.files import Files, opened, read_exactly, replace_file
from .rules import epoch_end

__all__ = ["DIRECTORY", "EpochHistory", "NodeFile", "machine_start"]

DIRECTORY = "metaqset"
_NAME = "history.json"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
MAX_EPOCHS = 1_000
"""Epochs that are kept. A node that followed none of them copies everything."""


class EpochHistory:
    """The epochs that a node's partitions went through, oldest first. A value: every change gives a new one."""

    def __init__(self, changes: Sequence[tuple[int, Mapping[str, int]]] = ()) -> None:
        """changes: per epoch, rising, the ends that differ from those of the epoch before."""
        self.changes = tuple(changes)

    @property
    def epochs(self) -> list[int]:
        """Rising."""
        return [epoch for epoch, _ in self.changes]

    def begin(self, epoch: int, ends: Mapping[str, int]) -> EpochHistory:
        """With one epoch more, which began when the partitions ended there."""
        known = self._ends_at(len(self.changes))
        changed = {name: end for name, end in ends.items() if known.get(name, 0) != end}
        changed |= {name: 0 for name in known.keys() - ends.keys() if known[name]}
        return EpochHistory((*self.changes, (epoch, changed)))._bounded()

    def ends_of(self, epoch: int, now: Mapping[str, int]) -> dict[str, int]:
        """Where each partition ended when `epoch` did (rules.epoch_end). now: where they end."""
        later = range(self.epochs.index(epoch) + 1, len(self.changes))
        starts = [self._ends_at(number + 1) for number in later]
        return {name: epoch_end((each.get(name, 0) for each in starts), end) for name, end in now.items()}

    def _ends_at(self, count: int) -> dict[str, int]:
        """The ends at the beginning of epoch number count - 1."""
        ends: dict[str, int] = {}
        for _, changed in self.changes[:count]:
            ends.update(changed)
        return ends

    def _bounded(self) -> EpochHistory:
        surplus = len(self.changes) - MAX_EPOCHS
        if surplus <= 0:
            return self
        first = self.changes[surplus][0], self._ends_at(surplus + 1)
        return EpochHistory((first, *self.changes[surplus + 1 :]))

    def to_json(self) -> list[list[object]]:
        return [[epoch, dict(changed)] for epoch, changed in self.changes]

    @classmethod
    def from_json(cls, value: object) -> EpochHistory:
        """Raises ValueError."""
        if not isinstance(value, list):
            raise ValueError("a history is a list")
        changes = []
        before = -1
        for each in value:
            epoch, ends = each
            if not isinstance(epoch, int) or epoch <= before or not isinstance(ends, dict):
                raise ValueError(f"epoch {epoch!r} behind {before}")
            if not all(isinstance(end, int) and end >= 0 for end in ends.values()):
                raise ValueError(f"an end of epoch {epoch} is not an offset")
            changes.append((epoch, ends))
            before = epoch
        return cls(changes)


class NodeFile:
    """The file. Its methods block; one thread at a time."""

    def __init__(self, files: Files, data_path: str) -> None:
        self.path = os.path.join(data_path, DIRECTORY, _NAME)
        self.instance = uuid.uuid4().hex
        """Tells this node's data from that of every other."""
        self.epoch = 0
        """The highest one seen: a stream of an older one is refused, also after a restart."""
        self.history = EpochHistory()
        self.boot = ""
        """The start of the machine in which the node had everything."""
        self._files = files

    def read(self) -> None:
        """Raises StoreError if the file cannot be read or is damaged: then only an operator knows what to do."""
        try:
            with opened(self._files, self.path) as fd:
                data = read_exactly(self._files, fd, self._files.status(self.path).size, 0)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(f"{self.path} cannot be read: {error}") from error
        try:
            saved = simplejson.loads(data)
            if saved.pop("checksum") != _checksum(saved):
                raise ValueError("a wrong checksum")
            self.instance, self.epoch, self.boot = str(saved["instance"]), int(saved["epoch"]), str(saved["boot"])
            self.history = EpochHistory.from_json(saved["history"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreError(
                f"{self.path} is damaged ({error}): move the node's data directories away, so that it copies them anew"
            ) from error

    def write(self, epoch: int, history: EpochHistory, boot: str | None = None) -> None:
        """On the disk when this returns. boot: a new one, if it is to change. Raises StoreError,
        DiskFull."""
        boot = self.boot if boot is None else boot
        saved: dict[str, object] = {
            "instance": self.instance,
            "epoch": epoch,
            "boot": boot,
            "history": history.to_json(),
        }
        saved["checksum"] = _checksum(saved)
        try:
            replace_file(self._files, self.path, simplejson.dumps(saved, separators=(",", ":")).encode())
            self._files.fsync_directory(os.path.dirname(os.path.dirname(self.path)))
        except OSError as error:
            if no_room(error):
                raise DiskFull(self.path, str(error)) from error
            raise StoreError(f"{self.path} cannot be written: {error}") from error
        self.epoch, self.history, self.boot = epoch, history, boot


def machine_start() -> str:
    """What tells this start of the machine from every other; on a system that does not say it, this very call."""
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return uuid.uuid4().hex


def _checksum(saved: Mapping[str, object]) -> int:
    return crc32(simplejson.dumps(saved, sort_keys=True, separators=(",", ":")).encode())
