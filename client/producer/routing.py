"""Choose the partition to which a message is sent. If the caller of the send has named a partition, the message goes
there. Otherwise the partition is computed from the message's key. If the message has no key, the user's selector
chooses the partition or, without a selector, all partitions are used in turn.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Protocol

from isal.isal_zlib import crc32

from metaq.coordination.runtime.logs import get_log
from metaq.protocol.errors import (
    BrokerUnavailable,
    CannotConnect,
    ConfigError,
    LocalProtocolError,
    MetaqError,
    NoPartition,
    RequestTimedOut,
    TooFewNodes,
)
from metaq.protocol.limits import check_new_topic

from ..records.results import TopicPartition
from ..runtime.nearest import topic_meant
from ..transport.channel import Channels
from ..transport.metadata import UNKNOWN, Metadata, TopicView
from .outgoing import Outgoing

__all__ = [
    "PartitionSelector",
    "RoundRobinSelector",
    "Router",
    "Routes",
    "check_selector",
    "key_bytes",
    "no_partition",
    "partition_for_key",
]

log = get_log(__name__)


class PartitionSelector(Protocol):
    """An object of the user that chooses the partition of messages without a key."""

    def select(self, topic: str, partitions: Sequence[TopicPartition], message: Any) -> TopicPartition:
        """Return one of `partitions`. The sequence is never empty, is ordered numerically by (broker, partition), and
        leaves out partitions that cannot accept messages now. Called on the thread that sends the message or, when a
        failed send is repeated, on the producer's retry thread.

        message: the payload of send(), or the list of payloads of send_batch().
        """


def check_selector(selector: PartitionSelector) -> PartitionSelector:
    """Return the selector. Raises ConfigError if the object is not a PartitionSelector."""
    if not callable(getattr(selector, "select", None)):
        remedy = "make it an object with a method select(topic, partitions, message)"
        raise ConfigError("selector", repr(selector), remedy)
    return selector


class RoundRobinSelector:
    """Selector that uses every partition in turn. Each topic has its own counter. (1.x has one counter for all topics,
    so if a program sends to two topics alternately, each topic uses only every second partition.) Each topic begins at
    a random partition, so that even if many programs send a single message each, the messages go to all partitions.
    (1.x always begins at the second partition.) Any thread may use the selector.

    random: a function that returns a number in [0, 1). It is called once per topic to choose the partition where the
    topic begins; 0 means the first partition.
    """

    def __init__(self, random: Callable[[], float] = random.random) -> None:
        self._counters: dict[str, Iterator[int]] = {}
        self._random = random

    def select(self, topic: str, partitions: Sequence[TopicPartition], message: Any) -> TopicPartition:
        counter = self._counters.get(topic)
        if counter is None:
            counter = self._counters.setdefault(topic, itertools.count(int(self._random() * len(partitions))))
        return partitions[next(counter) % len(partitions)]


class Routes(Protocol):
    """The methods of the Router that ProducerCore uses. `partitions_for_keys` and `avoid` are called with the core's
    lock held.
    """

    def route(self, outgoing: Outgoing) -> TopicPartition: ...
    def partitions_for_keys(self, topic: str) -> Sequence[TopicPartition]: ...
    def is_away(self, outgoing: Outgoing) -> bool: ...
    def avoid(self, partition: TopicPartition, error: MetaqError, seconds: float) -> bool: ...
    def works(self, partition: TopicPartition) -> None: ...

    @property
    def avoids_any(self) -> bool: ...


class Router:
    """Chooses among the partitions that are registered in ZooKeeper now. A partition to which a send has just failed is
    not chosen for a while. Any thread may use it.
    """

    def __init__(
        self,
        metadata: Metadata,
        pool: Channels,
        selector: PartitionSelector | None,
        default_topic: str | None,
        clock: Callable[[], float],
        random: Callable[[], float] = random.random,
    ) -> None:
        self._metadata = metadata
        self._pool = pool
        self._selector = selector
        self._default_topic = None if default_topic is None else check_new_topic(default_topic)
        self._round_robin = RoundRobinSelector(random)
        self._clock = clock
        self._listed: dict[str, tuple[Sequence[TopicPartition], frozenset[TopicPartition]]] = {}
        self._meant: dict[str, str] = {}  # by unpublished topic: the hint in the first error
        # broker, topic on a broker, or partition → until when it is avoided
        self._avoided: dict[int | tuple[str, int] | TopicPartition, float] = {}

    def route(self, outgoing: Outgoing) -> TopicPartition:
        """Choose the partition for a message. Raises NoPartition, InvalidName, and exceptions of a selector."""
        topic = outgoing.topic
        if outgoing.fixed is not None:
            return self._check_fixed(outgoing.fixed, topic)
        view = self._metadata.view(topic)
        if not view.partitions and self._default_topic is not None:
            check_new_topic(topic)  # a broker would create the topic with this message
            view = self._view(topic)
        partitions = view.partitions
        if not partitions:
            raise no_partition(topic)
        if outgoing.key is not None:
            return self._by_key(outgoing.key, partitions)
        if self._avoided or self._pool.down:
            partitions = self._usable(view)
        return self._select(topic, partitions, outgoing.message)

    def explained(self, outgoing: Outgoing, error: NoPartition) -> NoPartition:
        """Return the error with which a message ends: `error` itself or, if the name of the topic may be misspelt, an
        error whose text also names the most similar existing topic. This hint is added only if no broker publishes the
        topic and the caller of the send will get the error.

        To find the hint, the list of all topics is read from ZooKeeper, once for each missing topic. Raises InvalidName
        if no broker could create a topic of this name.
        """
        topic = outgoing.topic
        if outgoing.once or outgoing.fixed is not None or not self.is_away(outgoing):
            return error
        check_new_topic(topic)
        if topic not in self._meant:
            known: Collection[str] = ()
            try:
                known = set(self._metadata.topics()) - {topic}  # the topic may have just been registered
            except MetaqError as failure:  # a failed hint must not replace the message's error
                log.info("which topics there are is unknown: %s", failure)
            self._meant[topic] = topic_meant(topic, known, _new_topic(topic))
        return no_partition(topic, self._meant[topic])

    def partitions_for_keys(self, topic: str) -> Sequence[TopicPartition]:
        """Return the partitions among which the keys of the topic are distributed. The result is empty if no broker
        publishes the topic now. Raises NoPartition if the client has no ZooKeeper and was not told the topic's
        partitions.
        """
        partitions = self._view(topic).partitions
        if partitions and partitions[0].partition == UNKNOWN:
            raise _unknown_partitions(topic, "a key chooses from")
        return partitions

    def is_away(self, outgoing: Outgoing) -> bool:
        """Return whether, among the brokers to which a message could go, none is registered with the message's topic
        now. If the caller has given a partition, the message can only go to the partition's broker, otherwise to any
        broker. It is not enough that the broker is registered, because a restarted broker is registered before its
        topics are.
        """
        topic, fixed = outgoing.topic, outgoing.fixed
        view = self._view(topic)
        if fixed is None:
            return not view.partitions
        if fixed.broker not in view.endpoints:
            return True
        if fixed in self._published(topic, view):
            return False
        return all(each.broker != fixed.broker for each in view.partitions)

    def route_in_transaction(self, outgoing: Outgoing, broker: int | None) -> TopicPartition:
        """Choose a partition as `route` does, but only on the transaction's broker. broker: None if the transaction has
        no broker yet. Raises NoPartition.
        """
        try:
            chosen = self.route(outgoing) if broker is None else self._route_on(broker, outgoing)
        except NoPartition as error:
            raise self.explained(outgoing, error) from None
        if chosen.partition == UNKNOWN:
            raise _unknown_partitions(chosen.topic, "a transaction needs")
        return chosen

    def _route_on(self, broker: int, outgoing: Outgoing) -> TopicPartition:
        if outgoing.fixed is not None:
            fixed = self._check_fixed(outgoing.fixed, outgoing.topic)
            if fixed.broker != broker:
                raise NoPartition(f"partition {fixed} is not on broker {broker}, where this transaction is")
            return fixed
        partitions = tuple(each for each in self._view(outgoing.topic).partitions if each.broker == broker)
        if not partitions:
            raise NoPartition(f"broker {broker}, where this transaction is, does not publish topic {outgoing.topic!r}")
        if outgoing.key is not None:
            return self._by_key(outgoing.key, partitions)
        return self._select(outgoing.topic, partitions, outgoing.message)

    def avoid(self, partition: TopicPartition, error: MetaqError, seconds: float) -> bool:
        """Record that a send to `partition` has failed with `error`, so that for `seconds` this partition is not chosen
        or, depending on the error, none of its broker's partitions (of all topics, or of this topic). Return whether
        the topic has other partitions to choose.
        """
        what: int | tuple[str, int] | TopicPartition = partition
        if isinstance(error, TooFewNodes):
            what = partition.topic, partition.broker
        elif isinstance(error, (BrokerUnavailable, CannotConnect, RequestTimedOut)):
            what = partition.broker
        self._avoided[what] = self._clock() + seconds
        return partition not in self._usable(self._view(partition.topic))

    @property
    def avoids_any(self) -> bool:
        """Whether any partition, any broker, or any topic on a broker is avoided now because a send has failed. If
        nothing is avoided, `works` need not be called after a send that has succeeded.
        """
        return bool(self._avoided)

    def works(self, partition: TopicPartition) -> None:
        """Record that a send to `partition` has succeeded, so that this partition and its broker are no longer
        avoided.
        """
        if self._avoided:
            for what in (partition, (partition.topic, partition.broker), partition.broker):
                self._avoided.pop(what, None)

    def _by_key(self, key: str | bytes, partitions: Sequence[TopicPartition]) -> TopicPartition:
        if partitions[0].partition == UNKNOWN:
            raise _unknown_partitions(partitions[0].topic, "a key chooses from")
        return partition_for_key(key, partitions)

    def _view(self, topic: str) -> TopicView:
        """Return the topic's view (its partitions and the brokers' addresses). If no broker publishes the topic and
        there is a default topic, return a view with a partition of the topic for each partition of the default topic,
        with the same broker and number.
        """
        view = self._metadata.view(topic)
        if view.partitions or self._default_topic is None:
            return view
        lent = self._metadata.view(self._default_topic).partitions
        return TopicView(tuple(each._replace(topic=topic) for each in lent), view.endpoints)

    def _select(self, topic: str, partitions: tuple[TopicPartition, ...], message: Any) -> TopicPartition:
        if self._selector is None:
            if len(partitions) == 1:
                return partitions[0]
            return self._round_robin.select(topic, partitions, message)
        chosen = self._selector.select(topic, partitions, message)
        if chosen not in partitions:
            raise NoPartition(f"the selector chose {chosen!r}, which is not one of the partitions it was given")
        return chosen

    def _check_fixed(self, partition: TopicPartition, topic: str) -> TopicPartition:
        view = self._view(topic)
        if partition in self._published(topic, view):
            return partition
        if partition.topic != topic:
            raise NoPartition(f"partition {partition!r} does not belong to topic {topic!r}")
        away = (
            "" if partition.broker in view.endpoints else f"broker {partition.broker} is not registered now: start it; "
        )
        raise NoPartition(
            f"topic {topic!r} has no partition {partition}: {away}Producer.partitions({topic!r}) lists those there are"
        )

    def _published(self, topic: str, view: TopicView) -> frozenset[TopicPartition]:
        """Return the view's partitions as a set, for fast look-ups among thousands."""
        listed, partitions = self._listed.get(topic, (None, frozenset()))
        if listed is not view.partitions:
            partitions = frozenset(view.partitions)
            self._listed[topic] = view.partitions, partitions
        return partitions

    def _usable(self, view: TopicView) -> tuple[TopicPartition, ...]:
        """Return the topic's partitions without the partitions to which a send has just failed. If sends to all
        partitions have just failed, return all partitions.
        """
        now = self._clock()
        for what, until in list(self._avoided.items()):
            if until <= now:
                self._avoided.pop(what, None)
        avoided, down, endpoints = self._avoided, self._pool.down, view.endpoints
        usable = tuple(
            each
            for each in view.partitions
            if each not in avoided
            and each.broker not in avoided
            and (each.topic, each.broker) not in avoided
            and endpoints.get(each.broker) not in down
        )
        return usable or view.partitions


