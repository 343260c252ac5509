"""A broker's own nodes in ZooKeeper (zookeeper.md §3)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError, NotEmptyError

from metaq.protocol.errors import ConfigError, CoordinationError

from .backoff import Backoff
from .events import PersistentTask
from .logs import get_log
from .paths import replica_name
from .records import format_broker_url, format_checksum, format_partition_count, format_plain_count, parse_broker_url
from .session import SessionEvent, ZkSession
from .znodes import FencedWrite, create_ephemeral, delete, set_data

__all__ = ["BrokerAddress", "BrokerRegistration", "TopicRegistration"]

log = get_log(__name__)

_STALE_MARGIN = 2.0
"""Seconds that the server may take beyond the session timeout to remove the nodes of a dead session."""

_STOP_TIMEOUT = 5.0
"""Seconds that unregister() gives to a registration under way."""

_POLL = 0.2

_ATOMIC_NODES = 2_000
"""Nodes created or deleted in one transaction: the server accepts 1 MB, a node with the longest name takes 0.4 KB."""


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
    """partitions: how many this broker has. publish, subscribe: whether it takes and serves messages."""

    name: str
    partitions: int
    publish: bool = True
    subscribe: bool = True


class BrokerRegistration:
    """Keeps a broker registered: from register() to unregister(), over expired sessions.

    The broker's own node comes first and its topics afterwards, so no client ever sees a topic without its broker.
    Methods block on ZooKeeper: call them on a worker thread, never on a reactor. They may be called from any thread.
    config_checksum: CRC-32 of the bytes of server.ini (a slave registers none).
    """

    def __init__(
        self,
        session: ZkSession,
        address: BrokerAddress,
        config_checksum: int = 0,
        *,
        backoff: Backoff | None = None,
    ) -> None:
        self.address = address
        self._session = session
        self._paths = session.paths
        self._url = format_broker_url(address.host, address.port)
        self._checksum = config_checksum
        self._topics: dict[str, TopicRegistration] = {}
        self._registered = False
        self._session_id = 0  # of the session that holds the nodes
        self._behind = False  # a change could not be registered
        self._stopping = threading.Event()
        self._lock = threading.RLock()
        self._again = PersistentTask(f"registration of broker {address.replica}", self._register_again, backoff)

    # --- public -----------------------------------------------------------------------------------------------------

    def register(self, topics: Iterable[TopicRegistration] = ()) -> None:
        """Register the broker with `topics` and those of add_topic(); stay registered until unregister().

        A node that an earlier life of this broker left behind (same URL) is replaced. Another broker's node is waited
        for, as long as its session may live without a connection; then ConfigError names the broker that has the id.
        Raises CoordinationUnavailable, SessionLost; then nothing is kept up and register() may be called again.
        After unregister() it cannot.
        """
        with self._lock:
            self._topics |= {each.name: each for each in topics}
            if self._registered:
                return
            # listening begins before: a session that expires meanwhile is seen by one of the two
            self._session.on_session(self._session_changed)
            try:
                self._register_all()
            except BaseException:
                self._session.off_session(self._session_changed)
                raise
            self._registered = True

    def add_topic(self, topic: str, partitions: int, publish: bool = True, subscribe: bool = True) -> None:
        """Register a topic, or change how it is registered. Before register() it is only remembered.

        Raises CoordinationUnavailable, SessionLost; it is registered in the background then.
        """
        added = TopicRegistration(topic, partitions, publish, subscribe)
        with self._lock:
            known, self._topics[topic] = self._topics.get(topic), added
            if self._registered and known != added:
                self._register_topic(added)

    def _register_topic(self, added: TopicRegistration) -> None:
        try:
            self._register_topics(self._session_id, [added])
        except CoordinationError:
            self._register_later()
            raise

    def update(self, config_checksum: int, topics: Iterable[TopicRegistration] = ()) -> None:
        """Publish the checksum of a server.ini that was loaded again, which slaves watch, and then what it changed.

        Raises CoordinationUnavailable, SessionLost; all of it is published in the background then.
        """
        with self._lock:
            self._checksum = config_checksum
            changed = [each for each in topics if self._topics.get(each.name) != each]
            self._topics |= {each.name: each for each in changed}
            if not self._registered:
                return
            try:
                if self.address.slave_id is None:
                    path = self._paths.master_config_checksum(self.address.broker_id)
                    self._write(self._session_id, [set_data(path, format_checksum(config_checksum))])
                if changed:
                    self._register_topics(self._session_id, changed)
            except CoordinationError:
                self._register_later()
                raise

    def unregister(self) -> None:
        """Remove all nodes of this broker, and keep them removed. Does nothing if it is not registered.

        Without a connection or the session it only logs: the nodes are ephemeral and end with the session.
        """
        self._session.off_session(self._session_changed)
        self._stopping.set()  # ends the wait for another broker's node
        self._again.close(_STOP_TIMEOUT)
        with self._lock:
            if not self._registered:
                return
            self._registered = False
            try:
                self._session.require_connection()
                self._unregister_all(self._session.session_id)
            except CoordinationError as error:
                log.warning("broker %s could not unregister, its nodes end with its session: %s", self._name, error)

    @property
    def _name(self) -> str:
        return self.address.replica

    # --- staying registered -----------------------------------------------------------------------------------------

    def _session_changed(self, event: SessionEvent) -> None:
        if event is SessionEvent.CONNECTED:
            self._again.trigger()

    def _register_later(self) -> None:
        self._behind = True
        self._again.trigger()

    def _register_again(self) -> None:
        with self._lock:
            if not self._registered or self._session.closed:
                return
            if self._session.is_current(self._session_id) and not self._behind:
                return  # it was registered on this session before it heard of it
            self._register_all()
            self._behind = False
            log.warning("broker %s is registered again, with %d topics", self._name, len(self._topics))

    def _register_all(self) -> None:
        session_id = self._session.session_id
        self._session.nodes.ensure([self._paths.broker(self.address.broker_id)])
        self._take_own_node(session_id)
        if self.address.slave_id is None:
            self._write(session_id, [set_data(self._paths.broker(self.address.broker_id), self._url)])
            checksum = self._paths.master_config_checksum(self.address.broker_id)
            self._replace(session_id, {checksum: format_checksum(self._checksum)})
        self._register_topics(session_id, list(self._topics.values()))
        self._session_id = session_id

    # --- the broker's own node --------------------------------------------------------------------------------------

    def _own_path(self) -> str:
        broker_id, slave_id = self.address.broker_id, self.address.slave_id
        return self._paths.master(broker_id) if slave_id is None else self._paths.slave(broker_id, slave_id)

    def _take_own_node(self, session_id: int) -> None:
        path = self._own_path()
        deadline = time.monotonic() + self._session.session_timeout + _STALE_MARGIN
        waiting = False
        while not self._try_own_node(session_id, path):
            other = self._other_user(path)
            if time.monotonic() >= deadline:
                raise other or CoordinationError(f"broker {self._name} cannot register: {path} comes and goes")
            if other is not None and not waiting:
                log.warning("%s: waiting until its session ends", other)
                waiting = True
            if self._stopping.wait(_POLL):
                raise CoordinationError(f"broker {self._name} was stopped while it waited to register")

    def _try_own_node(self, session_id: int, path: str) -> bool:
        """Whether the node is now ours. One of our URL and another session is an earlier life of ours: replaced."""
        creation = create_ephemeral(path, self._url)
        if self._write(session_id, [creation], NodeExistsError):
            return True
        node = self._session.nodes.get(path)
        if node is None:
            return False
        if node.owner == session_id and node.data == self._url:
            return True
        if node.data != self._url and node.owner != session_id:
            return False
        log.info("broker %s replaces a node of its former process (%s)", self._name, path)
        self._write(session_id, [delete(path)], NoNodeError)
        return self._write(session_id, [creation], NodeExistsError)

    def _other_user(self, path: str) -> ConfigError | None:
        """An error that names the other owner of our node; None if it has gone meanwhile, or is our own."""
        node = self._session.nodes.get(path)
        if node is None or node.data == self._url:
            return None
        url = parse_broker_url(path, node.data)
        user = f"{url[0]}:{url[1]}" if url else "another process"
        remedy = "stop that broker or choose another id"
        if url and url[0] == self.address.host:
            remedy = f"if that was this broker, start it again when its session has ended, else {remedy}"
        return ConfigError("brokerId", self.address.broker_id, f"in use by {user} ({path}): {remedy}")

    # --- topics -----------------------------------------------------------------------------------------------------

    def _topic_nodes(self, topic: TopicRegistration) -> dict[str, bytes | None]:
        """Payload by path; None: this broker must have no such node."""
        counts = format_partition_count(topic.partitions, self._name)
        return {
            self._paths.topic_broker(topic.name, self._name): format_plain_count(topic.partitions),
            self._paths.topic_pub_broker(topic.name, self._name): counts if topic.publish else None,
            self._paths.topic_sub_broker(topic.name, self._name): counts if topic.subscribe else None,
        }

    def _register_topics(self, session_id: int, topics: Sequence[TopicRegistration]) -> None:
        """Some round trips altogether, however many topics there are."""
        self._ensure_parents(topics)
        wanted = {path: data for topic in topics for path, data in self._topic_nodes(topic).items()}
        unwanted = [path for path, data in wanted.items() if data is None]
        self._write(session_id, [delete(path) for path in unwanted], NoNodeError)
        created = [(path, data) for path, data in wanted.items() if data is not None]
        for start in range(0, len(created), _ATOMIC_NODES):
            self._replace(session_id, dict(created[start : start + _ATOMIC_NODES]))

    def _ensure_parents(self, topics: Sequence[TopicRegistration]) -> None:
        kinds = (
            (self._paths.topics(), self._paths.topic),
            (self._paths.topics_pub(), self._paths.topic_pub),
            (self._paths.topics_sub(), self._paths.topic_sub),
        )
        known = self._session.nodes.children_many([parent for parent, _ in kinds])
        missing = [
            path(topic.name)
            for (_, path), names in zip(kinds, map(set, known), strict=True)
            for topic in topics
            if topic.name not in names
        ]
        self._session.nodes.ensure(missing)

    def _replace(self, session_id: int, wanted: dict[str, bytes]) -> None:
        """Create the nodes, at once if none exists; one of another payload or session is made anew.

        Made anew, not set: clients see a changed partition count because the child was replaced (zookeeper.md §5). That
        is one transaction, so that no client sees the topic without its broker in between.
        """
        creations = [create_ephemeral(path, data) for path, data in wanted.items()]
        if not creations or self._session.nodes.write_atomically(session_id, creations) is None:
            return
        failures = self._session.nodes.write(session_id, creations)
        existing = [path for path, failure in zip(wanted, failures, strict=True) if _is(failure, NodeExistsError)]
        nodes = zip(existing, self._session.nodes.get_many(existing), strict=True)
        stale = [path for path, node in nodes if not node or node.owner != session_id or node.data != wanted[path]]
        for start in range(0, len(stale), _ATOMIC_NODES // 2):
            self._make_anew(session_id, {path: wanted[path] for path in stale[start : start + _ATOMIC_NODES // 2]})

    def _make_anew(self, session_id: int, wanted: dict[str, bytes]) -> None:
        anew = [write for path, data in wanted.items() for write in (delete(path), create_ephemeral(path, data))]
        if self._session.nodes.write_atomically(session_id, anew) is not None:
            self._write(session_id, anew, NoNodeError)  # one of them ended with its session in this moment

    # --- unregistering ----------------------------------------------------------------------------------------------

    def _unregister_all(self, session_id: int) -> None:
        """In 1.x's order within one transaction, so that no client sees a topic without its broker in between.

        Too many topics for one transaction go first, for the same reason.
        """
        checksum = self._paths.master_config_checksum(self.address.broker_id)
        paths = [self._own_path(), checksum, *self._topic_paths()]
        while len(paths) > _ATOMIC_NODES:
            self._delete(session_id, paths[-_ATOMIC_NODES:])
            del paths[-_ATOMIC_NODES:]
        deleted = self._delete(session_id, paths)
        if self._paths.master(self.address.broker_id) in deleted:
            self._remove_legacy_node(session_id)

    def _topic_paths(self) -> list[str]:
        topics = self._topics.values()
        return [path for topic in topics for path, data in self._topic_nodes(topic).items() if data is not None]

    def _delete(self, session_id: int, paths: Sequence[str]) -> list[str]:
        """Delete and return those that are ours: after an expiry another broker may have taken our place."""
        nodes = zip(paths, self._session.nodes.get_many(paths), strict=True)
        mine = [path for path, node in nodes if node and node.owner == session_id]
        deletions = [delete(path) for path in mine]
        if deletions and self._session.nodes.write_atomically(session_id, deletions) is not None:
            self._write(session_id, deletions[::-1], NoNodeError)  # somebody removed one of them in this moment
        return mine

    def _remove_legacy_node(self, session_id: int) -> None:
        """The persistent node of the broker id: deleted, or emptied while slaves are registered below it."""
        path = self._paths.broker(self.address.broker_id)
        if not self._write(session_id, [delete(path)], NoNodeError, NotEmptyError):
            self._write(session_id, [set_data(path, b"")], NoNodeError)

    # --- writing ----------------------------------------------------------------------------------------------------

    def _write(self, session_id: int, writes: Sequence[FencedWrite], *expected: type[KazooException]) -> bool:
        """Whether all succeeded; an `expected` failure is False, any other one raises CoordinationError."""
        failures = [each for each in self._session.nodes.write(session_id, writes) if each is not None]
        for failure in failures:
            if not isinstance(failure, expected):
                raise CoordinationError(
                    f"broker {self._name} cannot write its ZooKeeper nodes: {type(failure).__name__} {failure}"
                ) from failure
        return not failures


def _is(failure: KazooException | None, kind: type[KazooException]) -> bool:
    if failure is not None and not isinstance(failure, kind):
        raise CoordinationError(f"cannot create ZooKeeper nodes: {type(failure).__name__} {failure}") from failure
    return failure is not None
