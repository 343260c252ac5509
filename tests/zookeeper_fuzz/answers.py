"""What a server sent, as values that can be compared with another server's.

Zxids are taken out of an item, because two servers number differently; session ids become numbers of sessions. rules.py
says all that is not compared, and why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .jute import OpCode, Reader, Unreadable

__all__ = ["Context", "Item", "answer", "connect_answer", "event"]


class Item(NamedTuple):
    """One thing that came on a connection. zxids: those in it, in the order in which they stand there.

    opcode: of what it answers.
    """

    plain: tuple[Any, ...]
    zxids: tuple[int, ...] = ()
    opcode: int = 0


class Context(NamedTuple):
    """What of an answer differs between servers.

    root: of the run, in front of each of its paths. sessions: their numbers by id. times: of transactions, by zxid.
    """

    root: str
    sessions: dict[int, int]
    times: dict[int, int]

    def path(self, path: str | None) -> str | None:
        if path is None or not path.startswith(self.root):
            return path if path is None else f"absolute {path}"
        return path[len(self.root) :] or "/"

    def owner(self, owner: int) -> object:
        number = self.sessions.get(owner)
        return owner if number is None else f"session {number}"


_Decoded = tuple[Any, ...]
_Decoder = Callable[[Reader, Context, list[int]], _Decoded]


def _stat(reader: Reader, context: Context, zxids: list[int]) -> _Decoded:
    czxid, mzxid, ctime, mtime = reader.int64(), reader.int64(), reader.int64(), reader.int64()
    zxids += (czxid, mzxid)
    times = context.times
    kept = times.setdefault(czxid, ctime) == ctime and times.setdefault(mzxid, mtime) == mtime
    version, cversion, aversion = reader.int32(), reader.int32(), reader.int32()
    owner = context.owner(reader.int64())
    length, children = reader.int32(), reader.int32()
    zxids.append(reader.int64())
    stat = ("stat", version, cversion, aversion, owner, length, children)
    return stat if kept else (*stat, "ctime or mtime is not that of the transaction")


def _nothing(reader: Reader, context: Context, zxids: list[int]) -> _Decoded:
    return ()


def _path(reader: Reader, context: Context, zxids: list[int]) -> _Decoded:
    return (context.path(reader.text()),)


def _path_and_stat(reader: Reader, context: Context, zxids: list[int]) -> _Decoded:
    return (context.path(reader.text()), _stat(reader, context, zxids))


def _only_stat(reader: Reader, context: Context, zxids: list[int]) -> _Decoded:
    return (_stat(reader, context, zxids),)


def _data(reader: Reader, context: Context, zxids: list[int]) -> _Decoded:
    return (reader.buffer(), _stat(reader, context, zxids))


def _texts(reader: Reader) -> list[str | None] | None:
    count = reader.count()
    return None if count is None else [reader.text() for _ in range(count)]


def _sorted(names: list[str | None] | None) -> tuple[str | None, ...] | None:
    """Sorted: Apache's order is that of a HashSet (rules.py)."""
    return None if names is None else tuple(sorted(names, key=str))


def _names(reader: Reader, context: Context, zxids: list[int]) -> _Decoded:
    return (_sorted(_texts(reader)),)


def _names_and_stat(reader: Reader, context: Context, zxids: list[int]) -> _Decoded:
    return (_sorted(_texts(reader)), _stat(reader, context, zxids))


def _paths(reader: Reader, context: Context, zxids: list[int]) -> _Decoded:
    paths = _texts(reader)
    return (None if paths is None else _sorted([context.path(path) for path in paths]),)


def _acl(reader: Reader, context: Context, zxids: list[int]) -> _Decoded:
    count = reader.count()
    acls = (
        None
        if count is None
        else sorted(((reader.int32(), reader.text(), reader.text()) for _ in range(count)), key=str)
    )
    return (acls and tuple(acls), _stat(reader, context, zxids))


def _number(reader: Reader, context: Context, zxids: list[int]) -> _Decoded:
    return (reader.int32(),)


def _buffer(reader: Reader, context: Context, zxids: list[int]) -> _Decoded:
    return (reader.buffer(),)


def _who(reader: Reader, context: Context, zxids: list[int]) -> _Decoded:
    count = reader.count()
    return (None if count is None else tuple(sorted(((reader.text(), reader.text()) for _ in range(count)), key=str)),)


