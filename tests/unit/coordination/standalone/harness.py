"""A client of the standalone server in memory: it speaks the wire protocol to the core. Time is what the test says."""

import struct
from dataclasses import dataclass, field

from metaq.coordination.standalone.codes import OpCode
from metaq.coordination.standalone.connections import PeerConnection
from metaq.coordination.standalone.jute import Acl, JuteReader, encode_acls, encode_buffer, encode_text
from metaq.coordination.standalone.server import Moment, ServerSettings, StandaloneServer

TICK_MS = 500
UNIX_MS = 1_700_000_000_000
OPEN = [Acl(31, "world", "anyone")]
PERSISTENT, EPHEMERAL, SEQUENTIAL, EPHEMERAL_SEQUENTIAL, CONTAINER, TTL, TTL_SEQUENTIAL = range(7)


@dataclass(frozen=True)
class Stat:
    """What the server tells of a node."""

    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    owner: int
    data_length: int
    children: int
    pzxid: int

    @classmethod
    def read(cls, reader: JuteReader) -> "Stat":
        fields = struct.Struct("!qqqqiiiqiiq")
        stat = cls(*fields.unpack_from(reader.data, reader.at))
        reader.at += fields.size
        return stat


@dataclass(frozen=True)
class Reply:
    xid: int
    zxid: int
    code: int
    body: bytes

    @property
    def reader(self) -> JuteReader:
        return JuteReader(self.body)


@dataclass(frozen=True)
class Event:
    kind: int
    path: str
    zxid: int


class Server:
    """A core with its clock. keeps: whether its answers wait for `sync`. knows_x509: whether it has a secure port."""

    def __init__(self, keeps: bool = False, max_session_timeout_ms: int = 60_000, knows_x509: bool = False) -> None:
        self.ms = 1_000_000
        settings = ServerSettings(TICK_MS, max_session_timeout_ms, keeps, secure_port=2281 if knows_x509 else 0)
        self.core = StandaloneServer(settings, self.now)
        self.log: list = []

    @property
    def now(self) -> Moment:
        return Moment(self.ms, UNIX_MS + self.ms)

    def work(self, units: int = 10_000) -> None:
        while self.core.work(units, self.now):
            pass
        if batch := self.core.take_log():
            self.log.append(batch)

    def sync(self) -> None:
        """What was written is on the disk."""
        self.core.synced(self.log[-1].position)
        self.work()

    def wait(self, ms: int) -> None:
        """Time passes, one tick after the other."""
        end = self.ms + ms
        while self.ms < end:
            self.ms = min(end, self.ms + TICK_MS)
            self.core.tick(self.now)
            self.work()

    def client(self, host: str = "127.0.0.1", **session) -> "Client":
        """One that is connected and has a session."""
        client = Client(self, host)
        client.connect(**session)
        return client


