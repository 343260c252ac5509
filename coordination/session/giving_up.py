"""Decide when a client gives up its session because no server will accept it any more.

A server closes a client's connection if the client has seen a later transaction than the server's own last transaction.
Usually such a server only lags behind its ensemble, and the client then tries another server that has this transaction.
But if ZooKeeper came back empty or was restored from an older copy, no server has the transaction, and all servers
refuse the session for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from .diagnosis import ServerFinding

__all__ = ["Refusals", "is_set_back"]

Server = tuple[str, int]
"""Host and port of a server, as they are written in the connect string."""


class Refusals:
    """Remembers which servers have refused the session since the session last had a connection. A server refuses a
    session as
    follows: it accepts a connection, and closes the connection without an answer to the request for the session.

    clock: a function that returns seconds; the clock must continue while the machine is suspended. An object of this
    class may be used by one thread only.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: float | None = None
        self._refusing: set[Server] = set()

    def connected(self) -> None:
        """Record that a server has accepted the session, or that a new session begins, and forget all recorded
        refusals.
        """
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
        """Return whether the session has been without a connection for at least `seconds`, counted from the first
        failed attempt to connect.
        """
        return self._since is not None and self._clock() - self._since >= seconds

    def by_all(self, servers: Collection[Server]) -> bool:
        """Return whether each of these servers refused the session when it was tried last."""
        return self._refusing.issuperset(servers)

    def _begin(self) -> None:
        if self._since is None:
            self._since = self._clock()


def is_set_back(seen: int, findings: Sequence[ServerFinding], *, refused_by_all: bool) -> bool:
    """Return whether ZooKeeper was set back and has lost the last transaction that the client has seen. seen: the zxid
    of this transaction. findings: the state of each server.

    The set-back is proved if the last zxid of the leader, or of a server without an ensemble, is lower than `seen`,
    because a leader or a single server has all committed transactions. Without such a proof, the result is True only if
    every server has refused the session. Even with such a proof or with all these refusals, the result is False if any
    server still waits for a majority of its ensemble, or reports a zxid of `seen` or higher.
    """
    if any(each.waits for each in findings):
        return False
    known = [each.zxid for each in findings if each.zxid is not None]
    if any(zxid >= seen for zxid in known):
        return False
    return refused_by_all or any(each.decides for each in findings)
