"""The standalone ZooKeeper server without I/O. Its inputs are received bytes and the time. Its outputs are bytes to
send, connections to close, and log entries.

    connected, received, lost    events of a connection
    tick                         time has passed
    work                         do some of the pending work; bounded
    ready, take                  bytes to send, and connections to close
    take_log, synced             entries to write, and that they are on the disk

Invariants:
- Writes run one after the other. Every other request that must see a consistent state also runs while nothing else
  does. A long request is a job of many steps. Nothing else begins before the job has ended, so no client sees half of
  its effects.
- Two kinds of work are done aside, that is, while requests of other connections are processed. The first kind is the
  work of a large request before it changes anything (reading the request, checking a multi). The second kind is work
  that affects only its own connection (setWatches). While such work is done aside for a request, the next requests of
  the same connection wait.
- If a session owns many ephemeral znodes, the server ends it by several writes. The first write records the session's
  end, so that the server deletes the remaining znodes even if it is restarted before the last write.
- An answer or event that is made after a log record is held back until the record is on the disk. Answers to reads are
  held back, too.
- Each write takes the next zxid, even if it is refused. The beginning and the end of a session also take a zxid.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from . import words
from .acls import Identity, digest
from .codes import OpCode, RefusalCode
from .connections import PeerConnection
from .database import Database
from .jute import JuteReader, Malformed, encode_buffer
from .log_entries import Restored, ended_entry, last_id_entry, node_entry, session_entry
from .operations import BYTES_PER_UNIT, OPERATIONS, PeerRequest, tell
from .outbox import Outbox
from .sessions import PASSWORD_BYTES, OpenSession, Sessions, password_of
from .tree import TreeNode, ttl_of

__all__ = ["Moment", "ServerSettings", "StandaloneServer"]

_REPLY = struct.Struct("!iiqi")
_CONNECT_REPLY = struct.Struct("!iiiq")

_FRAMES_IN_TURN = 64
_ASIDE_IN_TURN = 64
_ENDED_IN_WRITE = 256
"""Maximum number of ephemeral znodes that are deleted in one write when their session ends."""
_SNAPSHOT_STEP_BYTES = 32 * 1024
_FIRST_FRAME_MS = 10_000
_CONTAINER_CHECK_MS = 60_000
_MOST_IDENTITIES = 64
_UNSENT_BYTES = 1024 * 1024
"""While more than this number of bytes (1 MiB) wait to be sent to a client, the server processes no further requests of
this client.
"""


class Moment(NamedTuple):
    """The current time. ms: milliseconds of a clock that never goes back. unix_ms: Unix time in ms, which the
    timestamps of znodes use.
    """

    ms: int
    unix_ms: int


class ServerSettings(NamedTuple):
    """The settings of one server. keeps: whether the server writes the changes of its state to a log. port: the port
    without TLS; 0 if there is none. secure_port: the port with TLS; 0 if there is none.

    port, data_dir, environment: used only in the answers to four-letter words such as `srvr`.
    """

    tick_time_ms: int
    max_session_timeout_ms: int
    keeps: bool
    port: int = 0
    secure_port: int = 0
    data_dir: str = ""
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def knows_x509(self) -> bool:
        """Whether ACLs may contain names of client certificates."""
        return self.secure_port > 0


class StandaloneServer:
    """The whole state of one server. A StandaloneServer must be used by one thread only."""

    def __init__(self, settings: ServerSettings, now: Moment) -> None:
        self.settings = settings
        self.outbox = Outbox(settings.keeps)
        self.database = Database(self.outbox.entries)
        self.sessions = Sessions(settings.tick_time_ms, settings.max_session_timeout_ms)
        self.connections: dict[PeerConnection, None] = {}
        self.counters = words.Counters(now.ms)
        self.now = now
        self.take_log = self.outbox.take_log
        self.synced = self.outbox.synced
        self.ready = self.outbox.ready
        self._unopened: dict[PeerConnection, int] = {}
        self._line: deque[PeerConnection] = deque()
        self._ending: deque[tuple[OpenSession, PeerRequest | None]] = deque()
        self._unused: deque[str] = deque()
        self._job: Iterator[int] | None = None
        self._aside: deque[tuple[PeerConnection, Iterator[int]]] = deque()
        self._cleaning: deque[Iterator[int]] = deque()
        self._kinds: deque[Callable[[int], int]] = deque(
            (self._end_next, self._delete_next, self._serve_next, self._go_on_aside, self._clean_next)
        )
        self._containers_checked_ms = now.ms

    def restore(self, restored: Restored, zxid: int, now: Moment) -> None:
        """Continue with the znodes and sessions that were restored from a log. The time-out of each restored session
        begins anew now. Raises Malformed if the parent of a restored znode is missing.
        """
        self.database.tree = restored.tree()
        self.database.zxid = zxid
        for id_, timeout_ms in restored.sessions.items():
            self.sessions.add(OpenSession(id_, timeout_ms), now.ms)
        self.sessions.last_id = max(self.sessions.last_id, restored.last_session)
        tree = self.database.tree
        for owner in tree.ephemerals.keys() - restored.sessions.keys():  # of a session that was just ending
            for path in list(tree.ephemerals[owner]):
                tree.delete(path, zxid)

    # --- connections --------------------------------------------------------------------------------------------------

    def connected(self, host: str, port: int, now: Moment) -> PeerConnection:
        """Register a new connection of a client with this address, and return it."""
        connection = PeerConnection(host, port, now.unix_ms)
        self.connections[connection] = None
        self._unopened[connection] = now.ms + _FIRST_FRAME_MS
        return connection

    def received(self, connection: PeerConnection, data: bytes) -> None:
        """Add bytes that have come from the client to the input of `connection`. Later calls of `work` process these
        bytes.
        """
        connection.append(data)
        self._line_up(connection)

    def _line_up(self, connection: PeerConnection) -> None:
        if not connection.in_line:
            connection.in_line = True
            self._line.append(connection)

    def lost(self, connection: PeerConnection) -> None:
        """Handle the end of a connection. The client's session continues, so the client can connect again and use
        it.
        """
        if connection.closed:
            return
        connection.closed = True
        del self.connections[connection]
        self._unopened.pop(connection, None)
        self.outbox.forget(connection)
        if connection.session and connection.session.connection is connection:
            connection.session.connection = None
        self._cleaning.append(self.database.watches.forget(connection))

    def take(self, connection: PeerConnection) -> list[bytes]:
        """Return the bytes to send to this client now."""
        taken = connection.take()
        if connection.waits and connection.unsent <= _UNSENT_BYTES:
            connection.waits = False
            self._line_up(connection)
        return taken

    def send(self, connection: PeerConnection, data: bytes | None) -> None:
        """Queue data for the client. None means: close the connection after the queued data is sent."""
        self.outbox.send(connection, data, self.now.ms)

    def reply(
        self, connection: PeerConnection, xid: int, code: int, body: bytes = b"", zxid: int | None = None
    ) -> None:
        """Queue the answer to a request. zxid: the zxid in the answer. By default the answer has the zxid of the last
        write.
        """
        zxid = self.database.zxid if zxid is None else zxid
        connection.last_zxid = zxid
        self.send(connection, _REPLY.pack(_REPLY.size - 4 + len(body), xid, zxid, code) + body)

    def _close(self, connection: PeerConnection) -> None:
        self.send(connection, None)

    # --- time ---------------------------------------------------------------------------------------------------------

    def tick(self, now: Moment) -> None:
        """Find expired sessions and connections, and queue their end, which later calls of `work` carry out. The caller
        must call this method once per tick time.
        """
        self.now = now
        for session in self.sessions.expired(now.ms):
            if not session.closing:
                session.closing = True
                self._ending.append((session, None))
        while self._unopened:
            connection, deadline_ms = next(iter(self._unopened.items()))
            if deadline_ms > now.ms:
                break
            del self._unopened[connection]
            self._close(connection)
        if now.ms - self._containers_checked_ms >= _CONTAINER_CHECK_MS:
            self._containers_checked_ms = now.ms
            self._cleaning.append(self._find_unused())

    def _find_unused(self) -> Iterator[int]:
        """Find container znodes whose last child was deleted, and znodes whose time to live is over, and queue their
        paths for deletion.
        """
        tree = self.database.tree
        for number, path in enumerate([*tree.containers, *tree.ttls]):
            node = tree.nodes.get(path)
            if node is not None and self._is_unused(node):
                self._unused.append(path)
            if number % 16 == 15:
                yield 1

    def _is_unused(self, node: TreeNode) -> bool:
        if node.children or node.owner >= 0:
            return False
        ttl_ms = ttl_of(node.owner)
        return node.cversion > 0 if ttl_ms is None else self.now.unix_ms - node.mtime > ttl_ms

    def _delete_unused(self, path: str) -> Iterator[int]:
        """Delete a znode that `_find_unused` has found, unless it has been used again since."""
        node = self.database.tree.nodes.get(path)
        if node is not None and self._is_unused(node):
            self.database.delete(path, self.begin_write())
            self.commit()
            yield from tell(self)

    # --- work ---------------------------------------------------------------------------------------------------------

    def work(self, units: int, now: Moment) -> bool:
        """Do as much of the pending work as costs about `units` simple requests. Return whether work is left
        afterwards.
        """
        self.now = now
        while units > 0:
            if self.outbox.releasable:
                cost, waits = self.outbox.release(now.ms)
                self.counters.answered(waits)
                units -= cost
            elif self._job is not None:
                units -= self._go_on(self._job)
            elif cost := self._next(units):
                units -= cost
            else:
                return False
        return True

    def _next(self, units: int) -> int:
        """Do some pending work of one kind, for example requests or jobs. Successive calls choose the kinds in
        rotation. Return the cost of the work, or 0 if there is no work.
        """
        for _ in range(len(self._kinds)):
            kind = self._kinds[0]
            self._kinds.rotate(-1)
            if cost := kind(units):
                return cost
        return 0

    def _end_next(self, _units: int) -> int:
        if not self._ending:
            return 0
        self._job = self.end_session(*self._ending.popleft())
        return 1

    def _delete_next(self, _units: int) -> int:
        if not self._unused:
            return 0
        self._job = self._delete_unused(self._unused.popleft())
        return 1

    def _serve_next(self, units: int) -> int:
        return self._serve(self._line.popleft(), units) if self._line else 0

    def _clean_next(self, _units: int) -> int:
        return self._clean(self._cleaning[0]) if self._cleaning else 0

    def _go_on_aside(self, _units: int) -> int:
        """Continue the first of the requests that are processed aside (see the module's docstring). These requests are
        processed one after the other, because each request takes memory for the data that it has read so far.
        """
        if not self._aside:
            return 0
        connection, steps = self._aside[0]
        cost = 1
        for step in steps:
            cost += step
            if cost > _ASIDE_IN_TURN:
                return cost
        self._aside.popleft()
        connection.in_line = False
        self._line_up(connection)
        return cost

    def begin_aside(self, connection: PeerConnection, steps: Iterator[int]) -> None:
        """Begin to do these steps of a request aside, that is, while other connections are served. The next requests of
        the same connection wait until the steps have ended.
        """
        connection.in_line = True
        self._aside.append((connection, steps))

    def begin_job(self, steps: Iterator[int]) -> None:
        """Begin a job: its steps are done before any other work. A request that is processed aside only collects its
        changes at first; then one job makes all these changes.
        """
        self._job = steps

    @property
    def busy(self) -> bool:
        """Whether a job has begun and not ended. During this time the log entries do not contain all effects of the
        job.
        """
        return self._job is not None

    def _go_on(self, job: Iterator[int]) -> int:
        for cost in job:
            self.outbox.pack()
            return cost
        self._job = None
        return 1

    def _clean(self, cleaning: Iterator[int]) -> int:
        for cost in cleaning:
            return cost
        self._cleaning.popleft()
        return 1

    def begin_write(self) -> int:
        """Begin a write to the tree, and return its zxid."""
        self.database.zxid += 1
        self.outbox.begin_write()
        return self.database.zxid

    def commit(self) -> None:
        """Complete the current write, so that its log entry can be taken."""
        self.outbox.commit(self.database.zxid)

    # --- requests -----------------------------------------------------------------------------------------------------

    def _serve(self, connection: PeerConnection, units: int) -> int:
        """Process some requests of one connection, and return their cost. If the connection perhaps has more requests,
        put it at the end of the queue of connections.
        """
        connection.in_line = False
        cost = 1
        for _ in range(min(units, _FRAMES_IN_TURN)):
            if connection.closed or connection.ends:
                return cost
            if connection.unsent > _UNSENT_BYTES:
                connection.waits = True
                return cost
            unsent = connection.unsent
            try:
                frame = self._frame(connection)
                if frame is None:
                    return cost
                self._begin(connection, frame)
            except Malformed:
                self._close(connection)
                return cost
            cost += 1 + (len(frame) + max(connection.unsent - unsent, 0)) // BYTES_PER_UNIT
            if connection.in_line:
                return cost
            if self._job is not None or cost >= units:
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
        if self.settings.knows_x509 and word not in words.HARMLESS:
            said: Iterator[str] = iter((f"{word.decode()} is not executed because it is not in the whitelist.\n",))
        else:
            said = words.WORDS[word](self)
        for line in said:
            lines.append(line)
            yield 1
        self.send(connection, "".join(lines).encode())
        self._close(connection)

    def _count(self, connection: PeerConnection) -> None:
        connection.received += 1
        self.counters.received += 1

    def _begin(self, connection: PeerConnection, frame: bytes) -> None:
        """Begin to process a request. Raises Malformed if the request is so wrong that the connection must be
        closed.
        """
        self._count(connection)
        reader = JuteReader(frame)
        if not connection.opened:
            self._open(connection, reader)
            return
        xid, operation = reader.int32(), reader.int32()
        session = connection.session
        if operation == OpCode.AUTH:
            self._authenticate(connection, xid, reader)
        elif operation == OpCode.SASL:
            if reader.buffer() is None:
                raise Malformed("no token")  # Apache also closes the connection here
            self.reply(connection, xid, 0, encode_buffer(None), zxid=0)  # Apache's answer without SASL
        elif session is not None and not session.closing:
            self.sessions.touch(session, self.now.ms)
            self._do(operation, PeerRequest(connection, session, xid, reader))

    def _do(self, number: int, request: PeerRequest) -> None:
        operation = OPERATIONS.get(number)
        if operation is None:
            self.reply(request.connection, request.xid, RefusalCode.UNIMPLEMENTED, zxid=-1)
            self._close(request.connection)
            return
        if request.xid >= 0:
            request.connection.last_xid = request.xid
        request.connection.last_operation = operation.name
        self._job = operation.action(self, request)

    def _authenticate(self, connection: PeerConnection, xid: int, reader: JuteReader) -> None:
        _, scheme, credentials = reader.int32(), reader.text(), reader.buffer()
        identity = _proved(connection, scheme, credentials)
        if identity is None or len(connection.identities) >= _MOST_IDENTITIES:
            self.reply(connection, xid, RefusalCode.AUTH_FAILED, zxid=0)
            self._close(connection)
            return
        connection.identities[identity] = None
        self.reply(connection, xid, 0, zxid=0)

    # --- sessions -----------------------------------------------------------------------------------------------------

    def _open(self, connection: PeerConnection, reader: JuteReader) -> None:
        reader.int32()  # the protocol version, which is not used
        seen, wanted_ms, id_, password = reader.int64(), reader.int32(), reader.int64(), reader.buffer()
        knows_read_only = reader.left > 0  # clients before 3.4 do not send this flag
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
        self._answer_connect(connection, timeout_ms, session.id, password_of(session.id), knows_read_only)

    def _begin_session(self, timeout_ms: int) -> OpenSession:
        session = self.sessions.create(timeout_ms, self.now.ms, self.now.unix_ms)
        self.begin_write()
        self.outbox.entries.append(session_entry(session.id, timeout_ms))
        self.commit()
        return session

    def _reattached(self, id_: int, password: bytes | None, timeout_ms: int) -> OpenSession | None:
        """Return the session with this id if it has not ended and the password matches; otherwise return None. If the
        session still has its former connection, close the former connection.
        """
        session = self.sessions.by_id.get(id_)
        if session is None or session.closing or password != password_of(id_):
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
        self.send(connection, _CONNECT_REPLY.pack(length, 0, timeout_ms, id_) + body)

    def end_session(self, session: OpenSession, asked: PeerRequest | None) -> Iterator[int]:
        """End a session and delete its ephemeral znodes, in steps. asked: the client's request to close the session,
        which is answered at the end; None if the session has expired.
        """
        ephemerals, zxid = self.database.tree.ephemerals, self.begin_write()
        if session.id in self.sessions.by_id:
            self.sessions.remove(session)
            self.outbox.entries.append(ended_entry(session.id))
        for path in list(islice(ephemerals.get(session.id, ()), _ENDED_IN_WRITE)):
            self.database.delete(path, zxid)
            yield 1
            yield from tell(self)
        self.commit()
        if session.id in ephemerals:
            self._ending.append((session, asked))
            return
        if asked is not None:
            self.reply(asked.connection, asked.xid, 0)
        if session.connection is not None:
            self._close(session.connection)

    # --- snapshots ----------------------------------------------------------------------------------------------------

    def snapshot(self) -> Iterator[bytes]:
        """Yield log entries that describe all znodes and sessions. Each entry contains the state of a znode or session
        at the moment when the entry is made. The caller may ask for the next entries only while the server is not
        `busy`.
        """
        part: list[bytes] = []
        size = 0
        for entry in self.snapshot_entries():
            part.append(entry)
            size += len(entry)
            if size >= _SNAPSHOT_STEP_BYTES:
                yield b"".join(part)
                part, size = [], 0
        yield b"".join(part)

    def snapshot_entries(self) -> Iterator[bytes]:
        """Yield the entries of a snapshot one by one. The caller, `snapshot`, joins them to larger parts."""
        yield last_id_entry(self.sessions.last_id)
        for session in list(self.sessions.by_id.values()):
            if self.sessions.by_id.get(session.id) is session:
                yield session_entry(session.id, session.timeout_ms)
        nodes = self.database.tree.nodes
        for path in list(nodes):
            node = nodes.get(path)
            if path and node is not None:
                yield node_entry(path, node)


def _proved(connection: PeerConnection, scheme: str | None, credentials: bytes | None) -> Identity | None:
    """Return the identity that a connection proves by these credentials, or None if the credentials prove no
    identity.
    """
    if scheme == "digest" and credentials is not None:
        return ("digest", digest(credentials))
    if scheme == "x509":  # proved by the TLS handshake, or not at all
        return next((each for each in connection.identities if each[0] == "x509"), None)
    return ("ip", connection.host) if scheme == "ip" else None
