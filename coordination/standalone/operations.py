"""The table of the operations that clients may request, and the functions that execute these operations.

A function that executes an operation is called an action. An action handles its request in one of three ways. For a
short request, the action does all the work at once. For a long request, the action returns the steps of the work, and
the server does them before any other request. Or the action passes the steps of the work to
`StandaloneServer.begin_aside`, and the server does these steps between the requests of other connections. Each step
yields its cost; a cost of 1 is the cost of one simple request. The actions behave like the classes
FinalRequestProcessor and MultiResponse of Apache ZooKeeper 3.9.5.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from . import reads
from .codes import OpCode, RefusalCode, Refused
from .connections import PeerConnection
from .database import Database
from .jute import JuteReader, Malformed, encode_text
from .outbox import MOST_UNSENT_BYTES
from .sessions import OpenSession
from .tree import TreeNode, stat_of
from .writes import (
    AheadView,
    Asker,
    CreateNode,
    Creation,
    DeleteNode,
    NoAcl,
    SetData,
    WriteOutcome,
    WriteRequest,
    judge,
    read_create,
    read_delete,
    read_multi,
    read_set_acl,
    read_set_data,
)

if TYPE_CHECKING:
    from .server import StandaloneServer

__all__ = ["OPERATIONS", "ClientOperation", "PeerRequest", "tell"]

_JAVA_BLANKS = "".join(map(chr, range(0x21)))
"""The characters that Java's String.trim removes at both ends of a text."""

BYTES_PER_UNIT = 16_384
"""To copy this number of bytes costs as much as one simple request."""

_INT = struct.Struct("!i")
_TOLD_AT_ONCE = 64
_AT_ONCE_BYTES = 4096
"""Largest size in bytes of a request that is read and checked at once. A longer request is read and checked in small
steps, so that it does not delay other requests.
"""

Steps = Iterator[int]


class PeerRequest(NamedTuple):
    """A request of a client. reader: reads the request's bytes, beginning after the header."""

    connection: PeerConnection
    session: OpenSession
    xid: int
    reader: JuteReader


# --- reads ------------------------------------------------------------------------------------------------------------


ReadAction = Callable[[Database, PeerConnection, JuteReader], bytes]


def _read(read: ReadAction, server: StandaloneServer, request: PeerRequest) -> None:
    code, body = 0, b""
    try:
        body = read(server.database, request.connection, request.reader)
    except Refused as refused:
        code = refused.code
    except Malformed:
        code = RefusalCode.MARSHALLING_ERROR
    server.reply(request.connection, request.xid, code, body)


def _ping(_database: Database, _connection: PeerConnection, _reader: JuteReader) -> bytes:
    return b""


def _multi_read(server: StandaloneServer, request: PeerRequest) -> Steps:
    results: list[bytes] = []
    reader, size = request.reader, 0
    start = reader.at
    try:
        for operation, path in reads.read_multi_reads(reader):
            results.append(reads.multi_read(server.database, request.connection, operation, path))
            size += len(results[-1])
            if size > MOST_UNSENT_BYTES:
                raise Malformed("more is asked for than an answer can have")
            yield 1 + len(results[-1]) // BYTES_PER_UNIT
    except Malformed:
        reader.at = start
        body = yield from _when_no_reads(reader)
        server.reply(request.connection, request.xid, RefusalCode.MARSHALLING_ERROR, body)
        return
    server.reply(request.connection, request.xid, 0, b"".join(results) + reads.MULTI_END)


def _when_no_reads(reader: JuteReader) -> Generator[int, None, bytes]:
    """Return the bytes that Apache's server sends after the error code of a malformed multiRead request. If all
    operations in the request are writes, the server sends an empty list of results; otherwise it sends nothing after
    the error code.
    """
    try:
        for _ in read_multi(reader):
            yield 1
    except Malformed:
        return b""
    return reads.MULTI_END


