"""Format and parse the entries of logs and snapshots. The entries contain the results of operations, not the operations
themselves. So it does no harm to apply an entry twice. An earlier entry may also be applied to a state that already
contains later changes, if the entries of the later changes are applied again afterwards.

An entry contains the new state of one znode or one session. So a snapshot may be made while writes continue, if the log
entries that are written meanwhile are applied after the snapshot.

    NODE     'N' path, data, acl, czxid, mzxid, ctime, mtime, version, cversion, aversion, owner, pzxid
    PARENT   'P' path, cversion, pzxid: of a node whose children changed
    GONE     'G' path
    SESSION  'S' id, time-out in ms
    ENDED    'E' id
    LAST_ID  'I' the largest id that a session ever had

Texts and numbers are encoded as in Jute, ZooKeeper's encoding (jute.py).
"""

from __future__ import annotations

import struct

from .acls import OPEN
from .jute import JuteReader, Malformed, encode_acls, encode_buffer, encode_text
from .tree import TreeNode, ZnodeTree, initial_nodes

__all__ = ["Restored", "ended_entry", "gone_entry", "last_id_entry", "node_entry", "parent_entry", "session_entry"]

_STATS = struct.Struct("!qqqqiiiqq")
_PARENT = struct.Struct("!iq")
_SESSION = struct.Struct("!cqi")
_ID = struct.Struct("!cq")
_OPEN = encode_acls(OPEN)


def node_entry(path: str, node: TreeNode) -> bytes:
    acl = _OPEN if node.acl is OPEN else encode_acls(node.acl)
    stats = _STATS.pack(
        *(node.czxid, node.mzxid, node.ctime, node.mtime),
        *(node.version, node.cversion, node.aversion, node.owner, node.pzxid),
    )
    return b"".join((b"N", encode_text(path), encode_buffer(node.data), acl, stats))


def parent_entry(path: str, node: TreeNode) -> bytes:
    return b"P" + encode_text(path) + _PARENT.pack(node.cversion, node.pzxid)


def gone_entry(path: str) -> bytes:
    return b"G" + encode_text(path)


def session_entry(id_: int, timeout_ms: int) -> bytes:
    return _SESSION.pack(b"S", id_, timeout_ms)


def ended_entry(id_: int) -> bytes:
    return _ID.pack(b"E", id_)


def last_id_entry(id_: int) -> bytes:
    return _ID.pack(b"I", id_)


class Restored:
    """The state that results from applying the entries of a snapshot, and then the entries of the log."""

    def __init__(self) -> None:
        self.sessions: dict[int, int] = {}
        """The time-out of each session in milliseconds, by session id."""
        self.last_session = 0
        self._nodes = initial_nodes()

    def apply(self, entries: bytes) -> None:
        """Apply these entries of a snapshot or log to the state. Raises Malformed if an entry is damaged."""
        reader = JuteReader(entries)
        while reader.left:
            kind = entries[reader.at]
            reader.at += 1
            self._apply(kind, reader)

    def _apply(self, kind: int, reader: JuteReader) -> None:
        if kind == ord("N"):
            path = _path(reader)
            self._nodes[path] = _node(reader)
        elif kind == ord("P"):
            path, cversion, pzxid = _path(reader), reader.int32(), reader.int64()
            if node := self._nodes.get(path):  # a later snapshot may not contain it
                node.cversion, node.pzxid = cversion, pzxid
        elif kind == ord("G"):
            self._nodes.pop(_path(reader), None)
        elif kind == ord("S"):
            id_, timeout_ms = reader.int64(), reader.int32()
            self.sessions[id_] = timeout_ms
            self.last_session = max(self.last_session, id_)
        elif kind == ord("E"):
            self.sessions.pop(reader.int64(), None)
        elif kind == ord("I"):
            self.last_session = max(self.last_session, reader.int64())
        else:
            raise Malformed(f"an entry of kind {kind}")

    def tree(self) -> ZnodeTree:
        """Return the tree of the restored znodes. Raises Malformed if a znode's parent is missing. tree() may be called
        only once.
        """
        try:
            return ZnodeTree(self._nodes)
        except KeyError as error:
            raise Malformed(f"{error} is missing, but has children") from error


def _path(reader: JuteReader) -> str:
    path = reader.text()
    if path is None:
        raise Malformed("an entry without a path")
    return path or "/"


def _node(reader: JuteReader) -> TreeNode:
    data, acl = reader.buffer(), tuple(reader.acls() or ())
    node = TreeNode(data, OPEN if acl == OPEN else acl, 0, 0, 0)
    node.czxid, node.mzxid, node.ctime, node.mtime = (reader.int64() for _ in range(4))
    node.version, node.cversion, node.aversion = (reader.int32() for _ in range(3))
    node.owner, node.pzxid = reader.int64(), reader.int64()
    return node
