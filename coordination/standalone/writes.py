"""Decode the write requests of ZooKeeper clients, and make all checks of a request before the request changes anything.
The order of the checks is the same as in Apache's server.

Source: PrepRequestProcessor.pRequest2Txn, MultiOperationRecord, CreateMode, ZooKeeper 3.9.5.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple, Protocol

from . import acls
from .acls import Identity
from .codes import OpCode, RefusalCode, Refused
from .jute import Acl, JuteReader, Malformed
from .tree import CONTAINER_OWNER, SPECIAL, TTL_LIMIT_MS, is_valid_path, parent_of, ttl_owner, wrapped

__all__ = [
    "AheadView",
    "Asker",
    "CheckVersion",
    "CreateNode",
    "Creation",
    "DeleteNode",
    "Deletion",
    "NewAcl",
    "NewData",
    "NoAcl",
    "SetAcl",
    "SetData",
    "WriteOutcome",
    "WriteRequest",
    "judge",
    "read_create",
    "read_delete",
    "read_multi",
    "read_set_acl",
    "read_set_data",
]

_NO_TTL = -1
_ANY_VERSION = -1

_PERSISTENT, _EPHEMERAL, _SEQUENTIAL, _EPHEMERAL_SEQUENTIAL, _CONTAINER, _TTL, _TTL_SEQUENTIAL = range(7)
_SEQUENTIALS = (_SEQUENTIAL, _EPHEMERAL_SEQUENTIAL, _TTL_SEQUENTIAL)
_TTLS = (_TTL, _TTL_SEQUENTIAL)


# --- requests ---------------------------------------------------------------------------------------------------------


class CreateNode(NamedTuple):
    """The requests create, create2, createContainer and createTTL."""

    operation: int
    path: str | None
    data: bytes | None
    acl: list[Acl] | None
    mode: int
    ttl_ms: int = _NO_TTL


class DeleteNode(NamedTuple):
    """The request delete."""

    path: str | None
    version: int


class SetData(NamedTuple):
    """The request setData."""

    path: str | None
    data: bytes | None
    version: int


class SetAcl(NamedTuple):
    """The request setACL."""

    path: str | None
    acl: list[Acl] | None
    version: int


class CheckVersion(NamedTuple):
    """The operation check, which is allowed only in a multi (a request with several operations)."""

    path: str | None
    version: int


WriteRequest = CreateNode | DeleteNode | SetData | SetAcl | CheckVersion


def read_create(reader: JuteReader, operation: int) -> CreateNode:
    """Read a request that creates a znode. operation: the number of one of the four create operations."""
    path, data, acl, mode = reader.text(), reader.buffer(), reader.acls(), reader.int32()
    return CreateNode(operation, path, data, acl, mode, reader.int64() if operation == OpCode.CREATE_TTL else _NO_TTL)


def read_delete(reader: JuteReader) -> DeleteNode:
    return DeleteNode(reader.text(), reader.int32())


def read_set_data(reader: JuteReader) -> SetData:
    return SetData(reader.text(), reader.buffer(), reader.int32())


def read_set_acl(reader: JuteReader) -> SetAcl:
    return SetAcl(reader.text(), reader.acls(), reader.int32())


class NoAcl(Malformed):
    """Raised if a create operation in a multi request has no ACL. Apache's server fails while it decodes such an
    operation, before it assigns a zxid, so this server does not use a zxid for the request either.
    """


def read_multi(reader: JuteReader) -> Iterator[WriteRequest]:
    """Yield the write requests in a multi. Raises Malformed."""
    while True:
        operation, done, _ = reader.int32(), reader.boolean(), reader.int32()
        if done:
            return
        yield _multi_write(reader, operation)


def _multi_write(reader: JuteReader, operation: int) -> WriteRequest:
    match operation:
        case OpCode.CREATE | OpCode.CREATE2 | OpCode.CREATE_CONTAINER | OpCode.CREATE_TTL:
            return _multi_create(read_create(reader, operation))
        case OpCode.DELETE:
            return read_delete(reader)
        case OpCode.SET_DATA:
            return read_set_data(reader)
        case OpCode.CHECK:
            return CheckVersion(reader.text(), reader.int32())
    raise Malformed(f"operation {operation} in a multi")


def _multi_create(request: CreateNode) -> CreateNode:
    """Return the create request that has the same effect as a create operation in a multi. In a multi, only the mode in
    the create operation determines whether the znode is, for example, ephemeral or a container; it does not matter
    which of the four create operations the client has used. There is one exception: a mode with a time to live requires
    createTTL. Raises Malformed, NoAcl.
    """
    is_ttl = request.mode in _TTLS
    if request.operation == OpCode.CREATE_TTL:
        if is_ttl:
            return request
        request = request._replace(operation=OpCode.CREATE, ttl_ms=_NO_TTL)
    elif not _PERSISTENT <= request.mode <= _TTL_SEQUENTIAL:
        raise Malformed(f"mode {request.mode}")
    elif request.acl is None:
        raise NoAcl("no ACL")
    elif is_ttl:
        raise Malformed("a time to live is missing")
    return request._replace(operation=OpCode.CREATE_CONTAINER) if request.mode == _CONTAINER else request


# --- what they see ----------------------------------------------------------------------------------------------------


class SeenNode(Protocol):
    """The attributes of a znode that the checks read."""

    @property
    def acl(self) -> Sequence[Acl]: ...
    @property
    def owner(self) -> int: ...
    @property
    def version(self) -> int: ...
    @property
    def cversion(self) -> int: ...
    @property
    def aversion(self) -> int: ...
    @property
    def child_count(self) -> int: ...


class _Expected(NamedTuple):
    """The state that a znode will have when those writes of a multi request that were checked so far are executed."""

    acl: Sequence[Acl]
    owner: int
    version: int
    cversion: int
    aversion: int
    child_count: int


def _state_of(node: SeenNode) -> _Expected:
    return _Expected(node.acl, node.owner, node.version, node.cversion, node.aversion, node.child_count)


Look = Callable[[str], SeenNode | None]


class AheadView:
    """A view of the znodes for the check of a multi request. It shows each znode as the request's next write will find
    it: with the changes of the request's earlier writes, although the tree does not contain these changes yet.
    """

    def __init__(self, look: Look) -> None:
        self._look = look
        self._changed: dict[str, _Expected | None] = {}
        self._seen: dict[str, tuple[SeenNode, _Expected] | None] = {}
        self._holds = True

    def __call__(self, path: str) -> SeenNode | None:
        if path in self._changed:
            return self._changed[path]
        seen = self._state(path)
        if self._seen.setdefault(path, seen) != seen:
            self._holds = False
        return None if seen is None else seen[0]

    def _state(self, path: str) -> tuple[SeenNode, _Expected] | None:
        node = self._look(path)
        return None if node is None else (node, _state_of(node))

    def holds(self) -> bool:
        """Return whether all znodes that were read through this view are still unchanged in the tree. Changes of other
        znodes do not matter.
        """
        return self._holds and all(self._state(path) == seen for path, seen in self._seen.items())

    def expect(self, outcome: WriteOutcome) -> None:
        """Include in this view the changes that a write will make."""
        match outcome:
            case Creation():
                parent = self._expected(parent_of(outcome.path))
                self._change(
                    parent_of(outcome.path),
                    parent._replace(cversion=outcome.cversion, child_count=parent.child_count + 1),
                )
                self._change(outcome.path, _Expected(outcome.acl, outcome.owner, 0, 0, 0, 0))
            case Deletion():
                parent = self._expected(parent_of(outcome.path))
                self._change(parent_of(outcome.path), parent._replace(child_count=parent.child_count - 1))
                self._change(outcome.path, None)
            case NewData():
                self._change(outcome.path, self._expected(outcome.path)._replace(version=outcome.version))

    def _expected(self, path: str) -> _Expected:
        seen = self(path)
        if seen is None:
            raise KeyError(path)
        return _state_of(seen)

    def _change(self, path: str, expected: _Expected | None) -> None:
        for name in ("", "/") if path in ("", "/") else (path,):
            self._changed[name] = expected


# --- outcomes ---------------------------------------------------------------------------------------------------------


class Creation(NamedTuple):
    """The checked outcome of a create request: the znode that the server must add. cversion: the parent's new
    cversion.
    """

    operation: int
    path: str
    data: bytes | None
    acl: tuple[Acl, ...]
    owner: int
    cversion: int


class Deletion(NamedTuple):
    """The checked outcome of a delete request: the znode that the server must remove."""

    path: str


class NewData(NamedTuple):
    """The checked outcome of a setData request: the data that the server must set in a znode. version: the new version
    of the data.
    """

    path: str
    data: bytes | None
    version: int


class NewAcl(NamedTuple):
    """The checked outcome of a setACL request: the ACL that the server must set in a znode. version: the new version of
    the ACL.
    """

    path: str
    acl: tuple[Acl, ...]
    version: int


class NoChange(NamedTuple):
    """The checked outcome of a check operation, which changes nothing."""


WriteOutcome = Creation | Deletion | NewData | NewAcl | NoChange


class Asker(NamedTuple):
    """The client that sends a write: its session id and its identities. knows_x509: whether the server has a secure
    port.
    """

    session: int
    identities: Collection[Identity]
    knows_x509: bool = False

    def expanded(self, acl: Sequence[Acl] | None) -> tuple[Acl, ...]:
        """Return the ACLs that a request of this client contains. Raises Refused, Malformed."""
        return acls.expanded(acl, self.identities, knows_x509=self.knows_x509)


def judge(request: WriteRequest, asker: Asker, look: Look) -> WriteOutcome:
    """Check a write request, and return the change that it makes. Raises Refused, Malformed."""
    match request:
        case CreateNode():
            return _judge_create(request, asker, look)
        case DeleteNode(path, version):
            return _judge_delete(_given(path), version, asker, look)
        case SetData(path, data, version):
            path = _valid(path)
            node = _found(path, look)
            acls.require(node.acl, acls.WRITE, asker.identities)
            return NewData(path, data, _next_version(node.version, version))
        case SetAcl(path, acl, version):
            path = _valid(path)
            new = asker.expanded(acl)
            node = _found(path, look)
            acls.require(node.acl, acls.ADMIN, asker.identities)
            return NewAcl(path, new, _next_version(node.aversion, version))
        case CheckVersion(path, version):
            path = _valid(path)
            node = _found(path, look)
            acls.require(node.acl, acls.READ, asker.identities)
            _next_version(node.version, version)
            return NoChange()


def _judge_create(request: CreateNode, asker: Asker, look: Look) -> Creation:
    mode = request.mode
    if not _PERSISTENT <= mode <= _TTL_SEQUENTIAL or not _has_good_ttl(request):
        raise Refused(RefusalCode.BAD_ARGUMENTS)
    path = _given(request.path)
    if "/" not in path or "\0" in path:
        raise Refused(RefusalCode.BAD_ARGUMENTS)
    acl = asker.expanded(request.acl)
    parent = _found(parent_of(path), look)
    acls.require(parent.acl, acls.CREATE, asker.identities)
    if mode in _SEQUENTIALS:
        path += f"{parent.cversion:010d}"
    path = _valid(path)
    if look(path) is not None:
        raise Refused(RefusalCode.NODE_EXISTS)
    if parent.owner > 0:
        raise Refused(RefusalCode.NO_CHILDREN_FOR_EPHEMERALS)
    acl = acls.OPEN if acl == acls.OPEN else acl  # most znodes share one tuple
    owner = _owner(request, asker.session)
    return Creation(request.operation, path, request.data, acl, owner, wrapped(parent.cversion + 1))


def _has_good_ttl(request: CreateNode) -> bool:
    """Return whether a create request's time to live is valid and fits its operation and its mode. Apache's server
    accepts a createTTL whose mode has no time to live, and then crashes.
    """
    if request.operation == OpCode.CREATE_TTL or request.mode in _TTLS:
        return request.mode in _TTLS and 0 < request.ttl_ms <= TTL_LIMIT_MS
    return True


def _owner(request: CreateNode, session: int) -> int:
    if request.operation == OpCode.CREATE_CONTAINER:
        return CONTAINER_OWNER
    if request.operation == OpCode.CREATE_TTL:
        return ttl_owner(request.ttl_ms)
    return session if request.mode in (_EPHEMERAL, _EPHEMERAL_SEQUENTIAL) else 0


def _judge_delete(path: str, version: int, asker: Asker, look: Look) -> Deletion:
    if "/" not in path or "\0" in path or path in SPECIAL:
        raise Refused(RefusalCode.BAD_ARGUMENTS)
    parent = _found(parent_of(path), look)
    acls.require(parent.acl, acls.DELETE, asker.identities)
    node = _found(path, look)
    _next_version(node.version, version)
    if node.child_count:
        raise Refused(RefusalCode.NOT_EMPTY)
    return Deletion(path)


def _given(path: str | None) -> str:
    if path is None:
        raise Malformed("no path")
    return path


def _valid(path: str | None) -> str:
    if path is None or not is_valid_path(path):
        raise Refused(RefusalCode.BAD_ARGUMENTS)
    return path


def _found(path: str, look: Look) -> SeenNode:
    node = look(path)
    if node is None:
        raise Refused(RefusalCode.NO_NODE)
    return node


def _next_version(version: int, expected: int) -> int:
    if expected not in (_ANY_VERSION, version):
        raise Refused(RefusalCode.BAD_VERSION)
    return wrapped(version + 1)
