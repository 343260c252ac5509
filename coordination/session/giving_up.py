"""Decide when a client gives up its session because no server will accept it any more.

A ZooKeeper server closes the connection of a client that has seen a later transaction than the server's own last
transaction, so that the client asks a server that has caught up. If ZooKeeper came back empty or was restored from an
older copy, there is no such server.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from .diagnosis import ServerFinding

__all__ = ["Refusals", "is_set_back"]

Server = tuple[str, int]
"""Host and port, as they are listed in the connect string."""


class Refusals:
    """The servers that have refused the session since it was connected last: they accepted a connection, and closed it
    without an answer to the session.

    clock: returns seconds; it must continue while the machine is suspended. Only one thread may use this.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: float | None = None
        self._refusing: set[Server] = set()

    def connected(self) -> None:
        """Record that the session continues, or that there is a new session."""
        self._since = None
        self._refusing.clear()

    def unreachable(self, server: Server) -> None:
        """Record that the server could not be reached, or did not answer."""
        self._begin()
        self._refusing.discard(server)

    def refused(self, server: Server) -> None:
        """Record that the server accepted the connection and closed it."""
        self._begin()
        self._refusing.add(server)

    def lasted(self, seconds: float) -> bool:
        """Return whether the failing tries to connect began at least `seconds` ago."""
        return self._since is not None and self._clock() - self._since >= seconds

    def by_all(self, servers: Collection[Server]) -> bool:
        """Return whether each of these servers refused the session at the last try."""
        return self._refusing.issuperset(servers)

    def _begin(self) -> None:
        if self._since is None:
            self._since = self._clock()


def is_set_back(seen: int, findings: Sequence[ServerFinding], *, refused_by_all: bool) -> bool:
    """Return whether ZooKeeper was set back, so that it has lost the transaction `seen`, the zxid of the last
    transaction that the client knows.

    A lower zxid of the leader, or of a server without an ensemble, proves this, because such a server has all committed
    transactions. Otherwise every server must have refused the session, and no server may report another reason: that it
    waits for a majority, or that it has reached `seen`.
    """
    if any(each.waits for each in findings):
        return False
    known = [each.zxid for each in findings if each.zxid is not None]
    if any(zxid >= seen for zxid in known):
        return False
    return refused_by_all or any(each.decides for each in findings)
