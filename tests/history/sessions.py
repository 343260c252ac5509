"""Ending a session of another process on the server, as if its time had run out.

A session may be taken over, and closed, by whoever knows its id and its password. The id is the owner of any of its
ephemeral nodes; the password is what ZooKeeper's server computes from it (ZooKeeperServer.generatePasswd: the first
16 bytes of java.util.Random with the id and a constant as its seed).
"""

from __future__ import annotations

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

__all__ = ["end_session", "password_of"]

_SECRET = 0xB3415C00
_MASK = (1 << 48) - 1
_SECONDS = 5.0


def password_of(session_id: int) -> bytes:
    """The password of a session of ZooKeeper 3.5 and later."""
    state = ((session_id ^ _SECRET) ^ 0x5DEECE66D) & _MASK
    password = b""
    for _ in range(4):
        state = (state * 0x5DEECE66D + 0xB) & _MASK
        password += (state >> 16).to_bytes(4, "little")
    return password


def end_session(connect: str, session_id: int) -> bool:
    """Whether the server has ended it; False if it was over, or ZooKeeper did not answer in time."""
    thief = KazooClient(connect, client_id=(session_id, password_of(session_id)), timeout=_SECONDS)
    try:
        thief.start(_SECONDS)
        took_over = thief.client_id is not None and thief.client_id[0] == session_id
        thief.stop()
    except (KazooException, KazooTimeoutError):
        return False
    finally:
        thief.stop()
        thief.close()
    return bool(took_over)
