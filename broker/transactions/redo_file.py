"""One `redo.<n>` in use: what is queued for it, and which of its transactions a replay must still see."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from metaq.protocol.record import Buffer

__all__ = ["RedoFile", "RedoPosition"]


class RedoPosition(NamedTuple):
    """A place in the log: number of the redo file, byte in it."""

    number: int
    offset: int


class RedoFile:
    """One `redo.<n>`. Lives on the reactor thread, but for `fd`, which belongs to the job under way."""

    def __init__(self, number: int, path: str, size: int = 0, *, exists: bool = False) -> None:
        self.number = number
        self.path = path
        self.size = size
        """Bytes, with those that are still queued."""
        self.unsettled: dict[Hashable, None] = {}
        """Transactions that a replay must still see: open, or committed and not yet on the disk in the partitions."""
        self.busy_from = size
        """A place with no transaction open across it, and none unsettled before it: where a replay may begin."""
        self.queued: list[Buffer] = []
        self.patches: list[tuple[int, bytes]] = []
        self.dirty = exists  # what an earlier life wrote may not be on the disk
        self.new = not exists
        self.fd: int | None = None

    def hold(self, transaction: Hashable) -> None:
        """The next record is the first one of a transaction."""
        if not self.unsettled:
            self.busy_from = self.size
        self.unsettled[transaction] = None
