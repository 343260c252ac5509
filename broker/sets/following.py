"""Follow one leader after another, and connect again after a connection breaks. The code runs on the reactor thread."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import deferLater

from metaq.coordination.runtime.backoff import Backoff
from metaq.protocol.errors import MetaqError, ReplicaDiverged

from . import tuning
from .follower import Follower, LeaderGone

__all__ = ["FollowedLeader", "Office"]

_log = logging.getLogger(__name__)

Office = tuple[int, str]
"""An epoch, and the name of the node that leads in this epoch."""


class FollowedLeader:
    """Follows at most one leader at a time."""

    def __init__(
        self,
        reactor: Any,
        make: Callable[[], Follower],
        address: Callable[[str], tuple[str, int] | None],
        *,
        on_gone: Callable[[Office], None],
        on_failure: Callable[[MetaqError], None],
        on_end: Callable[[], None],
    ) -> None:
        """make: returns a new Follower for one connection. address: returns the host and port of the named node, or
        None if they are unknown. on_gone: called with the office of a leader whose process has ended. on_failure:
        called with the error when this node cannot follow any leader: its disk has failed or is full, or its data
        differ from the leader's data. After this call, the object does not connect again by itself. on_end: called each
        time a connection, or an attempt to connect, has ended.
        """
        self.office: Office | None = None
        """The leader that this node follows or tries to follow, or None if there is none."""
        self.follower: Follower | None = None
        self.trouble = ""
        """The last error because of which this node does not follow the leader in `office`, or "" if there was none."""
        self._reactor = reactor
        self._make = make
        self._address = address
        self._on_gone = on_gone
        self._on_failure = on_failure
        self._on_end = on_end
        self._leaving = False
        self._ended: list[Deferred[None]] | None = None  # callers that wait for the end; None while not following

    @property
    def live(self) -> bool:
        """Whether this node has caught up with its leader and receives each new block as soon as the leader makes
        it.
        """
        return self.follower is not None and self.follower.live

    def follow(self, office: Office, chosen: int) -> None:
        """Begin to follow the leader `office`, and stop following any other leader. chosen: the highest epoch that was
        known when an operator last chose a leader by hand (`SetState.chosen`).
        """
        if self.office == office:
            return
        self.stop()
        self.office = office
        self.trouble = ""
        ensureDeferred(self._begin(office, chosen)).addErrback(
            lambda failure: _log.error("following has ended: %s", failure.getTraceback())
        )

    def leave(self, why: str) -> None:
        """Ask the leader to remove this node from the in-sync set, and do not connect to any leader when the present
        connection has ended. why: the reason, for the leader's log.
        """
        self._leaving = True
        if self.follower is not None:
            self.follower.leave(why)

    def stop(self) -> None:
        """Stop following. The Follower's work that has begun in threads can continue for some time after this call;
        `ended` waits for its end.
        """
        self.office = None
        follower, self.follower = self.follower, None
        if follower is not None:
            follower.stop()

    async def ended(self) -> None:
        """Wait until the Follower that `stop` has stopped does nothing more. Until then it can still be cutting logs or
        writing the node's file.
        """
        while self._ended is not None:
            deferred: Deferred[None] = Deferred()
            self._ended.append(deferred)
            await deferred

    async def _begin(self, office: Office, chosen: int) -> None:
        await self.ended()
        if self.office != office or self._ended is not None:
            return
        self._ended = []
        try:
            await self._keep_following(office, chosen)
        finally:
            ended, self._ended = self._ended, None
            for deferred in ended:
                deferred.callback(None)

    async def _keep_following(self, office: Office, chosen: int) -> None:
        pauses = Backoff(*tuning.RECONNECT_SECONDS)
        while self.office == office and not self._leaving:
            address = self._address(office[1])
            if address is not None:
                follower = self.follower = self._make()
                failure = await self._follow_once(follower, office, address, chosen)
                if failure is not None:
                    self._on_failure(failure)
                    return
                self._on_end()
                if follower.live:
                    pauses.reset()
                    continue
            if self.office == office:
                await deferLater(self._reactor, pauses.next())

    async def _follow_once(
        self, follower: Follower, office: Office, address: tuple[str, int], chosen: int
    ) -> MetaqError | None:
        """Follow the leader `office` over one connection until the connection has ended. Return None if the caller
        should connect again. Return the error if this node can no longer follow any leader: its data differ from the
        leader's data, or its disk has failed or is full.
        """
        try:
            await follower.run(*address, office[0], chosen)
        except LeaderGone:
            if self.office == office:
                self._on_gone(office)
        except ReplicaDiverged as error:
            return error
        except MetaqError as error:
            if str(error) != self.trouble and self.office == office:
                self.trouble = str(error)
                _log.warning("does not follow %s now: %s", office[1], error)
        except Exception:  # a bug must not stop following for good
            _log.exception("following %s has failed", office[1])
        return follower.failure
