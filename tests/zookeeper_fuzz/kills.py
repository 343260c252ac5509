"""Kill the standalone ZooKeeper again and again while clients write: what was acknowledged or seen must be there.

Each client has a session and a subtree of its own and sends some writes at a time. When its connection is lost, it
attaches its session again and reads its subtree: that must be what the acknowledged writes made of it, and perhaps the
first ones of those that were under way. Another client reads what all have written; no counter may ever go back.
"""

from __future__ import annotations

import random
import struct
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from metaq.coordination.local_zookeeper import ZooKeeperProcess
from metaq.coordination.standalone_process import StandaloneZooKeeper
from tests.kills.outcome import Outcome, Problem, Say

from .jute import OpCode, Part, Reader, encode
from .servers import ApacheServer
from .wires import SocketWire, Stuck

__all__ = ["Found", "kill_often", "run"]

SESSION_MS = 60_000
NAMES = ("a", "b", "c", "d", "e")
WRITES_AT_A_TIME = 6
PAUSES = (0.05, 0.8)
"""Seconds between the start of a server and its end."""

_OPEN: Part = ("acls", ((31, "world", "anyone"),))
_NO_NODE, _NODE_EXISTS = -101, -110
SERVERS: dict[str, type[ZooKeeperProcess]] = {"standalone": StandaloneZooKeeper, "apache": ApacheServer}


class Lost(Exception):
    """The connection has ended."""


@dataclass
class Found:
    """problems: what must not be. acknowledged: writes. attached: sessions that came back."""

    problems: list[str] = field(default_factory=list)
    acknowledged: int = 0
    attached: int = 0
    kills: int = 0
    reads: int = 0


Tree = dict[str, bytes]
_Write = tuple[int, str, bytes]
"""Opcode, path, data."""


def applied(tree: Tree, write: _Write) -> Tree:
    """The tree behind a write, which may be refused."""
    opcode, path, data = write
    if opcode == OpCode.CREATE:
        return tree if path in tree else {**tree, path: data}
    if path not in tree:
        return tree
    if opcode == OpCode.DELETE:
        return {each: value for each, value in tree.items() if each != path}
    return {**tree, path: data}


class _Connected:
    """A connection with a session. Raises Lost from every method."""

    def __init__(self, address: tuple[str, int], session: int, password: bytes) -> None:
        try:
            self._wire = SocketWire(address)
        except OSError as error:
            raise Lost from error
        self._xid = 0
        parts: tuple[Part, ...] = (
            *(("int", 0), ("long", 0), ("int", SESSION_MS), ("long", session), ("buffer", password)),
            ("bool", False),
        )
        self._send(encode(parts, ""))
        reader = Reader(self._frame())
        reader.int32()
        reader.int32()
        self.session, self.password = reader.int64(), reader.buffer() or b""

    def post(self, opcode: int, *parts: Part) -> None:
        """Send a request; `answer` reads the answers, in order."""
        self._xid += 1
        self._send(struct.pack(">ii", self._xid, opcode) + encode(parts, ""))

    def answer(self) -> tuple[int, Reader]:
        """Error code, and the body."""
        reader = Reader(self._frame())
        reader.int32()
        reader.int64()
        return reader.int32(), reader

    def ask(self, opcode: int, *parts: Part) -> tuple[int, Reader]:
        self.post(opcode, *parts)
        return self.answer()

    def close(self) -> None:
        self._wire.close()

    def _send(self, packet: bytes) -> None:
        try:
            self._wire.send(struct.pack(">i", len(packet)) + packet)
        except OSError as error:
            raise Lost from error

    def _frame(self) -> bytes:
        try:
            frame = self._wire.frame()
        except (OSError, Stuck) as error:
            raise Lost from error
        if frame is None or len(frame) < 16:
            raise Lost
        return frame


class _Client(threading.Thread):
    """Goes on with `live` until it is told to stop, whenever its connection is lost."""

    def __init__(self, name: str, stop: threading.Event) -> None:
        super().__init__(name=name)
        self.found = Found()
        self.failure: Exception | None = None
        self.stopping = stop

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                try:
                    self.live()
                except Lost:
                    time.sleep(0.01)
            self.end()
        except Exception as error:  # told by the thread that started us
            self.failure = error

    def live(self) -> None:
        """Raises Lost."""
        raise NotImplementedError

    def end(self) -> None:
        """The last thing that it does; the server lives."""


