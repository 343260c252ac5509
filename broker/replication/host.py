"""Protocols that describe the broker: the attributes and methods that the package replication/ uses."""

from __future__ import annotations

from typing import Protocol

from twisted.internet.defer import Deferred

from ..configuration.reload_plan import ReloadReport
from ..configuration.settings import BrokerConfig
from ..partitions.message_ids import MessageIds
from ..partitions.partitions import Partitions
from ..runtime.host import Host
from ..store.store import Store
from ..writing.writing import Writing
from .status import ReplicationStatus

__all__ = ["CopyHost", "ReplicationHost", "ReplicationPart"]


class ReplicationPart(Protocol):
    """The object that does a broker's work in replication, with the methods that serve operators' requests."""

    def status(self) -> ReplicationStatus: ...
    def restart(self) -> None: ...


class CopyHost(Host, Protocol):
    """A broker that copies partitions from another broker."""

    @property
    def store(self) -> Store: ...
    @property
    def partitions(self) -> Partitions: ...


class ReplicationHost(CopyHost, Protocol):
    """A broker that takes part in 1.x's replication. replication: the object that copies messages to or from another
    broker, or None for a plain master, which does not copy.
    """

    replication: ReplicationPart | None

    @property
    def config(self) -> BrokerConfig: ...
    @property
    def port(self) -> int: ...
    @property
    def writing(self) -> Writing: ...
    @property
    def message_ids(self) -> MessageIds: ...
    def reload_config(self) -> Deferred[ReloadReport]: ...
