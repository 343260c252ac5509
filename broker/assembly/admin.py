"""Operators' requests: where they may come from; closing and opening partitions, reloading, replication."""

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
from ..runtime.account import numeric_address

__all__ = ["Admin", "HandsOver", "admits"]

_NO_NODE = "this broker is not a node of a broker set: start it with --node"


class HandsOver(Protocol):
    """What this module needs from a node of a broker set."""

    def hand_over(self, target: str | None) -> Coroutine[Any, Any, str]: ...


def admits(admin_from: AdminFrom, host: str, listen: str = "") -> bool:
    """Whether a peer at this address (numeric, as the socket gives it) may make admin requests.

    listen: the address on which the broker listens, if it is a single one: only this machine has it.
    """
    if admin_from == "any":
        return True
    address = numeric_address(host)
    return address is not None and (address.is_loopback or (listen != "" and address == ip_address(listen)))


class Admin:
    """The actions of operators' requests. Each gives the value of the answer's JSON."""

    def __init__(
        self,
        partitions: Partitions,
        reload_config: Callable[[], Deferred[ReloadReport]],
        status: Callable[[], ReplicationStatus],
        replication: Callable[[], ReplicationPart | None],
        member: Callable[[], HandsOver | None],
        seconds: Callable[[], float],
    ) -> None:
        """status: of replication. replication: None for a plain master. member: the node of a broker set, or None.
        seconds: of a monotonic clock."""
        self._partitions = partitions
        self._reload_config = reload_config
        self._status = status
        self._replication = replication
        self._member = member
        self._seconds = seconds

    def close_partitions(self, request: ClosePartitionsRequest) -> Any:
        """Close partitions. Raises TopicNotAccepted for a topic without a section, WrongPartition outside the topic's
        count."""
        self._partitions.close(request.topic, request.start, request.end)
        return {"topic": request.topic, "closed": self._partitions.closed(request.topic)}

    def open_partitions(self, request: OpenPartitionsRequest) -> Any:
        """Open a topic's partitions. Opening an open partition has no effect."""
        opened = self._partitions.closed(request.topic)
        self._partitions.open(request.topic)
        return {"topic": request.topic, "opened": opened}

    def reload(self) -> Deferred[Any]:
        """Read server.ini again; the answer says what has changed. Fails with ConfigError, with nothing changed."""
        return self._reload_config().addCallback(lambda report: report.to_json())

    def replication_status(self) -> Any:
        """Return the present status of replication."""
        return self._status().to_json()

    def set_status(self) -> Any:
        """Return the status of the broker set's node, as `replication_status`. Raises NotReplicating."""
        if self._member() is None:
            raise NotReplicating(_NO_NODE)
        return self._status().to_json()

    def hand_over(self, request: HandOverRequest) -> Deferred[Any]:
        """Have another node lead; the answer names it and the time taken. Raises NotReplicating. Fails with NotLeader,
        and with CoordinationError if the hand-over did not happen."""
        member = self._member()
        if member is None:
            raise NotReplicating(_NO_NODE)
        begun = self._seconds()

        def done(leader: str) -> Any:
            return {"leader": leader, "seconds": round(self._seconds() - begun, 3)}

        return ensureDeferred(member.hand_over(request.node or None)).addCallback(done)

    def restart_replication(self) -> Any:
        """Connect anew and check everything again; the answer is the present status. Raises NotReplicating."""
        replication = self._replication()
        if replication is None:
            raise NotReplicating(
                "this broker takes no part in replication: start it with --node, -Fmetaslave, -Fsamsa or -Fgregor"
            )
        replication.restart()
        return self.replication_status()