def _get_ephemerals(server: StandaloneServer, request: PeerRequest) -> Steps:
    try:
        prefix = request.reader.text() or ""
    except Malformed:
        server.reply(request.connection, request.xid, RefusalCode.MARSHALLING_ERROR)
        return
    prefix = "" if prefix.strip(_JAVA_BLANKS) in ("", "/") else prefix
    found: list[bytes] = []
    for number, path in enumerate(server.database.tree.ephemerals.get(request.session.id, ())):
        if path.startswith(prefix):
            found.append(encode_text(path))
        if number % 16 == 15:
            yield 1
    server.reply(request.connection, request.xid, 0, _INT.pack(len(found)) + b"".join(found))


def _set_watches(groups: int, server: StandaloneServer, request: PeerRequest) -> Steps | None:
    steps = _restore_watches(groups, server, request)
    if request.reader.left <= _AT_ONCE_BYTES:
        return steps
    server.begin_aside(request.connection, steps)
    return None


def _restore_watches(groups: int, server: StandaloneServer, request: PeerRequest) -> Steps:
    """Restore the watches that a client lists in a setWatches request. groups: number of the lists of watches in the
    request. If any part of the request is malformed, no watch is restored.
    """
    wanted: list[tuple[int, str]] = []
    try:
        seen = request.reader.int64()
        for group in range(groups):
            for path in _texts(request.reader):
                wanted.append((group, path))
                yield 1
    except Malformed:
        server.reply(request.connection, request.xid, RefusalCode.MARSHALLING_ERROR)
        return
    for group, path in wanted:
        if request.connection.closed:
            return  # its watches have been removed already
        missed = reads.restore_watch(server.database, request.connection, group, path, seen)
        if missed is not None:
            server.send(request.connection, missed)
        yield 1
    server.reply(request.connection, request.xid, 0)


def _texts(reader: JuteReader) -> Iterator[str]:
    """Yield the texts of a vector. Raises Malformed if the bytes are invalid, and also if the vector or a text is null,
    because Apache's server cannot handle a null here.
    """
    count = reader.int32()
    if count == -1:
        raise Malformed("no vector")
    for _ in range(count):
        text = reader.text()
        if text is None:
            raise Malformed("no text")
        yield text


# --- writes -----------------------------------------------------------------------------------------------------------


Decode = Callable[[JuteReader], WriteRequest]


def _write(decode: Decode, server: StandaloneServer, request: PeerRequest) -> Steps | None:
    try:
        wanted = decode(request.reader)
    except Malformed:
        server.reply(request.connection, request.xid, RefusalCode.MARSHALLING_ERROR)
        return None
    database, zxid = server.database, server.begin_write()
    code, body = 0, b""
    try:
        outcome = judge(wanted, _asker(server, request), database.tree.nodes.get)
    except Refused as refused:
        code = refused.code
    except Malformed:
        code = RefusalCode.MARSHALLING_ERROR
    else:
        body = _answer(outcome, database.apply(outcome, zxid, server.now.unix_ms))
    server.commit()
    finish = _finish(server, request, code, body)
    if sum(len(notice.watchers) for notice in database.events) > _TOLD_AT_ONCE:
        return finish
    for _ in finish:
        pass
    return None


def _asker(server: StandaloneServer, request: PeerRequest) -> Asker:
    return Asker(request.session.id, request.connection.identities, server.settings.knows_x509)


def _finish(server: StandaloneServer, request: PeerRequest, code: int, body: bytes) -> Steps:
    yield from tell(server)
    server.reply(request.connection, request.xid, code, body)


def tell(server: StandaloneServer) -> Steps:
    """Send the events of the running write to the connections that watch for these events. Each step sends 8 events."""
    notices, server.database.events = server.database.events, []
    for notice in notices:
        for number, watcher in enumerate(notice.told()):
            server.send(watcher, notice.message)
            if number % 8 == 7:
                yield 1


def _answer(outcome: WriteOutcome, node: TreeNode | None) -> bytes:
    """Return the body of the answer to a write."""
    if node is None:
        return b""
    if not isinstance(outcome, Creation):
        return stat_of(node)
    path = encode_text(outcome.path)
    return path if outcome.operation == OpCode.CREATE else path + stat_of(node)


