"""Decide how long a client treats the partitions of a broker set as registered although they are not. While a broker
set changes its leader, its topics are not registered in ZooKeeper for a short time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ..records.results import TopicPartition

__all__ = ["LEADERLESS_SECONDS", "Absences"]

LEADERLESS_SECONDS = 3.0
"""After a leader's end, its broker set normally has a new leader that has registered its topics within this number of
seconds. It takes longer only while no node may become the leader.
"""


class Absences:
    """Remembers the partitions that are not registered, but that a client has not dropped, because their broker sets
    are changing their leaders. If clients dropped such partitions at once, producers would for a moment send messages
    to other partitions than the ones of their keys, and members of consumer groups would give up partitions that come
    back a moment later. This class does no I/O. Only one thread at a time may use it.
    """

    def __init__(self) -> None:
        self.ends_in: float | None = None
        """Number of seconds after the last call of `kept` when the client must call `kept` again, because it must then
        drop the first of the partitions that the last call has returned. None if the last call has returned no
        partition.
        """
        self._since: dict[tuple[str, int], float] = {}

    def missing(self, former: Iterable[TopicPartition], found: Collection[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions in `former` whose topic is no longer registered by their broker. former: partitions
        that the client knew before, of one or several topics. found: the partitions of these topics that are registered
        now. If the result is not empty, call `kept` with it.
        """
        there = {(each.topic, each.broker) for each in found}
        for name in there & self._since.keys():
            del self._since[name]
        self.ends_in = None
        return [each for each in former if (each.topic, each.broker) not in there]

    def kept(self, missing: Iterable[TopicPartition], set_ids: Collection[int], now: float) -> list[TopicPartition]:
        """Return those of the missing partitions that the client must keep for now, because the new leader of their
        broker set may register them soon.
        missing: the partitions that the method `missing` has returned. set_ids: ids of all broker sets. now: monotonic
        seconds.
        """
        kept = []
        for each in missing:
            if each.broker not in set_ids:
                continue
            left = self._since.setdefault((each.topic, each.broker), now) + LEADERLESS_SECONDS - now
            if left > 0:
                kept.append(each)
                self.ends_in = left if self.ends_in is None else min(left, self.ends_in)
        return kept
