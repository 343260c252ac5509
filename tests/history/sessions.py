"""End a session of another process on the server, as if it had expired.

Any client that knows the id and the password of a session may take it over, and close it. The id is the owner of any of
its ephemeral nodes; the password is what ZooKeeper's server computes from the id (ZooKeeperServer.generatePasswd: the
first 16 bytes of java.util.Random with the id and a constant as its seed).

The session's client notices the takeover and may come back, before the end, at the server that is about to end the
session. That server then keeps a connection whose session is over: it answers reads and pings, and refuses writes. An
expired session leaves no such connection. So each server is asked for the session once more, which ends any connection
with it there.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.zookeeper_fuzz.jute import OpCode
from tests.zookeeper_fuzz.operations import Operation, attaching
from tests.zookeeper_fuzz.side import Session, Side
from tests.zookeeper_fuzz.wires import socket_wires

__all__ = ["end_session", "password_of"]

_SECRET = 0xB3415C00
_MASK = (1 << 48) - 1
_TRIES = 50
_TIMEOUT_MS = 6000


def password_of(session_id: int) -> bytes:
    """Return the password of a session of ZooKeeper 3.5 and later."""
    state = ((session_id ^ _SECRET) ^ 0x5DEECE66D) & _MASK
    password = b""
    for _ in range(4):
        state = (state * 0x5DEECE66D + 0xB) & _MASK
        password += (state >> 16).to_bytes(4, "little")
    return password


def end_session(servers: Sequence[tuple[str, int]], session_id: int) -> bool:
    """End a session on all servers of an ensemble, each (host, port). Return whether it existed and is over now. Raises
    OSError."""
    signed = session_id - (1 << 64) if session_id >= 1 << 63 else session_id
    taken = _taken_over(servers[0], signed, OpCode.CLOSE_SESSION)
    if taken == "closed":
        raise ConnectionError("the server closed the connection")
    return taken == "connected" and all(_is_over(server, signed) for server in servers)


def _is_over(server: tuple[str, int], session_id: int) -> bool:
    """Ask until the server knows of the end. The session's client, which comes back meanwhile, may cut this
    connection."""
    return any(_taken_over(server, session_id, OpCode.ABANDON) == "expired" for _ in range(_TRIES))


def _taken_over(server: tuple[str, int], session_id: int, then: int) -> str:
    """Take over a session; return `connected`, `expired` or `closed`. then: the opcode to send once this connection has
    the session. Raises OSError."""
    side = Side(socket_wires(server), "", ())
    side.sessions.append(Session(session_id, password_of(session_id)))
    for operation in (attaching(0, 0, _TIMEOUT_MS), Operation(0, then)):
        side.send(operation)
        items = side.receive(operation)
        if operation.opcode == OpCode.CONNECT:
            taken = str(items[0].plain[0])
    return taken
