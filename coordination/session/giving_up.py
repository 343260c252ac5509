"""When a client gives up its session because no server accepts it any more.

A ZooKeeper closes the connection of a client that has seen a later transaction than its own last one: the client is to
ask a server that has caught up. If ZooKeeper came back empty, or from an older copy, there is no such server.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from .diagnosis import ServerFinding

__all__ = ["Refusals", "is_set_back"]

Server = tuple[str, int]
"""Host and port, as listed."""


class Refusals:
    """The servers that, since the last connection, accepted a connection and closed it without an answer to the
    session.

    clock: in seconds, one that goes on while the machine is suspended. One thread.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: float | None = None
        self._refusing: set[Server] = set()

    def connected(self) -> None:
        """Record that the session goes on, or that there is a new one."""
        self._since = None
        self._refusing.clear()

    def unreachable(self, server: Server) -> None:
        """Record that the server could not be reached, or was silent."""
        self._begin()
        self._refusing.discard(server)

    def refused(self, server: Server) -> None:
        """Record that the server accepted the connection and closed it."""
        self._begin()
        self._refusing.add(server)

    def lasted(self, seconds: float) -> bool:
        """Whether the tries without a session began at least `seconds` ago."""
        return self._since is not None and self._clock() - self._since >= seconds

    def by_all(self, servers: Collection[Server]) -> bool:
        """Whether each server refused at its last try."""
        return self._refusing.issuperset(servers)

    def _begin(self) -> None:
        if self._since is None:
            self._since = self._clock()


def is_set_back(seen: int, findings: Sequence[ServerFinding], *, refused_by_all: bool) -> bool:
    """Whether ZooKeeper has lost transactions up to `seen`, the zxid of the last one that the client knows of.

    A leader, or a server without an ensemble, with a lower zxid proves it: all committed transactions pass it.
    Otherwise every server must have refused the session, and none may report another reason: it waits for a majority,
    or it has reached `seen`.
    """
    if any(each.waits for each in findings):
        return False
    known = [each.zxid for each in findings if each.zxid is not None]
    if any(zxid >= seen for zxid in known):
        return False
    return refused_by_all or any(each.decides for each in findings)