@dataclass
class Client:
    server: Server
    host: str = "127.0.0.1"
    session: int = 0
    password: bytes = bytes(16)
    timeout_ms: int = 0
    events: list[Event] = field(default_factory=list)
    xid: int = 0
    pending: bytes = b""

    def __post_init__(self) -> None:
        self.connection: PeerConnection = self.server.core.connected(self.host, 40_000, self.server.now)

    @property
    def closed(self) -> bool:
        """Whether the server closes the connection."""
        return self.connection.finished

    def send(self, data: bytes) -> None:
        self.server.core.received(self.connection, data)
        self.server.work()

    def frames(self) -> list[bytes]:
        """Whole frames that have come."""
        self.pending += b"".join(self.server.core.take(self.connection))
        frames = []
        while len(self.pending) >= 4:
            (length,) = struct.unpack_from("!i", self.pending)
            if len(self.pending) < 4 + length:
                break
            frames.append(self.pending[4 : 4 + length])
            self.pending = self.pending[4 + length :]
        return frames

    def connect(self, wanted_ms: int = 10_000, seen: int = 0, session: int = 0, password: bytes = bytes(16)) -> bytes:
        """Open a session, or come back to one; what the answer has behind the password."""
        body = struct.pack("!iqiq", 0, seen, wanted_ms, session) + encode_buffer(password) + b"\0"
        self.send(struct.pack("!i", len(body)) + body)
        return self.opened()

    def opened(self) -> bytes:
        """Read the answer to `connect`, if it has come."""
        frames = self.frames()
        if not frames:
            return b""
        reader = JuteReader(frames[0])
        reader.int32()
        self.timeout_ms, self.session, self.password = reader.int32(), reader.int64(), reader.buffer() or b""
        return reader.data[reader.at :]

    def replies(self) -> list[Reply]:
        """Those that have come. Events are put aside."""
        found = []
        for frame in self.frames():
            xid, zxid, code = struct.unpack_from("!iqi", frame)
            if xid == -1:
                reader = JuteReader(frame, 16)
                kind, _state = reader.int32(), reader.int32()
                self.events.append(Event(kind, reader.text() or "", zxid))
            else:
                found.append(Reply(xid, zxid, code, frame[16:]))
        return found

    def post(self, operation: int, body: bytes = b"", xid: int | None = None) -> None:
        """Send a request."""
        if xid is None:
            self.xid += 1
            xid = self.xid
        payload = struct.pack("!ii", xid, operation) + body
        self.send(struct.pack("!i", len(payload)) + payload)

    def post_later(self, operation: int, body: bytes = b"") -> None:
        """Send a request that the server does not work on yet."""
        self.xid += 1
        payload = struct.pack("!ii", self.xid, operation) + body
        self.server.core.received(self.connection, struct.pack("!i", len(payload)) + payload)

    def ask(self, operation: int, body: bytes = b"", xid: int | None = None) -> Reply:
        """A request's answer, which comes at once."""
        self.post(operation, body, xid)
        (reply,) = self.replies()
        return reply

    # --- operations ---------------------------------------------------------------------------------------------------

    def create(
        self, path: str, data: bytes | None = b"", mode: int = PERSISTENT, acl: list[Acl] | None = None
    ) -> Reply:
        return self.ask(OpCode.CREATE, create_body(path, data, mode, acl))

    def create2(self, path: str, mode: int = PERSISTENT, operation: int = OpCode.CREATE2, ttl: int | None = None):
        """The path and Stat, or the code of the refusal."""
        body = create_body(path, b"", mode) + (b"" if ttl is None else struct.pack("!q", ttl))
        reply = self.ask(operation, body)
        return reply.code if reply.code else (reply.reader.text(), stat_behind_text(reply))

    def delete(self, path: str, version: int = -1) -> Reply:
        return self.ask(OpCode.DELETE, encode_text(path) + struct.pack("!i", version))

    def set_data(self, path: str, data: bytes, version: int = -1) -> Reply:
        return self.ask(OpCode.SET_DATA, encode_text(path) + encode_buffer(data) + struct.pack("!i", version))

    def has(self, path: str, watch: bool = False) -> bool:
        """Whether the client sees such a node."""
        return self.ask(OpCode.EXISTS, encode_text(path) + bytes([watch])).code == 0

    def stat(self, path: str) -> Stat:
        return Stat.read(self.ask(OpCode.EXISTS, encode_text(path) + b"\0").reader)

    def acl(self, path: str) -> list[Acl]:
        return self.ask(OpCode.GET_ACL, encode_text(path)).reader.acls() or []

    def data(self, path: str, watch: bool = False):
        """The data, or the code of the refusal."""
        reply = self.ask(OpCode.GET_DATA, encode_text(path) + bytes([watch]))
        return reply.code or reply.reader.buffer()

    def children(self, path: str, watch: bool = False):
        """The names, or the code of the refusal."""
        reply = self.ask(OpCode.GET_CHILDREN2, encode_text(path) + bytes([watch]))
        return reply.code or reply.reader.texts()

    def authenticate(self, scheme: str, credentials: bytes) -> Reply:
        return self.ask(OpCode.AUTH, struct.pack("!i", 0) + encode_text(scheme) + encode_buffer(credentials), xid=-4)

    def set_acl(self, path: str, acl: list[Acl], version: int = -1) -> Reply:
        return self.ask(OpCode.SET_ACL, encode_text(path) + encode_acls(acl) + struct.pack("!i", version))

    def add_watch(self, path: str, mode: int) -> Reply:
        return self.ask(OpCode.ADD_WATCH, encode_text(path) + struct.pack("!i", mode))

    def set_watches(self, seen: int, *groups: list[str]) -> Reply:
        operation = OpCode.SET_WATCHES if len(groups) == 3 else OpCode.SET_WATCHES2
        return self.ask(operation, struct.pack("!q", seen) + b"".join(map(encode_texts, groups)), xid=-8)

    def multi(self, *operations: tuple[int, bytes], operation: int = OpCode.MULTI) -> Reply:
        return self.ask(operation, multi_body(*operations))

    def told(self) -> list[tuple[int, str]]:
        """Kind and path of the events that have come since it was asked last."""
        self.replies()
        events, self.events = self.events, []
        return [(each.kind, each.path) for each in events]


def create_body(path: str, data: bytes | None = b"", mode: int = PERSISTENT, acl: list[Acl] | None = None) -> bytes:
    acls = encode_acls(OPEN if acl is None else acl)
    return encode_text(path) + encode_buffer(data) + acls + struct.pack("!i", mode)


def encode_texts(values: list[str]) -> bytes:
    return struct.pack("!i", len(values)) + b"".join(map(encode_text, values))


def multi_body(*operations: tuple[int, bytes]) -> bytes:
    parts = [struct.pack("!i?i", each, False, -1) + body for each, body in operations]
    return b"".join(parts) + struct.pack("!i?i", -1, True, -1)


def stat_behind_text(reply: Reply) -> Stat:
    reader = reply.reader
    reader.text()
    return Stat.read(reader)


def results_of(reply: Reply) -> list[tuple[int, int]]:
    """Type and code of each result of a multi, whose bodies are left out."""
    reader = reply.reader
    found: list[tuple[int, int]] = []
    while True:
        kind, done, code = reader.int32(), reader.boolean(), reader.int32()
        if done:
            return found
        found.append((kind, code))
        if kind == OpCode.ERROR:
            reader.int32()
        elif kind == OpCode.CREATE:
            reader.text()
        elif kind == OpCode.CREATE2:
            reader.text()
            Stat.read(reader)
        elif kind == OpCode.SET_DATA:
            Stat.read(reader)
        elif kind == OpCode.GET_DATA:
            reader.buffer()
            Stat.read(reader)
        elif kind == OpCode.GET_CHILDREN:
            reader.texts()
