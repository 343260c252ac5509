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
"""An epoch, and the name of its leader."""


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
        called when this node may follow no leader until an operator acts. After calling `on_failure`, this object does
        not connect again.
        on_end: called after each connection.
        """
        self.office: Office | None = None
        """The leader that this node follows or tries to follow; None if there is none."""
        self.follower: Follower | None = None
        self.trouble = ""
        """The last known reason why this node does not follow now; "" if there is none."""
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
        """Whether this node has caught up and receives each new block as soon as the leader makes it."""
        return self.follower is not None and self.follower.live

    def follow(self, office: Office, chosen: int) -> None:
        """Follow this leader, and no other one. chosen: the highest epoch that was known when an operator last chose a
        leader (`SetState.chosen`).
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
        """Ask the leader to take this node out of the in-sync set, and do not connect again."""
        self._leaving = True
        if self.follower is not None:
            self.follower.leave(why)

    def stop(self) -> None:
        """Stop following. Work that is under way may continue for some time; `ended` waits for its end."""
        self.office = None
        follower, self.follower = self.follower, None
        if follower is not None:
            follower.stop()

    async def ended(self) -> None:
        """Wait until all work of following has ended. After `stop`, a Follower may still be cutting logs or writing the
        node's file.
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
        """Follow until the connection has ended. If this node may follow no leader any more, return the reason. Return
        None if the caller should connect again.
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
