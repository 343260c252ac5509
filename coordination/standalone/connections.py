"""The connection of one client: the bytes received from the client, and the bytes to send to it."""

from __future__ import annotations

import struct

from .acls import Identity
from .codes import PACKET_LIMIT
from .jute import Malformed
from .sessions import OpenSession

__all__ = ["PeerConnection"]

_LENGTH = struct.Struct("!i")


class PeerConnection:
    """A client's connection. The server makes a PeerConnection for each client (`StandaloneServer.connected`) and adds
    bytes to `out`. The code that has the socket sends these bytes.

    ends: true if the server has decided to close the connection as soon as all bytes that it has made for this client
    so far are sent. Some of these bytes may not be in `out` yet, because they are held back until a log record is on
    the disk. If `ends` is true, bytes received later are ignored.
    finished: true if `ends` is true and all these bytes are in `out`, so that the connection must be closed as soon as
    `out` is sent.
    """

    __slots__ = (
        *("address", "closed", "ends", "established_ms", "finished", "host", "identities", "in_line"),
        *("last_operation", "last_xid", "last_zxid", "opened", "out", "received", "sent", "session", "unsent", "waits"),
        *("_at", "_buffer"),
    )

    def __init__(self, host: str, port: int, unix_ms: int) -> None:
        self.host = host
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.identities: dict[Identity, None] = {("ip", host): None}
        self.session: OpenSession | None = None
        self.opened = False
        self.ends = False
        self.finished = False
        self.closed = False
        self.in_line = False
        self.waits = False
        """True while the server processes no further request of this connection, because too many bytes wait to be sent
        to the client.
        """
        self.out: list[bytes] = []
        self.unsent = 0
        """Number of bytes that the server has made for this client, and that `StandaloneServer.take` has not yet
        returned to the code that sends them.
        """
        self.established_ms = unix_ms
        self.received = self.sent = 0
        self.last_operation = "NA"
        self.last_xid = self.last_zxid = -1
        self._buffer = bytearray()
        self._at = 0

    @property
    def buffered(self) -> int:
        """Number of received bytes that are not processed yet."""
        return len(self._buffer) - self._at

    @property
    def whole(self) -> bool:
        """Whether the next unprocessed request has been received completely, or has an invalid length and so can never
        become valid.
        """
        start = self._at + _LENGTH.size
        if start > len(self._buffer):
            return False
        length: int = _LENGTH.unpack_from(self._buffer, self._at)[0]
        return not 0 <= length <= PACKET_LIMIT or start + length <= len(self._buffer)

    def append(self, data: bytes) -> None:
        """Add bytes that were received from the client."""
        if self._at:
            del self._buffer[: self._at]
            self._at = 0
        self._buffer += data

    def word(self) -> bytes | None:
        """Return the first four received bytes, or None if fewer than four bytes have been received."""
        return bytes(self._buffer[:4]) if len(self._buffer) >= 4 else None

    def frame(self) -> bytes | None:
        """Return the next request without its length field, or None if the request has not been received completely.
        Raises Malformed if the length is invalid.
        """
        start = self._at + 4
        if start > len(self._buffer):
            return None
        length: int = _LENGTH.unpack_from(self._buffer, self._at)[0]
        if not 0 <= length <= PACKET_LIMIT:
            raise Malformed(f"a packet of {length} bytes")
        end = start + length
        if end > len(self._buffer):
            return None
        self._at = end
        return bytes(self._buffer[start:end])

    def take(self) -> list[bytes]:
        """Return the bytes to send now, and remove them from `out`. Only the server itself may call this method; other
        code calls `StandaloneServer.take`.
        """
        out, self.out = self.out, []
        self.unsent -= sum(map(len, out))
        return out
