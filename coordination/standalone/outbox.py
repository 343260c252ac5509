"""What goes out, and the log: nothing that was made since a log record goes out before that is on the disk."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import NamedTuple

from .connections import PeerConnection

__all__ = ["LogBatch", "Outbox"]

MOST_UNSENT_BYTES = 64 * 1024 * 1024
"""Made for a peer and not taken; one that lets so many events pile up is dropped."""

_RELEASED_IN_TURN = 128
_ENTRIES_IN_PART = 512


class LogBatch(NamedTuple):
    """Entries of whole writes, to be joined. last: zxid of the last one; position: for `Outbox.synced`."""

    entries: list[bytes]
    last: int
    position: int


class Outbox:
    """Of all connections. One thread.

    A position is the number of writes since the server's start. keeps: whether there is a log; else nothing waits.
    entries: what the log does not have yet of the write that is under way.
    """

    def __init__(self, keeps: bool) -> None:
        self.entries: list[bytes] = []
        self.sent = 0
        """Packets."""
        self._keeps = keeps
        self._position = 0
        self._taken = 0
        self._synced = 0
        self._committed = (0, 0)
        self._log: list[bytes] = []
        self._parts: list[bytes] = []
        self._held: deque[tuple[int, PeerConnection, bytes | None, int]] = deque()
        self._ready: dict[PeerConnection, None] = {}

    @property
    def waiting(self) -> int:
        """Packets that wait for the disk."""
        return len(self._held)

    # --- the log ------------------------------------------------------------------------------------------------------

    def begin_write(self) -> None:
        """What is sent from now on waits until this write is on the disk."""
        self._position += self._keeps

    def pack(self) -> None:
        """What a long write says is joined in parts: all at its end would take too long."""
        if len(self.entries) >= _ENTRIES_IN_PART:
            self._parts.append(b"".join(self.entries))
            self.entries.clear()

    def commit(self, zxid: int) -> None:
        """The write is complete: its entries may go to the log."""
        if self._keeps:
            self._log += self._parts
            self._log += self.entries
        self._committed = zxid, self._position
        self._parts.clear()
        self.entries.clear()

    def take_log(self) -> LogBatch | None:
        """What was written since it was asked last; None if nothing was."""
        zxid, position = self._committed
        if position == self._taken:
            return None
        self._taken = position
        entries, self._log = self._log, []
        return LogBatch(entries, zxid, position)

    def synced(self, position: int) -> None:
        """What was taken up to this position is on the disk: `release` sends what waited for it."""
        self._synced = position

    @property
    def releasable(self) -> bool:
        """Whether something waits for nothing any longer."""
        return bool(self._held) and self._held[0][0] <= self._synced

    def release(self, now_ms: int) -> tuple[int, list[int]]:
        """Let some of what waited for the disk out. Returns what that costs, and how long each has waited, in ms."""
        held, waits = self._held, list[int]()
        while len(waits) < _RELEASED_IN_TURN and self.releasable:
            _, connection, data, since_ms = held.popleft()
            self._give(connection, data)
            waits.append(now_ms - since_ms)
        return _RELEASED_IN_TURN // 8, waits

    # --- connections --------------------------------------------------------------------------------------------------

    def send(self, connection: PeerConnection, data: bytes | None, now_ms: int) -> None:
        """None: close it behind what was sent."""
        if connection.closed or connection.finished:
            return
        if data is not None:
            connection.unsent += len(data)
            if connection.unsent > MOST_UNSENT_BYTES + len(data):
                data = None  # it reads nothing: it will ask for its watches again when it is back
        connection.ends |= data is None
        if self._position == self._synced and not self._held:
            self._give(connection, data)
        else:
            self._held.append((self._position, connection, data, now_ms))

    def _give(self, connection: PeerConnection, data: bytes | None) -> None:
        if connection.closed or connection.finished:
            return
        if data is None:
            connection.finished = True
        else:
            connection.out.append(data)
            connection.sent += 1
            self.sent += 1
        self._ready[connection] = None

    def ready(self, most: int) -> list[PeerConnection]:
        """Those with something to send, or to be closed. Each comes once, until there is more for it."""
        found = list(islice(self._ready, most))
        for connection in found:
            del self._ready[connection]
        return found

    def forget(self, connection: PeerConnection) -> None:
        self._ready.pop(connection, None)
