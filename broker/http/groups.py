"""What the dashboard shows and changes in ZooKeeper: the cluster, and a group's progress on this broker.

Everything here waits for ZooKeeper: worker threads only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from metaq.coordination.brokers import ClusterView
from metaq.coordination.offset_store import ZooKeeperOffsetStore
from metaq.coordination.records import Offset
from metaq.coordination.session import ZkSession
from metaq.protocol.errors import CoordinationError

__all__ = ["PartitionProgress", "group_progress", "live_brokers", "skip_pending"]

_UNKNOWN_ID = 0
"""What 1.x's dashboard writes as the id of the last message when it skips."""


class PartitionProgress(NamedTuple):
    """committed: a byte offset, None if the group never committed one. owner: a consumer id, "" for none."""

    partition: int
    committed: int | None
    owner: str


class PartitionOwned(CoordinationError):
    """The group reads the partition at the moment."""


def live_brokers(session: ZkSession) -> list[tuple[int, str, str]]:
    """(broker id, master or slave<n>, host:port) of every live process."""
    found = []
    for broker_id, nodes in ClusterView(session).brokers().items():
        for address in ([nodes.master] if nodes.master else []) + list(nodes.slaves):
            role = "master" if address.slave_id is None else f"slave{address.slave_id}"
            found.append((broker_id, role, f"{address.host}:{address.port}"))
    return found


def group_progress(
    session: ZkSession, group: str, topic: str, broker_id: int, partitions: Sequence[int]
) -> list[PartitionProgress]:
    """One entry per partition of this broker. Raises CoordinationError."""
    names = [f"{broker_id}-{partition}" for partition in partitions]
    offsets = ZooKeeperOffsetStore(session).load_many(group, [(topic, name) for name in names])
    owners = ClusterView(session).owners(group, topic)
    return [
        PartitionProgress(partition, offset.offset if offset else None, owners.get(name, ""))
        for partition, name, offset in zip(partitions, names, offsets, strict=True)
    ]


def skip_pending(session: ZkSession, group: str, topic: str, broker_id: int, partition: int, end: int) -> None:
    """Set the group's offset to `end`. Raises PartitionOwned while a consumer has the partition, CoordinationError."""
    name = f"{broker_id}-{partition}"
    if owner := ClusterView(session).owners(group, topic).get(name):
        raise PartitionOwned(f"partition {name} of {topic} is owned by {owner}: stop the consumers of {group} first")
    ZooKeeperOffsetStore(session).commit(group, {(topic, name): Offset(_UNKNOWN_ID, end)}, None)
