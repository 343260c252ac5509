"""The znodes in memory, with their metadata (Stat), which is computed by ZooKeeper's rules. The code uses no files,
clocks or watches.

The classes behave like DataTree and DataNode of ZooKeeper 3.9.5. Each znode takes about 500 bytes in addition to its
data. Every operation except `children_number` takes constant time.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence

from .acls import OPEN, READ_ONLY
from .jute import Acl, encode_text

__all__ = [
    "CONTAINER_OWNER",
    "INT_MAX",
    "SPECIAL",
    "TTL_LIMIT_MS",
    "TreeNode",
    "ZnodeTree",
    "initial_nodes",
    "is_valid_path",
    "parent_of",
    "stat_of",
    "ttl_of",
    "ttl_owner",
    "wrapped",
]

INT_MAX = 2**31 - 1

CONTAINER_OWNER = -(2**63)
"""The value of TreeNode.owner that marks a container znode. In an ephemeral znode, `owner` is the id of its session."""

TTL_LIMIT_MS = 2**40 - 1
"""The longest time to live that a znode can have, in ms."""

_TTL_MARK = -(2**56)
"""Shows that a znode has a time to live. The value of TreeNode.owner in such a znode is this number plus the time to
live in ms, which takes the lower 40 bits.
"""

SPECIAL = ("/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config")
"""The znodes that every server has and that nobody can delete."""

_STAT = struct.Struct("!qqqqiiiqiiq")

_BAD_CHARACTER = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]")
"""Matches a character that a path must not contain. The last range contains the characters that Java represents by
surrogate pairs.
"""


def is_valid_path(path: str) -> bool:
    """Return whether ZooKeeper accepts the path, by the rules of its PathUtils.validatePath."""
    if path == "/":
        return True
    if not path.startswith("/") or path.endswith(("/", "/.", "/..")):
        return False
    if "//" in path or "/./" in path or "/../" in path:
        return False
    return (path.isascii() and path.isprintable()) or _BAD_CHARACTER.search(path) is None


def parent_of(path: str) -> str:
    """Return the path of the parent. For a child of the root the result is "" instead of "/"; the root is in
    `ZnodeTree.nodes` under both keys.
    """
    return path[: path.rfind("/")]


def wrapped(value: int) -> int:
    """Return the value that Java's type int would have after an overflow: the value modulo 2³², as a signed number."""
    return (value + 2**31) % 2**32 - 2**31


def ttl_owner(ttl_ms: int) -> int:
    """Return the value of TreeNode.owner for a znode with the time to live `ttl_ms`."""
    return _TTL_MARK | ttl_ms


def ttl_of(owner: int) -> int | None:
    """Return the time to live (ms) of a znode whose TreeNode.owner has the value `owner`. Return None if the znode has
    no time to live.
    """
    return owner - _TTL_MARK if _TTL_MARK <= owner < 0 else None


class TreeNode:
    """One znode. `cversion` counts only creations of children. `owner` is the session id for an ephemeral znode,
    CONTAINER_OWNER for a container znode, the result of `ttl_owner` for a znode with a time to live, and 0 for any
    other znode.
    """

    __slots__ = (
        *("acl", "aversion", "children", "ctime", "cversion", "czxid", "data"),
        *("mtime", "mzxid", "owner", "pzxid", "version"),
    )

    def __init__(self, data: bytes | None, acl: Sequence[Acl], owner: int, zxid: int, time_ms: int) -> None:
        self.data = data
        self.acl = acl
        self.owner = owner
        self.czxid = self.mzxid = self.pzxid = zxid
        self.ctime = self.mtime = time_ms
        self.version = self.cversion = self.aversion = 0
        self.children: dict[bytes, None] | None = None
        """The names of the children, each encoded as in an answer to a client; None before the first child is added.
        Because the names are already encoded, the server builds the answer by a single join, even for a hundred
        thousand children.
        """

    @property
    def child_count(self) -> int:
        return len(self.children) if self.children else 0


