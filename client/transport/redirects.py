"""Remember the leader of a broker set that the set's other nodes have named: a node that is not the leader refuses a
request, and may name the leader in its answer. After a change, a client often learns of the new leader from such an
answer before it sees the leader in ZooKeeper. As soon as ZooKeeper shows a new leader, the client uses this leader, and
forgets the earlier answers.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from metaq.protocol.errors import ConfigError, NotLeader

from .metadata import parse_address
from .wire import Endpoint

__all__ = ["Redirects"]

TRUSTED_SECONDS = 5.0
"""If node A has named node B as the leader, the client sends requests for A to B for this number of seconds, and then
asks A again. As long as A cannot be reached, the client goes on sending these requests to B.
"""

_JUMPS = 3
"""A client follows this number of redirects (answers that name another node) one after the other without a pause.
Before each further redirect the client pauses. Otherwise, if two nodes named each other as the leader, the client would
send requests to them as fast as it can.
"""

_MIN_PAUSE = 0.01
MAX_PAUSE_SECONDS = 0.2
_PAUSE_SHARE = 0.25
"""Length of the pause before a further redirect, as a share of the time since the client began to search for the
leader. So the pauses grow.
"""

_QUIET_SECONDS = 1.0
"""A search for the leader counts as finished if no node of the set has refused a request for this number of seconds;
the next refusal begins a new search.
"""


class _Redirect(NamedTuple):
    target: Endpoint
    until: float


class _Trouble:
    """A client's search for the leader of one broker set. since: time (monotonic seconds) of the first refusal by a
    node that does not lead. last: time of the last such refusal. jumps: number of redirects that were followed in this
    search.
    """

    def __init__(self, now: float) -> None:
        self.since = self.last = now
        self.jumps = 0


class Redirects:
    """Stores, for each node that has refused a request because it is not the leader, the node that the client must ask
    instead. The class does no I/O. Any thread may call the methods, because each change is a single assignment. now:
    the current time in monotonic seconds.
    """

    def __init__(self, *, follows: bool = True) -> None:
        """follows: whether the client uses the brokers' main ports, whose addresses the answers contain. A client with
        a listener ignores these addresses, and waits until ZooKeeper shows the new leader's listener.
        """
        self._follows = follows
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
        if not self._follows:
            return pause
        known = self._targets.get(asked)
        self._targets[asked] = _Redirect(target, now + TRUSTED_SECONDS)
        self._targets.pop(target, None)  # the target's earlier answer is older
        if known is not None and known.target == target:
            return 0.0  # another request in flight got the same answer: go to the target at once
        trouble.jumps += 1
        return 0.0 if trouble.jumps <= _JUMPS else pause

    def leader(self, error: NotLeader) -> Endpoint | None:
        """Return the address of the leader that the node has named in its answer, or None if the node has named
        none.
        """
        return _endpoint(error.url) if self._follows else None

    def moved(self, former: Collection[Endpoint], leader: Endpoint, now: float) -> None:
        """Record that ZooKeeper shows another leader than before. Forget the earlier answers that name a former leader,
        because ZooKeeper's information is newer. For TRUSTED_SECONDS from now, ignore new answers that name a former
        leader, too: even the new leader may name it for a moment, and if the former leader hangs, a client that follows
        such an answer would wait in vain. former: the addresses of former leaders.
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
