"""Which consumer of a group owns which partition: pure functions, equal to the Java classes (golden/assignment.json).

All members of a group must use the same strategy; nothing in ZooKeeper says which.
"""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

__all__ = ["Strategy", "consistent_hash_assignment", "java_sort_key", "java_sorted", "range_assignment"]

Strategy = Callable[[str, Sequence[str], Sequence[str]], list[str]]
"""(my consumer id, all consumer ids, all partitions "b-p") -> my partitions. Order of the arguments does not matter."""

_VIRTUAL_NODES = 40
_RING_POINTS = struct.Struct("<4I")


def java_sort_key(text: str) -> bytes:
    """Sorts as Java's String.compareTo: by UTF-16 code units, so U+10000 and above come before U+E000."""
    return text.encode("utf-16-be", "surrogatepass")


def java_sorted(texts: Iterable[str]) -> list[str]:
    """`texts` in the order of Java's String.compareTo."""
    listed = list(texts)
    # of ASCII Python's own order is the same, and cheaper: each member of a group sorts all its members
    return sorted(listed) if all(map(str.isascii, listed)) else sorted(listed, key=java_sort_key)


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
    """1.x's CONSIST: a hash ring with 160 points a consumer, so that a change moves few partitions; sorted as strings.

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


def _md5(text: str) -> bytes:
    return hashlib.md5(text.encode(), usedforsecurity=False).digest()
