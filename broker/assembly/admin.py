"""The admin requests of operators: which addresses may send such requests, and the actions that serve them (close and
open partitions, reload, replication).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from ipaddress import ip_address
from typing import Any, Protocol

from twisted.internet.defer import Deferred, ensureDeferred

from metaq.protocol.errors import NotReplicating
from metaq.protocol.remoting import ClosePartitionsRequest, HandOverRequest, OpenPartitionsRequest

from ..configuration.reload_plan import ReloadReport
from ..configuration.settings import AdminFrom
from ..partitions.partitions import Partitions
from ..replication.host import ReplicationPart
from ..replication.status import ReplicationStatus
from ..runtime.account import LOCAL_HOST, numeric_address

__all__ = ["AdminRequests", "HandsOver", "admits"]

_NO_NODE = "this broker is not a node of a broker set: start it with --node"


class HandsOver(Protocol):
    """Describes a node of a broker set. This module calls only the node's method `hand_over`."""

    def hand_over(self, target: str | None) -> Coroutine[Any, Any, str]: ...


def admits(admin_from: AdminFrom, host: str, listen: str = "") -> bool:
    """Return whether the peer with the numeric IP address `host` may make admin requests. A peer on a Unix socket of
    the broker (LOCAL_HOST) may always.

    listen: the single address on which the broker listens, or "" if it listens on all addresses. Unless `admin_from` is
    "any", only programs on the broker's machine may make admin requests. Such a program connects from a loopback
    address or from the address `listen`.
    """
    if admin_from == "any" or host == LOCAL_HOST:
        return True
    address = numeric_address(host)
    return address is not None and (address.is_loopback or (listen != "" and address == ip_address(listen)))


class AdminRequests:
    """The actions that serve operators' requests. Each action returns a value, which the broker sends as JSON in its
    answer.
    """

    def __init__(
        self,
        partitions: Partitions,
        reload_config: Callable[[], Deferred[ReloadReport]],
        status: Callable[[], ReplicationStatus],
        replication: Callable[[], ReplicationPart | None],
        member: Callable[[], HandsOver | None],
        seconds: Callable[[], float],
    ) -> None:
        """status: returns the status of replication. replication: returns the object that copies messages between this
        broker and other brokers, or None if the broker is a plain master, which does not copy. member: returns the
        object that represents this broker as a node of a broker set, or None for a single broker. seconds: returns the
        time of a monotonic clock.
        """
        self._partitions = partitions
        self._reload_config = reload_config
        self._status = status
        self._replication = replication
        self._member = member
        self._seconds = seconds

    def close_partitions(self, request: ClosePartitionsRequest) -> Any:
        """Close partitions of a topic: refuse puts to these partitions and gets from them until they are opened. Raises
        TopicNotAccepted if server.ini has no section for the topic, and WrongPartition for a partition number that is
        not below the topic's number of partitions.
        """
        self._partitions.close(request.topic, request.start, request.end)
        return {"topic": request.topic, "closed": self._partitions.closed(request.topic)}

    def open_partitions(self, request: OpenPartitionsRequest) -> Any:
        """Open all closed partitions of a topic. Partitions that are open stay open."""
        opened = self._partitions.closed(request.topic)
        self._partitions.open(request.topic)
        return {"topic": request.topic, "opened": opened}

    def reload(self) -> Deferred[Any]:
        """Read server.ini again and use its new settings; the answer says which settings have changed. If the reload
        fails with ConfigError, the broker keeps its old settings.
        """
        return self._reload_config().addCallback(lambda report: report.to_json())

    def replication_status(self) -> Any:
        """Return the present status of replication."""
        return self._status().to_json()

    def set_status(self) -> Any:
        """Return the status of replication of a broker set's node. Raises NotReplicating if this broker is not a node
        of a broker set.
        """
        if self._member() is None:
            raise NotReplicating(_NO_NODE)
        return self._status().to_json()

    def hand_over(self, request: HandOverRequest) -> Deferred[Any]:
        """Make another node of the broker set the leader in place of this node. The answer has the new leader's name
        and the duration of the hand-over in seconds. Raises NotReplicating if this broker is not a node of a broker
        set. The Deferred fails with NotLeader if this node does not lead. It fails with CoordinationError if this node
        leads but the hand-over has failed.
        """
        member = self._member()
        if member is None:
            raise NotReplicating(_NO_NODE)
        begun = self._seconds()

        def done(leader: str) -> Any:
            return {"leader": leader, "seconds": round(self._seconds() - begun, 3)}

        return ensureDeferred(member.hand_over(request.node or None)).addCallback(done)

    def restart_replication(self) -> Any:
        """Restart replication: close the connection to the other broker of the replication, and open a new one. An
        asynchronous slave then compares all its partitions with those of the master. It also continues to copy the
        partitions whose copying had stopped. Return the present status of replication. Raises NotReplicating if this
        broker takes no part in replication.
        """
        replication = self._replication()
        if replication is None:
            raise NotReplicating(
                "this broker takes no part in replication: start it with --node, -Fmetaslave, -Fsamsa or -Fgregor"
            )
        replication.restart()
        return self.replication_status()
