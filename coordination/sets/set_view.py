"""Read and watch the broker sets of a cluster in ZooKeeper. broker_set.py contains the code that writes the sets to
ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from kazoo.protocol.states import ZnodeStat

from ..brokers.cluster_view import read_entry
from ..records.payloads import parse_broker_id, parse_broker_url
from ..records.set_payloads import SetNode, SetState, parse_set_node, parse_set_state
from ..session.watches import DataWatcher
from ..session.zk_session import ZkSession

__all__ = ["SetMaster", "SetView", "read_set", "read_sets", "set_ids", "watch_set"]


@dataclass(frozen=True, slots=True)
class SetMaster:
    """The content of the znode `ids/<id>/master` when it was read.

    url: the znode's data, None if it is empty. owner: id of the session that created the znode. version: version of the
    data.
    """

    url: str | None
    owner: int
    version: int


@dataclass(frozen=True, slots=True)
class SetView:
    """The state and the nodes of a broker set at one moment.

    state: the agreed state, None if no node has ever led the set. version: the version of the znode that holds the
    state, for compare-and-set; -1 if the znode is missing. nodes: the nodes that are present, by name. master: the
    set's `master` znode, None if no process is registered as the broker with this id.
    """

    state: SetState | None
    version: int
    nodes: Mapping[str, SetNode] = field(default_factory=dict)
    master: SetMaster | None = None
    zxid: int = 0
    """The number (zxid) of the ZooKeeper transaction that changed the state last. The zxid increases even if the
    state's znode is deleted and created again.
    """
    era: int = 0
    """How often the process that reads the views has noticed that ZooKeeper was set back, that is, came back without
    the newest state that this process had seen.
    """
    set_back: bool = False
    """Whether `state` is an older state to which ZooKeeper was set back. True if the process that reads the views has
    seen a newer state before, and nobody has written the state since ZooKeeper was set back. If true, nodes that are in
    sync according to `state` perhaps lack messages that were acknowledged later.
    """

    @property
    def order(self) -> tuple[int, int]:
        """A sort key for the views that one process has read: the key of a newer view is never lower than the key of an
        older view.
        """
        return self.era, self.zxid

    @property
    def is_led(self) -> bool:
        """Whether the node that the state names as the leader is present, and is the node to which clients send their
        messages.
        """
        leader = self.nodes.get(self.state.leader) if self.state else None
        return leader is not None and self.master is not None and self.master.url == leader.url

    def role(self, name: str) -> str:
        """Return the role of the node `name` according to the state: `leader`, `in-sync` or `out of sync`."""
        if self.state is None:
            return "out of sync"
        if self.state.leader == name:
            return "leader"
        node = self.nodes.get(name)
        known = name in self.state.in_sync if node is None else self.state.has_in_sync(name, node.instance)
        return "in-sync" if known else "out of sync"

    @property
    def in_sync_present(self) -> list[str]:
        """Names of the present nodes whose data is in sync. If a present node has the name of an in-sync node, but its
        data has another identifier, the node is left out.
        """
        state = self.state
        return [] if state is None else [n for n, node in self.nodes.items() if state.has_in_sync(n, node.instance)]


def read_set(session: ZkSession, broker_id: int) -> SetView:
    """Return the set as it was at some moment after the beginning of the call. A damaged entry of a node is logged and
    left out.

    The function blocks on ZooKeeper; any thread except kazoo's may call it. Raises CoordinationUnavailable,
    SessionLost, and CoordinationError for a damaged state.
    """
    nodes, paths = session.nodes, session.paths
    state_path, master_path = paths.broker_set(broker_id), paths.master(broker_id)
    nodes.sync(state_path)
    names = sorted(nodes.children(paths.set_nodes(broker_id)))
    node_paths = [paths.set_node(broker_id, name) for name in names]
    # The state is read first, so that the master is at least as new. So a writer that replaces the state of this view's
    # version and deletes this view's master cannot delete a later leader's master.
    state, master, *found = nodes.get_with_stats([state_path, master_path, *node_paths])
    present = [
        read_entry(partial(_parse_node, name), path, node[0])
        for name, path, node in zip(names, node_paths, found, strict=True)
        if node
    ]
    return SetView(
        parse_set_state(state_path, state[0]) if state else None,
        state[1].version if state else -1,
        {node.name: node for node in present if node},
        _master(master_path, *master) if master else None,
        state[1].mzxid if state else 0,
    )


def _parse_node(name: str, path: str, data: bytes | None) -> SetNode | None:
    return parse_set_node(path, name, data)


def _master(path: str, data: bytes | None, stat: ZnodeStat) -> SetMaster:
    parsed = read_entry(parse_broker_url, path, data)
    return SetMaster((data or b"").decode() if parsed else None, stat.ephemeralOwner, stat.version)


def set_ids(session: ZkSession) -> list[int]:
    """Return the ids of all broker sets that ever existed, sorted. The function blocks on ZooKeeper, and raises
    CoordinationUnavailable, SessionLost and CoordinationError as read_set() does.
    """
    parent = session.paths.broker_sets()
    ids = (read_entry(parse_broker_id, parent, name) for name in session.nodes.children(parent))
    return sorted(each for each in ids if each is not None)


def read_sets(session: ZkSession) -> dict[int, SetView]:
    """Return all broker sets by broker id, in the order of the ids. Raises the same errors as read_set()."""
    return {broker_id: read_set(session, broker_id) for broker_id in set_ids(session)}


def watch_set(session: ZkSession, broker_id: int, on_view: Callable[[int, SetView], None]) -> DataWatcher:
    """Call `on_view(broker_id, view)` on the event thread now, at each change of the set's state, and after each
    reconnection. Close the returned watcher to end these calls.

    The function needs one ZooKeeper watch per set. When a node registers or disappears, `on_view` is not called at
    once, but only when the leader has therefore changed the list of in-sync nodes. This delay does not matter for
    clients that read from in-sync nodes. A BrokerSet, in contrast, notices at once that a node has registered or
    disappeared. A damaged state is logged, and read again every 2 s.
    """
    watcher = DataWatcher(
        session,
        session.paths.broker_set(broker_id),
        lambda _path, _data: on_view(broker_id, read_set(session, broker_id)),
    )
    watcher.start()
    return watcher
