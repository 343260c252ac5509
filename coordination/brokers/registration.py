"""A broker's own nodes in ZooKeeper (zookeeper.md §3)."""

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
    format_broker_url,
    format_checksum,
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
"""Interval between checks of all nodes. The broker's own is watched; a watch on each node of each topic would cost
three requests per topic at every reconnection."""

SUCCESSOR_SECONDS = 2.0
"""How long an elected broker's topics stay registered until its successor has taken them over."""

_SUCCESSOR_POLL_SECONDS = 0.02

_PAUSE = 1.0
"""Seconds between a change below the broker's id and the check of its nodes: the deletion of a whole tree ends first,
and the rate of registrations is bounded whoever deletes them."""


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """One broker process. slave_id: None for the master of broker_id. host: an IPv6 address without brackets."""

    broker_id: int
    slave_id: int | None
    host: str
    port: int

    @property
    def replica(self) -> str:
        """Name of this process's nodes below topics."""
        return replica_name(self.broker_id, self.slave_id)


@dataclass(frozen=True, slots=True)
class TopicRegistration:
    """partitions: of this broker. publish, subscribe: whether it takes and serves messages.

    readable: number of partitions offered to consumers; None: `partitions`. A number of 0 is not registered.
    """

    name: str
    partitions: int
    publish: bool = True
    subscribe: bool = True
    readable: int | None = None


