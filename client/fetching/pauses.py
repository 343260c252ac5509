"""Which topics and partitions a user has paused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from metaq.protocol.errors import ConfigError

from ..records.results import TopicPartition

__all__ = ["Pauses", "PlacesGiven", "places_given"]

PlacesGiven = str | TopicPartition | Iterable[str | TopicPartition]
"""Topics and partitions that a user names: one of them, or several."""


class Pauses(NamedTuple):
    """What is paused. A partition is paused if its topic is in `topics` and the partition is not in `exceptions`, or if
    its topic is not in `topics` and the partition is in `exceptions`. So the last call for a partition counts.
    """

    topics: frozenset[str] = frozenset()
    exceptions: frozenset[TopicPartition] = frozenset()

    def holds(self, partition: TopicPartition) -> bool:
        """Return whether this partition is paused."""
        return (partition.topic in self.topics) != (partition in self.exceptions)

    def changed(self, places: Iterable[str | TopicPartition], paused: bool) -> Pauses:
        """Return the Pauses after these topics and partitions were paused, or resumed if `paused` is false."""
        topics, exceptions = set(self.topics), set(self.exceptions)
        for place in places:
            if not isinstance(place, TopicPartition):
                exceptions = {each for each in exceptions if each.topic != place}
                (topics.add if paused else topics.discard)(place)
            elif (place.topic in topics) != paused:
                exceptions.add(place)
            else:
                exceptions.discard(place)
        return Pauses(frozenset(topics), frozenset(exceptions))


def places_given(places: PlacesGiven, topics: Iterable[str]) -> list[str | TopicPartition]:
    """Return the topics and partitions in `places` as a list. Raises ConfigError if one of them is neither, or is not
    of `topics`, the topics that the consumer reads.
    """
    known = set(topics)
    if isinstance(places, str | TopicPartition):
        given: list[str | TopicPartition] = [places]
    else:
        given = list(places) if isinstance(places, Iterable) else [places]
    for each in given:
        if not isinstance(each, str | TopicPartition):
            raise ConfigError("places", repr(each), "name topics (str) or partitions (TopicPartition)")
        topic = each.topic if isinstance(each, TopicPartition) else each
        if topic not in known:
            read = ", ".join(sorted(known))
            raise ConfigError("places", repr(each), f"this consumer does not read the topic: it reads {read}")
    return given
