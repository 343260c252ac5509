"""What a cluster's moves mean for one broker: how many partitions it shows, and which take no messages. Pure.

1.x publishes only a number of partitions. So the source's last partitions leave, and arriving ones get the target's
next numbers. Producers see the target's partitions before they stop seeing the source's. Consumers first stop seeing
the source's, because their offsets move in between.
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
    """The moves in which one broker takes part. Immutable."""

    def __init__(self, broker_id: int, moves: Iterable[Move] = (), *, known: bool = True) -> None:
        """known: False until the moves were read. No partition may take messages so long."""
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
        """Whether any move is of this topic."""
        return topic in self._out or topic in self._in

    def counts(self, topic: str, natural: int) -> Counts:
        """Return the counts to show. natural: the number of partitions by settings and directories."""
        least, most_published, most_subscribed = 0, 1 << 30, 1 << 30
        for move in self._out.get(topic, ()):
            behind = move.first + move.count  # none are added meanwhile: the leaving ones have to be the last
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
        """Return how many partitions take messages whose producer leaves the choice to the broker."""
        closed = [move.first for move in self._out.get(topic, ()) if _is_at_least(move, MoveState.CLOSING)]
        return min([published, *closed])

    def has_left(self, topic: str, partition: int) -> bool:
        """Whether the partition takes no more messages, because it moves or has moved to another broker."""
        return any(
            move.first <= partition < move.first + move.count and _is_at_least(move, MoveState.CLOSING)
            for move in self._out.get(topic, ())
        )

    def is_leaving(self, topic: str, partition: int) -> bool:
        """Whether the partition will move or has moved to another broker: no message may begin to wait for it here."""
        return any(move.first <= partition < move.first + move.count for move in self._out.get(topic, ()))

    def is_incoming(self, topic: str, partition: int) -> bool:
        """Whether this broker's data of the partition are a copy that may still be given up."""
        return any(
            move.target_first <= partition < move.target_first + move.count
            and not _is_at_least(move, MoveState.PUBLISHING)
            for move in self._in.get(topic, ())
        )

    def arrived(self) -> Iterable[tuple[str, int, int]]:
        """Yield (topic, partition, first offset if it has no log) of arrived partitions, once producers see them."""
        for topic, moves in self._in.items():
            for move in moves:
                if _is_at_least(move, MoveState.PUBLISHING):
                    for number, end in enumerate(move.ends):
                        yield topic, move.target_first + number, end


NO_MOVES = MoveTable(-1)
"""The table of a broker without ZooKeeper, or of a test."""
