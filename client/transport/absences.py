"""Keep the partitions of a broker set in a client's view while they are unregistered for a short time because the set
is changing its leader.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ..records.results import TopicPartition

__all__ = ["LEADERLESS_SECONDS", "Absences"]

LEADERLESS_SECONDS = 3.0
"""Within this number of seconds, a set's next leader is elected and has registered its topics, unless no node may
lead.
"""


class Absences:
    """The partitions in a client's view whose broker sets are changing their leaders. This class does no I/O. Only one
    thread at a time may use it.

    Without this class, the end of a leader would send the keys of its partitions to other brokers for a moment, and a
    group would hand over partitions that come back at once.
    """

    def __init__(self) -> None:
        self.ends_in: float | None = None
        """Seconds after which the first of the partitions kept by the last call is no longer kept. None: the call kept
        no partition.
        """
        self._since: dict[tuple[str, int], float] = {}

    def missing(self, former: Iterable[TopicPartition], found: Collection[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions in `former` whose topic their broker does not register now. `former` may contain
        partitions of several topics. If the result is not empty, call `kept`. found: the registered partitions of these
        topics.
        """
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
