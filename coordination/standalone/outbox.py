"""Queue the packets to clients and the log entries. If a packet was made after a log record, it is sent only when this
record is on the disk.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import NamedTuple

from .connections import PeerConnection

__all__ = ["LogBatch", "Outbox"]

MOST_UNSENT_BYTES = 64 * 1024 * 1024
"""If more than this number of bytes wait to be sent to one client, the server closes the client's connection.
"""

_RELEASED_IN_TURN = 128
_ENTRIES_IN_PART = 512


class LogBatch(NamedTuple):
    """The log entries of one or more complete writes. The caller joins the entries to one log record. last: zxid of the
    last write. position: the number that the caller must pass to `Outbox.synced` when these entries are on the disk.
    """

    entries: list[bytes]
    last: int
    position: int


class Outbox:
    """The outgoing packets of all connections. An Outbox must be used by one thread only.

    A position in the log is the number of writes since the server's start. keeps: whether the server writes a log;
    without a log no packet waits for the disk. entries: the log entries of the running write that `pack` has not joined
    yet.
    """

    def __init__(self, keeps: bool) -> None:
        self.entries: list[bytes] = []
        self.sent = 0
        """Number of packets that were sent to clients since the server's start."""
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
        """Number of packets that are held back until a log record is on the disk."""
        return len(self._held)

    # --- the log ------------------------------------------------------------------------------------------------------

    def begin_write(self) -> None:
        """Begin a write. Packets that are made from now on are not sent until the log entries of this write are on the
        disk.
        """
        self._position += self._keeps

    def pack(self) -> None:
        """Join the log entries that the running write has made so far, if there are at least 512 of them. A long write
        calls this method repeatedly, because joining all entries of the write only at its end would delay other
        connections too long.
        """
        if len(self.entries) >= _ENTRIES_IN_PART:
            self._parts.append(b"".join(self.entries))
            self.entries.clear()

    def commit(self, zxid: int) -> None:
        """Complete the running write. From now on `take_log` returns its entries, so that the caller can write them to
        the log.
        """
        if self._keeps:
            self._log += self._parts
            self._log += self.entries
        self._committed = zxid, self._position
        self._parts.clear()
        self.entries.clear()

    def take_log(self) -> LogBatch | None:
        """Return the entries of all writes since the last call, or None if there was no write."""
        zxid, position = self._committed
        if position == self._taken:
            return None
        self._taken = position
        entries, self._log = self._log, []
        return LogBatch(entries, zxid, position)

    def synced(self, position: int) -> None:
        """Record that all log batches up to this position are on the disk, so that `release` can send the packets that
        waited for these batches.
        """
        self._synced = position

    @property
    def releasable(self) -> bool:
        """Whether a packet that waited for the disk can be sent now."""
        return bool(self._held) and self._held[0][0] <= self._synced

    def release(self, now_ms: int) -> tuple[int, list[int]]:
        """Send some of the packets that waited for the disk. Return two values: the cost of the call, counted in simple
        requests, and a list with the time in ms that each sent packet has waited.
        """
        held, waits = self._held, list[int]()
        while len(waits) < _RELEASED_IN_TURN and self.releasable:
            _, connection, data, since_ms = held.popleft()
            self._give(connection, data)
            waits.append(now_ms - since_ms)
        return _RELEASED_IN_TURN // 8, waits

    # --- connections --------------------------------------------------------------------------------------------------

    def send(self, connection: PeerConnection, data: bytes | None, now_ms: int) -> None:
        """Queue `data` as a packet for the connection. If `data` is None, or if too many bytes already wait to be sent
        to the client, close the connection after the packets that are queued already.
        """
        if connection.closed or connection.finished:
            return
        if data is not None:
            connection.unsent += len(data)
            if connection.unsent > MOST_UNSENT_BYTES + len(data):
                data = None  # it does not read; when it is back, it sets its watches again
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
        """Return up to `most` connections that have something to send, or must be closed. A connection that was
        returned once is returned again only after more packets were queued for it.
        """
        found = list(islice(self._ready, most))
        for connection in found:
            del self._ready[connection]
        return found

    def forget(self, connection: PeerConnection) -> None:
        self._ready.pop(connection, None)