class _Writer(_Client):
    def __init__(self, address: tuple[str, int], number: int, seed: int, stop: threading.Event) -> None:
        super().__init__(f"writer {number}", stop)
        self.root = f"/w{number}"
        self._address = address
        self._rng = random.Random(f"{seed} {number}")
        self._session, self._password = 0, bytes(16)
        self._tree: Tree = {}
        self._under_way: list[_Write] = []
        self._counter = 0

    def live(self) -> None:
        connection = _Connected(self._address, self._session, self._password)
        try:
            if not connection.session:
                self.found.problems.append(f"{self.root}: the session 0x{self._session:x} is gone")
                self._session, self._password = 0, bytes(16)
                self._tree = {path: data for path, data in self._tree.items() if "e-" not in path}
                return
            if self._session:
                self.found.attached += 1
            self._session, self._password = connection.session, connection.password
            connection.ask(OpCode.CREATE, ("text", self.root), ("buffer", b""), _OPEN, ("int", 0))
            self._check(connection)
            while not self.stopping.is_set():
                self._write(connection)
        finally:
            connection.close()

    def _write(self, connection: _Connected) -> None:
        for _ in range(self._rng.randint(1, WRITES_AT_A_TIME)):
            self._counter += 1
            opcode = self._rng.choice((OpCode.CREATE, OpCode.CREATE, OpCode.SET_DATA, OpCode.SET_DATA, OpCode.DELETE))
            kind = self._rng.choice(("", "e-"))
            path = f"{self.root}/{kind}{self._rng.choice(NAMES)}"
            data = b"%d" % self._counter
            self._under_way.append((opcode, path, data))
            if opcode == OpCode.CREATE:
                connection.post(opcode, ("text", path), ("buffer", data), _OPEN, ("int", int(kind == "e-")))
            elif opcode == OpCode.SET_DATA:
                connection.post(opcode, ("text", path), ("buffer", data), ("int", -1))
            else:
                connection.post(opcode, ("text", path), ("int", -1))
        while self._under_way:
            code, _ = connection.answer()
            write = self._under_way.pop(0)
            behind = applied(self._tree, write)
            if (code == 0) != (behind is not self._tree) or code not in (0, _NO_NODE, _NODE_EXISTS):
                self.found.problems.append(f"{self.root}: {write} was answered {code}, with {self._tree}")
            self._tree = behind
            self.found.acknowledged += 1

    def _check(self, connection: _Connected) -> None:
        """What is there is the tree behind some of the writes that were under way, in order."""
        there = _read(connection, self.root)
        possible = [self._tree]
        for write in self._under_way:
            possible.append(applied(possible[-1], write))
        if there not in possible:
            self.found.problems.append(f"{self.root}: {there} is there, and should be {self._tree} {self._under_way}")
        self._tree = there
        self._under_way.clear()

    def end(self) -> None:
        connection = _Connected(self._address, self._session, self._password)
        self._check(connection)
        connection.close()


def _read(connection: _Connected, root: str) -> Tree:
    code, reader = connection.ask(OpCode.GET_CHILDREN, ("text", root), ("bool", False))
    if code:
        return {}  # nobody has made it yet
    names = [reader.text() for _ in range(reader.count() or 0)]
    tree: Tree = {}
    for name in names:
        code, reader = connection.ask(OpCode.GET_DATA, ("text", f"{root}/{name}"), ("bool", False))
        if code == 0:
            tree[f"{root}/{name}"] = reader.buffer() or b""
    return tree


class _Reader(_Client):
    """Sees what others write. Their counters grow: one that is smaller than one seen at that path was taken back."""

    def __init__(self, address: tuple[str, int], roots: list[str], stop: threading.Event) -> None:
        super().__init__("reader", stop)
        self._address = address
        self._roots = roots
        self._seen: dict[str, int] = {}

    def live(self) -> None:
        connection = _Connected(self._address, 0, bytes(16))
        while not self.stopping.is_set():
            self._look(connection)

    def _look(self, connection: _Connected) -> None:
        for root in self._roots:
            for path, data in _read(connection, root).items():
                self.found.reads += 1
                number, seen = int(data), self._seen.get(path, 0)
                if number < seen:
                    self.found.problems.append(f"{path}: {number} is there, and {seen} was seen before")
                self._seen[path] = max(number, seen)


def kill_often(directory: Path, kind: str, seed: int, seconds: float, writers: int = 4) -> Found:
    """Kill the server for so long, and judge. Raises what a client did not expect."""
    rng = random.Random(seed)
    stop = threading.Event()
    server = SERVERS[kind](directory)
    server.start()
    address = (server.host, server.port)
    roots = [_Writer(address, number, seed, stop) for number in range(writers)]
    threads: list[_Client] = [*roots, _Reader(address, [writer.root for writer in roots], stop)]
    found = Found()
    try:
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(rng.uniform(*PAUSES))
            _kill(server)
            found.kills += 1
            server.start()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        server.stop()
    for thread in threads:
        if thread.failure is not None:
            raise thread.failure
        found.problems += thread.found.problems
        found.acknowledged += thread.found.acknowledged
        found.attached += thread.found.attached
        found.reads += thread.found.reads
    return found


def _kill(server: ZooKeeperProcess) -> None:
    assert server._process is not None
    server._process.kill()
    server._process.wait()
    server.stop()


def run(
    directory: Path,
    seed: int,
    say: Say,
    *,
    seconds: float = 60.0,
    server: Literal["standalone", "apache"] = "standalone",
) -> Outcome:
    """ZooKeeper is killed while clients write: acknowledged writes, what others have read, sessions."""
    found = kill_often(directory / "zookeeper", server, seed, seconds)
    figures = {
        "kills": found.kills,
        "writes acknowledged": found.acknowledged,
        "values read": found.reads,
        "sessions attached again": found.attached,
    }
    return Outcome([Problem("zookeeper", each) for each in found.problems], figures)
