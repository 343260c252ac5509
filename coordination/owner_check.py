"""Offset stores outside ZooKeeper, written only by the member that owns the partitions in ZooKeeper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .group import GroupMembership
from .offset_store import OffsetStore, TopicPartitionName
from .records import Offset

__all__ = ["OwnerCheckedStore"]


class OwnerCheckedStore:
    """Implements OffsetStore around one that knows nothing of ZooKeeper (a file, a database). Any thread.

    Each commit first asks ZooKeeper whether the session `fence` holds the owner nodes of all its partitions, in one
    round trip. The check and the write are two steps, where ZooKeeperOffsetStore has one: a member whose session ends
    just between them can still overwrite what the next owner commits at that moment. That may repeat messages and loses
    none: whatever offset it writes, everything in front of it was consumed.
    """

    def __init__(self, store: OffsetStore, membership: GroupMembership) -> None:
        self._store = store
        self._membership = membership

    def load(self, group: str, topic: str, partition: str) -> Offset | None:
        return self._store.load(group, topic, partition)

    def load_many(self, group: str, partitions: Sequence[TopicPartitionName]) -> list[Offset | None]:
        return self._store.load_many(group, partitions)

    def commit(self, group: str, offsets: Mapping[TopicPartitionName, Offset], fence: int | None) -> None:
        if fence is not None:
            self._membership.require_owned(offsets, fence)
        self._store.commit(group, offsets, fence)
