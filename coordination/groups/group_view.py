"""A member's view of its group: the group's consumers, the member's topics, and the brokers.

ZooKeeper watches keep the view up to date. The number of requests to ZooKeeper is proportional to the number of
changes. When the children of a watched znode change, the watch delivers the names of all children, and one request
reads the data of all new children. The data of znodes that were read earlier need not be read again, because the data
of a consumer's znode never changes during the life of the znode.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kazoo.protocol.states import ZnodeStat

from ..brokers.cluster_view import (
    BrokerNodes,
    at_listener,
    brokers_by_id,
    consumer_topics,
    is_process,
    partition_names,
    process_address,
    read_entry,
    topic_replicas,
)
from ..brokers.registration import BrokerAddress
from ..records.java_order import java_sorted
from ..records.paths import child_of
from ..records.payloads import (
    ConsumerFilter,
    ListenerAddress,
    parse_consumer_filter,
    parse_consumer_zone,
    parse_group_zones,
    parse_listeners,
    parse_zone,
)
from ..session.watches import ChildrenWatchers, DataWatcher
from ..session.zk_session import ZkSession
from ..session.znodes import Znode

__all__ = ["GroupSnapshot", "GroupView", "GroupZones", "settle_seconds"]

_SETTLE_SHARE = 1 / 400
_LONGEST_SETTLE = 0.5
_SMALL_GROUP = 16


def settle_seconds(members: int) -> float:
    """Return how many seconds a member must wait, after the last join or departure of a member, before it processes the
    change.
    members: number of members of the group. For small groups the result is 0. In a large group the wait saves requests,
    because usually many consumers join or leave at about the same time, and after the wait all these changes are
    processed together. Processing a change takes a number of requests that is proportional to the number of members.
    """
    return 0.0 if members < _SMALL_GROUP else min(members * _SETTLE_SHARE, _LONGEST_SETTLE)


@dataclass(frozen=True, slots=True)
class GroupZones:
    """The zones of members and brokers for a group whose members assign partitions by zones.

    members: the zone of each member that assigns by zones, by consumer id. Members that have none of this member's
    topics are included, too. agreed: the zone of each broker, by broker id, that all members of the group use to assign
    partitions, even if the broker has registered another zone since. version: the version of the znode that contains
    the agreed zones, for compare-and-set; -1 if there is no such znode. brokers: the zone that each broker has
    registered now, by broker id; brokers without a zone are missing.
    """

    members: Mapping[str, str]
    agreed: Mapping[int, str]
    version: int
    brokers: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """The data on which a rebalance is based, as the ZooKeeper watches have shown it. Every list is sorted in Java's
    string order.

    consumers: for each of this member's topics, the ids of the live consumers. partitions: for each topic, the names
    `<broker>-<partition>` of the partitions on masters and slaves. brokers: the live broker processes by broker id.
    zones: the zones of members and brokers, None if the GroupView was made without zones. filters: each consumer's
    filter, by consumer id and topic; consumers that take all messages, or do not register a filter, are missing.
    """

    consumers: Mapping[str, tuple[str, ...]]
    partitions: Mapping[str, tuple[str, ...]]
    brokers: Mapping[int, BrokerNodes]
    zones: GroupZones | None = None
    filters: Mapping[str, Mapping[str, ConsumerFilter]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Listing:
    """The names of the znodes of a group's members at one moment. All these znodes are children of one parent znode."""

    names: frozenset[str]
    born: int
    """The zxid of the transaction that created the parent znode."""
    changes: int
    """Number of creations plus deletions of children under the parent znode so far."""

    @classmethod
    def of(cls, names: Iterable[str], stat: ZnodeStat | None) -> _Listing:
        return cls(frozenset(names), stat.czxid if stat else 0, stat.cversion if stat else 0)

    def same_nodes(self, former: _Listing) -> frozenset[str]:
        """Return the names that are both in this listing and in `former`, and whose znodes were not deleted and created
        again in between. Return no name in two cases. First, more children were created and deleted than the two lists
        of names show, so some child was deleted and created again. Second, the parent itself was deleted and created
        again.
        """
        seen = len(self.names ^ former.names)
        return self.names & former.names if (former.born, former.changes + seen) == (self.born, self.changes) else _NONE