class BrokerRegistration:
    """Keeps a broker registered: from register() to unregister(), across expired sessions.

    A node that somebody else has deleted is created again, unless another process has taken the broker's own meanwhile.

    The broker's own node is created first and its topics afterwards, so no client ever sees a topic without its broker.
    Methods block on ZooKeeper: call them on a worker thread, never on a reactor. They may be called from any thread.
    config_checksum: CRC-32 of the bytes of server.ini. zone: of the broker, "" for none. A slave registers neither.

    elected: the broker leads a broker set, whose elections make and delete the broker's own node (BrokerSet.take_over,
    release). It is never made, replaced or deleted here. While another process or session has it, or nobody, nothing is
    registered; once this session has it again, everything is. Its checksum is registered after all topics and removed
    before them: while one session has both, all topics of the set are there (ClusterView.set_leaders).
    """

    def __init__(
        self,
        session: ZkSession,
        address: BrokerAddress,
        config_checksum: int = 0,
        *,
        zone: str = "",
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
        self._topics: dict[str, TopicRegistration] = {}
        self._registered = False
        self._session_id = 0  # the session that holds the nodes
        self._behind = False  # a change could not be registered
        self._intact = False  # all nodes were there at the last check
        self._deposed = False  # another process has the broker's own node
        self._look_is_due = False
        self._watcher = ChildrenWatcher(session, session.paths.broker(address.broker_id), self._changed)
        self._lock = threading.RLock()
        self._presence = Presence(session, f"broker {address.replica}", self._register_again, backoff)

    # --- public -----------------------------------------------------------------------------------------------------

    def register(self, topics: Iterable[TopicRegistration] = ()) -> None:
        """Register the broker with `topics` and those of add_topic(); stay registered until unregister().

        A node that an earlier life of this broker left behind (same URL) is replaced. If another broker has the node,
        this waits for as long as its session may live without a connection; then ConfigError names the broker that has
        the id. An elected broker must have been elected before: CoordinationError if its own node does not belong to
        this session. Raises CoordinationUnavailable, SessionLost; then nothing is maintained and register() may be
        called again. After unregister() it cannot.
        """
        with self._lock:
            self._topics |= {each.name: each for each in topics}
            if self._registered:
                return
            with self._presence.begun():  # before: one of the two sees a session that expires meanwhile
                self._register_all()
            self._registered = True
        self._watcher.start()
        self._session.events.post_later(LOOK_SECONDS, self._look_at_all)

    @property
    def registered(self) -> bool:
        """Whether clients see the broker, as far as is known locally. Any thread; makes no request."""
        return self._registered and self._intact and self._session.is_current(self._session_id)

    def offer(self, topic: TopicRegistration) -> None:
        """Register a topic in its current state: clients see it when this returns.

        Raises CoordinationError, also if the broker is not registered now; then the topic is registered in the
        background.
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
        """Register a topic, or change its registration. Before register() it is only remembered.

        Raises CoordinationUnavailable, SessionLost; then the topic is registered in the background.
        """
        added = TopicRegistration(topic, partitions, publish, subscribe, readable)
        with self._lock:
            known, self._topics[topic] = self._topics.get(topic), added
            if self._registered and known != added:
                with self._made_good():
                    self._require_election(self._session_id)
                    self._register_topics(self._session_id, [added])

    def update(self, config_checksum: int, topics: Iterable[TopicRegistration] = ()) -> None:
        """Publish the checksum of a reloaded server.ini, which slaves watch, and then its changes.

        Raises CoordinationUnavailable, SessionLost; then all of it is published in the background.
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
        """Remove all nodes of this broker, and keep them removed. Does nothing if it is not registered.

        An elected broker's own node stays until BrokerSet.release() or the end of the session. If another broker has
        been elected, the topics stay until it has taken them over, so that no client misses them meanwhile: this takes
        at most 2 s.

        Without a connection or the session it only logs: the nodes are ephemeral and end with the session.
        """
        self._watcher.close()
        self._presence.stop()  # it also ends the wait for another broker's node
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
        """If the change in this block cannot be registered now, register it in the background."""
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
        """Register anew if nodes are missing, unless another process has the broker's own."""
        session_id, own = self._session_id, self._own_path()
        wanted = self._registered_nodes()
        nodes = dict(zip(wanted, self._nodes.get_many(list(wanted)), strict=True))
        deposed_before, self._deposed = self._deposed, (holder := nodes[own]) is not None and holder.owner != session_id
        # an older copy of ZooKeeper that has the session may have the nodes' former data
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
            if not self._elected:
                self._replace(session_id, self._checksum_node())
        self._register_topics(session_id, list(self._topics.values()))
        if self._elected:
            self._replace(session_id, self._checksum_node())
        self._session_id = session_id
        self._intact, self._deposed = True, False

    def _checksum_node(self) -> dict[str, bytes]:
        """Return the payload by path."""
        return {self._paths.master_config_checksum(self.address.broker_id): format_checksum(self._checksum)}

    def _zone_node(self, session_id: int) -> dict[str, bytes]:
        """Return the payload by path. A former leader of the set may have had a zone although this one has none."""
        path = self._paths.broker_zone(self.address.broker_id)
        if self._zone:
            self._nodes.ensure([self._paths.broker_zones()])
            return {path: format_zone(self._zone)}
        if self._nodes.get(path) is not None:
            self._nodes.write(session_id, [delete(path)], NoNodeError)
        return {}

    # --- event thread -----------------------------------------------------------------------------------------------

    def _changed(self, path: str, children: list[str]) -> None:
        """Handle a node below the broker's id that came, went or was made anew."""
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
        """Whether an election made the own node on this session."""
        leads, led = self._nodes.get(self._own_path()) == (self._url, session_id), not self._deposed
        if self._registered and led and not leads:
            log.warning("broker %s no longer leads its set: it registers nothing until it is elected again", self._name)
        self._deposed = not leads
        self._intact = self._intact and leads
        return leads

    def _require_election(self, session_id: int) -> None:
        """Prevent a former leader from taking the topics from the present one."""
        if self._elected and not self._leads(session_id):
            raise CoordinationError(f"broker {self._name} does not lead its set: {self._own_path()} is not its own")

    def _take_own_node(self, session_id: int, path: str) -> CoordinationError | ConfigError | None:
        """Take the own node; None on success. A node with our URL on another session is from our earlier life:
        replaced."""
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
        """Return an error that names the other owner of our node."""
        url = parse_broker_url(path, node.data)
        user = f"{url[0]}:{url[1]}" if url else "another process"
        remedy = "stop that broker or choose another id"
        if url and url[0] == self.address.host:
            remedy = f"if that was this broker, start it again when its session has ended, else {remedy}"
        return ConfigError("brokerId", self.address.broker_id, f"in use by {user} ({path}): {remedy}")

    # --- topics -----------------------------------------------------------------------------------------------------

    def _topic_nodes(self, topic: TopicRegistration) -> dict[str, bytes | None]:
        """Return the payload by path; None: this broker must have no such node."""
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
        """Return the payload of all nodes of this process by path, its own first."""
        master = self.address.slave_id is None
        checksum = self._checksum_node() if master else {}
        zone = {self._paths.broker_zone(self.address.broker_id): format_zone(self._zone)} if self._zone else {}
        offered = {
            path: data
            for topic in self._topics.values()
            for path, data in self._topic_nodes(topic).items()
            if data is not None
        }
        return {self._own_path(): self._url, **checksum, **(zone if master else {}), **offered}

    def _register_topics(self, session_id: int, topics: Sequence[TopicRegistration]) -> None:
        """Register topics. Some round trips altogether, however many topics there are."""
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
        """Create the nodes; one with another payload or session is made anew.

        Made anew, not set: clients see a changed partition count because the child was replaced (zookeeper.md §5). Both
        are in one transaction, so that no client sees the topic without its broker in between.
        """
        creations = [create_ephemeral(path, data) for path, data in wanted.items()]
        failures = self._nodes.write(session_id, creations, NodeExistsError)
        existing = [path for path, failure in zip(wanted, failures, strict=True) if failure is not None]
        nodes = zip(existing, self._nodes.get_many(existing), strict=True)
        stale = [path for path, node in nodes if not node or node.owner != session_id or node.data != wanted[path]]
        anew = [write for path in stale for write in (delete(path), create_ephemeral(path, wanted[path]))]
        self._nodes.write(session_id, anew, NoNodeError)  # one may end with its session at this moment

    # --- unregistering ----------------------------------------------------------------------------------------------

    def _wait_for_successor(self) -> None:
        own, last = self._own_path(), self._paths.master_config_checksum(self.address.broker_id)
        deadline = time.monotonic() + SUCCESSOR_SECONDS
        while time.monotonic() < deadline:
            elected, registered = self._nodes.get_many([own, last])
            if registered is None or registered.owner != self._session_id:
                return
            if elected is None or elected.owner == self._session_id:  # nobody is about to register the topics
                return
            time.sleep(_SUCCESSOR_POLL_SECONDS)
        log.warning("broker %s: its successor has not registered the topics within %g s", self._name, SUCCESSOR_SECONDS)

    def _unregister_all(self) -> None:
        """Remove the broker's own node last, or in one transaction: no client sees a topic without its broker in
        between."""
        session_id, own = self._session.session_id, self._own_path()
        if self._elected:
            self._nodes.delete_owned(session_id, list(self._registered_nodes())[1:])
            self._empty_legacy_node(session_id)
            return
        deleted = self._nodes.delete_owned(session_id, list(self._registered_nodes())[::-1])
        if own == self._paths.master(self.address.broker_id) and own in deleted:
            self._remove_legacy_node(session_id)

    def _remove_legacy_node(self, session_id: int) -> None:
        """Delete the persistent node of the broker id, or empty it while slaves are registered below it."""
        path = self._paths.broker(self.address.broker_id)
        if self._nodes.write(session_id, [delete(path)], NoNodeError, NotEmptyError) != [None]:
            self._nodes.write(session_id, [set_data(path, b"")], NoNodeError)

    def _empty_legacy_node(self, session_id: int) -> None:
        """Empty it unless the next leader already has it."""
        path = self._paths.broker(self.address.broker_id)
        found = self._nodes.get_versioned(path)
        if found is not None and found[0] == self._url:
            self._nodes.write(session_id, [set_data(path, b"", found[1])], BadVersionError, NoNodeError)
