"""Read the state of a whole cluster without joining a group: topics, partitions, brokers, and the offsets of groups.

Command-line tools and Spark's driver use this module. A Cluster object has one ZooKeeper session, and one connection
per broker, which is opened when it is first used. Only one thread may use the object.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from metaq.coordination.brokers.cluster_view import BrokerNodes
from metaq.coordination.groups.membership import remove_group, remove_offsets
from metaq.coordination.moves.move_nodes import Moves
from metaq.coordination.offsets.offset_store import Offset, ZooKeeperOffsetStore
from metaq.coordination.records.move_payloads import Move
from metaq.coordination.records.payloads import UNKNOWN_MESSAGE_ID
from metaq.coordination.runtime.interrupts import Aside, begin_elsewhere
from metaq.coordination.session.diagnosis import ServerFinding
from metaq.coordination.sets.set_view import SetView, read_sets
from metaq.protocol.errors import BrokerUnavailable, NoPartition

from ..records.results import TopicPartition
from ..runtime.durations import Duration, check_wait
from ..runtime.nearest import published_nowhere
from ..runtime.timers import TimeLeft
from ..settings.config import ConnectionConfig, config_or_default
from ..transport.absences import LEADERLESS_SECONDS
from ..transport.connection import Connection, Endpoint
from ..transport.pool import ConnectionPool
from ..transport.zookeeper import zk_session
from .asking import following
from .left_out import LeftOut, left_out
from .sources import Source, Survey, endpoint_at
from .steady import SteadyView

if TYPE_CHECKING:
    from .finding import MessageFinder

__all__ = ["Cluster"]

_T = TypeVar("_T")


class Cluster:
    """Reads the state of a whole cluster. Use it as a context manager. Every method raises CoordinationUnavailable if
    ZooKeeper does not answer.
    """

    def __init__(
        self,
        zookeeper: str,
        *,
        root: str = "/meta",
        start_timeout_seconds: Duration = 10.0,
        config: ConnectionConfig | None = None,
        patience_seconds: Duration = LEADERLESS_SECONDS,
        starts: bool = True,
    ) -> None:
        """zookeeper: ZooKeeper's connect string, which may have a chroot. root: the znode below which metaq keeps its
        znodes. patience_seconds: if a broker set has nodes but no leader, reads of brokers and topics wait until it has
        one, at most this number of seconds. starts: whether this constructor calls `start`. The constructor of another
        class that makes a Cluster must pass False, store the Cluster in an attribute, and then call `start`: if an
        interrupt came after the start and before the storing, nobody could close the ZooKeeper session.
        """
        self.zookeeper = zookeeper
        self._config = config_or_default(config, ConnectionConfig)
        self._start_timeout_seconds = check_wait("start_timeout_seconds", start_timeout_seconds)
        patience = check_wait("patience_seconds", patience_seconds)
        self._session = zk_session(zookeeper, root, config=self._config)
        self._pool = ConnectionPool(self._config)
        self.view = SteadyView(self._session, patience)
        self._offsets = ZooKeeperOffsetStore(self._session)
        self._brokers: Mapping[int, BrokerNodes] | None = None
        self._ending = Aside("metaq cluster close")
        if starts:
            try:
                self.start()
            except BaseException:
                begin_elsewhere((self.close,))
                raise

    def start(self) -> None:
        """Connect to ZooKeeper. If this fails or is interrupted, the Cluster object is closed."""
        self._session.start(self._start_timeout_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self, timeout: Duration = 10.0) -> None:
        """End the ZooKeeper session and all connections. This takes at most `timeout` seconds plus END_SECONDS, even if
        ZooKeeper or a broker does not answer. Further calls do nothing.
        """
        self._ending.do(self._close, check_wait("timeout", timeout))

    def _close(self, timeout: float) -> None:
        left = TimeLeft(timeout)
        self._pool.close(left.part(0.5))
        self._session.close(left.seconds)

    # --- brokers and partitions -------------------------------------------------------------------------------------

    def servers(self, seconds: float) -> list[ServerFinding]:
        """Return the state of each ZooKeeper server. The call takes about `seconds` at most."""
        return self._session.examine_servers(seconds)

    def topics(self) -> list[str]:
        """Return, sorted, the names of the topics that accept messages on at least one live broker."""
        return self.view.live_topics()

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return the partitions of `topic` that accept messages on live brokers, ordered by (broker, partition).

        Raises NoPartition if there are none; the error's text names the most similar existing topic.
        """
        found = [TopicPartition(topic, broker, number) for broker, number in self.view.topic_partitions(topic)]
        if not found:
            raise self.no_partition(topic)
        return found

    def served(self, topic: str) -> list[TopicPartition]:
        """Return the partitions of `topic` on live brokers that accept messages or can be read, ordered by (broker,
        partition).
        """
        return self.served_many([topic])[topic]

    def served_many(self, topics: Sequence[str]) -> dict[str, list[TopicPartition]]:
        """Return, for each of these topics, what `served` returns. This takes only four round trips to ZooKeeper,
        however many topics there are.
        """
        offered = (self.view.topic_partitions_many(topics, publish) for publish in (True, False))
        return {
            topic: sorted(TopicPartition(topic, *each) for each in {*sent_to, *read})
            for topic, sent_to, read in zip(topics, *offered, strict=True)
        }

    def no_partition(self, topic: str) -> NoPartition:
        """Return the error for a topic that no live broker has. The error names the most similar existing topic."""
        return NoPartition(published_nowhere(topic, self.topics()))

    def choose_partitions(self, topic: str, only: Sequence[TopicPartition] = ()) -> list[TopicPartition]:
        """Return the partitions in `only`. If `only` is empty, return all partitions that `served` returns. Raises
        NoPartition if a partition in `only` does not exist; the error's text names the existing partitions.
        """
        there = self.served(topic)
        if not there:
            raise self.no_partition(topic)
        for partition in only:
            if partition not in there:
                raise NoPartition(self._has_not(topic, partition, there))
        return list(only) or there

    def _has_not(self, topic: str, partition: TopicPartition, there: Sequence[TopicPartition]) -> str:
        if partition.broker in self.view.absent_brokers(self.view.brokers()):
            return f"{topic} {partition}: broker {partition.broker} is not registered in ZooKeeper: start it"
        return f"topic {topic!r} has no partition {partition}: choose from {', '.join(map(str, there))}"

    def endpoint(self, broker_id: int) -> Endpoint:
        """Return the address of the master of the broker `broker_id` (its node that accepts messages, not a slave,
        which only copies them). The first call reads the addresses of all brokers. Raises BrokerUnavailable if no
        master is registered.
        """
        if self._brokers is None:
            self._brokers = self.view.brokers()
        nodes = self._brokers.get(broker_id)
        address = nodes.master if nodes else None
        if address is None:
            raise BrokerUnavailable(f"broker {broker_id} is not registered in ZooKeeper: start it")
        return endpoint_at(address)

    @property
    def config(self) -> ConnectionConfig:
        """The settings of connections to brokers."""
        return self._config

    def look_again(self) -> None:
        """Forget the addresses of brokers that `endpoint` has read, and connections that have ended. Call this before
        each task if the Cluster lives so long that brokers may restart or move meanwhile.
        """
        self._brokers = None
        self._pool.forget_ended()

    def connection(self, broker_id: int) -> Connection:
        """Return a connection to the master of `broker_id`. Raises BrokerUnavailable."""
        return self._pool.connection(self.endpoint(broker_id), self._config.connect_timeout_seconds)

    def ask(self, partition: TopicPartition, question: Callable[[Connection], _T]) -> _T:
        """Ask the partition's broker a question, and return the answer. If the broker is a broker set, the question
        goes to its leader. Raises BrokerUnavailable and the errors of the question.
        """
        return following(self._pool.follow, lambda: question(self.connection(partition.broker)))

    def ask_at(self, endpoint: Endpoint, question: Callable[[Connection], _T]) -> _T:
        """Ask a question as `ask` does, but ask the node at this address. If it answers that another node leads its
        broker set, ask that node.
        """
        return following(self._pool.follow, lambda: question(self.connect(endpoint)))

    def set_nodes(self) -> dict[int, tuple[Endpoint, ...]]:
        """Return the addresses of the present nodes of each broker set, by broker id. Raises CoordinationError."""
        return {
            broker_id: tuple(Endpoint(*node.address) for node in found.nodes.values())
            for broker_id, found in self.sets().items()
        }

    def sets(self) -> dict[int, SetView]:
        """Return all broker sets by broker id, in the order of the ids. Raises CoordinationError if the state of a set
        is damaged.
        """
        return read_sets(self._session)

    # --- reading ----------------------------------------------------------------------------------------------------

    def readable(self, topic: str) -> list[TopicPartition]:
        """Return, in numerical order, the partitions of `topic` that live brokers (masters or slaves) offer to
        readers.
        """
        found = self.view.topic_partitions(topic, publish=False)
        return [TopicPartition(topic, broker, number) for broker, number in found]

    def left_out(
        self, wanted: Callable[[str], bool], registered: Collection[int], offered: Collection[TopicPartition]
    ) -> list[LeftOut]:
        """Return the partitions that ZooKeeper mentions, because groups have offsets of them or a move names them, but
        that are not in `offered`. wanted: returns whether the partitions of a topic are to be returned.
        registered: ids of the brokers that were live just before `offered` was read.
        """
        return left_out(self.view, self.moves(), registered, wanted, offered)

    def moves(self) -> list[Move]:
        """Return the moves of partitions between brokers. The result contains the moves in progress, and earlier moves
        with their outcomes.
        """
        return [each.move for each in Moves(self._session).read_all()]

    def sources(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Source]:
        """Return, by partition, the broker that clients read the partition from now: the partition's master, or a slave
        if there is no master. Partitions without a master and without a slave are left out.
        """
        return self.survey().sources(partitions)

    def connect(self, endpoint: Endpoint) -> Connection:
        """Return a connection to the broker at this address. Raises BrokerUnavailable."""
        return self._pool.connection(endpoint, self._config.connect_timeout_seconds)

    def survey(self) -> Survey:
        """Return a new Survey, which asks the brokers of many partitions the same question, and goes on even if some
        brokers do not answer.
        """
        return Survey(self.view, self.connect, self._pool.follow)

    def finder(self) -> MessageFinder:
        """Return an object that searches the cluster's brokers for messages by id and by key."""
        from .finding import MessageFinder  # not imported for other questions

        return MessageFinder(self.view, self.connect, self._pool.follow)

    # --- groups -----------------------------------------------------------------------------------------------------

    def committed(self, group: str, partition: TopicPartition) -> Offset | None:
        """Return the group's committed offset, or None if the group never committed an offset of this partition."""
        return self._offsets.load(group, partition.topic, str(partition))

    def committed_many(self, group: str, partitions: Sequence[TopicPartition]) -> list[Offset | None]:
        """Return the committed offset of each partition, in order, as committed() returns it."""
        return self._offsets.load_many(group, [(each.topic, str(each)) for each in partitions])

    def commit(self, group: str, offsets: Mapping[TopicPartition, int | Offset]) -> None:
        """Store these offsets for the group. A plain number is a byte offset with an unknown message id, like the
        offsets that the tools of 1.x store.

        Call this method only for a group without members, because a consumer that owns a partition would overwrite the
        partition's offset.
        """
        named = {
            (each.topic, str(each)): offset if isinstance(offset, Offset) else Offset(UNKNOWN_MESSAGE_ID, offset)
            for each, offset in offsets.items()
        }
        self._offsets.commit(group, named, None)

    def owners(self, group: str, topic: str) -> Mapping[str, str]:
        """Return the owner of each partition of the topic that has an owner in the group. The result maps the
        partition's name (`<broker>-<partition>`) to the owner's consumer id.
        """
        return self.view.owners(group, topic)

    def members(self, group: str) -> Sequence[str]:
        """Return the ids of the live consumers of `group`, sorted."""
        return sorted(self.view.consumers(group))

    def group_topics(self, group: str) -> list[str]:
        """Return, sorted, the topics to which a live member of the group subscribes, together with the topics for which
        the group has offsets.
        """
        subscribed = {topic for topics in self.view.consumers(group).values() for topic in topics}
        return sorted(subscribed.union(self.view.committed_topics(group)))

    def delete_group(self, group: str) -> None:
        """Remove everything that ZooKeeper stores about the group. Raises ClientError if the group has live members, or
        if it changes during the removal, for example because a member joins.
        """
        remove_group(self._session, group)

    def begun_partitions(self, group: str, broker_id: int) -> list[TopicPartition]:
        """Return, sorted, the partitions of a broker that the group has begun to read. For such a partition ZooKeeper
        has an offset of the group, or an entry which says that a handler of the group has begun to process a message of
        the partition.
        """
        found = self.view.partitions_of_groups(lambda _: True)
        named = {place for place, groups in found.items() if group in groups}
        return sorted(TopicPartition.parse(*each) for each in named if each[1].partition("-")[0] == str(broker_id))

    def delete_offsets(self, group: str, partitions: Sequence[TopicPartition]) -> None:
        """Remove the group's offsets of these partitions. Use it if a broker will not come back, so that no member can
        own its partitions any more.
        """
        remove_offsets(self._session, group, [(each.topic, str(each)) for each in partitions])
