"""The sessions of clients: ids, passwords, granted time-outs, and expiry times.

The code behaves like SessionTrackerImpl, ExpiryQueue and ZooKeeperServer.generatePasswd in ZooKeeper 3.9.5. Passwords
are computed as in Apache's server. Anybody who knows a session's id can compute its password, so a password does not
prove who the client is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .connections import PeerConnection

__all__ = ["PASSWORD_BYTES", "OpenSession", "Sessions", "password_of"]

PASSWORD_BYTES = 16
_PASSWORD_SEED = 0xB3415C00
_SERVER = 1 << 56
"""The first eight of the 64 bits of every session id: the number 1, followed by zeros. Apache's server uses the same
eight bits if it has no number in an ensemble.
"""


def password_of(id_: int) -> bytes:
    """Return the password of a session: the sixteen bytes that java.util.Random makes from the id."""
    state = ((id_ ^ _PASSWORD_SEED) ^ 0x5DEECE66D) % 2**48
    password = b""
    for _ in range(4):
        state = (state * 0x5DEECE66D + 0xB) % 2**48
        password += (state >> 16).to_bytes(4, "little")
    return password


class OpenSession:
    """A client's session. timeout_ms: the time-out that was granted last, which determines when the session expires.
    The log contains only the time-out that was granted when the session began, and not a time-out that the client gets
    at a reconnection.
    """

    __slots__ = ("closing", "connection", "expiry_ms", "id", "timeout_ms")

    def __init__(self, id_: int, timeout_ms: int) -> None:
        self.id = id_
        self.timeout_ms = timeout_ms
        self.connection: PeerConnection | None = None
        self.closing = False
        self.expiry_ms = 0


class Sessions:
    """All sessions of the server. The sessions are sorted into buckets by their expiry time; all sessions that expire
    in the same tick are in one bucket. Times are in ms of a clock that never goes back.
    """

    def __init__(self, tick_ms: int, longest_ms: int) -> None:
        self.by_id: dict[int, OpenSession] = {}
        self.shortest_ms = 2 * tick_ms
        self.longest_ms = longest_ms
        self.tick_ms = tick_ms
        self.last_id = 0
        self._buckets: dict[int, dict[OpenSession, None]] = {}

    def granted(self, wanted_ms: int) -> int:
        """Return the time-out that a session gets if it requests `wanted_ms`."""
        return max(self.shortest_ms, min(wanted_ms, self.longest_ms))

    def create(self, timeout_ms: int, now_ms: int, unix_ms: int) -> OpenSession:
        """Create a session with an id that no other session has had before."""
        session = OpenSession(max(self.last_id + 1, _SERVER | (unix_ms << 16) % _SERVER), timeout_ms)
        self.add(session, now_ms)
        return session

    def add(self, session: OpenSession, now_ms: int) -> None:
        """Add a session object: a new session from `create`, or a session that was restored from the log."""
        self.by_id[session.id] = session
        self.last_id = max(self.last_id, session.id)
        self.touch(session, now_ms)

    def touch(self, session: OpenSession, now_ms: int) -> None:
        """Record that the session's client has sent something now."""
        expiry_ms = self._rounded(now_ms + session.timeout_ms)
        if expiry_ms != session.expiry_ms:
            self._leave_bucket(session)
            session.expiry_ms = expiry_ms
            self._buckets.setdefault(expiry_ms, {})[session] = None

    def _rounded(self, time_ms: int) -> int:
        return (time_ms // self.tick_ms + 1) * self.tick_ms

    def _leave_bucket(self, session: OpenSession) -> None:
        if bucket := self._buckets.get(session.expiry_ms):
            bucket.pop(session, None)
            if not bucket:
                del self._buckets[session.expiry_ms]

    def remove(self, session: OpenSession) -> None:
        """Remove a session that has ended."""
        del self.by_id[session.id]
        self._leave_bucket(session)

    def expired(self, now_ms: int) -> list[OpenSession]:
        """Return the sessions that have expired, in the order of their expiry times. Each session is returned only
        once.
        """
        found: list[OpenSession] = []
        for expiry_ms in sorted(each for each in self._buckets if each <= now_ms):
            found += self._buckets.pop(expiry_ms)
        return found

    def buckets(self) -> Iterator[tuple[int, list[OpenSession]]]:
        """Yield the expiry times of the buckets in order, each with the sessions of its bucket."""
        for expiry_ms in sorted(self._buckets):
            yield expiry_ms, list(self._buckets[expiry_ms])
