"""Register a broker in ZooKeeper by creating the znodes that a broker owns there (zookeeper.md §3)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError

from metaq.protocol.errors import ConfigError, CoordinationError

from ..records.paths import child_of, replica_name
from ..records.payloads import (
    ListenerAddress,
    format_broker_url,
    format_checksum,
    format_listeners,
    format_partition_count,
    format_plain_count,
    format_zone,
    parse_broker_url,
)
from ..runtime.backoff import Backoff
from ..runtime.logs import get_log
from ..session.presence import Presence
from ..session.watches import ChildrenWatcher
from ..session.zk_session import ZkSession
from ..session.znodes import Znode, create_ephemeral, delete, set_data

__all__ = ["SUCCESSOR_SECONDS", "BrokerAddress", "BrokerRegistration", "TopicRegistration"]

log = get_log(__name__)

LOOK_SECONDS = 60.0
"""A broker checks at this interval, in seconds, that all its znodes exist. In addition, a ZooKeeper watch reports at
once when somebody deletes the broker's own znode. The broker sets no watches on the znodes of its topics, because
setting them would cost three requests per topic at every reconnection.
"""

SUCCESSOR_SECONDS = 2.0
"""When the leader of a broker set stops, it keeps its topics registered for at most this number of seconds. In this
time the next leader can register the topics for itself, so that clients see the topics without interruption.
"""

_SUCCESSOR_POLL_SECONDS = 0.02

_PAUSE = 1.0
"""Number of seconds that a broker waits before it checks its znodes after a change below the znode of its broker id.
If a person is deleting a whole tree of znodes, the person can finish during this pause, and the broker then needs only
one check for all the deletions. If somebody deletes the znodes again and again, the pause also limits how often the
broker creates them again.
"""


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """The ids and the address of one broker process. slave_id: the id of a slave, None for the master of broker_id.
    host: a host name or an address; an IPv6 address has no brackets.
    """

    broker_id: int
    slave_id: int | None
    host: str
    port: int

    @property
    def replica(self) -> str:
        """The name that each znode of this process has below the znode of a topic, for example `0-m` or `0-s1`."""
        return replica_name(self.broker_id, self.slave_id)


@dataclass(frozen=True, slots=True)
class TopicRegistration:
    """A topic that a broker registers. partitions: number of the topic's partitions on this broker. publish: whether
    the broker accepts messages of the topic from producers. subscribe: whether the broker serves messages of the topic
    to consumers.

    readable: number of partitions that are offered to consumers; None means the same number as `partitions`. If the
    number of partitions for producers or for consumers is 0, the corresponding znode is not created.
    """

    name: str
    partitions: int
    publish: bool = True
    subscribe: bool = True
    readable: int | None = None


class BrokerRegistration:
    """Keeps a broker registered from register() to unregister(), even if its ZooKeeper session expires.

    The broker's own znode is the znode that represents this process below the znode of the broker id. If somebody
    deletes a znode of the broker, the znode is created again, unless another process has created the broker's own znode
    meanwhile.

    The broker's own znode is created first and the znodes of its topics afterwards, so no client ever sees a topic
    without its broker. The methods block on ZooKeeper: any worker thread may call them, but never a reactor thread.
    config_checksum: CRC-32 of the bytes of server.ini. zone: the broker's zone, "" for none. listeners: where clients
    find the broker's listeners, empty for a broker without any. A slave registers neither the checksum, nor the zone,
    nor the listeners.

    elected: true if the broker was elected as the leader of a broker set. If so, only the elections of the set create
    and delete the broker's own znode (BrokerSet.take_over, release); this class never creates, replaces or deletes it.
    This class registers the topics and the checksum only while the own znode belongs to the ZooKeeper session of this
    process. The znode of the checksum is created after the znodes of the topics, and removed before them. So if the own
    znode and the checksum's znode belong to the same session, a reader (ClusterView.set_leaders) knows that all topics
    of the set are registered.
    """

    def __init__(
        self,
        session: ZkSession,
        address: BrokerAddress,
        config_checksum: int = 0,
        *,
        zone: str = "",
        listeners: Sequence[ListenerAddress] = (),
        elected: bool = False,
        backoff: Backoff | None = None,
    ) -> None:
        self.address = address
        self._elected = elected
        self._session = session
        self._nodes = session.nodes
        self._paths = session.paths
        self._url = format_broker_url(address.host, address.port)
        self._checksum = config_checksum
        self._zone = zone
        self._listeners = format_listeners(listeners) if listeners else b""
        self._topics: dict[str, TopicRegistration] = {}
        self._registered = False
        self._session_id = 0  # the session that holds the znodes
        self._behind = False  # a change could not be registered
        self._intact = False  # all znodes existed at the last check
        self._deposed = False  # another process has the broker's own znode
        self._look_is_due = False
        self._watcher = ChildrenWatcher(session, session.paths.broker(address.broker_id), self._changed)
        self._lock = threading.RLock()
        self._presence = Presence(session, f"broker {address.replica}", self._register_again, backoff)

    # --- public -----------------------------------------------------------------------------------------------------

    def register(self, topics: Iterable[TopicRegistration] = ()) -> None:
        """Register the broker with `topics` and the topics of earlier add_topic() calls, and keep it registered until
        unregister().

        If an earlier process of this broker (with the same URL) has left its own znode in ZooKeeper, this method
        replaces the znode. If another broker has created the znode of this broker id, this method waits about one
        session timeout: if that broker is dead, ZooKeeper removes the znode in this time. If the znode still exists
        after the wait, this method raises ConfigError, which names the broker that uses the id. A node of a broker set
        must have been elected before the call. Otherwise its own znode does not belong to this session, and this method
        raises CoordinationError. Also raises CoordinationUnavailable, SessionLost. After any of these errors this
        object does not keep the broker registered, and the caller can call register() again. register() cannot be
        called after unregister().
        """
        with self._lock:
            self._topics |= {each.name: each for each in topics}
            if self._registered:
                return
            with self._presence.begun():  # first: if the session expires meanwhile, this or the presence sees it
                self._register_all()
            self._registered = True
        self._watcher.start()
        self._session.events.post_later(LOOK_SECONDS, self._look_at_all)

    @property
    def registered(self) -> bool:
        """Whether clients see the broker in ZooKeeper, as far as this process knows. Any thread may read this property.
        Reading the property makes no request to ZooKeeper.
        """
        return self._registered and self._intact and self._session.is_current(self._session_id)

    def offer(self, topic: TopicRegistration) -> None:
        """Register a topic, or change its registration to the values in `topic`. Clients see the topic when this method
        returns.

        Raises CoordinationError if the registration fails, for example because the broker is not registered now. After
        such an error the topic is registered later in the background.
        """
        with self._lock:
            self._topics[topic.name] = topic
            if not self._registered:
                raise CoordinationError(f"broker {self._name} is not registered in ZooKeeper now")
            with self._made_good():
                self._require_election(self._session_id)
                self._register_topics(self._session_id, [topic])

    def add_topic(
        self, topic: str, partitions: int, publish: bool = True, subscribe: bool = True, readable: int | None = None
    ) -> None:
        """Register a topic, or change its registration. A call before register() writes nothing to ZooKeeper;
        register() registers the topic later.

        Raises CoordinationUnavailable, SessionLost; after one of these errors a background thread registers the topic.
        """
        added = TopicRegistration(topic, partitions, publish, subscribe, readable)
        with self._lock:
            known, self._topics[topic] = self._topics.get(topic), added
            if self._registered and known != added:
                with self._made_good():
                    self._require_election(self._session_id)
                    self._register_topics(self._session_id, [added])

    def update(self, config_checksum: int, topics: Iterable[TopicRegistration] = ()) -> None:
        """Publish the checksum of a reloaded server.ini in ZooKeeper, where slaves read it, and then publish the
        changed topics.

        Raises CoordinationUnavailable, SessionLost; after one of these errors a background thread publishes the
        checksum and the topics.
        """
        with self._lock:
            self._checksum = config_checksum
            changed = [each for each in topics if self._topics.get(each.name) != each]
            self._topics |= {each.name: each for each in changed}
            if not self._registered:
                return
            with self._made_good():
                self._require_election(self._session_id)
                if self.address.slave_id is None:
                    path = self._paths.master_config_checksum(self.address.broker_id)
                    self._nodes.write(self._session_id, [set_data(path, format_checksum(config_checksum))])
                if changed:
                    self._register_topics(self._session_id, changed)

    def unregister(self) -> None:
        """Remove all znodes of this broker, and do not register them again. Does nothing if the broker is not
        registered.

        If the broker is a node of a broker set, its own znode stays until BrokerSet.release() or the end of the
        session. If another node of the set has been elected, this method waits at most 2 s until that node has
        registered the topics, before it removes this broker's registration. So clients see the topics without
        interruption if the other node registers them in this time.

        If there is no connection or the session has ended, this method only logs a warning, because the znodes are
        ephemeral and end with the session.
        """
        self._watcher.close()
        self._presence.stop()  # this also ends the wait for another broker's znode
        if self._registered and self._elected:
            self._presence.leave(self._wait_for_successor)
        with self._lock:
            if self._registered:
                self._registered = False
                self._presence.leave(self._unregister_all)

    @property
    def _name(self) -> str:
        return self.address.replica

    # --- staying registered -----------------------------------------------------------------------------------------

    @contextmanager
    def _made_good(self) -> Iterator[None]:
        """Return a context manager for a `with` block that registers a change in ZooKeeper. If the block raises an
        error, the context manager starts a background thread that tries to register the change again, and passes the
        error on to the caller.
        """
        try:
            yield
        except CoordinationError:
            self._behind = True
            self._presence.again()
            raise

    def _register_again(self) -> None:
        with self._lock:
            if not self._registered or self._session.closed:
                return
            if self._elected and not self._leads(self._session.session_id):
                return  # the watch reports the next election
            if self._session.is_current(self._session_id) and not self._behind:
                self._restore()
                return
            self._register_all()
            self._behind = False
            log.warning("broker %s is registered again, with %d topics", self._name, len(self._topics))

    def _restore(self) -> None:
        """If znodes of the broker are missing or changed, create them again. But do nothing if the broker's own znode
        belongs to another process, or if an elected broker's own znode is missing.
        """
        session_id, own = self._session_id, self._own_path()
        wanted = self._registered_nodes()
        nodes = dict(zip(wanted, self._nodes.get_many(list(wanted)), strict=True))
        deposed_before, self._deposed = self._deposed, (holder := nodes[own]) is not None and holder.owner != session_id
        # If ZooKeeper was restored from an older copy that has the session, the znodes may have former data.
        deleted = [path for path, node in nodes.items() if node is None or (path != own and node.data != wanted[path])]
        self._intact = not (deleted or self._deposed)
        if self._deposed and not deposed_before:
            log.warning("broker %s: another process has taken %s, and keeps it", self._name, own)
        if self._deposed or not deleted or (self._elected and own in deleted):
            return
        self._session.ensure_chroot()
        self._nodes.ensure([self._paths.broker(self.address.broker_id)])
        creation = [create_ephemeral(own, self._url)] if own in deleted else []
        if any(self._nodes.write(session_id, creation, NodeExistsError)):
            self._presence.again()  # another process was faster
            return
        self._register_behind_own_node(session_id)
        more = f" and {len(deleted) - 1} more" if len(deleted) > 1 else ""
        log.warning(
            "nodes of broker %s were %s in ZooKeeper by somebody else (%s%s): registered again, with %d topics",
            *(self._name, "deleted" if None in nodes.values() else "changed", deleted[0], more, len(self._topics)),
        )

    def _register_all(self) -> None:
        session_id = self._session.session_id
        self._session.ensure_chroot()
        self._nodes.ensure([self._paths.broker(self.address.broker_id)])
        if self._elected:
            self._require_election(session_id)
        else:
            self._presence.take_over(partial(self._take_own_node, session_id, self._own_path()))
        self._register_behind_own_node(session_id)

    def _register_behind_own_node(self, session_id: int) -> None:
        if self.address.slave_id is None:
            self._nodes.write(session_id, [set_data(self._paths.broker(self.address.broker_id), self._url)])
            self._replace(session_id, self._zone_node(session_id))
            self._replace(session_id, self._listeners_node(session_id))
            if not self._elected:
                self._replace(session_id, self._checksum_node())
        self._register_topics(session_id, list(self._topics.values()))
        if self._elected:
            self._replace(session_id, self._checksum_node())
        self._session_id = session_id
        self._intact, self._deposed = True, False

    def _checksum_node(self) -> dict[str, bytes]:
        """Return a dict with one entry: the path of the znode for the checksum of server.ini, and the payload of this
        znode.
        """
        return {self._paths.master_config_checksum(self.address.broker_id): format_checksum(self._checksum)}

    def _zone_node(self, session_id: int) -> dict[str, bytes]:
        """Return a dict with one entry: the path of the znode for the broker's zone, and the payload of this znode. If
        this broker has no zone, return an empty dict, and delete the zone's znode if a former leader of the set has
        left one in ZooKeeper.
        """
        path = self._paths.broker_zone(self.address.broker_id)
        return self._node_if(session_id, path, self._paths.broker_zones(), format_zone(self._zone))

    def _listeners_node(self, session_id: int) -> dict[str, bytes]:
        """Return the path and the payload of the znode for the broker's listeners, as _zone_node does for the zone."""
        path = self._paths.broker_listeners(self.address.broker_id)
        return self._node_if(session_id, path, self._paths.broker_listeners_parent(), self._listeners)

    def _node_if(self, session_id: int, path: str, parent: str, data: bytes) -> dict[str, bytes]:
        """Return a dict with one entry, the path and the payload of a znode, and make sure that its parent exists. If
        there is no payload, return an empty dict, and delete the znode if another process has left one.
        """
        if data:
            self._nodes.ensure([parent])
            return {path: data}
        if self._nodes.get(path) is not None:
            self._nodes.write(session_id, [delete(path)], NoNodeError)
        return {}

    # --- event thread -----------------------------------------------------------------------------------------------

    def _changed(self, path: str, children: list[str]) -> None:
        """Start a check of the broker's znodes. A watch calls this method after a znode below the znode of the broker
        id was created, deleted or replaced.
        """
        if self._own_path() not in [child_of(path, name) for name in children]:
            self._intact = False
        if not self._look_is_due:
            self._look_is_due = True
            self._session.events.post_later(_PAUSE, self._look)

    def _look(self) -> None:
        self._look_is_due = False
        self._presence.again()

    def _look_at_all(self) -> None:
        if self._presence.stopped:
            return
        if self._session.connected:
            self._presence.again()
        self._session.events.post_later(LOOK_SECONDS, self._look_at_all)

    # --- the broker's own node --------------------------------------------------------------------------------------

    def _own_path(self) -> str:
        broker_id, slave_id = self.address.broker_id, self.address.slave_id
        return self._paths.master(broker_id) if slave_id is None else self._paths.slave(broker_id, slave_id)

    def _leads(self, session_id: int) -> bool:
        """Return whether this node has won the election, that is, whether the broker's own znode belongs to this
        session.
        """
        leads, led = self._nodes.get(self._own_path()) == (self._url, session_id), not self._deposed
        if self._registered and led and not leads:
            log.warning("broker %s no longer leads its set: it registers nothing until it is elected again", self._name)
        self._deposed = not leads
        self._intact = self._intact and leads
        return leads

    def _require_election(self, session_id: int) -> None:
        """Raise CoordinationError if this broker is a node of a broker set and does not lead the set now. Without the
        check, a former leader could replace the topics' znodes that the present leader has created.
        """
        if self._elected and not self._leads(session_id):
            raise CoordinationError(f"broker {self._name} does not lead its set: {self._own_path()} is not its own")

    def _take_own_node(self, session_id: int, path: str) -> CoordinationError | ConfigError | None:
        """Create the broker's own znode. Return None on success, otherwise the error. If the znode already exists with
        this broker's URL but belongs to another session, an earlier process of this broker has left the znode behind,
        and this method replaces it.
        """
        creation = create_ephemeral(path, self._url)
        if self._nodes.write(session_id, [creation], NodeExistsError) == [None]:
            return None
        node = self._nodes.get(path)
        if node is not None:
            if node == (self._url, session_id):
                return None
            if node.data != self._url and node.owner != session_id:
                return self._other_user(path, node)
            log.info("broker %s replaces a node of its former process (%s)", self._name, path)
            self._nodes.write(session_id, [delete(path)], NoNodeError)
            if self._nodes.write(session_id, [creation], NodeExistsError) == [None]:
                return None
        return CoordinationError(f"broker {self._name} cannot register: {path} comes and goes")

    def _other_user(self, path: str, node: Znode) -> ConfigError:
        """Return an error for the case that another process owns the broker's own znode. The error names that
        process.
        """
        url = parse_broker_url(path, node.data)
        user = f"{url[0]}:{url[1]}" if url else "another process"
        remedy = "stop that broker or choose another id"
        if url and url[0] == self.address.host:
            remedy = f"if that was this broker, start it again when its session has ended, else {remedy}"
        return ConfigError("brokerId", self.address.broker_id, f"in use by {user} ({path}): {remedy}")

    # --- topics -----------------------------------------------------------------------------------------------------

    def _topic_nodes(self, topic: TopicRegistration) -> dict[str, bytes | None]:
        """Return the payloads of the topic's znodes, by path. The payload None means that the znode must not exist for
        this broker.
        """
        published = topic.partitions
        readable = published if topic.readable is None else topic.readable
        return {
            self._paths.topic_broker(topic.name, self._name): format_plain_count(readable) if readable else None,
            self._paths.topic_pub_broker(topic.name, self._name): (
                format_partition_count(published, self._name) if topic.publish and published else None
            ),
            self._paths.topic_sub_broker(topic.name, self._name): (
                format_partition_count(readable, self._name) if topic.subscribe and readable else None
            ),
        }

    def _registered_nodes(self) -> dict[str, bytes]:
        """Return the payloads of all znodes of this process, by path. The broker's own znode comes first."""
        master = self.address.slave_id is None
        checksum = self._checksum_node() if master else {}
        broker_id = self.address.broker_id
        zone = {self._paths.broker_zone(broker_id): format_zone(self._zone)} if self._zone else {}
        listeners = {self._paths.broker_listeners(broker_id): self._listeners} if self._listeners else {}
        offered = {
            path: data
            for topic in self._topics.values()
            for path, data in self._topic_nodes(topic).items()
            if data is not None
        }
        return {self._own_path(): self._url, **checksum, **({**zone, **listeners} if master else {}), **offered}

    def _register_topics(self, session_id: int, topics: Sequence[TopicRegistration]) -> None:
        """Register these topics in ZooKeeper. The number of round trips does not depend on the number of topics."""
        self._ensure_parents(topics)
        wanted = {path: data for topic in topics for path, data in self._topic_nodes(topic).items()}
        unwanted = [delete(path) for path, data in wanted.items() if data is None]
        self._nodes.write(session_id, unwanted, NoNodeError)
        self._replace(session_id, {path: data for path, data in wanted.items() if data is not None})

    def _ensure_parents(self, topics: Sequence[TopicRegistration]) -> None:
        kinds = (
            (self._paths.topics(), self._paths.topic),
            (self._paths.topics_pub(), self._paths.topic_pub),
            (self._paths.topics_sub(), self._paths.topic_sub),
        )
        known = self._nodes.children_many([parent for parent, _ in kinds])
        missing = [
            path(topic.name)
            for (_, path), names in zip(kinds, map(set, known), strict=True)
            for topic in topics
            if topic.name not in names
        ]
        self._nodes.ensure(missing)

    def _replace(self, session_id: int, wanted: dict[str, bytes]) -> None:
        """Create the znodes in `wanted`, a dict from each znode's path to its payload. If a znode exists with another
        payload, or belongs to another session, delete it and create it again.

        The method does not write the new data into the existing znode, because clients notice a changed number of
        partitions only if the znode was deleted and created again (zookeeper.md §5). One ZooKeeper transaction deletes
        and creates the znode, so no client sees a moment without the topic.
        """
        creations = [create_ephemeral(path, data) for path, data in wanted.items()]
        failures = self._nodes.write(session_id, creations, NodeExistsError)
        existing = [path for path, failure in zip(wanted, failures, strict=True) if failure is not None]
        nodes = zip(existing, self._nodes.get_many(existing), strict=True)
        stale = [path for path, node in nodes if not node or node.owner != session_id or node.data != wanted[path]]
        anew = [write for path in stale for write in (delete(path), create_ephemeral(path, wanted[path]))]
        self._nodes.write(session_id, anew, NoNodeError)  # one may have ended with its session just now

    # --- unregistering ----------------------------------------------------------------------------------------------

    def _wait_for_successor(self) -> None:
        own, last = self._own_path(), self._paths.master_config_checksum(self.address.broker_id)
        deadline = time.monotonic() + SUCCESSOR_SECONDS
        while time.monotonic() < deadline:
            elected, registered = self._nodes.get_many([own, last])
            if registered is None or registered.owner != self._session_id:
                return
            if elected is None or elected.owner == self._session_id:  # nobody will take the topics over
                return
            time.sleep(_SUCCESSOR_POLL_SECONDS)
        log.warning("broker %s: its successor has not registered the topics within %g s", self._name, SUCCESSOR_SECONDS)

    def _unregister_all(self) -> None:
        """Remove all znodes of this broker. The broker's own znode is removed last, so that no client sees a topic
        without its broker.
        """
        session_id, own = self._session.session_id, self._own_path()
        if self._elected:
            self._nodes.delete_owned(session_id, list(self._registered_nodes())[1:])
            self._empty_legacy_node(session_id)
            return
        deleted = self._nodes.delete_owned(session_id, list(self._registered_nodes())[::-1])
        if own == self._paths.master(self.address.broker_id) and own in deleted:
            self._remove_legacy_node(session_id)

    def _remove_legacy_node(self, session_id: int) -> None:
        """Delete the persistent znode of the broker id; the broker's own znode below it was deleted before the call. If
        slaves are registered below the persistent znode, it cannot be deleted, so delete only its data.
        """
        path = self._paths.broker(self.address.broker_id)
        if self._nodes.write(session_id, [delete(path)], NoNodeError, NotEmptyError) != [None]:
            self._nodes.write(session_id, [set_data(path, b"")], NoNodeError)

    def _empty_legacy_node(self, session_id: int) -> None:
        """Delete the data of the broker id's persistent znode if the data is this broker's URL. If the next leader of
        the set has already written its own URL there, do nothing.
        """
        path = self._paths.broker(self.address.broker_id)
        found = self._nodes.get_versioned(path)
        if found is not None and found[0] == self._url:
            self._nodes.write(session_id, [set_data(path, b"", found[1])], BadVersionError, NoNodeError)