_NONE: frozenset[str] = frozenset()


class GroupView:
    """Watches a member's group: its consumers, the member's topics and the brokers. Call start(), then wait(), then
    snapshot() as often as you like, and finally close().

    on_change: called on the session's event thread after each change that a watch has shown. Any thread may call the
    methods, except that the event thread must not call wait(). `_lock` protects the state that the watches and
    snapshot() share. `_reading` ensures that only one thread at a time reads the changes from ZooKeeper.
    """

    def __init__(
        self,
        session: ZkSession,
        group: str,
        topics: Sequence[str],
        on_change: Callable[[], None],
        with_zones: bool = False,
    ) -> None:
        self._session = session
        self._nodes = session.nodes
        self._paths = session.paths
        self._group = group
        self._topics = topics
        self._on_change = on_change
        self._ids, self._broker_ids = session.paths.group_ids(group), session.paths.broker_ids()
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._watchers = ChildrenWatchers(session)
        self._all_seen = threading.Event()
        self._listing = self._read_listing = _Listing(_NONE, 0, 0)  # as seen; as `_subscriptions` has it
        self._subscriptions: dict[str, list[str]] = {}
        self._consumers: dict[str, tuple[str, ...]] = {}
        self._topics_at = {self._paths.topic_sub(topic): topic for topic in topics}
        self._brokers_at: dict[str, int] = {}
        self._awaited = {self._ids, self._broker_ids, *self._topics_at}  # watched, but not yet seen
        self._unread: dict[str, list[str]] = {}  # children of changed topics and brokers, by path
        self._partitions: dict[str, tuple[str, ...]] = dict.fromkeys(topics, ())
        self._addresses: dict[int, list[BrokerAddress]] = {}
        self._listener = session.listener
        self._listeners_of_brokers = session.paths.broker_listeners_parent()
        self._listeners: dict[int, dict[str, ListenerAddress]] = {}  # by broker id
        self._with_zones = with_zones
        self._zones, self._zones_of_brokers = session.paths.group_zones(group), session.paths.broker_zones()
        if self._listener is not None:
            self._awaited.add(self._listeners_of_brokers)
        if with_zones:
            self._awaited |= {self._zones, self._zones_of_brokers}
        self._agreement = DataWatcher(session, self._zones, self._agreement_changed)
        self._follows_zones = False
        self._agreed: tuple[Mapping[int, str], ZnodeStat | None] = ({}, None)
        self._agreed_on = 0  # the connection on which `_agreed` was read
        self._member_zones: dict[str, str] = {}
        self._filters: dict[str, dict[str, ConsumerFilter]] = {}
        self._broker_zones: dict[int, str] = {}

    def start(self) -> None:
        """Begin to watch the group. Further calls do nothing."""
        self._watchers.watch(self._ids, self._members_changed, settle_seconds)
        for path in self._topics_at:
            self._watchers.watch(path, self._data_changed)
        self._watchers.watch(self._broker_ids, self._brokers_changed)
        if self._listener is not None:
            self._watchers.watch(self._listeners_of_brokers, self._data_changed)
        if self._with_zones and not self._follows_zones:
            self._follows_zones = True
            self._agreement.start()
            self._watchers.watch(self._zones_of_brokers, self._data_changed)

    def add_topic(self, topic: str) -> None:
        """Watch the partitions of one more topic. When ZooKeeper's first answer about the topic has come, on_change is
        called, and from then on the snapshots contain the topic's partitions.
        """
        path = self._paths.topic_sub(topic)
        with self._reading:
            self._topics = (*self._topics, topic)
            self._partitions[topic] = ()
            self._read_listing, self._subscriptions = _Listing(_NONE, 0, 0), {}  # so consumers are read again
        with self._lock:
            self._topics_at[path] = topic
        self._watchers.watch(path, self._data_changed)

    def wait(self, seconds: float) -> bool:
        """Wait until ZooKeeper's first answer about each watched znode has come. Return False if this takes longer than
        `seconds`.
        """
        return self._all_seen.wait(seconds)

    def close(self) -> None:
        self._watchers.close()
        self._agreement.close()

    # --- event thread -------------------------------------------------------------------------------------------------

    def _members_changed(self, path: str, names: list[str]) -> None:
        with self._lock:
            self._listing = _Listing.of(names, self._watchers.stat(path))
        self._seen(path)

    def _data_changed(self, path: str, names: list[str]) -> None:
        """Record that the data of the children of the znode `path` must be read again. This is necessary even if the
        children have the same names as before, because somebody may have deleted a child and created it again with
        other data.
        """
        with self._lock:
            self._unread[path] = names
        self._seen(path)

    def _brokers_changed(self, path: str, names: list[str]) -> None:
        """Watch the znode of each broker id. The znode of a broker id is persistent, so it does not show whether a
        broker is alive; its children, one for each live broker process, show this.
        """
        for name in names:
            if name.isdecimal():
                broker = self._paths.broker(int(name))
                if not self._all_seen.is_set() and broker not in self._brokers_at:
                    self._awaited.add(broker)
                self._brokers_at[broker] = int(name)
                self._watchers.watch(broker, self._data_changed)
        self._seen(path)

    def _agreement_changed(self, path: str, data: bytes | None) -> None:
        self._agreement_is(data, self._agreement.stat)
        self._seen(path)

    def _seen(self, path: str) -> None:
        self._awaited.discard(path)
        if not self._awaited:
            self._all_seen.set()
        self._on_change()

    # --- any thread ---------------------------------------------------------------------------------------------------

    def snapshot(self) -> GroupSnapshot:
        """Return a snapshot of the group. The method makes one request to ZooKeeper, or none if nothing has changed
        since the last snapshot. Raises CoordinationUnavailable.
        """
        with self._reading:
            self._read_changes()
            addresses = [address for each in self._addresses.values() for address in each]
            if (listener := self._listener) is not None:
                addresses = [at_listener(each, listener, self._listeners.get(each.broker_id)) for each in addresses]
            return GroupSnapshot(
                dict(self._consumers),
                dict(self._partitions),
                brokers_by_id(addresses),
                self._zones_now(),
                dict(self._filters),
            )

    def _zones_now(self) -> GroupZones | None:
        if not self._with_zones:
            return None
        with self._lock:
            agreed, stat = self._agreed
        return GroupZones(dict(self._member_zones), agreed, stat.version if stat else -1, dict(self._broker_zones))

    def look_again(self) -> None:
        """Read the members of the group now, instead of waiting for the watch. Raises CoordinationUnavailable."""
        names, stat = self._nodes.children_and_stat(self._ids)
        with self._lock:
            self._listing = _Listing.of(names, stat)

    def look_at_zones(self) -> None:
        """Read the group's agreed zones now, instead of waiting for the watch. Raises CoordinationUnavailable."""
        (found,) = self._nodes.get_with_stats([self._zones])
        self._agreement_is(*(found or (None, None)))

    def _agreement_is(self, data: bytes | None, stat: ZnodeStat | None) -> None:
        """Store the agreed zones that `data` contains, unless this view already has a newer agreement. The watch and
        look_at_zones() read the znode on two threads, so the result of the later read may arrive first. To find the
        newer of two results, this method compares the zxids of the znode's last change, but only if both results were
        read on the same connection to ZooKeeper. After a reconnection the new result is always stored, because
        ZooKeeper may have been restored from an older copy meanwhile.
        """
        agreed = read_entry(parse_group_zones, self._zones, data) or {}
        connection = self._session.connections
        with self._lock:
            known = self._agreed[1] if self._agreed_on == connection else None
            if not (stat and known and stat.czxid == known.czxid and stat.mzxid < known.mzxid):
                self._agreed, self._agreed_on = (agreed, stat), connection

    def _read_changes(self) -> None:
        with self._lock:
            listing, unread = self._listing, self._unread
            self._unread = {}
        same = listing.same_nodes(self._read_listing) & self._subscriptions.keys()
        fresh = {name: self._paths.consumer(self._group, name) for name in listing.names - same}
        below = {path: {name: child_of(path, name) for name in names} for path, names in unread.items()}
        try:
            members = [path for name in fresh for path in self._nodes_of(name)]
            wanted = [*members, *(child for each in below.values() for child in each.values())]
            nodes = dict(zip(wanted, self._nodes.get_many(wanted), strict=True))
        except BaseException:
            with self._lock:
                self._unread = unread | self._unread
            raise
        if listing is not self._read_listing or fresh:
            self._consumers_are(listing, same, {name: (path, nodes[path]) for name, path in fresh.items()})
            self._member_zones_are(same, nodes, fresh)
            self._filters_are(same, nodes, fresh)
        for path, children in below.items():
            self._data_is(path, {name: (child, nodes[child]) for name, child in children.items()})

    def _consumers_are(
        self, listing: _Listing, same: frozenset[str], fresh: Mapping[str, tuple[str, Znode | None]]
    ) -> None:
        known = {name: self._subscriptions[name] for name in same}
        self._subscriptions = known | {
            name: consumer_topics(path, node) for name, (path, node) in fresh.items() if node
        }
        self._read_listing = listing
        ordered = java_sorted(self._subscriptions)
        self._consumers = {
            topic: tuple(name for name in ordered if topic in self._subscriptions[name]) for topic in self._topics
        }

    def _nodes_of(self, consumer: str) -> list[str]:
        """Return the paths of the znodes to read for a new member. A member creates and deletes these znodes together,
        so the caller reads all of them in one request, which finds either all or none.
        """
        paths = [self._paths.consumer(self._group, consumer), self._paths.consumer_filter(self._group, consumer)]
        return [*paths, self._paths.consumer_zone(self._group, consumer)] if self._with_zones else paths

    def _member_zones_are(self, same: frozenset[str], nodes: Mapping[str, Znode | None], fresh: Iterable[str]) -> None:
        zones = {name: zone for name, zone in self._member_zones.items() if name in same}
        for name in fresh if self._with_zones else ():
            path = self._paths.consumer_zone(self._group, name)
            node = nodes[path]
            zone = None if node is None else read_entry(parse_consumer_zone, path, node.data)
            if zone is not None:
                zones[name] = zone
        self._member_zones = zones

    def _filters_are(self, same: frozenset[str], nodes: Mapping[str, Znode | None], fresh: Iterable[str]) -> None:
        filters = {name: each for name, each in self._filters.items() if name in same}
        for name in fresh:
            path = self._paths.consumer_filter(self._group, name)
            node = nodes[path]
            if node is not None:
                filters[name] = read_entry(parse_consumer_filter, path, node.data) or {}
        self._filters = filters

    def _data_is(self, path: str, entries: Mapping[str, tuple[str, Znode | None]]) -> None:
        if path in self._topics_at:
            self._partitions[self._topics_at[path]] = tuple(partition_names(topic_replicas(path, entries)))
        elif path == self._zones_of_brokers:
            zones = {
                int(name): read_entry(parse_zone, child, node.data)
                for name, (child, node) in entries.items()
                if node is not None and name.isdecimal()
            }
            self._broker_zones = {broker_id: zone for broker_id, zone in zones.items() if zone}
        elif path == self._listeners_of_brokers:
            self._listeners = {
                int(name): read_entry(parse_listeners, child, node.data) or {}
                for name, (child, node) in entries.items()
                if node is not None and name.isdecimal()
            }
        else:
            broker_id = self._brokers_at[path]
            addresses = (
                process_address(broker_id, name, child, node)
                for name, (child, node) in entries.items()
                if node is not None and is_process(name)
            )
            self._addresses[broker_id] = [each for each in addresses if each is not None]
