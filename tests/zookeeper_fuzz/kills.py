"""Kill the standalone ZooKeeper again and again while clients write: what was acknowledged or seen must be there.

Each client has a session and a subtree of its own and sends some writes at a time. When its connection is lost, it
attaches its session again and reads its subtree: that must be what the acknowledged writes made of it, and perhaps the
first ones of those that were under way. Another client reads what all have written; no counter may ever go back.
"""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

from metaq.coordination.servers.local_zookeeper import ZooKeeperProcess
from metaq.coordination.standalone_process import StandaloneZooKeeper
from tests.kills.outcome import Outcome, Problem, Say

from .jute import OpCode, Part
from .operations import OPEN, Operation, attaching, connecting
from .servers import ApacheServer
from .side import Side
from .wires import Connect, socket_wires

__all__ = ["Found", "kill_often", "run"]

SESSION_MS = 60_000
NAMES = ("a", "b", "c", "d", "e")
WRITES_AT_A_TIME = 6
PAUSES = (0.05, 0.8)
"""Seconds between the start of a server and its end."""

_NO_NODE, _NODE_EXISTS = -101, -110
SERVERS: dict[str, type[ZooKeeperProcess]] = {"standalone": StandaloneZooKeeper, "apache": ApacheServer}

KILLS, ACKNOWLEDGED, READS, ATTACHED = "kills", "writes acknowledged", "values read", "sessions attached again"


class Lost(Exception):
    """The connection has ended."""


@dataclass
class Found:
    """problems: what must not be. counts: of KILLS, ACKNOWLEDGED, READS and ATTACHED."""

    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


Tree = dict[str, bytes]
_Request = tuple[int, tuple[Part, ...]]
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


def _request(write: _Write) -> _Request:
    """Nodes whose names begin with `e-` are ephemeral."""
    opcode, path, data = write
    if opcode == OpCode.CREATE:
        return opcode, (("path", path), ("buffer", data), OPEN, ("int", int("/e-" in path)))
    if opcode == OpCode.SET_DATA:
        return opcode, (("path", path), ("buffer", data), ("int", -1))
    return opcode, (("path", path), ("int", -1))


class _Client(threading.Thread, ABC):
    """Goes on with `live` until it is told to stop, whenever its connection is lost."""

    def __init__(self, name: str, connect: Connect, stop: threading.Event) -> None:
        super().__init__(name=name)
        self.found = Found()
        self.failure: Exception | None = None
        self.stopping = stop
        self._side = Side(connect, "", ())

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

    @abstractmethod
    def live(self) -> None:
        """Raises Lost, as all that talk to the server."""

    def end(self) -> None:
        """The last thing that it does; the server lives."""

    def _said(self, operation: Operation) -> list[tuple[Any, ...]]:
        try:
            self._side.send(operation)
            return [item.plain for item in self._side.receive(operation)]
        except OSError as error:
            raise Lost from error

    def _connect(self, session: int | None) -> bool:
        """To the session of that number, or a new one; False if it is gone."""
        known = connecting(0, SESSION_MS) if session is None else attaching(0, session, SESSION_MS)
        kind, *_ = self._said(known)[0]
        if kind not in ("connected", "expired"):
            raise Lost
        return bool(kind == "connected")

    def _answers(self, requests: Sequence[_Request]) -> list[tuple[Any, ...]]:
        """To those at the front, if the connection ends then; error code and what follows."""
        said = self._said(Operation(0, OpCode.BURST, tuple(("request", each) for each in requests)))
        return [plain[2:] for plain in takewhile(_is_whole, said)]

    def _asked(self, *requests: _Request) -> list[tuple[Any, ...]]:
        answers = self._answers(requests) if requests else []
        if len(answers) < len(requests):
            raise Lost
        return answers

    def _read(self, root: str) -> Tree:
        ((code, *names),) = self._asked((OpCode.GET_CHILDREN, (("path", root), ("bool", False))))
        if code:
            return {}  # nobody has made it yet
        paths = [f"{root}/{name}" for name in names[0][0]]
        answers = self._asked(*((OpCode.GET_DATA, (("path", path), ("bool", False))) for path in paths))
        return {path: data[0][0] or b"" for path, (code, *data) in zip(paths, answers, strict=True) if not code}