def _refuse_reconfiguration(server: StandaloneServer, request: PeerRequest) -> None:
    reader = request.reader
    try:
        reader.text(), reader.text(), reader.text(), reader.int64()
    except Malformed:
        server.reply(request.connection, request.xid, RefusalCode.MARSHALLING_ERROR)
        return
    server.begin_write()
    server.commit()
    server.reply(request.connection, request.xid, RefusalCode.RECONFIG_DISABLED)


def _close_session(server: StandaloneServer, request: PeerRequest) -> Steps:
    request.session.closing = True
    yield from server.end_session(request.session, request)


# --- multi ------------------------------------------------------------------------------------------------------------


class _Judged(NamedTuple):
    """The result of checking the writes of a multi request. outcomes: the changes of the writes before the first
    refused write. code: the error code of the refused write, 0 if no write was refused. malformed: whether a write
    could not be checked because it is malformed. view: the AheadView through which the check has read the znodes; it
    shows whether they have changed since.
    """

    view: AheadView
    outcomes: list[WriteOutcome]
    code: int = 0
    malformed: bool = False


def _multi(server: StandaloneServer, request: PeerRequest) -> Steps | None:
    if request.reader.left <= _AT_ONCE_BYTES:
        return _multi_at_once(server, request)
    server.begin_aside(request.connection, _multi_aside(server, request))
    return None


def _multi_at_once(server: StandaloneServer, request: PeerRequest) -> Steps:
    wanted = yield from _read_writes(server, request)
    if wanted is not None:
        yield from _apply_multi(server, request, wanted, None)


def _multi_aside(server: StandaloneServer, request: PeerRequest) -> Steps:
    wanted = yield from _read_writes(server, request)
    if wanted is None:
        return
    judged = yield from _judge_all(server, request, wanted)
    if not request.session.closing:
        server.begin_job(_apply_multi(server, request, wanted, judged))


_Wanted = list[WriteRequest] | Malformed


def _read_writes(server: StandaloneServer, request: PeerRequest) -> Generator[int, None, _Wanted | None]:
    """Read the writes of a multi request. Return the list of writes, or the Malformed error if the request is
    malformed. Return None if this function has already answered the request with an error.
    """
    wanted: list[WriteRequest] = []
    try:
        for each in read_multi(request.reader):
            wanted.append(each)
            yield 1
    except NoAcl:
        server.reply(request.connection, request.xid, RefusalCode.MARSHALLING_ERROR)
        return None
    except Malformed as malformed:
        return malformed
    return wanted


def _judge_all(server: StandaloneServer, request: PeerRequest, wanted: _Wanted) -> Generator[int, None, _Judged]:
    outcomes: list[WriteOutcome] = []
    asker, ahead = _asker(server, request), AheadView(server.database.tree.nodes.get)
    if isinstance(wanted, Malformed) or any(each.path is None for each in wanted):
        return _Judged(ahead, outcomes, malformed=True)
    try:
        for each in wanted:
            outcome = judge(each, asker, ahead)
            ahead.expect(outcome)
            outcomes.append(outcome)
            yield 1
    except Malformed:
        return _Judged(ahead, outcomes, malformed=True)
    except Refused as refused:
        return _Judged(ahead, outcomes, refused.code)
    return _Judged(ahead, outcomes)


def _apply_multi(server: StandaloneServer, request: PeerRequest, wanted: _Wanted, judged: _Judged | None) -> Steps:
    """Apply a multi request and answer it. judged: the result of an earlier check of the request, or None. The writes
    are checked again if there was no check, or if other writes have changed the checked znodes since.
    """
    zxid = server.begin_write()
    if judged is None or not judged.view.holds():
        judged = yield from _judge_all(server, request, wanted)
    _, outcomes, code, malformed = judged
    if malformed or isinstance(wanted, Malformed):
        server.commit()
        server.reply(request.connection, request.xid, RefusalCode.MARSHALLING_ERROR)
        return
    results = _failed_results(len(wanted), len(outcomes), code)
    if not code:
        for number, (each, outcome) in enumerate(zip(wanted, outcomes, strict=True)):
            node = server.database.apply(outcome, zxid, server.now.unix_ms)
            results.append(reads.MULTI_HEADER.pack(_result_type(each), False, 0) + _answer(outcome, node))
            if server.database.events:
                yield from tell(server)
            if number % 16 == 15:
                yield 16
    server.commit()
    server.reply(request.connection, request.xid, 0, b"".join(results) + reads.MULTI_END)


