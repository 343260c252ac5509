"""Keep the partitions of a broker set in a client's view while they are unregistered for a short time because the set
is changing its leader.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ..records.results import TopicPartition

__all__ = ["LEADERLESS_SECONDS", "Absences"]

LEADERLESS_SECONDS = 3.0
"""Number of seconds within which a broker set normally elects its next leader, and this leader registers the topics.
The election takes longer if no node may lead.
"""


class Absences:
    """The partitions in a client's view whose broker sets are changing their leaders. This class does no I/O. Only one
    thread at a time may use it.

    The class prevents two effects of a leader's end. Producers would send messages with the keys of the leader's
    partitions to other brokers for a moment. Groups would give up partitions that come back at once.
    """

    def __init__(self) -> None:
        self.ends_in: float | None = None
        """Number of seconds from the last call of `kept` until the client must drop a partition that the call has
        returned; the earliest such time counts. None if the call has returned no partition.
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
        """Return the missing partitions that may come back: their broker set may register the topic again soon.
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
