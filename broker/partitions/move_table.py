"""What the moves of a cluster mean for one broker: how many partitions it shows, and which of them take nothing. Pure.

1.x publishes a number of partitions, so those that leave are the source's last ones, and those that come get the
target's next numbers. Producers see the target's before they stop seeing the source's; for consumers it is the other
way round, because their offsets go over in between.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from metaq.coordination.move_records import Move, MoveState

__all__ = ["NO_MOVES", "Counts", "MoveTable"]

_ORDER = list(MoveState)


def _is_at_least(move: Move, state: MoveState) -> bool:
    return move.state is not MoveState.CANCELLED and _ORDER.index(move.state) >= _ORDER.index(state)


class Counts(NamedTuple):
    """Partitions of a topic that a broker offers to producers, and to consumers."""

    publish: int
    subscribe: int


class MoveTable:
    """The moves that one broker has a part in. Immutable."""

    def __init__(self, broker_id: int, moves: Iterable[Move] = (), *, known: bool = True) -> None:
        """known: False while nobody has read the moves. Then no partition may take messages."""
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
        """Whether any of the moves is of this topic."""
        return topic in self._out or topic in self._in

    def counts(self, topic: str, natural: int) -> Counts:
        """What the broker shows. natural: the number of partitions that its settings and its directories give."""
        least, most_published, most_subscribed = 0, 1 << 30, 1 << 30
        for move in self._out.get(topic, ()):
            behind = move.first + move.count  # it gets no more meanwhile: those that leave have to be the last ones
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
        """How many partitions take messages that may go to any one."""
        closed = [move.first for move in self._out.get(topic, ()) if _is_at_least(move, MoveState.CLOSING)]
        return min([published, *closed])

    def has_left(self, topic: str, partition: int) -> bool:
        """Whether the partition takes nothing more, because it goes or has gone to another broker."""
        return any(
            move.first <= partition < move.first + move.count and _is_at_least(move, MoveState.CLOSING)
            for move in self._out.get(topic, ())
        )

    def is_leaving(self, topic: str, partition: int) -> bool:
        """Whether the partition is to go to another broker, or has gone: no message may begin to wait for it here."""
        return any(move.first <= partition < move.first + move.count for move in self._out.get(topic, ()))

    def is_incoming(self, topic: str, partition: int) -> bool:
        """Whether what is here of the partition is a copy that may still be given up."""
        return any(
            move.target_first <= partition < move.target_first + move.count
            and not _is_at_least(move, MoveState.PUBLISHING)
            for move in self._in.get(topic, ())
        )

    def arrived(self) -> Iterable[tuple[str, int, int]]:
        """(topic, partition, where it begins if it has no log) of what has come here, from when producers see it."""
        for topic, moves in self._in.items():
            for move in moves:
                if _is_at_least(move, MoveState.PUBLISHING):
                    for number, end in enumerate(move.ends):
                        yield topic, move.target_first + number, end


NO_MOVES = MoveTable(-1)
"""Of a broker without ZooKeeper, or in a test."""
