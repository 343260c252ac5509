"""Outgoing packets, and the log: a packet made after a log record goes out only when that record is on the disk."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import NamedTuple

from .connections import PeerConnection

__all__ = ["LogBatch", "Outbox"]

MOST_UNSENT_BYTES = 64 * 1024 * 1024
"""Maximum bytes made for a peer and not taken; a peer that lets so many events pile up is dropped."""

_RELEASED_IN_TURN = 128
_ENTRIES_IN_PART = 512


class LogBatch(NamedTuple):
    """Entries of whole writes, to be joined. last: zxid of the last one; position: for `Outbox.synced`."""

    entries: list[bytes]
    last: int
    position: int


class Outbox:
    """The outgoing packets of all connections. One thread.

    A position is the number of writes since the server's start. keeps: whether there is a log; if not, nothing waits.
    entries: those of the running write that the log does not have yet.
    """

    def __init__(self, keeps: bool) -> None:
        self.entries: list[bytes] = []
        self.sent = 0
        """Number of packets."""
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
        """The number of packets that wait for the disk."""
        return len(self._held)

    # --- the log ------------------------------------------------------------------------------------------------------

    def begin_write(self) -> None:
        """Begin a write: later packets wait until it is on the disk."""
        self._position += self._keeps

    def pack(self) -> None:
        """Join the entries of a long write in parts: joining all at its end would take too long."""
        if len(self.entries) >= _ENTRIES_IN_PART:
            self._parts.append(b"".join(self.entries))
            self.entries.clear()

    def commit(self, zxid: int) -> None:
        """Complete the write: its entries may go to the log."""
        if self._keeps:
            self._log += self._parts
            self._log += self.entries
        self._committed = zxid, self._position
        self._parts.clear()
        self.entries.clear()

    def take_log(self) -> LogBatch | None:
        """Return the writes since the last call; None if there are none."""
        zxid, position = self._committed
        if position == self._taken:
            return None
        self._taken = position
        entries, self._log = self._log, []
        return LogBatch(entries, zxid, position)

    def synced(self, position: int) -> None:
        """Record that batches up to this position are on the disk: `release` then sends the packets that waited for
        them."""
        self._synced = position

    @property
    def releasable(self) -> bool:
        """Whether a held packet need not wait any longer."""
        return bool(self._held) and self._held[0][0] <= self._synced

    def release(self, now_ms: int) -> tuple[int, list[int]]:
        """Send some of the packets that waited for the disk. Return the cost, and how long each has waited, in ms."""
        held, waits = self._held, list[int]()
        while len(waits) < _RELEASED_IN_TURN and self.releasable:
            _, connection, data, since_ms = held.popleft()
            self._give(connection, data)
            waits.append(now_ms - since_ms)
        return _RELEASED_IN_TURN // 8, waits

    # --- connections --------------------------------------------------------------------------------------------------

    def send(self, connection: PeerConnection, data: bytes | None, now_ms: int) -> None:
        """Queue a packet. None: close the connection behind the queued packets."""
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
        """Return connections with something to send, or to be closed. Each is returned once, until there is more for
        it."""
        found = list(islice(self._ready, most))
        for connection in found:
            del self._ready[connection]
        return found

    def forget(self, connection: PeerConnection) -> None:
        self._ready.pop(connection, None)
