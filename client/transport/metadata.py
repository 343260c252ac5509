"""Tell a producer the partitions of topics, and the addresses of their brokers. The brokers are those of a cluster that
is registered in ZooKeeper, or a single broker that is used without ZooKeeper.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from metaq.protocol.errors import ConfigError
from metaq.protocol.limits import DEFAULT_PORT, check_topic
from metaq.protocol.own_topics import OWN_PARTITIONS, is_own_topic

from ..records.results import TopicPartition
from ..settings.config import check_number
from .connection import Endpoint

__all__ = ["UNKNOWN", "DirectMetadata", "LentMetadata", "Metadata", "TopicView", "parse_address", "with_own_partitions"]

UNKNOWN = -1
"""In place of a partition number, this value means that the broker chooses the partition. In place of a broker id, it
means that the client does not know the id.
"""

_ADDRESS = re.compile(r"(?:meta://)?(?:\[([0-9A-Fa-f:.]+)\]|([^\s:/\[\]]+))(?::(\d{1,5}))?/?")


class TopicView(NamedTuple):
    """A topic at one moment: its partitions, ordered by broker id and partition number, and the addresses of the
    brokers by id.
    """

    partitions: tuple[TopicPartition, ...]
    endpoints: Mapping[int, Endpoint]


def with_own_partitions(
    topic: str, partitions: Iterable[TopicPartition], endpoints: Mapping[int, Endpoint]
) -> tuple[TopicPartition, ...]:
    """Return the partitions of `topic` that accept messages, sorted. partitions: the registered partitions.

    Every broker accepts messages of metaq's own topics (own_topics.py), but registers such a topic only when its first
    message arrives. So if `topic` is one of metaq's own topics, the result also contains partition 0 of each broker
    that has not registered the topic yet.
    """
    if not is_own_topic(topic):
        return tuple(partitions)
    registered = [each for each in partitions if each.broker in endpoints]
    unregistered = endpoints.keys() - {each.broker for each in registered}
    return tuple(sorted((*registered, *(TopicPartition(topic, broker, 0) for broker in unregistered))))


class Metadata(Protocol):
    """The interface through which a producer gets information about its cluster. ZooKeeperMetadata, DirectMetadata and
    testing.FakeCluster implement it.
    """

    def view(self, topic: str) -> TopicView:
        """Return the topic's partitions that accept messages, and the brokers' addresses, as they are known now. The
        first call for a topic reads the topic. After that, the object follows the topic's changes, so later calls
        return at once. Any thread may call this.

        Raises CoordinationUnavailable if the topic was never read before and ZooKeeper does not answer.
        """

    def topics(self) -> Collection[str]:
        """Return the names of the topics that accept messages now. If a user names a topic that does not exist, the
        error text suggests the most similar of these names. Any thread may call this method. The method may ask
        ZooKeeper.

        Raises CoordinationError.
        """

    def is_set(self, broker_id: int) -> bool:
        """Return whether the broker consists of several nodes (a broker set), so that another node can become its
        leader. Any thread may call this method. The method may ask ZooKeeper.

        Raises CoordinationError.
        """

    def on_change(self, listener: Callable[[str], None]) -> None:
        """Call `listener(topic)` when the view of a topic is read for the first time, and after each change of the
        view. The listener may be called on any thread, and must not block.
        """

    def close(self, timeout: float = 10.0) -> None:
        """End the ZooKeeper session, if there is one, within `timeout` seconds. Further calls do nothing."""


class LentMetadata:
    """A wrapper around a Metadata object that another object owns and will close. A producer gets the wrapper, so that
    closing the producer does not close the Metadata object.
    """

    def __init__(self, owner: Metadata) -> None:
        self.view, self.topics, self.is_set, self.on_change = owner.view, owner.topics, owner.is_set, owner.on_change

    def close(self, timeout: float = 10.0) -> None:
        """Do nothing, because the owner closes the Metadata object."""


def parse_address(address: str) -> Endpoint:
    """Parse the address of a broker: `host`, `host:port` or `[IPv6]:port`, each with or without the prefix `meta://` of
    1.x. The default port is 8123.

    Raises ConfigError if the address is invalid.
    """
    match = _ADDRESS.fullmatch(address.strip()) if isinstance(address, str) else None
    port = int(match[3] or DEFAULT_PORT) if match else 0
    if match is None or not 0 < port < 65536:
        raise ConfigError("address", repr(address), "write it as host:port, for example 127.0.0.1:8123")
    return Endpoint(match[1] or match[2], port)


class DirectMetadata:
    """Metadata of one broker that is known by its address, as in metaq 1.x's direct mode.

    The view of a topic contains the number of partitions that the user has given for it. If no number is given, the
    view contains one partition with the number UNKNOWN, so that the broker chooses the partition. The view of one of
    metaq's own topics contains partition 0, which every broker has.
    """

    def __init__(self, endpoint: Endpoint, broker_id: int, partitions: Mapping[str, int]) -> None:
        """partitions: the number of partitions of each topic. Raises ConfigError, InvalidName, TypeError."""
        if not isinstance(partitions, Mapping):
            raise ConfigError("partitions", repr(partitions), "name the number of partitions by topic: {'trades': 4}")
        for topic, count in partitions.items():
            check_number(f"partitions[{check_topic(topic)!r}]", count)
        self._broker_id = broker_id
        self._endpoints = {broker_id: endpoint}
        self._views = {topic: self._made(topic, range(count)) for topic, count in partitions.items()}

    def view(self, topic: str) -> TopicView:
        found = self._views.get(topic)
        if found is None:
            numbers = range(OWN_PARTITIONS) if is_own_topic(check_topic(topic)) else (UNKNOWN,)
            found = self._made(topic, numbers)
        return found

    def _made(self, topic: str, numbers: Sequence[int]) -> TopicView:
        return TopicView(tuple(TopicPartition(topic, self._broker_id, each) for each in numbers), self._endpoints)

    def topics(self) -> Collection[str]:
        return self._views.keys()

    def is_set(self, broker_id: int) -> bool:
        """Return False: even if the broker is a broker set, the producer cannot find its next leader without
        ZooKeeper.
        """
        return False

    def on_change(self, listener: Callable[[str], None]) -> None:
        """Do nothing, because the view of a single broker never changes."""

    def close(self, timeout: float = 10.0) -> None:
        """Do nothing, because this object has no session or connection."""
