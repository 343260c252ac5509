"""What an asynchronous slave must know of its master, and its presence as a consumer (zookeeper.md §6)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from kazoo.exceptions import NodeExistsError, NoNodeError

from metaq.protocol.errors import CoordinationError

from .backoff import Backoff
from .events import PersistentTask
from .group import new_consumer_id
from .logs import get_log
from .paths import replica_name
from .records import format_topics, parse_broker_url, parse_partition_count
from .registration import BrokerAddress
from .session import SessionEvent, ZkSession
from .watches import ChildrenWatcher
from .znodes import create_ephemeral, delete

__all__ = ["MasterView", "MasterWatch"]

log = get_log(__name__)

_CLOSE_TIMEOUT = 5.0

CHECKSUM_POLL_SECONDS = 10.0
"""How often the checksum of the master's server.ini is looked at: its data changes without any node coming or going."""


@dataclass(frozen=True, slots=True)
class MasterView:
    """The master of one broker id at one moment. address: None while it is not registered.

    topics: what it offers to consumers, with its number of partitions. checksum: of its server.ini, None if unknown.
    """

    address: BrokerAddress | None
    topics: Mapping[str, int]
    checksum: str | None = None


class MasterWatch:
    """Follows the master of `broker_id`, and keeps the slave registered as a consumer of its topics.

    1.x looks at the topics once; here every change is seen, so that new topics are copied without a restart. As in 1.x
    the consumer owns nothing and commits nothing. on_view: called on a thread of its own, once and after every change;
    it must not block. Any thread may call the methods; they block on ZooKeeper only in close().
    """

    def __init__(
        self,
        session: ZkSession,
        broker_id: int,
        group: str,
        on_view: Callable[[MasterView], None],
        *,
        backoff: Backoff | None = None,
    ) -> None:
        self.broker_id = broker_id
        self.group = group
        self.consumer_id = new_consumer_id(group)
        self._session = session
        self._nodes = session.nodes
        self._paths = session.paths
        self._on_view = on_view
        self._view: MasterView | None = None
        self._watchers: dict[str, ChildrenWatcher] = {}
        self._lock = threading.Lock()  # of _watchers and _closed
        self._closed = False
        self._task = PersistentTask(f"watch of the master of broker {broker_id}", self._look, backoff)

    def start(self) -> None:
        """Begin to watch; on_view follows."""
        self._session.on_session(self._session_changed)
        self._watch([self._paths.broker(self.broker_id), self._paths.topics_sub()])
        self._task.trigger()
        self._poll()

    def close(self) -> None:
        """Watch nothing any more, and take back the consumer's node."""
        self._session.off_session(self._session_changed)
        with self._lock:
            self._closed = True
            watchers, self._watchers = list(self._watchers.values()), {}
        for watcher in watchers:
            watcher.close()
        self._task.close(_CLOSE_TIMEOUT)
        try:
            self._session.require_connection()
            path = self._paths.consumer(self.group, self.consumer_id)
            self._nodes.write(self._session.session_id, [delete(path)])
        except CoordinationError as error:
            log.warning("consumer %s could not leave, its node ends with its session: %s", self.consumer_id, error)

    def again(self) -> None:
        """Look once more, and call on_view even if nothing has changed."""
        self._view = None
        self._task.trigger()

    # --- event thread -------------------------------------------------------------------------------------------------

    def _session_changed(self, event: SessionEvent) -> None:
        if event is SessionEvent.CONNECTED:
            self._task.trigger()

    def _changed(self, path: str, children: list[str]) -> None:
        self._task.trigger()

    def _poll(self) -> None:
        if not self._closed:
            self._task.trigger()
            self._session.events.post_later(CHECKSUM_POLL_SECONDS, self._poll)

    def _watch(self, paths: Iterable[str]) -> None:
        with self._lock:
            if self._closed:
                return
            added = [
                ChildrenWatcher(self._session, path, self._changed) for path in paths if path not in self._watchers
            ]
            self._watchers.update({watcher.path: watcher for watcher in added})
        for watcher in added:
            watcher.start()

    # --- the task's thread --------------------------------------------------------------------------------------------

    def _look(self) -> None:
        names = sorted(self._nodes.children(self._paths.topics_sub()))
        self._watch([self._paths.topic_sub(name) for name in names])
        view = self._read(names)
        if view.topics:
            self._present(view.topics)
        if view != self._view and not self._closed:
            self._view = view
            self._on_view(view)

    def _read(self, names: list[str]) -> MasterView:
        own = [self._paths.master(self.broker_id), self._paths.master_config_checksum(self.broker_id)]
        offered = [self._paths.topic_sub_broker(name, replica_name(self.broker_id)) for name in names]
        master, checksum, *nodes = self._nodes.get_many([*own, *offered])
        topics = {}
        for name, path, node in zip(names, offered, nodes, strict=True):
            count = self._count(path, node.data) if node else None
            if count is not None:
                topics[name] = count
        url = parse_broker_url(own[0], master.data) if master else None
        address = BrokerAddress(self.broker_id, None, *url) if url else None
        known = checksum is not None and checksum.data is not None
        return MasterView(address, topics, checksum.data.decode() if checksum and checksum.data and known else None)

    @staticmethod
    def _count(path: str, data: bytes | None) -> int | None:
        try:
            return parse_partition_count(path, data)
        except CoordinationError as error:
            log.error("left out: %s", error)
            return None

    def _present(self, topics: Iterable[str]) -> None:
        """Be a consumer of `topics`, under the current session."""
        session_id = self._session.session_id
        path, data = self._paths.consumer(self.group, self.consumer_id), format_topics(sorted(topics))
        node = self._nodes.get(path)
        if node is not None and node.owner == session_id and node.data == data:
            return
        self._nodes.ensure([self._paths.group_ids(self.group)])
        writes = [create_ephemeral(path, data)] if node is None else [delete(path), create_ephemeral(path, data)]
        failure = self._nodes.write_atomically(session_id, writes)
        if failure is not None and not isinstance(failure, (NodeExistsError, NoNodeError)):
            raise CoordinationError(f"cannot register consumer {path}: {type(failure).__name__} {failure}")
        if failure is not None:
            self._task.trigger()  # the old session's node went, or came to its end, in this moment
