"""Assign partitions to the consumers of a group. The functions are pure.

All members of a group must use the same strategy. Two strategies, range and consistent hash, come from metaq 1.x. These
two give the same results as the Java classes of 1.x; golden/assignment.json contains results of the Java classes for
comparison. Only members with the third strategy, which assigns by zones, record their strategy in ZooKeeper, together
with their zone.
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
"""A function that returns the partitions of one consumer. Its arguments are the consumer's id, the ids of all consumers
of the group, and the names `<broker>-<partition>` of all partitions. The order of the ids and of the partitions does
not matter.
"""

_VIRTUAL_NODES = 40
_RING_POINTS = struct.Struct("<4I")


def range_assignment(consumer_id: str, consumers: Sequence[str], partitions: Sequence[str]) -> list[str]:
    """Assign partitions by the strategy that 1.x calls DEFAULT. Each consumer gets a contiguous share of the
    partitions, which are sorted as strings. If the partitions cannot be divided evenly, the first consumers get one
    partition more.

    A consumer that is not in `consumers` gets nothing. The rules are the same as in the class
    DefaultLoadBalanceStrategy of metaq 1.4.6.2.
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
    """Assign partitions by the strategy that 1.x calls CONSIST. The strategy uses a hash ring with 160 points per
    consumer, so that few partitions change their owner when a consumer joins or leaves the group. The result is sorted
    as strings.

    If two consumers have the same point on the ring, the point belongs to the consumer whose id is later in sorted
    order. The rules are the same as in the class ConsisHashStrategy of metaq 1.4.6.2.
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
    """Assign each partition to a consumer in the zone of the partition's broker, if there is such a consumer. The
    result is sorted as strings.

    The partitions of a zone are distributed among the zone's consumers by the rules of range_assignment(). If a
    partition's broker has no zone, or the broker's zone has no consumers, the partition goes to the consumer that has
    the fewest partitions at that moment. consumer_zones: the zones of all `consumers`. broker_zones: zones by broker
    id. A consumer that is not in `consumers` gets nothing. RocketMQ's class AllocateMachineRoomNearby uses the same
    strategy with one difference: for the remaining partitions (those without a zone, or without consumers in their
    zone), RocketMQ's class ignores how many partitions each consumer already has.
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
    """Distribute `count` partitions among the members of a group; some members may already have partitions. Each
    partition goes to the member that has the fewest partitions at that moment. If several members have the fewest
    partitions, the partition goes to the first of these members. sizes: number of partitions that each member has
    already. Return the number of further partitions that each member gets.
    """
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
"""The functions for the two strategies of 1.x, by the names that a consumer's configuration uses for them."""
