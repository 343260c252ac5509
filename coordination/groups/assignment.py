"""Assignment of partitions to the consumers of a group: pure functions.

All members of a group must use the same strategy. ZooKeeper does not record 1.x's two, which are equal to the Java
classes (golden/assignment.json); members that assign by zones record this beside their zone.
"""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from heapq import heapreplace

from ..records.java_order import java_sorted

__all__ = [
    "STRATEGIES",
    "Strategy",
    "consistent_hash_assignment",
    "range_assignment",
    "zone_assignment",
]

Strategy = Callable[[str, Sequence[str], Sequence[str]], list[str]]
"""(my consumer id, all consumer ids, all partitions "b-p") -> my partitions. The order within the arguments is
irrelevant."""

_VIRTUAL_NODES = 40
_RING_POINTS = struct.Struct("<4I")


def range_assignment(consumer_id: str, consumers: Sequence[str], partitions: Sequence[str]) -> list[str]:
    """1.x's DEFAULT: a contiguous share of the string-sorted partitions; the first consumers get one more.

    A consumer that is not in the list gets nothing. Source: DefaultLoadBalanceStrategy, metaq 1.4.6.2.
    """
    members = java_sorted(consumers)
    if consumer_id not in members:
        return []
    ordered = java_sorted(partitions)
    index = members.index(consumer_id)
    share, extra = divmod(len(ordered), len(members))
    start = share * index + min(index, extra)
    return ordered[start : start + share + (index < extra)]


def consistent_hash_assignment(consumer_id: str, consumers: Sequence[str], partitions: Sequence[str]) -> list[str]:
    """1.x's CONSIST: a hash ring with 160 points per consumer, so that a change moves few partitions; sorted as
    strings.

    On a collision the later consumer in sorted order keeps the point. Source: ConsisHashStrategy, metaq 1.4.6.2.
    """
    ring = {
        point: member
        for member in java_sorted(consumers)
        for replica in range(_VIRTUAL_NODES)
        for point in _RING_POINTS.unpack(_md5(f"{member}-{replica}"))
    }
    points = sorted(ring)
    if not points:
        return []

    def owner(partition: str) -> str:
        (hashed, *_) = _RING_POINTS.unpack(_md5(partition))
        return ring[points[bisect_left(points, hashed) % len(points)]]

    return [partition for partition in java_sorted(partitions) if owner(partition) == consumer_id]


def zone_assignment(
    consumer_id: str,
    consumers: Sequence[str],
    partitions: Sequence[str],
    consumer_zones: Mapping[str, str],
    broker_zones: Mapping[int, str],
) -> list[str]:
    """Assign each partition to a consumer in the zone of its broker, if there is one; string-sorted.

    The consumers of a zone share the zone's partitions as in range_assignment(). A partition whose broker has no zone,
    or whose zone has no consumers, goes to a consumer with the fewest partitions. consumer_zones: of all `consumers`.
    broker_zones: by broker id. A consumer that is not in the list gets nothing. Model: RocketMQ's
    AllocateMachineRoomNearby, which ignores the partitions that consumers already have when it shares out the rest.
    """
    members = java_sorted(consumers)
    if consumer_id not in members:
        return []
    neighbours: dict[str, list[str]] = {}
    for member in members:
        neighbours.setdefault(consumer_zones[member], []).append(member)
    near: dict[str, list[str]] = {zone: [] for zone in neighbours}
    rest: list[str] = []
    for partition in java_sorted(partitions):
        zone = broker_zones.get(int(partition.partition("-")[0]), "")
        near.get(zone, rest).append(partition)
    sizes = {
        member: share + (index < extra)
        for zone, each in neighbours.items()
        for share, extra in [divmod(len(near[zone]), len(each))]
        for index, member in enumerate(each)
    }
    more = _fill([sizes[member] for member in members], len(rest))
    mine = members.index(consumer_id)
    start = sum(more[:mine])
    home = consumer_zones[consumer_id]
    return java_sorted(range_assignment(consumer_id, neighbours[home], near[home]) + rest[start : start + more[mine]])


def _fill(sizes: Sequence[int], count: int) -> list[int]:
    """Return how many of `count` each gets if the next one always goes to the one with the fewest, the first among
    equals."""
    more = [0] * len(sizes)
    heap = sorted((size, index) for index, size in enumerate(sizes))
    for _ in range(count):
        size, index = heap[0]
        more[index] += 1
        heapreplace(heap, (size + 1, index))
    return more


def _md5(text: str) -> bytes:
    return hashlib.md5(text.encode(), usedforsecurity=False).digest()


STRATEGIES: Mapping[str, Strategy] = {"range": range_assignment, "consist": consistent_hash_assignment}
"""1.x's strategies, by their names in a consumer's configuration."""
