"""The server without I/O: bytes and time go in; bytes to send, connections to close and log entries come out.

    connected, received, lost    what happened to a connection
    tick                         time has passed
    work                         do some of what there is to do; bounded
    ready, PeerConnection.take       what is to be sent, and which connections are to be closed
    take_log, synced             what is to be written, and that it is on the disk

Invariants:
- Requests are done one after the other. A long one is a job of many steps: nothing else begins before it has ended, so
  nobody sees half of it.
- What was made since a log record was made, reads and events too, goes out when that record is on the disk.
- Each write takes the next zxid, a refused one too, and so do the beginning and the end of a session.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import NamedTuple

from . import acls, reads, words
from .codes import OpCode, RefusalCode, Refused
from .connections import PeerConnection
from .database import Database
from .jute import JuteReader, Malformed, encode_buffer, encode_text
from .records import Restored, ended_entry, last_id_entry, node_entry, session_entry
from .sessions import PASSWORD_BYTES, OpenSession, Sessions
from .tree import TreeNode, stat_of, ttl_of
from .writes import (
    AheadView,
    Asker,
    CreateNode,
    Creation,
    DeleteNode,
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

__all__ = ["LogBatch", "Moment", "ServerSettings", "StandaloneServer"]

_REPLY = struct.Struct("!iiqi")
_CONNECT_REPLY = struct.Struct("!iiiq")
_MULTI_HEADER = struct.Struct("!i?i")
_INT = struct.Struct("!i")

_FRAMES_IN_TURN = 64
_SNAPSHOT_STEP_BYTES = 32 * 1024
_FIRST_FRAME_MS = 10_000
_CONTAINER_CHECK_MS = 60_000
_UNSENT_BYTES = 1024 * 1024
"""Made for a peer and not taken; with more, its requests wait."""
_MOST_UNSENT_BYTES = 64 * 1024 * 1024
"""The same; a peer that lets so many events pile up is dropped."""
_BYTES_PER_UNIT = 16_384


class Moment(NamedTuple):
    """Now: ms of a clock that never goes back, and Unix time in ms, which nodes are stamped with."""

    ms: int
    unix_ms: int


class ServerSettings(NamedTuple):
    """Of one server. secret: 16 random bytes that stay the same; keeps: whether there is a log.

    port, data_dir, environment: for the four-letter words alone.
    """

    secret: bytes
    tick_time_ms: int
    max_session_timeout_ms: int
    keeps: bool
    port: int = 0
    data_dir: str = ""
    environment: tuple[tuple[str, str], ...] = ()


class LogBatch(NamedTuple):
    """Entries of whole writes. last: zxid of the last one; position: for `StandaloneServer.synced`."""

    entries: bytes
    last: int
    position: int


class _Mark(NamedTuple):
    """A place in the log: by zxid, and by the number of writes since the server's start."""

    zxid: int
    position: int


