"""The status of replication for operators. Its objects can be written as the text of `stats replication` and as the
JSON of REPLICATION_STATUS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

__all__ = ["CopyState", "NodeStatus", "PartitionStatus", "ReplicationStatus", "SyncSlave"]


class CopyState(Enum):
    """The state of the copy of one partition."""

    CONNECTING = "connecting"
    """The slave has not requested data of this partition since it made its present connection to the master."""
    EMPTY = "empty"
    """The master has no data of the partition."""
    COPYING = "copying"
    CURRENT = "current"
    """The master's last answer has shown that the slave has all data of the partition."""
    TROUBLED = "troubled"
    """The last attempt to copy has failed; the slave will try again by itself."""
    STOPPED = "stopped"
    """The copying has stopped, and continues only when an operator has removed the cause (docs/replication.md)."""


@dataclass(slots=True)
class PartitionStatus:
    """The status of the copy of one partition on a slave. Offsets are in bytes. since_ms: the time since which the copy
    has had its present `state`, in Unix milliseconds.

    master_end: the last known end offset of the master's partition. behind: number of messages not copied yet, or None
    if the master does not tell this number.
    """

    topic: str
    partition: int
    state: CopyState = CopyState.CONNECTING
    offset: int = 0
    master_end: int | None = None
    behind: int | None = None
    error: str = ""
    since_ms: int = 0

    @property
    def lag_bytes(self) -> int | None:
        """The number of bytes of the partition that the slave has not copied yet, or None until the slave knows the end
        offset of the master's partition.
        """
        return None if self.master_end is None else max(0, self.master_end - self.offset)

    def to_json(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "partition": self.partition,
            "state": self.state.value,
            "offset": self.offset,
            "masterEnd": self.master_end,
            "lagBytes": self.lag_bytes,
            "lagMessages": self.behind,
            "error": self.error,
            "sinceMs": self.since_ms,
        }


@dataclass(slots=True)
class NodeStatus:
    """The status of another node of a broker set, as the leader sees it. live: whether the leader sends each new block
    to the node at once; it does so if the node has all older blocks.

    lag_bytes, lag_seconds: the size and the age of the data that the leader has and the node has not acknowledged yet.
    Both are None if the node is not live, because the size and the age are then unknown. since_ms: the time when one of
    the flags `in_sync`, `connected` and `live` last changed, in Unix milliseconds.
    """

    name: str
    in_sync: bool
    connected: bool
    live: bool
    lag_bytes: int | None
    lag_seconds: float | None
    error: str = ""
    since_ms: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "inSync": self.in_sync,
            "connected": self.connected,
            "live": self.live,
            "lagBytes": self.lag_bytes,
            "lagSeconds": None if self.lag_seconds is None else round(self.lag_seconds, 3),
            "error": self.error,
            "sinceMs": self.since_ms,
        }

    def line(self) -> str:
        """Return the line about this node in the text of `stats replication`."""
        seconds = "unknown" if self.lag_seconds is None else f"{self.lag_seconds:.3f}"
        error = f" error {_one_line(self.error)}" if self.error else ""
        return (
            f"follower {self.name} in_sync {_java(self.in_sync)} connected {_java(self.connected)} "
            f"live {_java(self.live)} lag_bytes {_known(self.lag_bytes)} lag_seconds {seconds} "
            f"since_ms {self.since_ms}{error}"
        )


@dataclass(slots=True)
class ReplicationStatus:
    """The status of a broker's replication. peer: the address of the other broker, or "" if it is unknown.

    role: master, slave, sync-master or sync-slave. Nodes of a broker set have other roles, which sets/status.py names.
    """

    role: str
    peer: str = ""
    connected: bool = False
    error: str = ""
    since_ms: int = 0
    """The time when the connection was last made or lost, by the wall clock in ms, or 0 if no connection was ever
    made.
    """
    figures: dict[str, int | str | bool | list[str]] = field(default_factory=dict)
    """Additional facts about the replication, such as counts, by name; the names depend on `role`."""
    partitions: list[PartitionStatus] = field(default_factory=list)
    nodes: list[NodeStatus] | None = None
    """The followers of a broker set's leader; None on all other brokers."""
    configuration: Mapping[str, Any] | None = None
    """On a broker set's node: the settings in its server.ini that matter to clients (configuration/served.py)."""

    def to_json(self) -> dict[str, Any]:
        return {
            "role": self.role,
            "peer": self.peer,
            "connected": self.connected,
            "error": self.error,
            "sinceMs": self.since_ms,
            **self.figures,
            **({} if self.nodes is None else {"nodes": [each.to_json() for each in self.nodes]}),
            **({} if self.configuration is None else {"configuration": self.configuration}),
            "partitions": [each.to_json() for each in self.partitions],
        }

    def lines(self) -> list[str]:
        """Return the lines that `stats replication` shows between its first line STATS and its last line END."""
        found = [
            f"role {self.role}",
            f"peer {self.peer or 'none'}",
            f"connected {_java(self.connected)}",
            f"since_ms {self.since_ms}",
            *(f"{name} {_figure(value)}" for name, value in self.figures.items()),
        ]
        if self.error:
            found.append(f"error {_one_line(self.error)}")
        found += [node.line() for node in self.nodes or ()]
        for each in self.partitions:
            error = f" error {_one_line(each.error)}" if each.error else ""
            found.append(
                f"{each.topic} part {each.partition} state {each.state.value} offset {each.offset} "
                f"master_end {_known(each.master_end)} lag_bytes {_known(each.lag_bytes)} "
                f"lag_messages {_known(each.behind)} since_ms {each.since_ms}{error}"
            )
        return found


def _java(value: bool) -> str:
    return "true" if value else "false"


def _figure(value: int | str | bool | list[str]) -> str:
    if isinstance(value, bool):
        return _java(value)
    return (",".join(value) or "none") if isinstance(value, list) else str(value)


def _known(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def _one_line(text: str) -> str:
    return " ".join(text.split())


class SyncSlave:
    """A synchronous slave's part in replication. It has nothing to do, because its master connects to it and sends it
    the messages.
    """

    def status(self) -> ReplicationStatus:
        return ReplicationStatus("sync-slave")

    def restart(self) -> None:
        """Do nothing, because the master makes the connection."""
