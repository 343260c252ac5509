"""What a node of a broker set tells operators of itself, and the preference of theirs that it carries out."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import ensureDeferred
from twisted.internet.task import LoopingCall
from twisted.python.failure import Failure

from metaq.protocol.errors import MetaqError

from ..broker import Broker
from ..replication.status import NodeStatus, ReplicationStatus
from ..runtime.timers import repeat
from . import tuning
from .member_state import MemberState

if TYPE_CHECKING:
    from .leader import FollowerStatus
    from .node import SetMember

__all__ = ["Preference", "SetReport"]

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5


class Preference:
    """When a leader hands over to the node that operators prefer: no I/O, no clock."""

    def __init__(self) -> None:
        self._node = ""
        self._ready_since: float | None = None
        self._tried_at = float("-inf")

    def due(self, now: float, preferred: str, *, ready: bool) -> bool:
        """Whether to hand over to `preferred` now, monotonic seconds; a True counts as a try.

        ready: this node leads and serves, it is not the preferred one, and that is in sync and live.
        """
        if not ready:
            self._ready_since = None
            return False
        if self._ready_since is None or preferred != self._node:
            self._node, self._ready_since = preferred, now
        if now - max(self._ready_since, self._tried_at) < tuning.PREFERRED_SECONDS:
            return False
        self._tried_at = now
        return True


class SetReport:
    """This node's part in replication, for `stats`, /metrics and operators. Reactor thread; `start` and `stop` once.

    Roles: `leader`, `taking-over` (elected, but not everything it has is committed), `handing-over`, `follower`,
    `joining` (connects, cuts or copies), `candidate`, `waiting` (nothing to follow, or not entitled to stand), and
    `stopped`: only an operator can go on.
    """

    def __init__(self, broker: Broker, member: SetMember) -> None:
        self._broker = broker
        self._member = member
        self._reactor: Any = broker.reactor
        self._preference = Preference()
        self._since: dict[str, tuple[Hashable, int]] = {}  # what is told -> its value, and since when
        self._timer: LoopingCall | None = None

    def start(self) -> None:
        """Note changes, and hand over to a preferred node, from now on."""
        self._timer = repeat(_LOOK_SECONDS, self._look, self._reactor, "the report of a broker set's node")

    def stop(self) -> None:
        """The broker stops."""
        if self._timer is not None:
            self._timer.stop()

    def status(self) -> ReplicationStatus:
        """Of this moment."""
        found, leader = self._member.look(), self._member.leader
        state = found.state
        role = self._role(found)
        connected = role in ("leader", "follower")
        return ReplicationStatus(
            role,
            "" if leader is not None else found.leader_url,
            connected,
            "" if connected else found.error,
            self._noted("", (role, connected)),
            {
                "set": self._broker.config.broker_id,
                "node": self._member.name,
                "epoch": found.epoch,
                "lastEpoch": found.last_epoch,
                "leader": state.leader if state else "",
                "inSync": list(state.in_sync) if state else [],
                "preferred": state.preferred if state else "",
                "bytes": sum(end for _, end, _ in self._broker.store.ends().values()),
                "elections": found.elections,
                "handOvers": found.hand_overs,
            },
            nodes=None if leader is None else [self._node(each) for each in leader.status()],
        )

    def restart(self) -> None:
        """Connect to the leader anew; a stopped node tries once more. A leader goes on."""
        self._member.try_again()

    def under_replicated(self) -> list[str]:
        """Topics of a leader that fewer nodes have in sync than `replicas=` says, or than the set has nodes."""
        leader, config = self._member.leader, self._broker.config
        if leader is None:
            return []
        count = leader.copies
        nodes = len({*self._member.look().present, *leader.core.in_sync, *leader.core.followers})
        return sorted(
            name
            for name in {log.topic for log in self._broker.store.logs()} | config.topics.keys()
            if "*" not in name and count < ((config.topic(name) or config.system).replicas or nodes)
        )

    def _node(self, status: FollowerStatus) -> NodeStatus:
        since = self._noted(status.name, (status.in_sync, status.connected, status.live))
        return NodeStatus(*status, since_ms=since)

    def _noted(self, name: str, value: Hashable) -> int:
        """Since when `name` has this value."""
        found = self._since.get(name)
        if found is None or found[0] != value:
            found = self._since[name] = value, self._broker.now_ms()
        return found[1]

    def _role(self, found: MemberState) -> str:
        leader = self._member.leader
        if self._member.failure is not None:
            return "stopped"
        if leader is not None:
            return "handing-over" if leader.draining else "leader" if found.established else "taking-over"
        if found.live:
            return "follower"
        return "candidate" if found.busy else "joining" if found.following else "waiting"

    def _look(self) -> None:
        status = self.status()
        preferred = str(status.figures["preferred"])
        ready = status.role == "leader" and not self._member.look().stopping
        ready = ready and any(each.name == preferred and each.in_sync and each.live for each in status.nodes or ())
        if self._preference.due(self._reactor.seconds(), preferred, ready=ready):
            _log.info("hands over to %s, which is the preferred node", preferred)
            ensureDeferred(self._member.hand_over(preferred)).addErrback(_not_handed_over)


def _not_handed_over(failure: Failure) -> None:
    failure.trap(MetaqError)  # type: ignore[no-untyped-call]
    _log.warning("the preferred node does not lead: %s", failure.getErrorMessage())