def partition_for_key(key: str | bytes, partitions: Sequence[TopicPartition]) -> TopicPartition:
    """Return the partition of a key. Its index in `partitions` is the CRC-32 (IEEE) of the key's UTF-8 bytes, modulo
    the number of partitions.

    As long as the list of partitions does not change, a key always has the same partition. When brokers are registered
    or unregistered, the list changes, and a key may get another partition.
    """
    return partitions[crc32(key_bytes(key)) % len(partitions)]


def key_bytes(key: str | bytes) -> bytes:
    """Return the bytes of a key, for comparing and hashing keys. A text and its UTF-8 bytes count as the same key.
    Raises LocalProtocolError.
    """
    try:
        return key.encode("utf-8") if isinstance(key, str) else key
    except UnicodeEncodeError:
        raise LocalProtocolError(f"key={key!r} is not valid UTF-8: use proper text, or bytes") from None


def no_partition(topic: str, remedy: str = "") -> NoPartition:
    """Return the error for a topic that no broker publishes now."""
    nobody = f"topic {topic!r} has no partition: no broker that is registered now publishes it"
    return NoPartition(f"{nobody}: {remedy or _new_topic(topic)}")


def _new_topic(topic: str) -> str:
    return (
        f"add [topic={topic}] to the server.ini of a broker, start that broker, and check that it uses this ZooKeeper "
        "and root"
    )


def _unknown_partitions(topic: str, what_for: str) -> NoPartition:
    return NoPartition(
        f"without ZooKeeper nobody knows the partitions of topic {topic!r} that {what_for}: name their number in "
        "Producer.direct(partitions={...})"
    )