class StandaloneServer:
    """All of one server's state. One thread."""

    def __init__(self, settings: ServerSettings, now: Moment) -> None:
        self.settings = settings
        self.database = Database(self._send)
        self.sessions = Sessions(settings.secret, settings.tick_time_ms, settings.max_session_timeout_ms)
        self.connections: dict[PeerConnection, None] = {}
        self.counters = words.Counters(now.ms)
        self.now = now
        self._unopened: dict[PeerConnection, int] = {}
        self._line: deque[PeerConnection] = deque()
        self._ending: deque[OpenSession] = deque()
        self._doomed: deque[str] = deque()
        self._job: Iterator[int] | None = None
        self._cleaning: deque[Iterator[int]] = deque()
        self._ready: dict[PeerConnection, None] = {}
        self._held: deque[tuple[int, PeerConnection, bytes | None, int]] = deque()
        self._log: list[bytes] = []
        self._position = self._taken = self._synced = 0
        self._committed = _Mark(0, 0)
        self._containers_checked_ms = now.ms

    def restore(self, restored: Restored, zxid: int, now: Moment) -> None:
        """Go on where a log ends. Sessions get their whole time again. Raises Malformed."""
        self.database.tree = restored.tree()
        self.database.zxid = zxid
        for id_, timeout_ms in restored.sessions.items():
            self.sessions.add(OpenSession(id_, timeout_ms), now.ms)
        self.sessions.last_id = max(self.sessions.last_id, restored.last_session)

    # --- connections --------------------------------------------------------------------------------------------------

    def connected(self, host: str, port: int, now: Moment) -> PeerConnection:
        """Somebody has connected from there."""
        connection = PeerConnection(host, port, now.unix_ms)
        self.connections[connection] = None
        self._unopened[connection] = now.ms + _FIRST_FRAME_MS
        return connection

    def received(self, connection: PeerConnection, data: bytes) -> None:
        """The peer has sent this."""
        connection.append(data)
        self._line_up(connection)

    def _line_up(self, connection: PeerConnection) -> None:
        if not connection.in_line:
            connection.in_line = True
            self._line.append(connection)

    def lost(self, connection: PeerConnection) -> None:
        """The connection is closed; its session goes on."""
        if connection.closed:
            return
        connection.closed = True
        del self.connections[connection]
        self._unopened.pop(connection, None)
        self._ready.pop(connection, None)
        if connection.session and connection.session.connection is connection:
            connection.session.connection = None
        self._cleaning.append(self.database.watches.forget(connection))

    def ready(self, most: int) -> list[PeerConnection]:
        """Those with something to send, or to be closed. Each comes once, until there is more for it."""
        found = list(islice(self._ready, most))
        for connection in found:
            del self._ready[connection]
        return found

    def take(self, connection: PeerConnection) -> list[bytes]:
        """What is to be sent to it now."""
        taken = connection.take()
        if connection.waits and connection.unsent <= _UNSENT_BYTES:
            connection.waits = False
            self._line_up(connection)
        return taken

    def _send(self, connection: PeerConnection, data: bytes | None) -> None:
        """None: close it behind what was sent."""
        if connection.closed or connection.finished:
            return
        if data is not None:
            connection.unsent += len(data)
            if connection.unsent > _MOST_UNSENT_BYTES + len(data):
                data = None  # it reads nothing: it will ask for its watches again when it is back
        if self._position == self._synced:
            self._give(connection, data)
        else:
            self._held.append((self._position, connection, data, self.now.ms))

    def _give(self, connection: PeerConnection, data: bytes | None) -> None:
        if connection.closed or connection.finished:
            return
        if data is None:
            connection.finished = True
        else:
            connection.out.append(data)
            connection.sent += 1
            self.counters.sent += 1
        self._ready[connection] = None

    def _close(self, connection: PeerConnection) -> None:
        self._send(connection, None)

    # --- time ---------------------------------------------------------------------------------------------------------

    def tick(self, now: Moment) -> None:
        """Time has passed: to be called once in a tick time. `work` does what follows of it."""
        self.now = now
        for session in self.sessions.expired(now.ms):
            self._end(session)
        while self._unopened:
            connection, deadline_ms = next(iter(self._unopened.items()))
            if deadline_ms > now.ms:
                break
            del self._unopened[connection]
            self._close(connection)
        if now.ms - self._containers_checked_ms >= _CONTAINER_CHECK_MS:
            self._containers_checked_ms = now.ms
            self._cleaning.append(self._find_unused())

    def _end(self, session: OpenSession) -> None:
        if not session.closing:
            session.closing = True
            self._ending.append(session)

    def _find_unused(self) -> Iterator[int]:
        """Containers that are empty again, and nodes whose time to live is over."""
        tree = self.database.tree
        for path in (*tree.containers, *tree.ttls):
            node = tree.nodes.get(path)
            if node is not None and self._is_unused(node):
                self._doomed.append(path)
            yield 1

    def _is_unused(self, node: TreeNode) -> bool:
        if node.children:
            return False
        ttl_ms = ttl_of(node.owner)
        return node.cversion > 0 if ttl_ms is None else self.now.unix_ms - node.mtime > ttl_ms

    # --- work ---------------------------------------------------------------------------------------------------------

    def work(self, units: int, now: Moment) -> bool:
        """Do what there is to do, about `units` simple requests' worth of it. Returns whether there is more."""
        self.now = now
        while units > 0:
            if self._job is not None:
                units -= self._go_on(self._job)
            elif self._ending:
                self._job = self._end_session(self._ending.popleft(), None, 0)
            elif self._doomed:
                self._delete_unused(self._doomed.popleft())
                units -= 1
            elif self._line:
                units -= self._serve(self._line.popleft(), units)
            elif self._cleaning:
                units -= self._clean(self._cleaning[0])
            else:
                return False
        return True

    @property
    def outstanding(self) -> int:
        """Answers and events that wait for the disk."""
        return len(self._held)

    @property
    def busy(self) -> bool:
        """Whether a job is under way: some of what it does is not among the log's entries yet."""
        return self._job is not None

    def _go_on(self, job: Iterator[int]) -> int:
        for cost in job:
            return cost
        self._job = None
        return 1

    def _clean(self, cleaning: Iterator[int]) -> int:
        for cost in cleaning:
            return cost
        self._cleaning.popleft()
        return 1

    def _serve(self, connection: PeerConnection, units: int) -> int:
        """Some requests of one connection; returns what they cost. It goes to the end of the line if there are more."""
        connection.in_line = False
        cost = 1
        for _ in range(min(units, _FRAMES_IN_TURN)):
            if connection.closed or connection.finished:
                return cost
            if connection.unsent > _UNSENT_BYTES:
                connection.waits = True
                return cost
            try:
                frame = self._frame(connection)
                if frame is None:
                    return cost
                self._begin(connection, frame)
            except Malformed:
                self._close(connection)
                return cost
            cost += 1 + len(frame) // _BYTES_PER_UNIT
            if self._job is not None:
                break
        self._line_up(connection)
        return cost

    def _frame(self, connection: PeerConnection) -> bytes | None:
        if not connection.opened:
            word = connection.word()
            if word in words.WORDS:
                self._count(connection)
                self._unopened.pop(connection, None)
                self._job = self._say(connection, word)
                return None
        return connection.frame()

    def _say(self, connection: PeerConnection, word: bytes) -> Iterator[int]:
        lines: list[str] = []
        for line in words.WORDS[word](self):
            lines.append(line)
            yield 1
        self._send(connection, "".join(lines).encode())
        self._close(connection)

    def _count(self, connection: PeerConnection) -> None:
        connection.received += 1
        self.counters.received += 1

    def _begin(self, connection: PeerConnection, frame: bytes) -> None:
        """Raises Malformed if the connection is to be closed for it."""
        self._count(connection)
        if not connection.opened:
            self._open(connection, JuteReader(frame))
            return
        reader = JuteReader(frame)
        xid, operation = reader.int32(), reader.int32()
        if operation == OpCode.AUTH:
            self._authenticate(connection, xid, reader)
        elif operation == OpCode.SASL:
            reader.buffer()
            self._reply(connection, xid, 0, encode_buffer(None), zxid=0)  # Apache's answer if SASL is not configured
        elif (session := connection.session) is not None and not session.closing:
            self.sessions.touch(session, self.now.ms)
            self._do(connection, session, xid, operation, reader)

    def _do(
        self, connection: PeerConnection, session: OpenSession, xid: int, operation: int, reader: JuteReader
    ) -> None:
        row = _ROWS.get(operation)
        if row is None:
            self._reply(connection, xid, RefusalCode.UNIMPLEMENTED, zxid=-1)
            self._close(connection)
            return
        if xid >= 0:
            connection.last_xid = xid
        connection.last_operation = row.name
        if row.read is not None:
            self._read(connection, xid, row.read, reader)
        elif row.decode is not None:
            self._write(connection, session, xid, row.decode, reader)
        elif row.job is not None:
            self._job = row.job(self, connection, session, xid, reader)
        else:
            self._refuse_reconfiguration(connection, xid, reader)

    def _reply(
        self, connection: PeerConnection, xid: int, code: int, body: bytes = b"", zxid: int | None = None
    ) -> None:
        zxid = self.database.zxid if zxid is None else zxid
        connection.last_zxid = zxid
        self._send(connection, _REPLY.pack(_REPLY.size - 4 + len(body), xid, zxid, code) + body)

    # --- sessions -----------------------------------------------------------------------------------------------------

    def _open(self, connection: PeerConnection, reader: JuteReader) -> None:
        reader.int32()  # the protocol's version, which nobody looks at
        seen, wanted_ms, id_, password = reader.int64(), reader.int32(), reader.int64(), reader.buffer()
        knows_read_only = reader.left > 0  # clients before 3.4 do not send it
        if seen > self.database.zxid:
            self._close(connection)
            return
        connection.opened = True
        self._unopened.pop(connection, None)
        timeout_ms = self.sessions.granted(wanted_ms)
        session = self._begin_session(timeout_ms) if id_ == 0 else self._reattached(id_, password, timeout_ms)
        if session is None:
            self._answer_connect(connection, 0, 0, bytes(PASSWORD_BYTES), knows_read_only)
            self._close(connection)
            return
        connection.session, session.connection = session, connection
        self._answer_connect(connection, timeout_ms, session.id, self.sessions.password(session.id), knows_read_only)

    def _begin_session(self, timeout_ms: int) -> OpenSession:
        session = self.sessions.create(timeout_ms, self.now.ms, self.now.unix_ms)
        self._begin_write()
        self.database.entries.append(session_entry(session.id, timeout_ms))
        self._commit()
        return session

    def _reattached(self, id_: int, password: bytes | None, timeout_ms: int) -> OpenSession | None:
        """The session, if it lives and the password is its own. Another connection of it is closed."""
        session = self.sessions.by_id.get(id_)
        if session is None or session.closing or not self.sessions.is_password(id_, password):
            return None
        if session.connection is not None:
            session.connection.session = None
            self._close(session.connection)
        session.timeout_ms = timeout_ms
        self.sessions.touch(session, self.now.ms)
        return session

    def _answer_connect(
        self, connection: PeerConnection, timeout_ms: int, id_: int, password: bytes, knows_read_only: bool
    ) -> None:
        body = encode_buffer(password) + (b"\0" if knows_read_only else b"")
        length = _CONNECT_REPLY.size - 4 + len(body)
        self._send(connection, _CONNECT_REPLY.pack(length, 0, timeout_ms, id_) + body)

    def _close_session(
        self, connection: PeerConnection, session: OpenSession, xid: int, _reader: JuteReader
    ) -> Iterator[int]:
        session.closing = True
        return self._end_session(session, connection, xid)

    def _end_session(self, session: OpenSession, asker: PeerConnection | None, xid: int) -> Iterator[int]:
        """asker: whom to answer; None if the session has expired."""
        zxid = self._begin_write()
        paths = list(self.database.tree.ephemerals.get(session.id, ()))
        yield from self.database.delete_all(paths, zxid)
        self.sessions.remove(session)
        self.database.entries.append(ended_entry(session.id))
        self._commit()
        if asker is not None:
            self._reply(asker, xid, 0)
        if session.connection is not None:
            self._close(session.connection)

    def _authenticate(self, connection: PeerConnection, xid: int, reader: JuteReader) -> None:
        _, scheme, credentials = reader.int32(), reader.text(), reader.buffer()
        identity = _identity(connection, scheme, credentials)
        if identity is None:
            self._reply(connection, xid, RefusalCode.AUTH_FAILED, zxid=0)
            self._close(connection)
            return
        if identity not in connection.identities:
            connection.identities.append(identity)
        self._reply(connection, xid, 0, zxid=0)

    # --- requests -----------------------------------------------------------------------------------------------------

    def _read(self, connection: PeerConnection, xid: int, read: ReadAction, reader: JuteReader) -> None:
        try:
            body = read(self.database, connection, reader)
        except Refused as refused:
            self._reply(connection, xid, refused.code, refused.body)
        except Malformed:
            self._reply(connection, xid, RefusalCode.MARSHALLING_ERROR)
        else:
            self._reply(connection, xid, 0, body)

    def _write(
        self, connection: PeerConnection, session: OpenSession, xid: int, decode: Decode, reader: JuteReader
    ) -> None:
        try:
            request = decode(reader)
        except Malformed:
            self._reply(connection, xid, RefusalCode.MARSHALLING_ERROR)
            return
        database, zxid = self.database, self._begin_write()
        code, body = 0, b""
        try:
            outcome = judge(request, Asker(session.id, connection.identities), database.tree.nodes.get)
        except Refused as refused:
            code = refused.code
        except Malformed:
            code = RefusalCode.MARSHALLING_ERROR
        else:
            body = _answer(outcome, database.apply(outcome, zxid, self.now.unix_ms))
        self._commit()
        self._reply(connection, xid, code, body)

    def _refuse_reconfiguration(self, connection: PeerConnection, xid: int, reader: JuteReader) -> None:
        try:
            reader.text(), reader.text(), reader.text(), reader.int64()
        except Malformed:
            self._reply(connection, xid, RefusalCode.MARSHALLING_ERROR)
            return
        self._begin_write()
        self._commit()
        self._reply(connection, xid, RefusalCode.RECONFIG_DISABLED)

    def _multi(self, connection: PeerConnection, session: OpenSession, xid: int, reader: JuteReader) -> Iterator[int]:
        database, zxid = self.database, self._begin_write()
        requests: list[WriteRequest] = []
        outcomes: list[WriteOutcome] = []
        code = 0
        try:
            for request in read_multi(reader):
                requests.append(request)
                yield 1
            ahead = AheadView(database.tree.nodes.get)
            asker = Asker(session.id, connection.identities)
            for request in requests:
                outcome = judge(request, asker, ahead)
                ahead.expect(outcome)
                outcomes.append(outcome)
                yield 1
        except Malformed:
            self._commit()
            self._reply(connection, xid, RefusalCode.MARSHALLING_ERROR)
            return
        except Refused as refused:
            code = refused.code
        if code:
            results = _failed_results(len(requests), len(outcomes), code)
        else:
            results = []
            for request, outcome in zip(requests, outcomes, strict=True):
                node = database.apply(outcome, zxid, self.now.unix_ms)
                results.append(_multi_result(request, outcome, node))
                yield 1
        self._commit()
        self._reply(connection, xid, 0, b"".join(results) + reads.MULTI_END)

    def _set_watches(
        self, connection: PeerConnection, _session: OpenSession, xid: int, reader: JuteReader
    ) -> Iterator[int]:
        return self._restore_watches(connection, xid, reader, groups=3)

    def _set_watches2(
        self, connection: PeerConnection, _session: OpenSession, xid: int, reader: JuteReader
    ) -> Iterator[int]:
        return self._restore_watches(connection, xid, reader, groups=5)

    def _restore_watches(self, connection: PeerConnection, xid: int, reader: JuteReader, groups: int) -> Iterator[int]:
        """Nothing is restored of a request that is malformed at its end."""
        wanted: list[tuple[int, str]] = []
        try:
            seen = reader.int64()
            for group in range(groups):
                for path in _texts(reader):
                    wanted.append((group, path))
                    yield 1
        except Malformed:
            self._reply(connection, xid, RefusalCode.MARSHALLING_ERROR)
            return
        for group, path in wanted:
            missed = reads.restore_watch(self.database, connection, group, path, seen)
            if missed is not None:
                self._send(connection, missed)
            yield 1
        self._reply(connection, xid, 0)

    def _delete_unused(self, path: str) -> None:
        """Of a container or a node with a time to live, if it is one still."""
        node = self.database.tree.nodes.get(path)
        if node is not None and node.owner < 0 and self._is_unused(node):
            self.database.delete(path, self._begin_write())
            self._commit()

    # --- log ----------------------------------------------------------------------------------------------------------

    def _begin_write(self) -> int:
        """Its zxid. What is sent from now on waits until it is on the disk."""
        self.database.zxid += 1
        self._position += self.settings.keeps
        return self.database.zxid

    def _commit(self) -> None:
        """The write is complete: its entries may go to the log."""
        if self.settings.keeps:
            self._log += self.database.entries
        self._committed = _Mark(self.database.zxid, self._position)
        self.database.entries.clear()

    def take_log(self) -> LogBatch | None:
        """What was written since it was asked last; None if nothing was."""
        zxid, position = self._committed
        if position == self._taken:
            return None
        self._taken = position
        entries, self._log = b"".join(self._log), []
        return LogBatch(entries, zxid, position)

    def synced(self, position: int) -> None:
        """What was taken up to this position is on the disk: what waited for it can go out."""
        self._synced = position
        held = self._held
        while held and held[0][0] <= position:
            _, connection, data, since_ms = held.popleft()
            self._give(connection, data)
            self.counters.answered(self.now.ms - since_ms)

    def snapshot(self) -> Iterator[bytes]:
        """Entries of all nodes and sessions, as each is when its turn comes. To be gone on with while not `busy`."""
        yield last_id_entry(self.sessions.last_id)
        part: list[bytes] = []
        size = 0
        for entry in self._snapshot_entries():
            part.append(entry)
            size += len(entry)
            if size >= _SNAPSHOT_STEP_BYTES:
                yield b"".join(part)
                part, size = [], 0
        yield b"".join(part)

    def _snapshot_entries(self) -> Iterator[bytes]:
        for session in list(self.sessions.by_id.values()):
            if self.sessions.by_id.get(session.id) is session:
                yield session_entry(session.id, session.timeout_ms)
        nodes = self.database.tree.nodes
        for path in list(nodes):
            node = nodes.get(path)
            if path and node is not None:
                yield node_entry(path, node)