def stat_of(node: TreeNode) -> bytes:
    """Return the znode's metadata (Stat), encoded as in an answer to a client. The cversion in the Stat also counts
    deletions of children, unlike `cversion` of the TreeNode.
    """
    children = node.child_count
    return _STAT.pack(
        node.czxid,
        node.mzxid,
        node.ctime,
        node.mtime,
        node.version,
        wrapped(node.cversion * 2 - children),
        node.aversion,
        max(node.owner, 0),
        len(node.data) if node.data is not None else 0,
        children,
        node.pzxid,
    )


def initial_nodes() -> dict[str, TreeNode]:
    """Return the znodes of a new server by path."""
    nodes = {path: TreeNode(b"", OPEN, 0, 0, 0) for path in SPECIAL}
    config = nodes["/zookeeper/config"]
    config.acl, config.aversion = READ_ONLY, -1
    return nodes


class ZnodeTree:
    """All znodes by path, and the paths of ephemeral znodes by their session. A ZnodeTree must be used by one thread
    only.
    """

    def __init__(self, nodes: Mapping[str, TreeNode] | None = None) -> None:
        """nodes: all znodes by path, with `children` not set yet; None means the znodes of a new server. Raises
        KeyError if the parent of a znode is missing.
        """
        self.nodes: dict[str, TreeNode] = {}
        self.ephemerals: dict[int, dict[str, None]] = {}
        self.containers: dict[str, None] = {}
        self.ttls: dict[str, None] = {}
        self.data_bytes = 0
        """The size of all data in bytes plus the length of all paths in characters."""
        nodes = initial_nodes() if nodes is None else nodes
        for path, node in nodes.items():
            self._put(path, node)
        self.nodes[""] = self.nodes["/"]
        for path in nodes:
            if path != "/":
                self._link(path)

    def _put(self, path: str, node: TreeNode) -> None:
        """Add a znode to the tables of this tree, but not to the children of its parent; `_link` does that."""
        self.nodes[path] = node
        self.data_bytes += len(path) + len(node.data or b"")
        owned = self._owned_like(node.owner)
        if owned is not None:
            owned[path] = None

    def _link(self, path: str) -> None:
        parent = self.nodes[parent_of(path)]
        if parent.children is None:
            parent.children = {}
        parent.children[encode_text(path[path.rfind("/") + 1 :])] = None

    def create(self, path: str, node: TreeNode, cversion: int, zxid: int) -> TreeNode:
        """Add a znode. cversion: the parent's new cversion. Return the parent."""
        parent = self.nodes[parent_of(path)]
        if cversion > parent.cversion:  # an overflowing number is not stored, as in Apache
            parent.cversion, parent.pzxid = cversion, zxid
        self._put(path, node)
        self._link(path)
        return parent

    def delete(self, path: str, zxid: int) -> tuple[TreeNode, TreeNode]:
        """Remove a znode. Return the znode and its parent."""
        parent, node = self.nodes[parent_of(path)], self.nodes[path]
        if parent.children is not None:
            parent.children.pop(encode_text(path[path.rfind("/") + 1 :]), None)
        parent.pzxid = max(parent.pzxid, zxid)
        del self.nodes[path]
        self.data_bytes -= len(path) + len(node.data or b"")
        owned = self._owned_like(node.owner)
        if owned is not None:
            owned.pop(path, None)
            if not owned and node.owner > 0:
                del self.ephemerals[node.owner]
        return node, parent

    def set_data(self, path: str, node: TreeNode, data: bytes | None) -> None:
        self.data_bytes += len(data or b"") - len(node.data or b"")
        node.data = data

    def _owned_like(self, owner: int) -> dict[str, None] | None:
        if not owner:
            return None
        if owner == CONTAINER_OWNER:
            return self.containers
        if ttl_of(owner) is not None:
            return self.ttls
        return self.ephemerals.setdefault(owner, {})

    def children_number(self, path: str) -> int:
        """Return the number of znodes below a path, at any depth. The method examines every znode of the tree, so its
        cost grows with the tree.
        """
        if path == "/":
            return len(self.nodes) - 2
        below = path + "/"
        return sum(each.startswith(below) for each in self.nodes)
