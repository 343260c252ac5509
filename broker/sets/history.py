"""Read and write the file `<first data directory>/metaqset/history.json`. A node of a broker set records its epochs in
this file.

The file contains the JSON object `{"instance": text, "epoch": the highest one seen, "boot": text, "history": [[epoch,
id, {partition: end, ...}], ...], "ends": {partition: end, ...}, "inode": n, "checksum": n}`. "boot" identifies a start
(boot) of the machine: the last one during which the node was known to have all its data. "ends" has the end offsets of
the node's partitions at the time when the file was written. "inode" is the file's own inode number; in a copy of the
directory the file has a different inode number, so a node detects that its directory is a copy.

An epoch's id is random. If ZooKeeper's data were lost or restored from an old backup, two epochs can get the same
number. They can then be distinguished by their ids. The ends that "history" lists for an epoch are the end offsets of
the partitions when the epoch began. An epoch lists a partition's end only if the end differs from that at the beginning
of the previous epoch. The file is replaced as a whole and synced, so either the old file or the new one always exists.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Mapping, Sequence
from zlib import crc32

import simplejson

from metaq.protocol.errors import DiskFull, StoreError

from ..configuration.settings import SET_DIRECTORY
from ..store.disk_space import no_room
from ..store.files import Files, opened, read_exactly, replace_file
from .rules import epoch_end

__all__ = ["Epoch", "EpochHistory", "NodeFile", "machine_start"]

_NAME = "history.json"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
Epoch = tuple[int, str]
"""An epoch's number and id."""

MAX_EPOCHS = 1_000
MAX_ENDS = 1 << 18
"""MAX_EPOCHS limits the number of epochs in a history, and MAX_ENDS the total number of the ends that they list. When a
history exceeds a limit, its oldest epochs are removed. The limits exist because reading, comparing and sending a
history takes time on the reactor thread. If the leader's history has lost all epochs from which a node has data, this
node cannot join the set again before an operator has removed its data.
"""


class EpochHistory:
    """The list of the epochs from which a node's partitions have data, oldest first. The object is immutable: a method
    that changes the history returns a new object.
    """

    def __init__(self, changes: Sequence[tuple[int, str, Mapping[str, int]]] = ()) -> None:
        """changes: for each epoch, in rising order: its number, its id, and the ends that differ from those of the
        previous epoch.
        """
        self.changes = tuple(changes)

    @property
    def epochs(self) -> list[Epoch]:
        """The numbers and ids of all epochs of this history, oldest first."""
        return [(epoch, identity) for epoch, identity, _ in self.changes]

    @property
    def last(self) -> int:
        """The number of the newest epoch, or 0 if the history has no epoch."""
        return self.changes[-1][0] if self.changes else 0

    def begin(self, epoch: int, ends: Mapping[str, int]) -> EpochHistory:
        """Return a history that has all epochs of this history and a new one with the number `epoch`. ends: where the
        partitions ended when the new epoch began. Raises ValueError unless `epoch` is larger than the number of the
        last epoch.
        """
        if epoch <= self.last:
            raise ValueError(f"epoch {epoch} behind {self.last}")
        known = self._ends_at(len(self.changes))
        changed = {name: end for name, end in ends.items() if known.get(name, 0) != end}
        changed |= {name: 0 for name in known.keys() - ends.keys() if known[name]}
        return EpochHistory((*self.changes, (epoch, uuid.uuid4().hex, changed)))._bounded()

    def ends_of(self, epoch: Epoch, now: Mapping[str, int]) -> dict[str, int]:
        """Return for each partition the byte offset up to which this node has the data of `epoch` and earlier epochs
        (computed by rules.epoch_end). now: the partitions' present ends.
        """
        following = self._number(epoch) + 1
        if following == len(self.changes):
            return dict(now)
        begun = self._ends_at(following + 1)
        starts = {name: [begun.get(name, 0)] for name in now}
        for _, _, changed in self.changes[following + 1 :]:
            for name, end in changed.items():
                if name in starts:
                    starts[name].append(end)
        return {name: epoch_end(starts[name], end) for name, end in now.items()}

    def up_to(self, epoch: Epoch) -> EpochHistory:
        """Return a history that has only the epochs of this history up to `epoch`, with `epoch` itself."""
        return EpochHistory(self.changes[: self._number(epoch) + 1])

    def behind(self, epoch: Epoch) -> EpochHistory:
        """Return a history that contains only the epochs after `epoch`. For each of them it has only the ends that
        differ from those of the previous epoch, as in this history.
        """
        return EpochHistory(self.changes[self._number(epoch) + 1 :])

    def followed_by(self, later: EpochHistory) -> EpochHistory:
        """Return a history that has the epochs of this history, followed by the epochs of `later`. `later` must be a
        result of `behind`. Raises ValueError if the first epoch of `later` is not newer than the last epoch of this
        history.
        """
        if later.changes and later.changes[0][0] <= self.last:
            raise ValueError(f"epoch {later.changes[0][0]} behind {self.last}")
        return EpochHistory((*self.changes, *later.changes))._bounded()

    def _number(self, epoch: Epoch) -> int:
        return self.epochs.index(epoch)

    def _ends_at(self, count: int) -> dict[str, int]:
        """Return where the partitions ended when the epoch number `count` of this history began. The oldest epoch of
        the history has the number 1.
        """
        ends: dict[str, int] = {}
        for _, _, changed in self.changes[:count]:
            ends.update(changed)
        return ends

    def _bounded(self) -> EpochHistory:
        room = MAX_ENDS
        kept = 0
        for _, _, changed in reversed(self.changes[-MAX_EPOCHS:]):
            room -= len(changed)
            if room < 0 and kept:
                break
            kept += 1
        surplus = len(self.changes) - kept
        if not surplus:
            return self
        first = *self.changes[surplus][:2], self._ends_at(surplus + 1)
        return EpochHistory((first, *self.changes[surplus + 1 :]))

    def to_json(self) -> list[list[object]]:
        return [[epoch, identity, dict(changed)] for epoch, identity, changed in self.changes]

    @classmethod
    def from_json(cls, value: object) -> EpochHistory:
        """Return the history from which `to_json` has made `value`. Raises ValueError if `value` is no history."""
        if not isinstance(value, list):
            raise ValueError("a history is a list")
        changes = []
        before = -1
        for each in value:
            epoch, identity, ends = each
            if not isinstance(epoch, int) or epoch <= before or not isinstance(identity, str):
                raise ValueError(f"epoch {epoch!r} {identity!r} behind {before}")
            if not isinstance(ends, dict):
                raise ValueError(f"the ends of epoch {epoch} are no object")
            if not all(isinstance(end, int) and end >= 0 for end in ends.values()):
                raise ValueError(f"an end of epoch {epoch} is not an offset")
            changes.append((epoch, identity, ends))
            before = epoch
        return cls(changes)