# --- multi ------------------------------------------------------------------------------------------------------------


def _failed_results(count: int, passed: int, code: int) -> list[bytes]:
    """Those in front of the one that was refused might have passed; those behind it were not tried."""
    codes = [0] * passed + [code] + [RefusalCode.RUNTIME_INCONSISTENCY] * (count - passed - 1)
    return [_MULTI_HEADER.pack(OpCode.ERROR, False, each) + _INT.pack(each) for each in codes]


def _multi_result(request: WriteRequest, outcome: WriteOutcome, node: TreeNode | None) -> bytes:
    return _MULTI_HEADER.pack(_result_type(request), False, 0) + _answer(outcome, node)


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


def _answer(outcome: WriteOutcome, node: TreeNode | None) -> bytes:
    """The body of a write's answer."""
    if node is None:
        return b""
    if not isinstance(outcome, Creation):
        return stat_of(node)
    path = encode_text(outcome.path)
    return path if outcome.operation == OpCode.CREATE else path + stat_of(node)


def _texts(reader: JuteReader) -> Iterator[str]:
    """A vector, one text at a time. Raises Malformed for null, too, as Java cannot work with it."""
    count = reader.int32()
    if count == -1:
        raise Malformed("no vector")
    for _ in range(count):
        text = reader.text()
        if text is None:
            raise Malformed("no text")
        yield text


