"""Keep partitions of broker sets that are temporarily unregistered because the set is changing its leader."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ..records.results import TopicPartition

__all__ = ["LEADERLESS_SECONDS", "Absences"]

LEADERLESS_SECONDS = 3.0
"""Seconds within which a set's next leader is elected and has registered its topics, unless no node may lead."""


class Absences:
    """A client's partitions of broker sets that are changing their leaders. No I/O. One thread at a time.

    Without this a leader's end would move the keys of its partitions to other brokers for a moment, and a group would
    hand over partitions that come back at once.
    """

    def __init__(self) -> None:
        self.ends_in: float | None = None
        """Seconds until a partition that the last call kept is no longer kept; None: the call kept none."""
        self._since: dict[tuple[str, int], float] = {}

    def missing(self, former: Iterable[TopicPartition], found: Collection[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions of `former`, of any topics, whose broker has not registered the topic now. If there are
        any, call `kept`. found: the registered partitions of these topics."""
        there = {(each.topic, each.broker) for each in found}
        for name in there & self._since.keys():
            del self._since[name]
        self.ends_in = None
        return [each for each in former if (each.topic, each.broker) not in there]

    def kept(self, missing: Iterable[TopicPartition], set_ids: Collection[int], now: float) -> list[TopicPartition]:
        """Return the missing partitions whose broker set may register the topic again soon. set_ids: ids of all broker
        sets. now: monotonic seconds."""
        kept = []
        for each in missing:
            if each.broker not in set_ids:
                continue
            left = self._since.setdefault((each.topic, each.broker), now) + LEADERLESS_SECONDS - now
            if left > 0:
                kept.append(each)
                self.ends_in = left if self.ends_in is None else min(left, self.ends_in)
        return kept
