"""Watch the master of an asynchronous slave, and register the slave as a consumer of the master's topics (zookeeper.md
§6).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from kazoo.exceptions import NodeExistsError, NoNodeError

from ..brokers.cluster_view import read_entry
from ..brokers.registration import BrokerAddress
from ..records.paths import replica_name
from ..records.payloads import format_topics, parse_broker_url, parse_partition_count
from ..runtime.backoff import Backoff
from ..session.presence import Presence
from ..session.watches import ChildrenWatchers
from ..session.zk_session import ZkSession
from ..session.znodes import create_ephemeral, delete
from .membership import new_consumer_id

__all__ = ["MasterView", "MasterWatch"]

CHECKSUM_POLL_SECONDS = 10.0
"""Seconds between two reads of the checksum that the master has registered for its server.ini. The checksum must be
polled, because the watches of this module report only that a znode was created or deleted, and the master can change
the checksum without creating or deleting a znode.
"""


@dataclass(frozen=True, slots=True)
class MasterView:
    """The state of the master of one broker id at one moment. address: the master's address, None while the master is
    not registered.

    topics: the topics that the master offers to consumers, with their numbers of partitions. checksum: the checksum of
    the master's server.ini, None if unknown.
    """

    address: BrokerAddress | None
    topics: Mapping[str, int]
    checksum: str | None = None


class MasterWatch:
    """Watches the master of `broker_id`, and keeps the slave registered as a consumer of the master's topics.

    A slave of 1.x reads the list of topics only once, when it starts. MasterWatch notices every change of the topics,
    so that our slave copies new topics without a restart. As in 1.x, the slave is registered as a consumer, but owns no
    partitions and commits no offsets.
    on_view: called with the first view and after every change, always on the same separate thread; the function must
    not block. Any thread may call the methods. close() is the only method that blocks on ZooKeeper.
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
        self._watchers = ChildrenWatchers(session)
        self._presence = Presence(session, f"consumer {self.consumer_id}", self._look, backoff)

    def start(self) -> None:
        """Begin to watch the master. on_view is called afterwards."""
        with self._presence.begun():
            for path in (self._paths.broker(self.broker_id), self._paths.topics_sub()):
                self._watchers.watch(path, self._changed)
            self._poll()

    def close(self) -> None:
        """Stop watching the master, and remove the znode that registers the slave as a consumer."""
        self._watchers.close()
        self._presence.stop()
        path = self._paths.consumer(self.group, self.consumer_id)
        self._presence.leave(lambda: self._nodes.delete_owned(self._session.session_id, [path]))

    def again(self) -> None:
        """Read the master's state now, and call on_view even if the state is the same as before."""
        self._view = None
        self._presence.again()

    # --- event thread -------------------------------------------------------------------------------------------------

    def _changed(self, path: str, children: list[str]) -> None:
        self._presence.again()

    def _poll(self) -> None:
        if not self._presence.stopped:
            self._presence.again()
            self._session.events.post_later(CHECKSUM_POLL_SECONDS, self._poll)

    # --- the task's thread --------------------------------------------------------------------------------------------

    def _look(self) -> None:
        names = sorted(self._nodes.children(self._paths.topics_sub()))
        for name in names:
            self._watchers.watch(self._paths.topic_sub(name), self._changed)
        view = self._read(names)
        if view.topics:
            self._present(view.topics)
        if view != self._view and not self._presence.stopped:
            self._view = view
            self._on_view(view)

    def _read(self, names: list[str]) -> MasterView:
        own = [self._paths.master(self.broker_id), self._paths.master_config_checksum(self.broker_id)]
        offered = [self._paths.topic_sub_broker(name, replica_name(self.broker_id)) for name in names]
        master, checksum, *nodes = self._nodes.get_many([*own, *offered])
        topics = {}
        for name, path, node in zip(names, offered, nodes, strict=True):
            count = read_entry(parse_partition_count, path, node.data) if node else None
            if count is not None:
                topics[name] = count
        url = parse_broker_url(own[0], master.data) if master else None
        address = BrokerAddress(self.broker_id, None, *url) if url else None
        return MasterView(address, topics, checksum.data.decode() if checksum and checksum.data else None)

    def _present(self, topics: Iterable[str]) -> None:
        """Register the slave as a consumer of `topics` on the current session, unless this registration exists
        already.
        """
        session_id = self._session.session_id
        path, data = self._paths.consumer(self.group, self.consumer_id), format_topics(sorted(topics))
        node = self._nodes.get(path)
        if node is not None and node.owner == session_id and node.data == data:
            return
        self._nodes.ensure([self._paths.group_ids(self.group)])
        writes = [create_ephemeral(path, data)] if node is None else [delete(path), create_ephemeral(path, data)]
        if any(self._nodes.write(session_id, writes, NodeExistsError, NoNodeError)):
            self._presence.again()  # the old session's znode, or the session, has just ended
