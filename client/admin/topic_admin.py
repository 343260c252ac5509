"""List topics, and describe the content of their partitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metaq.protocol.own_topics import OWN_MARK

from ..questions.cluster import Cluster
from ..questions.partition_bounds import Bounds, partition_bounds
from ..questions.sources import Survey
from ..records.results import TopicPartition
from .completeness import Unanswered, absent_brokers

__all__ = ["PartitionDescription", "TopicAdmin", "TopicDescription", "TopicSummary"]


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """A topic: its number of partitions on all live brokers, and the number of these brokers."""

    topic: str
    partitions: int
    brokers: int


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """The content of one partition.

    address: host and port of the broker that clients read the partition from now; None if no broker with the partition
    is registered. bounds: the readable bytes and the number of messages; None if the broker did not answer or the
    partition is closed. closed: whether an operator has closed the partition.
    """

    partition: TopicPartition
    address: str | None
    bounds: Bounds | None
    closed: bool


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """The partitions of a topic on live brokers. unanswered: which data is missing."""

    topic: str
    partitions: Sequence[PartitionDescription]
    unanswered: Unanswered

    def check_complete(self) -> None:
        """Raise BrokerUnavailable if `bounds` of a partition is None because its broker did not answer."""
        self.unanswered.check([each.partition for each in self.partitions])


class TopicAdmin:
    """The calls about topics. Only one thread may use this object at a time. All calls raise CoordinationUnavailable if
    ZooKeeper does not answer.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def list(self, *, with_own: bool = False) -> Sequence[TopicSummary]:
        """Return the topics that live brokers offer to producers or to consumers, sorted by name. with_own: whether the
        result also contains metaq's own topics (failed messages, dead letters, replies), whose names begin with %.
        """
        names = [name for name in self._cluster.view.topics() if with_own or not name.startswith(OWN_MARK)]
        served = self._cluster.served_many(names)
        return [
            TopicSummary(topic, len(partitions), len({each.broker for each in partitions}))
            for topic, partitions in served.items()
            if partitions
        ]

    def describe(self, topic: str) -> TopicDescription:
        """Return the content of each partition of a topic, ordered by broker and partition.

        If a broker does not answer, its partitions have no `bounds`; `check_complete` of the result raises an error
        then. Raises NoPartition if no live broker has the topic.
        """
        self._cluster.look_again()
        partitions = self._cluster.choose_partitions(topic)
        survey = self._cluster.survey()
        bounds = survey.ask_each(partitions, partition_bounds)
        described = [_describe(survey, each, bounds.get(each)) for each in partitions]
        return TopicDescription(topic, described, Unanswered.of(survey, absent_brokers(self._cluster)))


def _describe(survey: Survey, partition: TopicPartition, bounds: Bounds | None) -> PartitionDescription:
    source = survey.source(partition)
    address = None if source is None else str(source.endpoint)
    return PartitionDescription(partition, address, bounds, partition in survey.closed)
