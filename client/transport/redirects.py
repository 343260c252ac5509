"""Remember which node leads a broker set according to the other nodes. They know it earlier than ZooKeeper's view,
which is decisive."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from metaq.protocol.errors import ConfigError, NotLeader

from .metadata import parse_address
from .wire import Endpoint

__all__ = ["Redirects"]

TRUSTED_SECONDS = 5.0
"""Longest time in seconds for which a node's answer is used, while the node can be asked again."""

_JUMPS = 3
"""Number of redirects followed at once, one after the other; nodes that point at each other are asked after pauses."""

_MIN_PAUSE = 0.01
MAX_PAUSE_SECONDS = 0.2
_PAUSE_SHARE = 0.25
"""Pause before a node is asked again, as a share of the time that the set has been without a leader."""

_QUIET_SECONDS = 1.0
"""Seconds without a refusal after which the next one begins a new search for the leader."""


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
        # former leaders, and until when nodes that still name them are not believed
        self._deposed: dict[Endpoint, float] = {}

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
        """Take the answer `error` of a node. Return the seconds to wait before the request is sent again."""
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
        self._targets.pop(target, None)  # the target's earlier answer is older
        if known is not None and known.target == target:
            return 0.0  # other requests were in flight, too: the next one goes to the target
        trouble.jumps += 1
        return 0.0 if trouble.jumps <= _JUMPS else pause

    def leader(self, error: NotLeader) -> Endpoint | None:
        """Return the address of the leader that the node has named; None if the node does not know it."""
        return _endpoint(error.url)

    def moved(self, former: Collection[Endpoint], leader: Endpoint, now: float) -> None:
        """Note that ZooKeeper shows another leader than before. This is newer than the nodes' earlier answers. For a
        while it also overrides their next ones: a newly elected node may still name the former leader, which may
        hang."""
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