def _identity(connection: PeerConnection, scheme: str | None, credentials: bytes | None) -> acls.Identity | None:
    """What a connection has proved; None if nothing."""
    if scheme == "digest" and credentials is not None:
        return ("digest", acls.digest(credentials))
    return ("ip", connection.host) if scheme == "ip" else None


# --- operations -------------------------------------------------------------------------------------------------------


ReadAction = Callable[[Database, PeerConnection, JuteReader], bytes]
Decode = Callable[[JuteReader], WriteRequest]
LongAction = Callable[[StandaloneServer, PeerConnection, OpenSession, int, JuteReader], Iterator[int]]


class _Row(NamedTuple):
    """One operation: as `cons` names it, and what does it (reconfig has nothing: it is refused)."""

    name: str
    read: ReadAction | None = None
    decode: Decode | None = None
    job: LongAction | None = None


def _nothing(_database: Database, _connection: PeerConnection, _reader: JuteReader) -> bytes:
    return b""


_ROWS: dict[int, _Row] = {
    OpCode.CREATE: _Row("CREA", decode=partial(read_create, operation=OpCode.CREATE)),
    OpCode.CREATE2: _Row("CREA", decode=partial(read_create, operation=OpCode.CREATE2)),
    OpCode.CREATE_CONTAINER: _Row("CREA", decode=partial(read_create, operation=OpCode.CREATE_CONTAINER)),
    OpCode.CREATE_TTL: _Row("CREA", decode=partial(read_create, operation=OpCode.CREATE_TTL)),
    OpCode.DELETE: _Row("DELE", decode=read_delete),
    OpCode.SET_DATA: _Row("SETD", decode=read_set_data),
    OpCode.SET_ACL: _Row("SETA", decode=read_set_acl),
    OpCode.MULTI: _Row("MULT", job=StandaloneServer._multi),
    OpCode.RECONFIG: _Row("RECO"),
    OpCode.EXISTS: _Row("EXIS", reads.exists),
    OpCode.GET_DATA: _Row("GETD", reads.get_data),
    OpCode.GET_ACL: _Row("GETA", reads.get_acl),
    OpCode.GET_CHILDREN: _Row("GETC", reads.get_children),
    OpCode.GET_CHILDREN2: _Row("GETC", reads.get_children2),
    OpCode.GET_ALL_CHILDREN_NUMBER: _Row("GETACN", reads.get_all_children_number),
    OpCode.GET_EPHEMERALS: _Row("GETE", reads.get_ephemerals),
    OpCode.MULTI_READ: _Row("MLTR", reads.multi_read),
    OpCode.SYNC: _Row("SYNC", reads.sync),
    OpCode.WHO_AM_I: _Row("HOMI", reads.who_am_i),
    OpCode.PING: _Row("PING", _nothing),
    OpCode.ADD_WATCH: _Row("ADDW", reads.add_watch),
    OpCode.CHECK_WATCHES: _Row("CHKW", reads.check_watches),
    OpCode.REMOVE_WATCHES: _Row("REMW", reads.remove_watches),
    OpCode.SET_WATCHES: _Row("SETW", job=StandaloneServer._set_watches),
    OpCode.SET_WATCHES2: _Row("STW2", job=StandaloneServer._set_watches2),
    OpCode.CLOSE_SESSION: _Row("CLOS", job=StandaloneServer._close_session),
}
"""What a client may ask for. Anything else is answered UNIMPLEMENTED and closes the connection: createSession and
deleteContainer, too, which Apache up to 3.9.5 takes from clients, and a check outside of a multi."""
