"""Report the status of a broker set's node to operators, and hand the leadership over to the node that operators
prefer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import ensureDeferred
from twisted.internet.task import LoopingCall
from twisted.python.failure import Failure

from metaq.protocol.errors import MetaqError

from ..configuration.served import served_settings
from ..configuration.settings import BrokerConfig, TopicConfig
from ..replication.status import NodeStatus, ReplicationStatus
from ..runtime.scheduled_calls import repeat
from . import tuning
from .host import StoreHost
from .member_state import MemberState

if TYPE_CHECKING:
    from .leader import FollowerStatus
    from .node import SetMember

__all__ = ["Preference", "SetReport"]

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5

_WAIT_TOLD_MS = 5_000
"""How many milliseconds a node waits for a leader before it logs that it waits. A shorter wait is normal, because the
nodes of a set do not start at the same moment.
"""

_NAMED = 8
"""The maximum number of topics that a line of the broker's log names."""


class Preference:
    """Decides when a leader hands over to the node that operators prefer. The class does no I/O and reads no clock."""

    def __init__(self) -> None:
        self._node = ""
        self._ready_since: float | None = None
        self._tried_at = float("-inf")

    def due(self, now: float, preferred: str, *, ready: bool) -> bool:
        """Return whether the leader should hand over to the node `preferred` now. If the result is True, the caller
        must try to hand over. After that, this method returns False until PREFERRED_SECONDS have passed. now: monotonic
        time in seconds.

        ready: True if this node leads and serves clients, and the preferred node is another node that is in sync and
        receives all new blocks.
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
    """Reports this node's part in replication for `stats`, /metrics and operators. Its methods run on the reactor
    thread. Call `start` and `stop` once.

    A node has one of these roles: `leader`, `taking-over` (elected as leader, but not all its data are committed),
    `handing-over`, `follower`, `joining` (connects to the leader, cuts its own data or gets a copy), `candidate`
    (stands for election), `waiting` (has no leader to follow, and is not allowed to stand for election), and `stopped`
    (an operator has to act).
    """

    def __init__(self, broker: StoreHost, member: SetMember) -> None:
        self._broker = broker
        self._member = member
        self._reactor: Any = broker.reactor
        self._preference = Preference()
        self._since: dict[str, tuple[Hashable, int]] = {}  # name -> its value, and since when
        self._timer: LoopingCall | None = None
        self._refused: set[str] = set()  # topics logged as taking no messages
        self._told_wait = ""
        self._told_unnamed: tuple[object, BrokerConfig] | None = None  # leadership and settings at the last check
        self._described: tuple[BrokerConfig, dict[str, Any]] = broker.config, served_settings(broker.config)

    def start(self) -> None:
        """Begin to check the status regularly: log and record its changes, and hand over to the preferred node when it
        has long been ready.
        """
        self._timer = repeat(_LOOK_SECONDS, self._look, self._reactor, "the report of a broker set's node")

    def stop(self) -> None:
        """Stop checking the status. Called when the broker stops."""
        if self._timer is not None:
            self._timer.stop()

    def status(self) -> ReplicationStatus:
        """Return the present status."""
        found, leader = self._member.look(), self._member.leader
        state = found.state
        role = self._role(found)
        connected = role in ("leader", "follower")
        leads = {} if leader is None else {"refusing": self.refusing(), "underReplicated": self.under_replicated()}
        return ReplicationStatus(
            role,
            "" if leader is not None else found.leader_url,
            connected,
            "" if connected else (self._lacking(found) if role == "waiting" else "") or found.error,
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
                **({"setBack": True} if found.set_back else {}),
                **leads,
            },
            nodes=None if leader is None else [self._node(each) for each in leader.status()],
            configuration=self._configuration(),
        )

    def restart(self) -> None:
        """Let this node connect to its leader again, even if its role is `stopped`. If this node leads, nothing
        changes.
        """
        self._member.try_again()

    def under_replicated(self) -> list[str]:
        """Return the topics of this leader that have too few in-sync nodes: fewer than `replicas=` says or, for a topic
        without `replicas=`, fewer than the set has nodes.
        """
        leader = self._member.leader
        if leader is None:
            return []
        found = self._member.look()
        members = () if found.state is None else found.state.members
        nodes = len({*found.present, *leader.core.in_sync, *members})
        return self._short_of(lambda topic: topic.replicas or nodes)

    def refusing(self) -> list[str]:
        """Return the topics of this leader that accept no messages, because fewer nodes are in sync than `minInSync=`
        says.
        """
        return self._short_of(lambda topic: topic.min_in_sync)

    def _short_of(self, wanted: Callable[[TopicConfig], int]) -> list[str]:
        """Return the names of the topics that need more in-sync nodes than the set has now. wanted(topic
        configuration): returns how many nodes the topic needs. If no configured topic needs more nodes than the set
        has, the call takes time proportional to the number of configured topics; else proportional to the number of
        partitions.
        """
        leader, config = self._member.leader, self._broker.config
        if leader is None or all(wanted(each) <= leader.copies for each in (config.system, *config.topics.values())):
            return []
        names = {log.topic for log in self._broker.store.logs()} | config.topics.keys()
        return sorted(
            name for name in names if "*" not in name and leader.copies < wanted(config.topic(name) or config.system)
        )

    def _configuration(self) -> dict[str, Any]:
        """Return the settings that the status reports. They are read at each call, because a reload of the
        configuration can change them.
        """
        config = self._broker.config
        if self._described[0] is not config:
            self._described = config, served_settings(config)
        return self._described[1]

    def _node(self, status: FollowerStatus) -> NodeStatus:
        since = self._noted(status.name, (status.in_sync, status.connected, status.live))
        return NodeStatus(*status, since_ms=since)

    def _noted(self, name: str, value: Hashable) -> int:
        """Return the time, in Unix milliseconds, at which the status field `name` got its present value. If `value`
        differs from the value at the last call, record it with the present time.
        """
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
        if found.busy:
            return "candidate"
        # a node also tries to connect to an absent leader; that does not count as joining
        return "joining" if found.following and found.state and found.state.leader in found.present else "waiting"

    def _look(self) -> None:
        found = self._member.look()
        role = self._role(found)
        self._tell_refusals(set(self.refusing()) if role == "leader" else None)
        self._tell_wait(found, role)
        self._tell_unnamed(role)
        preferred = found.state.preferred if found.state else ""
        leader = self._member.leader if role == "leader" and not found.stopping else None
        others = leader.status() if leader is not None else ()
        ready = any(each.name == preferred and each.in_sync and each.live for each in others)
        if self._preference.due(self._reactor.seconds(), preferred, ready=ready):
            _log.info("hands over to %s, which is the preferred node", preferred)
            ensureDeferred(self._member.hand_over(preferred)).addErrback(_not_handed_over)

    def _tell_refusals(self, refused: set[str] | None) -> None:
        """Log which topics have stopped accepting messages since the last call, and which have begun to accept them
        again. refused: the topics that accept no messages now, or None if this node does not lead.
        """
        begun, ended = (refused or set()) - self._refused, self._refused - (refused or set())
        self._refused = refused or set()
        if refused is None:
            return
        copies = self._member.leader.copies if self._member.leader else 0
        if begun:
            text = "no messages are taken for %s: in-sync nodes: %d, fewer than minInSync"
            _log.warning(text, _listed(begun), copies)
        if ended:
            _log.info("messages are taken again for %s: in-sync nodes: %d", _listed(ended), copies)

    def _tell_wait(self, found: MemberState, role: str) -> None:
        """If this node has had no leader for _WAIT_TOLD_MS and is not allowed to stand for election, log once what it
        waits for.
        """
        text = self._lacking(found) if role == "waiting" and not found.stopping else ""
        since = self._noted(" wait", text)  # no node has such a name
        if text != self._told_wait and (not text or self._broker.now_ms() - since >= _WAIT_TOLD_MS):
            self._told_wait = text
            if text:
                _log.warning("waits: %s", text)

    def _tell_unnamed(self, role: str) -> None:
        """Log the topics that this node serves as the leader although its server.ini has no section for them. Log them
        once each time that this node begins to lead, and after each reload of the configuration.
        """
        leader, config = self._member.leader, self._broker.config
        told = self._told_unnamed
        if role != "leader" or (told is not None and told[0] is leader and told[1] is config):
            return
        self._told_unnamed = leader, config
        if unnamed := self._broker.partitions.unnamed():
            _log.error(
                "topics with messages here and no section in this node's server.ini: %s. They are served with the "
                "settings of [system]: partitions, ack and minInSync may be others than at the leader before. Give all "
                "nodes the same topics, and reload",
                _listed(unnamed),
            )

    def _lacking(self, found: MemberState) -> str:
        """Return a text for the operator: which absent in-sync nodes must be started so that the set can have a leader.
        Return "" if this node waits for no other node.
        """
        state = found.state
        absent = sorted(set(state.in_sync) - found.present) if state else []
        if state is None or not absent or found.set_back:  # an older state may name the wrong nodes
            return ""
        if len(absent) == len(state.in_sync):
            return f"no in-sync node is present: start {' or '.join(absent)}"
        return f"nobody leads, and of the in-sync nodes {', '.join(absent)} is not present: start it"


def _listed(topics: Collection[str]) -> str:
    more = f" and {len(topics) - _NAMED} more" if len(topics) > _NAMED else ""
    return f"{', '.join(sorted(topics)[:_NAMED])}{more}"


def _not_handed_over(failure: Failure) -> None:
    failure.trap(MetaqError)  # type: ignore[no-untyped-call]
    _log.warning("the preferred node does not lead: %s", failure.getErrorMessage())