def _is_whole(plain: tuple[Any, ...]) -> bool:
    """Else it is the end of a connection, or what a server has sent of an answer before it was killed."""
    return bool(plain[0] == "answer" and plain[3:4] != ("not understood",))


class _Writer(_Client):
    def __init__(self, connect: Connect, number: int, seed: int, stop: threading.Event) -> None:
        super().__init__(f"writer {number}", connect, stop)
        self.root = f"/w{number}"
        self._rng = random.Random(f"{seed} {number}")
        self._session: int | None = None
        self._tree: Tree = {}
        self._under_way: list[_Write] = []
        self._counter = 0

    def live(self) -> None:
        if not self._connect(self._session):
            self.found.problems.append(f"{self.root}: its session is gone")
            self._session = None
            self._tree = {path: data for path, data in self._tree.items() if "e-" not in path}
            return
        self.found.counts[ATTACHED] += self._session is not None
        self._session = self._side.attached[0]
        self._asked(_request((OpCode.CREATE, self.root, b"")))
        self._check()
        while not self.stopping.is_set():
            self._write()

    def _write(self) -> None:
        for _ in range(self._rng.randint(1, WRITES_AT_A_TIME)):
            self._counter += 1
            opcode = self._rng.choice((OpCode.CREATE, OpCode.CREATE, OpCode.SET_DATA, OpCode.SET_DATA, OpCode.DELETE))
            path = f"{self.root}/{self._rng.choice(('', 'e-'))}{self._rng.choice(NAMES)}"
            self._under_way.append((opcode, path, b"%d" % self._counter))
        for code, *_ in self._answers([_request(write) for write in self._under_way]):
            write = self._under_way.pop(0)
            behind = applied(self._tree, write)
            if (code == 0) != (behind is not self._tree) or code not in (0, _NO_NODE, _NODE_EXISTS):
                self.found.problems.append(f"{self.root}: {write} was answered {code}, with {self._tree}")
            self._tree = behind
            self.found.counts[ACKNOWLEDGED] += 1
        if self._under_way:
            raise Lost

    def _check(self) -> None:
        """What is there is the tree behind some of the writes that were under way, in order."""
        there = self._read(self.root)
        possible = [self._tree]
        for write in self._under_way:
            possible.append(applied(possible[-1], write))
        if there not in possible:
            self.found.problems.append(f"{self.root}: {there} is there, and should be {self._tree} {self._under_way}")
        self._tree = there
        self._under_way.clear()

    def end(self) -> None:
        self._connect(self._session)
        self._check()


class _Reader(_Client):
    """Sees what others write. Their counters grow: one that is smaller than one seen at that path was taken back."""

    def __init__(self, connect: Connect, roots: list[str], stop: threading.Event) -> None:
        super().__init__("reader", connect, stop)
        self._roots = roots
        self._seen: dict[str, int] = {}

    def live(self) -> None:
        self._connect(None)
        while not self.stopping.is_set():
            for path, data in (found for root in self._roots for found in self._read(root).items()):
                self.found.counts[READS] += 1
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
    connect = socket_wires((server.host, server.port))
    roots = [_Writer(connect, number, seed, stop) for number in range(writers)]
    threads: list[_Client] = [*roots, _Reader(connect, [writer.root for writer in roots], stop)]
    found = Found()
    try:
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(rng.uniform(*PAUSES))
            _kill(server)
            found.counts[KILLS] += 1
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
        found.counts += thread.found.counts
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
    counts = {name: found.counts[name] for name in (KILLS, ACKNOWLEDGED, READS, ATTACHED)}
    return Outcome([Problem("zookeeper", each) for each in found.problems], counts)
