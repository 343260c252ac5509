"""Where a broker set's leader is according to its other nodes: faster than ZooKeeper's view, which has the last
word."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from metaq.protocol.errors import ConfigError, NotLeader

from .metadata import parse_address
from .wire import Endpoint

__all__ = ["Redirects"]

TRUSTED_SECONDS = 5.0
"""While a node can be asked again, its answer is not used for longer than this."""

_JUMPS = 3
"""Redirects followed at once, one after the other; nodes that point at each other are asked after pauses."""

_MIN_PAUSE = 0.01
MAX_PAUSE_SECONDS = 0.2
_PAUSE_SHARE = 0.25
"""Pause before a node is asked again, as a share of the time that the set has been without a leader."""

_QUIET_SECONDS = 1.0
"""After this long without a refusal, the next one begins a new trouble."""


class _Redirect(NamedTuple):
    target: Endpoint
    until: float


class _Trouble:
    """A set that has no leader, or whose leader is being looked for."""

    def __init__(self, now: float) -> None:
        self.since = self.last = now
        self.jumps = 0


class Redirects:
    """The node to ask instead, by the node that was asked. No I/O. Any thread; each change is a single assignment. now:
    monotonic seconds."""

    def __init__(self) -> None:
        self._targets: dict[Endpoint, _Redirect] = {}
        self._troubles: dict[int, _Trouble] = {}
        self._deposed: dict[Endpoint, float] = {}  # until when nodes that still name it are not believed

    def target(self, endpoint: Endpoint, down: Collection[Endpoint], now: float) -> Endpoint:
        """Return the node to ask instead of the node at `endpoint`, which may be the same. down: nodes that cannot be
        reached."""
        found = self._targets.get(endpoint)
        if found is None:
            return endpoint
        expired = now >= found.until and endpoint not in down
        if expired or found.target in down:
            self._targets.pop(endpoint, None)
            return endpoint
        return found.target

    def learn(self, error: NotLeader, now: float) -> float:
        """A node has answered with `error`. Return the seconds to wait before the request is sent again."""
        trouble = self._troubles.get(error.broker_id)
        if trouble is None or now - trouble.last > _QUIET_SECONDS:
            trouble = self._troubles[error.broker_id] = _Trouble(now)
        trouble.last = now
        pause = min(MAX_PAUSE_SECONDS, max(_MIN_PAUSE, (now - trouble.since) * _PAUSE_SHARE))
        asked, target = _endpoint(error.node), _endpoint(error.url)
        if asked is None or target is None or asked == target or self._deposed.get(target, now) > now:
            return pause
        known = self._targets.get(asked)
        self._targets[asked] = _Redirect(target, now + TRUSTED_SECONDS)
        self._targets.pop(target, None)  # its earlier answer is older
        if known is not None and known.target == target:
            return 0.0  # other requests were in flight: the next one goes to the target
        trouble.jumps += 1
        return 0.0 if trouble.jumps <= _JUMPS else pause

    def leader(self, error: NotLeader) -> Endpoint | None:
        """The address of the leader that the node has named; None: it does not know."""
        return _endpoint(error.url)

    def moved(self, former: Collection[Endpoint], leader: Endpoint, now: float) -> None:
        """ZooKeeper shows another leader than before. That is newer than the nodes' earlier answers. For a while it is
        also newer than their next ones: a newly elected node may still name the former leader, which may hang."""
        for endpoint in former:
            self._forget(endpoint)
            self._deposed[endpoint] = now + TRUSTED_SECONDS
        self._deposed.pop(leader, None)
        self._forget(leader)

    def _forget(self, endpoint: Endpoint) -> None:
        self._targets.pop(endpoint, None)
        for asked, redirect in list(self._targets.items()):
            if redirect.target == endpoint:
                self._targets.pop(asked, None)


def _endpoint(address: str) -> Endpoint | None:
    """Return the address; None if it is empty, or if no client could use it."""
    try:
        return parse_address(address) if address else None
    except ConfigError:
        return None
