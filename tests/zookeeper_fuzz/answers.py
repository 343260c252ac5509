"""What a server sent, as values that can be compared with another server's.

Zxids are taken out of an item, because two servers number differently; session ids become numbers of sessions. rules.py
says all that is not compared, and why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
_Decode = Callable[[Reader, Context, list[int]], Any]


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


def _path(reader: Reader, context: Context, zxids: list[int]) -> str | None:
    return context.path(reader.text())


def _sorted(read: _Decode) -> _Decode:
    """A vector, sorted: Apache's order is that of a HashSet (rules.py)."""

    def decode(reader: Reader, context: Context, zxids: list[int]) -> _Decoded | None:
        count = reader.count()
        return None if count is None else tuple(sorted((read(reader, context, zxids) for _ in range(count)), key=str))

    return decode


def _text(reader: Reader, _context: Context, _zxids: list[int]) -> str | None:
    return reader.text()


def _number(reader: Reader, _context: Context, _zxids: list[int]) -> int:
    return reader.int32()


def _buffer(reader: Reader, _context: Context, _zxids: list[int]) -> bytes | None:
    return reader.buffer()


def _decoded(fields: Sequence[_Decode], reader: Reader, context: Context, zxids: list[int]) -> _Decoded:
    return tuple(field(reader, context, zxids) for field in fields)


def _results(reader: Reader, context: Context, zxids: list[int]) -> _Decoded:
    """Of a multi."""
    results: list[_Decoded] = []
    while True:
        opcode, done, error = reader.int32(), reader.boolean(), reader.int32()
        if done:
            return (*results, ("done", opcode, error))
        if opcode not in _IN_MULTI:
            raise Unreadable(f"a result of type {opcode}")
        results.append((opcode, error, _decoded(_ANSWERS[opcode], reader, context, zxids)))


_ACL = _sorted(lambda reader, *_: (reader.int32(), reader.text(), reader.text()))
_IDENTITIES = _sorted(lambda reader, *_: (reader.text(), reader.text()))

_ANSWERS: Mapping[int, Sequence[_Decode]] = {
    OpCode.CREATE: (_path,),
    **dict.fromkeys((OpCode.CREATE2, OpCode.CREATE_CONTAINER, OpCode.CREATE_TTL), (_path, _stat)),
    **dict.fromkeys((OpCode.EXISTS, OpCode.SET_DATA, OpCode.SET_ACL), (_stat,)),
    OpCode.GET_DATA: (_buffer, _stat),
    OpCode.GET_ACL: (_ACL, _stat),
    OpCode.GET_CHILDREN: (_sorted(_text),),
    OpCode.GET_CHILDREN2: (_sorted(_text), _stat),
    OpCode.GET_EPHEMERALS: (_sorted(_path),),
    OpCode.GET_ALL_CHILDREN_NUMBER: (_number,),
    OpCode.SYNC: (_path,),
    OpCode.ADD_WATCH: (_number,),
    OpCode.SASL: (_buffer,),
    OpCode.WHO_AM_I: (_IDENTITIES,),
    **dict.fromkeys((OpCode.DELETE, OpCode.DELETE_CONTAINER, OpCode.PING, OpCode.AUTH, OpCode.CLOSE_SESSION), ()),
    **dict.fromkeys((OpCode.CHECK_WATCHES, OpCode.REMOVE_WATCHES, OpCode.SET_WATCHES, OpCode.SET_WATCHES2), ()),
    OpCode.CHECK: (),
    OpCode.ERROR: (_number,),
}
"""The fields behind the header of an answer, or of a result of a multi."""

_ONLY_IN_MULTI = (OpCode.CHECK, OpCode.ERROR)
_IN_MULTI = (
    *(OpCode.CREATE, OpCode.CREATE2, OpCode.CREATE_CONTAINER, OpCode.CREATE_TTL, OpCode.DELETE, OpCode.SET_DATA),
    *(OpCode.GET_DATA, OpCode.GET_CHILDREN, *_ONLY_IN_MULTI),
)


def _body(opcode: int, reader: Reader, context: Context, zxids: list[int]) -> _Decoded | None:
    """None for a request that has no answer of its own."""
    if opcode in (OpCode.MULTI, OpCode.MULTI_READ):
        return _results(reader, context, zxids)
    if opcode in _ONLY_IN_MULTI or opcode not in _ANSWERS:
        return None
    return _decoded(_ANSWERS[opcode], reader, context, zxids)


def answer(opcode: int, frame: bytes, context: Context) -> Item:
    """("answer", xid, error code, what follows); what does not parse is compared as it stands."""
    reader = Reader(frame)
    try:
        xid, zxid, error = reader.int32(), reader.int64(), reader.int32()
    except Unreadable:
        return Item(("short answer", frame))
    body = reader.rest()
    if error:
        return Item(("answer", xid, error), (zxid,), opcode)
    zxids = [zxid]
    fields = Reader(body)
    try:
        decoded = _body(opcode, fields, context, zxids)
    except Unreadable:
        return Item(("answer", xid, error, "not understood", body), (zxid,))
    if decoded is None:
        return Item(("answer", xid, error, body), (zxid,))
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
