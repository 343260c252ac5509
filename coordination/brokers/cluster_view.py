"""Read the brokers and topics of a cluster in ZooKeeper. registration.py writes the znodes that this module reads."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from metaq.protocol.errors import CoordinationError

from ..records.java_order import java_sorted
from ..records.paths import child_of, partition_name
from ..records.payloads import (
    ListenerAddress,
    parse_broker_id,
    parse_broker_url,
    parse_checksum,
    parse_consumer_id,
    parse_consumer_zone,
    parse_listeners,
    parse_partition_count,
    parse_replica_name,
    parse_slave_name,
    parse_topics,
    parse_zone,
)
from ..runtime.logs import get_log
from ..session.watches import ChildrenWatchers
from ..session.zk_session import ZkSession
from ..session.znodes import Znode
from .registration import BrokerAddress

__all__ = ["BrokerAddress", "BrokerNodes", "ClusterView", "TopicReplica", "read_entry"]

log = get_log(__name__)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class BrokerNodes:
    """The addresses of the live processes with one broker id: a master (which accepts messages), slaves (which copy its
    messages), or both. There is at least one process.
    """

    master: BrokerAddress | None
    slaves: tuple[BrokerAddress, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicReplica:
    """A broker process that offers a topic, and the number of partitions that it offers. slave_id: the id of a slave,
    or None if the process is the master.
    """

    broker_id: int
    slave_id: int | None
    partitions: int


class ClusterView:
    """Reads the cluster's state. Any thread except kazoo's may call the methods. Each call makes requests to ZooKeeper
    and may raise CoordinationUnavailable.

    If the data of a znode cannot be decoded, this is logged and the znode is left out, so that a single damaged znode
    does not stop a client. Java clients leave out such a znode, too, so all members of a group, Java or Python, see the
    same partitions.
    """

    def __init__(self, session: ZkSession) -> None:
        self._session = session
        self._paths = session.paths
        self._nodes = session.nodes
        self._watchers = ChildrenWatchers(session)

    # --- brokers ----------------------------------------------------------------------------------------------------

    def broker_ids(self) -> list[int]:
        """Return the ids of all brokers that were ever registered, sorted. Stopped brokers are included, because the
        znode of a broker id stays in ZooKeeper when the broker stops.
        """
        parent = self._paths.broker_ids()
        ids = (read_entry(parse_broker_id, parent, name) for name in self._nodes.children(parent))
        return sorted(each for each in ids if each is not None)

    def set_ids(self) -> list[int]:
        """Return the ids of all broker sets that ever existed, sorted."""
        parent = self._paths.broker_sets()
        ids = (read_entry(parse_broker_id, parent, name) for name in self._nodes.children(parent))
        return sorted(each for each in ids if each is not None)

    def set_leaders(self) -> dict[int, int | None]:
        """Return, by broker id, the id of the leader's ZooKeeper session for each broker set that has at least one
        node. The value is None if the set has no leader now, or if the leader has not registered all its topics yet.

        A caller that must not miss a topic of any set calls this method, reads the topics, and calls this method again.
        If both calls return the same result, and no value is None, no set has changed its leader in between, and the
        caller has read all topics.
        """
        paths, ids = self._paths, self.set_ids()
        nodes = self._nodes.children_many([paths.set_nodes(each) for each in ids])
        present = [each for each, names in zip(ids, nodes, strict=True) if names]
        masters = self._nodes.get_many([paths.master(each) for each in present])
        registered = self._nodes.get_many([paths.master_config_checksum(each) for each in present])
        return {
            each: master.owner if master and last and master.owner == last.owner else None
            for each, master, last in zip(present, masters, registered, strict=True)
        }

    def absent_brokers(self, registered: Container[int]) -> list[int]:
        """Return the ids of brokers that were registered at some time, but are not in `registered`, sorted. registered:
        the ids of the brokers that are registered now.
        """
        return [each for each in self.broker_ids() if each not in registered]

    def brokers(self) -> dict[int, BrokerNodes]:
        """Return the live brokers by id, in order."""
        ids = self.broker_ids()
        children = self._nodes.children_many([self._paths.broker(each) for each in ids])
        wanted = [
            (broker_id, name, child_of(self._paths.broker(broker_id), name))
            for broker_id, names in zip(ids, children, strict=True)
            for name in names
            if is_process(name)
        ]
        nodes = self._nodes.get_many([path for _, _, path in wanted])
        addresses = [
            address
            for (broker_id, name, path), node in zip(wanted, nodes, strict=True)
            if node and (address := process_address(broker_id, name, path, node))
        ]
        if (listener := self._session.listener) is None:
            return brokers_by_id(addresses)
        masters = [each.broker_id for each in addresses if each.slave_id is None]
        paths = [self._paths.broker_listeners(each) for each in masters]
        found = {
            broker_id: None if node is None else read_entry(parse_listeners, path, node.data)
            for broker_id, path, node in zip(masters, paths, self._nodes.get_many(paths), strict=True)
        }
        return brokers_by_id(at_listener(each, listener, found.get(each.broker_id)) for each in addresses)

    def broker_zones(self) -> dict[int, str]:
        """Return the zone of each live broker by broker id. Brokers without a zone are left out."""
        parent = self._paths.broker_zones()
        found = self._texts(parent, self._nodes.children(parent), parse_zone)
        return {int(name): zone for name, zone in found.items() if name.isdecimal()}

    def config_checksums(self, broker_ids: Sequence[int]) -> list[int | None]:
        """Return the registered CRC-32 of the server.ini of each broker's master, in the order of `broker_ids`. The
        value is None for a broker without a registered checksum.
        """
        paths = [self._paths.master_config_checksum(each) for each in broker_ids]
        nodes = self._nodes.get_many(paths)
        return [
            read_entry(parse_checksum, path, node.data) if node else None
            for path, node in zip(paths, nodes, strict=True)
        ]

    # --- topics -----------------------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """Return, sorted, the names of all topics that brokers have ever offered to producers or consumers, including
        topics that no broker offers now.
        """
        names = self._nodes.children_many([self._paths.topics_pub(), self._paths.topics_sub()])
        return sorted({name for each in names for name in each})

    def live_topics(self) -> list[str]:
        """Return the names of the topics that at least one live master offers to producers now, sorted. This method
        reads the znodes of all topics that ever existed, but with only a few round trips, because it sends many
        requests before it waits for their answers.
        """
        names = self.topics()
        replicas = self.replicas_many(names)
        return [
            name
            for name, each in zip(names, replicas, strict=True)
            if any(replica.slave_id is None and replica.partitions for replica in each)
        ]

    def replicas(self, topic: str, publish: bool = True) -> list[TopicReplica]:
        """Return the broker processes that offer `topic` to producers (if `publish` is true) or to consumers (if
        false), sorted by broker id. For each broker id, the master comes first, followed by the slaves, sorted by slave
        id.
        """
        (found,) = self.replicas_many([topic], publish)
        return found

    def replicas_many(self, topics: Sequence[str], publish: bool = True) -> list[list[TopicReplica]]:
        """Return the result of replicas() for each topic, in order. All topics together take two round trips."""
        parent, child = (
            (self._paths.topic_pub, self._paths.topic_pub_broker)
            if publish
            else (self._paths.topic_sub, self._paths.topic_sub_broker)
        )
        names = self._nodes.children_many([parent(topic) for topic in topics])
        paths = [child(topic, name) for topic, each in zip(topics, names, strict=True) for name in each]
        nodes = iter(self._nodes.get_many(paths))
        return [
            topic_replicas(parent(topic), {name: (child(topic, name), next(nodes)) for name in each})
            for topic, each in zip(topics, names, strict=True)
        ]

    def topic_partitions(self, topic: str, publish: bool = True) -> list[tuple[int, int]]:
        """Return the topic's partitions as (broker id, partition), in numeric order. publish: if true, return the
        partitions that accept messages, which only masters have. If false, return the partitions that consumers can
        read.
        """
        (found,) = self.topic_partitions_many([topic], publish)
        return found

    def topic_partitions_many(self, topics: Sequence[str], publish: bool = True) -> list[list[tuple[int, int]]]:
        """Return the result of topic_partitions() for each topic, in order. All topics together take two round
        trips.
        """
        found = []
        for replicas in self.replicas_many(topics, publish):
            counts = _counts(each for each in replicas if each.slave_id is None or not publish)
            found.append([(broker_id, part) for broker_id in sorted(counts) for part in range(counts[broker_id])])
        return found

    def consumer_partitions(self, topic: str) -> list[str]:
        """Return the names `<broker>-<partition>` of all partitions of the topic that a consumer group distributes
        among its members: those of masters and of slaves, sorted as Java sorts strings.
        """
        return partition_names(self.replicas(topic, publish=False))

    # --- groups -----------------------------------------------------------------------------------------------------

    def groups(self) -> list[str]:
        """Return the names of all consumer groups that ever existed, sorted."""
        return sorted(self._nodes.children(self._paths.groups()))

    def consumers(self, group: str) -> dict[str, list[str]]:
        """Return the topics of each live consumer of the group, by consumer id."""
        names = self._nodes.children(self._paths.group_ids(group))
        paths = [self._paths.consumer(group, name) for name in names]
        nodes = zip(names, paths, self._nodes.get_many(paths), strict=True)
        return {name: consumer_topics(path, node) for name, path, node in nodes if node}

    def owners(self, group: str, topic: str) -> dict[str, str]:
        """Return the owner of each partition of the topic that has an owner in the group. The result maps the
        partition's name (`<broker>-<partition>`) to the owner's consumer id.
        """
        parent = self._paths.owners(group, topic)
        return self._texts(parent, self._nodes.children(parent), parse_consumer_id)

    def consumer_zones(self, group: str) -> dict[str, str]:
        """Return the zone of each live consumer of the group, without the consumers that do not assign partitions by
        zones. The result maps the consumer's id to its zone.
        """
        parent = self._paths.group_zones(group)
        return self._texts(parent, self._nodes.children(parent), parse_consumer_zone)

    def _texts(
        self, parent: str, names: Sequence[str], parse: Callable[[str, bytes | None], str | None]
    ) -> dict[str, str]:
        """Read the children `names` of the znode `parent`, and parse the data of each child by `parse`. Return the
        results by name. Children without data are left out.
        """
        paths = [child_of(parent, name) for name in names]
        nodes = zip(names, paths, self._nodes.get_many(paths), strict=True)
        texts = {name: read_entry(parse, path, node.data) for name, path, node in nodes if node}
        return {name: text for name, text in texts.items() if text}

    def committed_topics(self, group: str) -> list[str]:
        """Return the topics for which the group has committed an offset, sorted."""
        return sorted(self._nodes.children(self._paths.group_offsets(group)))

    def committed_partitions(self, group: str, topic: str) -> list[str]:
        """Return the names of the topic's partitions for which the group has committed an offset, sorted as Java sorts
        strings.
        """
        return java_sorted(self._nodes.children(self._paths.offsets(group, topic)))

    def partitions_of_groups(self, wanted: Callable[[str], bool]) -> dict[tuple[str, str], list[str]]:
        """Return, for each partition of the wanted topics, the names of the groups that have begun to read it. For such
        a group ZooKeeper has a committed offset of the partition, or an entry which says that a member has begun to
        process a message of the partition (offsets/begun_marks.py). The key is (topic, `<broker>-<partition>`).
        wanted: returns whether a topic is wanted.

        The method takes three round trips altogether.
        """
        places = [
            (group, above(group), path)
            for group in self.groups()
            for above, path in (
                (self._paths.group_offsets, self._paths.offsets),
                (self._paths.group_begun, self._paths.begun_of_topic),
            )
        ]
        topics = self._nodes.children_many([above for _, above, _ in places])
        lists = [
            (group, topic, path(group, topic))
            for (group, _, path), names in zip(places, topics, strict=True)
            for topic in names
            if wanted(topic)
        ]
        found: dict[tuple[str, str], list[str]] = {}
        partitions = self._nodes.children_many([path for _, _, path in lists])
        for (group, topic, _), names in zip(lists, partitions, strict=True):
            for name in names:
                groups = found.setdefault((topic, name), [])
                if group not in groups:
                    groups.append(group)
        return found

    # --- watching ---------------------------------------------------------------------------------------------------

    def watch_brokers(self, callback: Callable[[], None]) -> None:
        """Call `callback()` on the event thread now (once for each broker id that ever existed), and later whenever a
        master or slave registers, ends, or is replaced by another process. This method sets one ZooKeeper watch for
        each broker id that ever existed. If the session has a listener, the callback is also called when a broker
        publishes its listeners.
        """

        def ids_changed(_path: str, names: list[str]) -> None:
            for name in names:
                if name.isdecimal():
                    self._watchers.watch(self._paths.broker(int(name)), lambda _path, _children: callback())

        self._watchers.watch(self._paths.broker_ids(), ids_changed)
        if self._session.listener is not None:
            self._watchers.watch(self._paths.broker_listeners_parent(), lambda _path, _children: callback())

    def watch_topic(self, topic: str, callback: Callable[[str], None]) -> None:
        """Call `callback(topic)` on the event thread now, and later whenever a broker begins or stops to offer `topic`
        to producers.

        If the topic's znode below topics-pub does not exist, this method creates it, as producers of 1.x do, so that it
        can be watched. The method sets one ZooKeeper watch per topic.
        """
        path = self._paths.topic_pub(topic)
        self._nodes.ensure([path])
        self._watchers.watch(path, lambda _path, _children: callback(topic))


def is_process(name: str) -> bool:
    """Return whether the znode `name` below a broker id stands for a process: the master or a slave."""
    return name == "master" or parse_slave_name(name) is not None


def process_address(broker_id: int, name: str, path: str, node: Znode) -> BrokerAddress | None:
    """Return the address of the process that registered the znode `node` with this `name`. Return None for a damaged
    entry.
    """
    url = read_entry(parse_broker_url, path, node.data)
    return BrokerAddress(broker_id, parse_slave_name(name), *url) if url else None


def at_listener(
    address: BrokerAddress, listener: str, listeners: Mapping[str, ListenerAddress] | None
) -> BrokerAddress:
    """Return the address of a process's listener with this name. listeners: what the broker has published; None if it
    has published nothing.

    If there is no such listener, or for a slave, return an address that no client can connect to, with port 0 and the
    reason in place of the host. So the broker stays visible, the other brokers can be used, and an attempt to connect
    gives the reason.
    """
    found = None if listeners is None or address.slave_id is not None else listeners.get(listener)
    if found is not None:
        return replace(address, host=found.host, port=found.port)
    if address.slave_id is not None or not listeners:
        has, remedy = "publishes no listeners", "leave the key `listener` out"
    else:
        has, remedy = f"has {', '.join(listeners)}", "name one of these"
    why = (
        f"listener={listener}: broker {address.replica} has no such listener; it {has}: {remedy} (section [client] of "
        f"the profile, or ConnectionConfig.listener), or add [listener {listener}] to its security.ini"
    )
    return replace(address, host=why, port=0)


def consumer_topics(path: str, node: Znode) -> list[str]:
    """Return the topics of the consumer that registered the znode `node`, or an empty list for a damaged entry."""
    return read_entry(parse_topics, path, node.data) or []


def partition_names(replicas: Iterable[TopicReplica]) -> list[str]:
    """Return the names `<broker>-<partition>` of all partitions of these replicas, without duplicates, sorted as Java
    sorts strings.
    """
    counts = _counts(replicas)
    return java_sorted(partition_name(each, partition) for each in counts for partition in range(counts[each]))


def _counts(replicas: Iterable[TopicReplica]) -> Mapping[int, int]:
    counts: dict[int, int] = {}
    for each in replicas:
        counts[each.broker_id] = max(each.partitions, counts.get(each.broker_id, 0))
    return counts


def brokers_by_id(addresses: Iterable[BrokerAddress]) -> dict[int, BrokerNodes]:
    """Return the live brokers by id, in order."""
    ordered = sorted(addresses, key=lambda each: (each.broker_id, each.slave_id or 0))
    return {
        broker_id: BrokerNodes(
            next((each for each in ordered if each.broker_id == broker_id and each.slave_id is None), None),
            tuple(each for each in ordered if each.broker_id == broker_id and each.slave_id is not None),
        )
        for broker_id in dict.fromkeys(each.broker_id for each in ordered)
    }


def topic_replicas(parent: str, entries: Mapping[str, tuple[str, Znode | None]]) -> list[TopicReplica]:
    """Return the broker processes that are registered below the znode `parent` of a topic, in the order of
    ClusterView.replicas(). entries: the path and the content of each child znode, by the child's name.
    """
    found = []
    for name, (path, node) in entries.items():
        identity = read_entry(parse_replica_name, parent, name)
        partitions = read_entry(parse_partition_count, path, node.data) if node else None
        if identity and partitions is not None:
            found.append(TopicReplica(*identity, partitions))
    return sorted(found, key=lambda each: (each.broker_id, each.slave_id is not None, each.slave_id or 0))


_A = TypeVar("_A")


def read_entry(parse: Callable[[str, _A], _T], path: str, data: _A) -> _T | None:
    """Parse the data of a znode by `parse`, and return the result. If `parse` raises an error because the data is
    damaged, log the error and return None.
    """
    try:
        return parse(path, data)
    except CoordinationError as error:
        log.error("left out: %s", error)
        return None