def _multi(reader: Reader, context: Context, zxids: list[int]) -> _Decoded:
    results: list[_Decoded] = []
    while True:
        opcode, done, error = reader.int32(), reader.boolean(), reader.int32()
        if done:
            return (*results, ("done", opcode, error))
        decoder = _RESULTS.get(opcode)
        if decoder is None:
            raise Unreadable(f"a result of type {opcode}")
        results.append((opcode, error, decoder(reader, context, zxids)))


_DECODERS: dict[int, _Decoder] = {
    OpCode.CREATE: _path,
    OpCode.CREATE2: _path_and_stat,
    OpCode.CREATE_CONTAINER: _path_and_stat,
    OpCode.CREATE_TTL: _path_and_stat,
    OpCode.DELETE: _nothing,
    OpCode.DELETE_CONTAINER: _nothing,
    OpCode.EXISTS: _only_stat,
    OpCode.GET_DATA: _data,
    OpCode.SET_DATA: _only_stat,
    OpCode.GET_ACL: _acl,
    OpCode.SET_ACL: _only_stat,
    OpCode.GET_CHILDREN: _names,
    OpCode.GET_CHILDREN2: _names_and_stat,
    OpCode.SYNC: _path,
    OpCode.PING: _nothing,
    OpCode.MULTI: _multi,
    OpCode.MULTI_READ: _multi,
    OpCode.CHECK_WATCHES: _nothing,
    OpCode.REMOVE_WATCHES: _nothing,
    OpCode.AUTH: _nothing,
    OpCode.SASL: _buffer,
    OpCode.SET_WATCHES: _nothing,
    OpCode.SET_WATCHES2: _nothing,
    OpCode.GET_EPHEMERALS: _paths,
    OpCode.GET_ALL_CHILDREN_NUMBER: _number,
    OpCode.ADD_WATCH: _number,
    OpCode.WHO_AM_I: _who,
    OpCode.CLOSE_SESSION: _nothing,
}

_RESULTS: dict[int, _Decoder] = {
    OpCode.CREATE: _path,
    OpCode.CREATE2: _path_and_stat,
    OpCode.CREATE_CONTAINER: _path_and_stat,
    OpCode.CREATE_TTL: _path_and_stat,
    OpCode.DELETE: _nothing,
    OpCode.SET_DATA: _only_stat,
    OpCode.CHECK: _nothing,
    OpCode.GET_DATA: _data,
    OpCode.GET_CHILDREN: _names,
    OpCode.ERROR: _number,
}


def answer(opcode: int, frame: bytes, context: Context) -> Item:
    """("answer", xid, error code, what follows); what does not parse is compared as it stands."""
    reader = Reader(frame)
    try:
        xid, zxid, error = reader.int32(), reader.int64(), reader.int32()
    except Unreadable:
        return Item(("short answer", frame))
    decoder = _DECODERS.get(opcode)
    body = reader.rest()
    if error:
        return Item(("answer", xid, error), (zxid,), opcode)
    if decoder is None:
        return Item(("answer", xid, error, body), (zxid,))
    zxids = [zxid]
    fields = Reader(body)
    try:
        decoded = decoder(fields, context, zxids)
    except Unreadable:
        return Item(("answer", xid, error, "not understood", body), (zxid,))
    left = fields.rest()
    plain = ("answer", xid, error, decoded, left) if left else ("answer", xid, error, decoded)
    return Item(plain, tuple(zxids), opcode)


def event(frame: bytes, context: Context) -> Item:
    """("event", type, state, path); its header's zxid belongs to what happened."""
    reader = Reader(frame)
    try:
        _, zxid, error = reader.int32(), reader.int64(), reader.int32()
        kind, state, path = reader.int32(), reader.int32(), context.path(reader.text())
        left = reader.rest()
    except Unreadable:
        return Item(("unreadable event", frame))
    return Item(("event", kind, state, path, error, left) if error or left else ("event", kind, state, path), (zxid,))


def connect_answer(frame: bytes) -> tuple[Item, int, bytes]:
    """("connected" or "expired", protocol version, granted time-out in ms, length of the password, what follows), the
    session id and the password."""
    reader = Reader(frame)
    try:
        version, timeout, session, password = reader.int32(), reader.int32(), reader.int64(), reader.buffer()
        left = reader.rest()
    except Unreadable:
        return Item(("unreadable answer to connect", frame)), 0, b""
    password = password or b""
    if session == 0 or timeout <= 0:
        return Item(("expired", version, timeout, session, password, left)), 0, b""
    return Item(("connected", version, timeout, len(password), left)), session, password