class NodeFile:
    """Reads and writes the file with the node's history. The methods wait for the disk. Any thread may call them."""

    def __init__(self, files: Files, data_path: str) -> None:
        self.path = os.path.join(data_path, SET_DIRECTORY, _NAME)
        self.instance = uuid.uuid4().hex
        """A random id of this node's data. The data of another node have another id, and a copy of this node's data
        gets a new id.
        """
        self.copied = False
        """Whether `read` found that the directory is a copy or a restored backup. If so, `read` chose a new instance
        id.
        """
        self.epoch = 0
        """The highest epoch that this node has seen. The node refuses to follow a leader of an older epoch, even after
        a restart.
        """
        self.history = EpochHistory()
        self.boot = ""
        """Identifies a start (boot) of the machine: the last one during which the node was known to have all its
        data.
        """
        self.ends: Mapping[str, int] = {}
        """The end offset of each partition of this node at the time when `history.json` was last written."""
        self._files = files
        self._lock = threading.Lock()

    def read(self) -> None:
        """Read the file. Raises StoreError if the file is unreadable or damaged; then an operator must decide whether
        this node's data may still be used.
        """
        try:
            with opened(self._files, self.path) as fd:
                status = self._files.status(self.path)
                data = read_exactly(self._files, fd, status.size, 0)
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
            self.ends = {str(name): int(end) for name, end in saved["ends"].items()}
            self.copied = int(saved["inode"]) != status.inode
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreError(
                f"{self.path} is damaged ({error}): move the node's data directories away, so that it copies them anew"
            ) from error
        if self.copied:
            self.renew()

    def renew(self) -> None:
        """Choose a new instance id. Called when this node has lost data or its directory is a copy. Then the old id
        must not stand for its present data, because the other nodes use it for the former data. The next `write` stores
        the new id.
        """
        self.instance = uuid.uuid4().hex

    def write(self, epoch: int, history: EpochHistory, ends: Mapping[str, int], boot: str | None = None) -> None:
        """Write and sync the file. ends: where this node's partitions end. boot: None keeps the old value. Raises
        StoreError, DiskFull.
        """
        with self._lock:
            self._write(epoch, history, ends, self.boot if boot is None else boot)

    def remember(self, ends: Mapping[str, int], boot: str | None = None) -> None:
        """Write and sync the file with new `ends`, and with the epoch and the history unchanged. boot: None keeps the
        old value. Raises StoreError, DiskFull.
        """
        with self._lock:
            self._write(self.epoch, self.history, ends, self.boot if boot is None else boot)

    def _write(self, epoch: int, history: EpochHistory, ends: Mapping[str, int], boot: str) -> None:
        saved: dict[str, object] = {
            "instance": self.instance,
            "epoch": epoch,
            "boot": boot,
            "history": history.to_json(),
            "ends": dict(ends),
        }

        def data(inode: int) -> bytes:
            saved["inode"] = inode
            saved["checksum"] = _checksum(saved)
            return simplejson.dumps(saved, separators=(",", ":")).encode()

        try:
            replace_file(self._files, self.path, data)
            self._files.fsync_directory(os.path.dirname(os.path.dirname(self.path)))
        except OSError as error:
            if no_room(error):
                raise DiskFull(self.path, str(error)) from error
            raise StoreError(f"{self.path} cannot be written: {error}") from error
        self.epoch, self.history, self.boot, self.ends = epoch, history, boot, ends


def machine_start() -> str:
    """Return a text that identifies the last start (boot) of the machine. On a system that does not provide such a
    text, return a new text at each call, as if the machine had been restarted.
    """
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return uuid.uuid4().hex


def _checksum(saved: Mapping[str, object]) -> int:
    return crc32(simplejson.dumps(saved, sort_keys=True, separators=(",", ":")).encode())