def _failed_results(count: int, passed: int, code: int) -> list[bytes]:
    """Return the results of a refused multi request, or [] if no write was refused. A write before the refused write
    gets the code 0. A write after it was not tried, and gets the code RUNTIME_INCONSISTENCY.
    """
    codes = [0] * passed + [code] + [RefusalCode.RUNTIME_INCONSISTENCY] * (count - passed - 1) if code else []
    return [reads.MULTI_HEADER.pack(OpCode.ERROR, False, each) + _INT.pack(each) for each in codes]


def _result_type(request: WriteRequest) -> OpCode:
    match request:
        case CreateNode(operation=OpCode.CREATE):
            return OpCode.CREATE
        case CreateNode():
            return OpCode.CREATE2
        case DeleteNode():
            return OpCode.DELETE
        case SetData():
            return OpCode.SET_DATA
    return OpCode.CHECK


# --- the table --------------------------------------------------------------------------------------------------------


class ClientOperation(NamedTuple):
    """An operation. name: the operation's name in the answer to the command `cons`. action: the function that executes
    the operation.
    """

    name: str
    action: Callable[[StandaloneServer, PeerRequest], Steps | None]


def _reading(name: str, read: ReadAction) -> ClientOperation:
    return ClientOperation(name, partial(_read, read))


def _writing(name: str, decode: Decode) -> ClientOperation:
    return ClientOperation(name, partial(_write, decode))


def _creating(operation: OpCode) -> ClientOperation:
    return _writing("CREA", partial(read_create, operation=operation))


OPERATIONS: dict[int, ClientOperation] = {
    OpCode.CREATE: _creating(OpCode.CREATE),
    OpCode.CREATE2: _creating(OpCode.CREATE2),
    OpCode.CREATE_CONTAINER: _creating(OpCode.CREATE_CONTAINER),
    OpCode.CREATE_TTL: _creating(OpCode.CREATE_TTL),
    OpCode.DELETE: _writing("DELE", read_delete),
    OpCode.SET_DATA: _writing("SETD", read_set_data),
    OpCode.SET_ACL: _writing("SETA", read_set_acl),
    OpCode.MULTI: ClientOperation("MULT", _multi),
    OpCode.RECONFIG: ClientOperation("RECO", _refuse_reconfiguration),
    OpCode.EXISTS: _reading("EXIS", reads.exists),
    OpCode.GET_DATA: _reading("GETD", reads.get_data),
    OpCode.GET_ACL: _reading("GETA", reads.get_acl),
    OpCode.GET_CHILDREN: _reading("GETC", reads.get_children),
    OpCode.GET_CHILDREN2: _reading("GETC", reads.get_children2),
    OpCode.GET_ALL_CHILDREN_NUMBER: _reading("GETACN", reads.get_all_children_number),
    OpCode.GET_EPHEMERALS: ClientOperation("GETE", _get_ephemerals),
    OpCode.MULTI_READ: ClientOperation("MLTR", _multi_read),
    OpCode.SYNC: _reading("SYNC", reads.sync),
    OpCode.WHO_AM_I: _reading("HOMI", reads.who_am_i),
    OpCode.PING: _reading("PING", _ping),
    OpCode.ADD_WATCH: _reading("ADDW", reads.add_watch),
    OpCode.CHECK_WATCHES: _reading("CHKW", reads.check_watches),
    OpCode.REMOVE_WATCHES: _reading("REMW", reads.remove_watches),
    OpCode.SET_WATCHES: ClientOperation("SETW", partial(_set_watches, 3)),
    OpCode.SET_WATCHES2: ClientOperation("STW2", partial(_set_watches, 5)),
    OpCode.CLOSE_SESSION: ClientOperation("CLOS", _close_session),
}
"""The operations that clients may request, by the number of the operation in ZooKeeper's protocol. Any other request is
answered with UNIMPLEMENTED, and its connection is closed. The requests createSession and deleteContainer are refused in
this way, although Apache's server up to 3.9.5 accepts them from clients. A check operation that is not part of a multi
request is refused in the same way.
"""
