"""The state of the server: its znodes and watches. The class Database applies writes to this state, and makes the log
entries of the writes.

The class behaves like the class DataTree of Apache ZooKeeper 3.9.5.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from .acls import READ, admits
from .codes import EventKind
from .connections import PeerConnection
from .jute import Acl, encode_text
from .log_entries import gone_entry, node_entry, parent_entry
from .tree import TreeNode, ZnodeTree, parent_of
from .watches import Watches, WatchTable
from .writes import Creation, Deletion, NewAcl, NewData, WriteOutcome

__all__ = ["NO_ZXID", "Database", "WatchEvent", "event"]

NO_ZXID = -1

_NOTIFICATION = -1
_CONNECTED = 3
_EVENT = struct.Struct("!iiqiii")


def event(kind: EventKind, path: str, zxid: int) -> bytes:
    """Return the packet that a watching client gets for an event, including the packet's length field."""
    text = encode_text(path)
    return _EVENT.pack(_EVENT.size - 4 + len(text), _NOTIFICATION, zxid, 0, kind, _CONNECTED) + text


class WatchEvent(NamedTuple):
    """An event, and the connections of the clients that watch for it. acl: the ACL of the event's znode. Clients
    without the permission to read the znode do not get the event.
    """

    message: bytes
    watchers: Sequence[PeerConnection]
    acl: Sequence[Acl]

    def told(self) -> Iterator[PeerConnection]:
        """Yield the connections of the clients that get the event."""
        return (watcher for watcher in self.watchers if admits(self.acl, READ, watcher.identities))


class Database:
    """The znodes and watches of a server. A Database must be used by one thread only. entries: a list that belongs to
    the Outbox; the Database adds the log entries of each write to this list. events: the watch events of the running
    write that were not sent yet.
    """

    def __init__(self, entries: list[bytes]) -> None:
        self.tree = ZnodeTree()
        self.watches: Watches[PeerConnection] = Watches()
        self.zxid = 0
        self.entries = entries
        self.events: list[WatchEvent] = []

    def apply(self, outcome: WriteOutcome, zxid: int, unix_ms: int) -> TreeNode | None:
        """Apply a write. Return the znode that the answer to the client must describe, or None if the answer describes
        no znode.
        """
        match outcome:
            case Creation():
                return self._create(outcome, zxid, unix_ms)
            case Deletion(path):
                self.delete(path, zxid)
            case NewData(path, data, version):
                return self._set_data(path, data, version, zxid, unix_ms)
            case NewAcl(path, acl, version):
                node = self.tree.nodes[path]
                node.acl, node.aversion = acl, version
                self.entries.append(node_entry(path, node))
                return node
        return None

    def _create(self, outcome: Creation, zxid: int, unix_ms: int) -> TreeNode:
        path, parent_path = outcome.path, parent_of(outcome.path)
        node = TreeNode(outcome.data, outcome.acl, outcome.owner, zxid, unix_ms)
        parent = self.tree.create(path, node, outcome.cversion, zxid)
        self.entries += (node_entry(path, node), parent_entry(parent_path, parent))
        self._tell(self.watches.data, EventKind.CREATED, path, zxid, node.acl)
        self._tell(self.watches.children, EventKind.CHILDREN_CHANGED, parent_path or "/", zxid, parent.acl)
        return node

    def _set_data(self, path: str, data: bytes | None, version: int, zxid: int, unix_ms: int) -> TreeNode:
        node = self.tree.nodes[path]
        self.tree.set_data(path, node, data)
        node.version, node.mzxid, node.mtime = version, zxid, unix_ms
        self.entries.append(node_entry(path, node))
        self._tell(self.watches.data, EventKind.DATA_CHANGED, path, zxid, node.acl)
        return node

    def delete(self, path: str, zxid: int) -> None:
        """Delete a znode, and queue the events for the clients that watch it or its parent."""
        node, parent = self.tree.delete(path, zxid)
        parent_path = parent_of(path)
        self.entries += (gone_entry(path), parent_entry(parent_path, parent))
        told = self._tell(self.watches.data, EventKind.DELETED, path, zxid, node.acl)
        self._tell(self.watches.children, EventKind.DELETED, path, zxid, node.acl, told)
        self._tell(self.watches.children, EventKind.CHILDREN_CHANGED, parent_path or "/", zxid, parent.acl)

    def _tell(
        self,
        table: WatchTable[PeerConnection],
        kind: EventKind,
        path: str,
        zxid: int,
        acl: Sequence[Acl],
        told: Collection[PeerConnection] = (),
    ) -> Collection[PeerConnection]:
        """Queue an event for all connections that have a matching watch in `table`, except the connections in `told`,
        for which the event is queued already. Return all connections that have a matching watch.
        """
        watchers = table.triggered(path)
        if watchers:
            untold = [watcher for watcher in watchers if watcher not in told] if told else list(watchers)
            self.events.append(WatchEvent(event(kind, path, zxid), untold, acl))
        return watchers
