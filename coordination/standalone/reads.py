"""Process the requests that do not change a znode. Each function returns the body of the answer, or raises Refused or
Malformed.

The functions behave like the class FinalRequestProcessor of Apache ZooKeeper 3.9.5.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from . import acls
from .codes import EventKind, OpCode, RefusalCode, Refused
from .connections import PeerConnection
from .database import NO_ZXID, Database, event
from .jute import JuteReader, Malformed, encode_acls, encode_buffer, encode_text
from .tree import TreeNode, stat_of
from .watches import WatcherKind, WatchMode

__all__ = [
    "MULTI_END",
    "MULTI_HEADER",
    "add_watch",
    "check_watches",
    "exists",
    "get_acl",
    "get_all_children_number",
    "get_children",
    "get_children2",
    "get_data",
    "multi_read",
    "read_multi_reads",
    "remove_watches",
    "restore_watch",
    "sync",
    "who_am_i",
]

_INT = struct.Struct("!i")
MULTI_HEADER = struct.Struct("!i?i")
MULTI_END = MULTI_HEADER.pack(-1, True, -1)
"""The bytes at the end of the answer to a multi request, after the last result."""

_ADDED_MODES = {0: WatchMode.PERSISTENT, 1: WatchMode.RECURSIVE}


def _path(reader: JuteReader) -> str:
    path = reader.text()
    if path is None:
        raise Malformed("no path")
    return path


def _readable(database: Database, path: str, connection: PeerConnection, permission: int = acls.READ) -> TreeNode:
    node = database.tree.nodes.get(path)
    if node is None:
        raise Refused(RefusalCode.NO_NODE)
    acls.require(node.acl, permission, connection.identities)
    return node


def exists(database: Database, connection: PeerConnection, reader: JuteReader) -> bytes:
    path, watch = _path(reader), reader.boolean()
    if "\0" in path:
        raise Refused(RefusalCode.BAD_ARGUMENTS)
    node = database.tree.nodes.get(path)
    if node is not None:
        acls.require(node.acl, acls.READ, connection.identities)
    if watch:
        database.watches.data.add(path, connection, WatchMode.ONCE)
    if node is None:
        raise Refused(RefusalCode.NO_NODE)
    return stat_of(node)


def get_data(database: Database, connection: PeerConnection, reader: JuteReader) -> bytes:
    path, watch = _path(reader), reader.boolean()
    node = _readable(database, path, connection)
    if watch:
        database.watches.data.add(path, connection, WatchMode.ONCE)
    return encode_buffer(node.data) + stat_of(node)


def _children(database: Database, connection: PeerConnection, reader: JuteReader) -> tuple[bytes, TreeNode]:
    path, watch = _path(reader), reader.boolean()
    node = _readable(database, path, connection)
    if watch:
        database.watches.children.add(path, connection, WatchMode.ONCE)
    return _names(node), node


def _names(node: TreeNode) -> bytes:
    return _INT.pack(node.child_count) + b"".join(node.children or ())


def get_children(database: Database, connection: PeerConnection, reader: JuteReader) -> bytes:
    return _children(database, connection, reader)[0]


def get_children2(database: Database, connection: PeerConnection, reader: JuteReader) -> bytes:
    names, node = _children(database, connection, reader)
    return names + stat_of(node)


def get_all_children_number(database: Database, connection: PeerConnection, reader: JuteReader) -> bytes:
    path = _path(reader)
    _readable(database, path, connection)
    return _INT.pack(database.tree.children_number(path))


def get_acl(database: Database, connection: PeerConnection, reader: JuteReader) -> bytes:
    node = _readable(database, _path(reader), connection, acls.READ | acls.ADMIN)
    if acls.admits(node.acl, acls.ADMIN, connection.identities):
        return encode_acls(node.acl) + stat_of(node)
    return encode_acls(acls.without_passwords(node.acl)) + stat_of(node)


def sync(database: Database, connection: PeerConnection, reader: JuteReader) -> bytes:
    return encode_text(reader.text())


def who_am_i(database: Database, connection: PeerConnection, reader: JuteReader) -> bytes:
    known = connection.identities
    return _INT.pack(len(known)) + b"".join(
        encode_text(identity[0]) + encode_text(acls.user_of(identity)) for identity in known
    )


def read_multi_reads(reader: JuteReader) -> Iterator[tuple[int, str | None]]:
    """Yield the operation and the path of each read in a multiRead request. The watch flags in the request have no
    effect, as in Apache's server.
    """
    while True:
        operation, done, _ = reader.int32(), reader.boolean(), reader.int32()
        if done:
            return
        if operation not in (OpCode.GET_DATA, OpCode.GET_CHILDREN):
            raise Malformed(f"operation {operation} among reads")
        yield operation, reader.text()
        reader.boolean()


def multi_read(database: Database, connection: PeerConnection, operation: int, path: str | None) -> bytes:
    """Execute one read of a multiRead request, and return its result in bytes."""
    if path is None:
        raise Malformed("no path")
    try:
        node = _readable(database, path, connection)
    except Refused as refused:
        return MULTI_HEADER.pack(OpCode.ERROR, False, refused.code) + _INT.pack(refused.code)
    body = encode_buffer(node.data) + stat_of(node) if operation == OpCode.GET_DATA else _names(node)
    return MULTI_HEADER.pack(operation, False, 0) + body


# --- watches ----------------------------------------------------------------------------------------------------------


def add_watch(database: Database, connection: PeerConnection, reader: JuteReader) -> bytes:
    path, mode = _path(reader), _ADDED_MODES.get(reader.int32())
    if mode is None:
        raise Malformed("an unknown mode")
    database.watches.add(path, connection, mode)
    return _INT.pack(0)


def check_watches(database: Database, connection: PeerConnection, reader: JuteReader) -> bytes:
    path, kind = _watch(reader)
    if not database.watches.has(path, connection, kind):
        raise Refused(RefusalCode.NO_WATCHER)
    return b""


def remove_watches(database: Database, connection: PeerConnection, reader: JuteReader) -> bytes:
    path, kind = _watch(reader)
    if not database.watches.remove(path, connection, kind):
        raise Refused(RefusalCode.NO_WATCHER)
    return b""


def _watch(reader: JuteReader) -> tuple[str, WatcherKind]:
    path, kind = _path(reader), reader.int32()
    try:
        return path, WatcherKind(kind)
    except ValueError as error:
        raise Malformed("an unknown kind of watch") from error


def restore_watch(database: Database, connection: PeerConnection, group: int, path: str, seen: int) -> bytes | None:
    """Restore a client's watch after a reconnection. group: the number of the list in the setWatches2 request that
    contains the watch. If the client has missed an event of this watch since the zxid `seen`, return the event and do
    not restore the watch.
    """
    watches, node = database.watches, database.tree.nodes.get(path)
    if group == 0:
        missed = EventKind.DELETED if node is None else EventKind.DATA_CHANGED if node.mzxid > seen else None
        table = watches.data
    elif group == 1:
        missed = None if node is None else EventKind.CREATED
        table = watches.data
    elif group == 2:
        missed = EventKind.DELETED if node is None else EventKind.CHILDREN_CHANGED if node.pzxid > seen else None
        table = watches.children
    else:
        watches.add(path, connection, WatchMode.PERSISTENT if group == 3 else WatchMode.RECURSIVE)
        return None
    if missed is not None:
        return event(missed, path, NO_ZXID)
    table.add(path, connection, WatchMode.ONCE)
    return None
