"""Compute, from the moves of partitions in a cluster, how many partitions one broker offers to clients, and which of
these partitions accept no messages. This module does no I/O.

As in metaq 1.x, a broker registers in ZooKeeper only the number of its partitions of a topic, and not which ones. So
the numbers must have no gaps: only the partitions with the highest numbers can be moved away, and on the target broker
they get the next free numbers. Producers see the target's partitions before they stop seeing the source's partitions.
Consumers first stop seeing the source's partitions; then the groups' offsets are copied to the new partitions; then
consumers see the target's partitions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from metaq.coordination.records.move_payloads import Move, MoveState

__all__ = ["NO_MOVES", "Counts", "MoveTable"]

_ORDER = list(MoveState)


def _is_at_least(move: Move, state: MoveState) -> bool:
    return move.state is not MoveState.CANCELLED and _ORDER.index(move.state) >= _ORDER.index(state)


class Counts(NamedTuple):
    """How many partitions of a topic a broker offers to producers, and to consumers."""

    publish: int
    subscribe: int


class MoveTable:
    """All moves from or to one broker. The table is immutable."""

    def __init__(self, broker_id: int, moves: Iterable[Move] = (), *, known: bool = True) -> None:
        """known: whether the moves were read from ZooKeeper. While it is False, no partition may take messages."""
        self.known = known
        self._broker_id = broker_id
        self._out: dict[str, list[Move]] = {}
        self._in: dict[str, list[Move]] = {}
        for move in moves:
            if move.source == broker_id and _is_at_least(move, MoveState.COPYING):
                self._out.setdefault(move.topic, []).append(move)
            elif move.target == broker_id and move.target_first >= 0:
                self._in.setdefault(move.topic, []).append(move)

    def concerns(self, topic: str) -> bool:
        """Return whether any of the moves moves partitions of this topic."""
        return topic in self._out or topic in self._in

    def counts(self, topic: str, natural: int) -> Counts:
        """Return how many partitions of a topic the broker must offer to producers and to consumers now. natural: the
        number of partitions that the topic would have without moves, according to settings and data directories.
        """
        least, most_published, most_subscribed = 0, 1 << 30, 1 << 30
        for move in self._out.get(topic, ()):
            behind = move.first + move.count  # none are added meanwhile: leaving ones must be the last
            least = max(least, 0 if _is_at_least(move, MoveState.HANDING_OVER) else behind)
            published = move.first if _is_at_least(move, MoveState.PUBLISHING) else behind
            subscribed = move.first if _is_at_least(move, MoveState.HANDING_OVER) else behind
            most_published = min(most_published, published)
            most_subscribed = min(most_subscribed, subscribed)
        for move in self._in.get(topic, ()):
            if _is_at_least(move, MoveState.PUBLISHING):
                least = max(least, move.target_first + move.count)
            else:
                most_published = min(most_published, move.target_first)
            if not _is_at_least(move, MoveState.DONE):
                most_subscribed = min(most_subscribed, move.target_first)
        count = max(natural, least)
        return Counts(min(count, most_published), min(count, most_subscribed))

    def open_count(self, topic: str, published: int) -> int:
        """If a put does not name a partition, the broker chooses a partition whose number is below the result of this
        method. published: the number of partitions that producers see.
        """
        closed = [move.first for move in self._out.get(topic, ()) if _is_at_least(move, MoveState.CLOSING)]
        return min([published, *closed])

    def has_left(self, topic: str, partition: int) -> bool:
        """Return whether the partition takes no more messages, because it is moving or has moved to another broker."""
        return any(
            move.first <= partition < move.first + move.count and _is_at_least(move, MoveState.CLOSING)
            for move in self._out.get(topic, ())
        )

    def is_leaving(self, topic: str, partition: int) -> bool:
        """Return whether the partition will move or has moved to another broker. If so, this broker accepts no more
        delayed and half messages for this partition.
        """
        return any(move.first <= partition < move.first + move.count for move in self._out.get(topic, ()))

    def is_incoming(self, topic: str, partition: int) -> bool:
        """Return whether the partition is being moved to this broker. If so, the partition's data on this broker are
        only a copy, which will be useless if the move is cancelled.
        """
        return any(
            move.target_first <= partition < move.target_first + move.count
            and not _is_at_least(move, MoveState.PUBLISHING)
            for move in self._in.get(topic, ())
        )

    def arrived(self) -> Iterable[tuple[str, int, int]]:
        """Yield (topic, partition, offset) for each partition that was moved to this broker and that producers already
        see here, even if the move is not done yet.
        offset: if the partition has no log yet, its new log begins at this offset.
        """
        for topic, moves in self._in.items():
            for move in moves:
                if _is_at_least(move, MoveState.PUBLISHING):
                    for number, end in enumerate(move.ends):
                        yield topic, move.target_first + number, end


NO_MOVES = MoveTable(-1)
"""The table for a broker without ZooKeeper, and for tests."""
