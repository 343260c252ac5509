"""Find the brokers from which clients read a partition or a whole topic. Also ask the same question about many
partitions, each time the broker of the partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from metaq.coordination.brokers.cluster_view import BrokerAddress, BrokerNodes, ClusterView
from metaq.protocol.errors import (
    BrokerUnavailable,
    CannotConnect,
    CoordinationError,
    MetaqError,
    NoPartition,
    NotLeader,
    PartitionClosed,
    RemoteProtocolError,
    RequestTimedOut,
)

from ..records.results import TopicPartition
from ..runtime.nearest import published_nowhere
from ..transport.connection import Connection, Endpoint
from .asking import Follow, following

__all__ = ["Source", "Sources", "Survey", "brokers_of", "endpoint_at", "source_of"]

_T = TypeVar("_T")


def source_of(brokers: Mapping[int, BrokerNodes], partition: TopicPartition) -> Endpoint | None:
    """Return the address of the process from which clients read a partition: the master of the partition's broker or,
    if no master is registered, one of its slaves (the same slave at each call). Return None if there is neither.
    """
    nodes = brokers.get(partition.broker)
    if nodes is None:
        return None
    if nodes.master is not None:
        return endpoint_at(nodes.master)
    return endpoint_at(nodes.slaves[partition.partition % len(nodes.slaves)]) if nodes.slaves else None


class Sources(NamedTuple):
    """The addresses of the brokers from which a topic can be read, by broker id. absent: ids of brokers that are not
    registered now, but were earlier; these brokers possibly have messages of the topic, too.
    """

    endpoints: dict[int, Endpoint]
    absent: tuple[int, ...] = ()


def brokers_of(view: ClusterView, topic: str) -> Sources:
    """Return the brokers from which a topic can be read. Raises NoPartition if there are none."""
    nodes = view.brokers()
    found: dict[int, Endpoint] = {}
    for broker_id, number in view.topic_partitions(topic, publish=False):
        endpoint = source_of(nodes, TopicPartition(topic, broker_id, number))
        if endpoint is not None:
            found[broker_id] = endpoint
    if not found:
        raise NoPartition(published_nowhere(topic, view.live_topics()))
    return Sources(found, tuple(view.absent_brokers(nodes)))


def endpoint_at(address: BrokerAddress) -> Endpoint:
    """Return the address of a registered broker."""
    return Endpoint(address.host, address.port)


class Source(NamedTuple):
    """The broker from which a partition is read now. is_master: true if the broker is the partition's master; false if
    it is a slave, which may lack the newest messages.
    """

    endpoint: Endpoint
    is_master: bool


class Survey:
    """Sends the same kind of question about many partitions to their brokers, and collects the answers. For each
    partition, the survey asks the partition's master, or a slave if there is no master. If some brokers do not answer,
    the answers of the other brokers can still be used, and the survey records which answers are missing. Only one
    thread may use a survey.

    A broker that did not answer is not asked again. So if a broker with many partitions hangs, the caller waits for it
    only once.
    """

    def __init__(
        self, view: ClusterView, connect: Callable[[Endpoint], Connection], follow: Follow = lambda _: None
    ) -> None:
        self._view = view
        self._connect = connect
        self._follow = follow
        self._brokers: Mapping[int, BrokerNodes] | None = None
        self.silent: dict[int, str] = {}
        """For each broker id, the reason why the broker did not answer, as a text that follows the broker's name in a
        sentence.
        """
        self.closed: set[TopicPartition] = set()
        """The partitions that an operator has closed, as far as brokers have said so in answers to this survey."""
        self.refused: dict[TopicPartition, str] = {}
        """For each partition, the reason why the broker has refused a question that `attempt` has sent about the
        partition.
        """

    def source(self, partition: TopicPartition) -> Source | None:
        """Return the broker from which clients read the partition now, or None if no broker with the partition is
        registered in ZooKeeper.
        """
        if self._brokers is None:
            self._brokers = self._view.brokers()
        endpoint = source_of(self._brokers, partition)
        return None if endpoint is None else Source(endpoint, self._brokers[partition.broker].master is not None)

    def sources(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Source]:
        """Return, by partition, the broker that clients read the partition from now. Partitions without such a broker
        are left out.
        """
        return {each: source for each in partitions if (source := self.source(each)) is not None}

    def answer(self, partition: TopicPartition, question: Callable[[Connection, TopicPartition], _T]) -> _T:
        """Ask a partition's broker, and return its answer.

        Raises BrokerUnavailable, CannotConnect, RequestTimedOut, NotLeader and RemoteProtocolError, and records them in
        `silent`; raises PartitionClosed, and records it in `closed`. Also raises other errors of the question, and
        CoordinationUnavailable, without recording them.
        """
        broker, source = partition.broker, self.source(partition)
        if source is None:
            self.silent[broker] = "is not registered in ZooKeeper"
        if source is None or broker in self.silent:
            raise BrokerUnavailable(f"{partition.topic} {partition}: broker {broker} {self.silent[broker]}: start it")
        try:
            endpoint = source.endpoint
            found = following(self._follow, lambda: question(self._connect(endpoint), partition))
        except PartitionClosed:
            self.closed.add(partition)
            raise
        except NotLeader as error:
            self.silent[broker] = f"has no leader, see `metaq brokers sets` ({error})"
            raise
        except (BrokerUnavailable, CannotConnect, RequestTimedOut, RemoteProtocolError) as error:
            self.silent[broker] = f"does not answer ({error})"
            raise
        self.closed.discard(partition)
        return found

    def ask(self, partition: TopicPartition, question: Callable[[Connection, TopicPartition], _T]) -> _T | None:
        """Ask a partition's broker, and return its answer. If an error occurs that `answer` records in `silent` or
        `closed`, return None and do not raise the error.
        """
        try:
            return self.answer(partition, question)
        except (BrokerUnavailable, CannotConnect, RequestTimedOut, NotLeader, RemoteProtocolError, PartitionClosed):
            return None

    def attempt(self, partition: TopicPartition, question: Callable[[Connection, TopicPartition], _T]) -> _T | None:
        """Ask a partition's broker as `ask` does, but also return None if the broker refuses the question. The refusal
        is recorded in `refused`. So a caller that asks about many partitions can go on after a broker has refused the
        question for one of them.
        """
        self.refused.pop(partition, None)
        try:
            return self.ask(partition, question)
        except CoordinationError:
            raise
        except MetaqError as error:
            self.refused[partition] = str(error)
            return None

    def ask_each(
        self, partitions: Iterable[TopicPartition], question: Callable[[Connection, TopicPartition], _T]
    ) -> dict[TopicPartition, _T]:
        """Call `attempt` for each partition in order, and return the answers by partition. Partitions without an answer
        are left out.
        """
        answers = {each: self.attempt(each, question) for each in partitions}
        return {each: answer for each, answer in answers.items() if answer is not None}

    def leave_out(self, broker_id: int, why: str) -> None:
        """Do not ask this broker from now on, because it cannot answer. why: the reason, worded as the rest of a
        sentence that begins with the broker's name.
        """
        self.silent[broker_id] = why

    def ask_again(self) -> None:
        """Forget which brokers did not answer, because they may be back. Also forget which broker each partition is
        read from, so that this is looked up again.
        """
        self.silent.clear()
        self._brokers = None
