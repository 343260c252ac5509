"""Remember which node leads a broker set. The other nodes of the set name the leader in their answers. A client gets
these answers before it sees the new leader in ZooKeeper. But as soon as ZooKeeper shows a new leader, the client uses
this information and forgets the nodes' earlier answers.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from metaq.protocol.errors import ConfigError, NotLeader

from .metadata import parse_address
from .wire import Endpoint

__all__ = ["Redirects"]

TRUSTED_SECONDS = 5.0
"""A client uses a node's answer, which names the leader, for at most this number of seconds, and then asks the node
again. If the node cannot be reached, the client uses its answer for longer.
"""

_JUMPS = 3
"""Number of redirects that a client follows one after the other without a pause. The client pauses before each further
redirect, because otherwise it would send requests without end if two nodes name each other as the leader.
"""

_MIN_PAUSE = 0.01
MAX_PAUSE_SECONDS = 0.2
_PAUSE_SHARE = 0.25
"""The pause before a client asks a node again grows: it is this share of the time that has passed since the search for
the leader began.
"""

_QUIET_SECONDS = 1.0
"""If no node of a set has refused a request for this number of seconds, the next refusal counts as the first of a new
search for the leader.
"""


class _Redirect(NamedTuple):
    target: Endpoint
    until: float


class _Trouble:
    """A client's search for the leader of one broker set. since: time of the first refusal by a node that does not
    lead. last: time of the last such refusal. jumps: number of redirects that were followed in this search.
    """

    def __init__(self, now: float) -> None:
        self.since = self.last = now
        self.jumps = 0


class Redirects:
    """Stores a substitute for each node that has refused a request: the node that a client must ask instead. The class
    does no I/O. Any thread may call the methods, because each change is a single assignment. now: the current time in
    monotonic seconds.
    """

    def __init__(self) -> None:
        self._targets: dict[Endpoint, _Redirect] = {}
        self._troubles: dict[int, _Trouble] = {}
        # Former leaders, each with the time until which answers that name it are ignored.
        self._deposed: dict[Endpoint, float] = {}

    def target(self, endpoint: Endpoint, down: Collection[Endpoint], now: float) -> Endpoint:
        """Return the address of the node to ask instead of the node at `endpoint`. If no other node is known, return
        `endpoint` itself. down: addresses of nodes that cannot be reached.
        """
        found = self._targets.get(endpoint)
        if found is None:
            return endpoint
        expired = now >= found.until and endpoint not in down
        if expired or found.target in down:
            self._targets.pop(endpoint, None)
            return endpoint
        return found.target

    def learn(self, error: NotLeader, now: float) -> float:
        """Process the answer `error` of a node that does not lead the broker set. The answer may name the leader.
        Return the number of seconds to wait before the request is sent again.
        """
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
            return 0.0  # another request in flight got the same answer: go to the target at once
        trouble.jumps += 1
        return 0.0 if trouble.jumps <= _JUMPS else pause

    def leader(self, error: NotLeader) -> Endpoint | None:
        """Return the address of the leader that the node has named in its answer; None if it has named none."""
        return _endpoint(error.url)

    def moved(self, former: Collection[Endpoint], leader: Endpoint, now: float) -> None:
        """Record that ZooKeeper shows another leader than before. ZooKeeper's information is newer than the nodes'
        earlier answers. For TRUSTED_SECONDS from now, answers that name a former leader are ignored, too. Even the new
        leader may still name the former leader in an answer; if the former leader hangs, a client that followed this
        answer would wait in vain. former: the addresses of former leaders.
        """
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
    """Parse the address of a node. Return None if the text is empty or is not a valid address."""
    try:
        return parse_address(address) if address else None
    except ConfigError:
        return None
