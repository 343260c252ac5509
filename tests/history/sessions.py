"""Ending a session of another process on the server, as if its time had run out.

A session may be taken over, and closed, by whoever knows its id and its password. The id is the owner of any of its
ephemeral nodes; the password is what ZooKeeper's server computes from it (ZooKeeperServer.generatePasswd: the first
16 bytes of java.util.Random with the id and a constant as its seed).

Its client notices the takeover and may come back in the moment between that and the end, at the server that is told to
end it. That server then keeps a connection whose session is over: it answers reads and pings, and refuses writes. A
session whose time has run out leaves no such connection. So each server is asked for the session once more, which
ends any connection with it there.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from contextlib import suppress

__all__ = ["end_session", "password_of"]

_SECRET = 0xB3415C00
_MASK = (1 << 48) - 1
_SECONDS = 5.0
_TRIES = 50
_TIMEOUT_MS = 6000
_CONNECT = struct.Struct(">iqiqi16s?")
"""Protocol version, last zxid seen, session timeout, session id, length and bytes of the password, read-only."""
_ANSWER = struct.Struct(">iiq")
"""Protocol version, session timeout (0: there is no such session), session id."""
_CLOSE = struct.pack(">iii", 8, 1, -11)


def password_of(session_id: int) -> bytes:
    """The password of a session of ZooKeeper 3.5 and later."""
    state = ((session_id ^ _SECRET) ^ 0x5DEECE66D) & _MASK
    password = b""
    for _ in range(4):
        state = (state * 0x5DEECE66D + 0xB) & _MASK
        password += (state >> 16).to_bytes(4, "little")
    return password


def end_session(servers: Sequence[tuple[str, int]], session_id: int) -> bool:
    """Whether it was there and is over now on all servers of an ensemble, each (host, port). Raises OSError."""
    with socket.create_connection(servers[0], timeout=_SECONDS) as thief:
        if not _take_over(thief, session_id):
            return False
        thief.sendall(_CLOSE)
        with suppress(ConnectionError):
            while thief.recv(4096):
                pass
    return all(_is_over(server, session_id) for server in servers)


def _is_over(server: tuple[str, int], session_id: int) -> bool:
    """Ask until the server has heard of the end; its client, which comes back meanwhile, cuts our connection."""
    for _ in range(_TRIES):
        with socket.create_connection(server, timeout=_SECONDS) as asking, suppress(ConnectionError):
            if not _take_over(asking, session_id):
                return True
    return False


def _take_over(connection: socket.socket, session_id: int) -> bool:
    """Whether the server knows the session, which is this connection's then. Raises ConnectionError if it was cut."""
    signed = session_id - (1 << 64) if session_id >= 1 << 63 else session_id
    password = password_of(session_id)
    request = _CONNECT.pack(0, 0, _TIMEOUT_MS, signed, len(password), password, False)
    connection.sendall(struct.pack(">i", len(request)) + request)
    answer = b""
    while len(answer) < 4 + _ANSWER.size:
        part = connection.recv(4096)
        if not part:
            raise ConnectionError("the server closed the connection")
        answer += part
    _, timeout, _ = _ANSWER.unpack_from(answer, 4)
    return bool(timeout > 0)
