"""One life of the standalone ZooKeeper: its core and its files, without a port; clients write, and the power may fail.

Each block that goes to the log is marked with what the whole state is behind it. A start must find one of these states,
none in front of the last one that was acknowledged.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

from metaq.broker.standalone.log_files import LogFiles
from metaq.broker.store.files import REAL_FILES
from metaq.coordination.standalone.connections import PeerConnection
from metaq.coordination.standalone.outbox import LogBatch
from metaq.coordination.standalone.server import Moment, ServerSettings, StandaloneServer
from tests.zookeeper_fuzz.jute import OpCode, Part, encode
from tests.zookeeper_fuzz.operations import OPEN, connecting

from .history import Broken, History
from .shim import Shim

__all__ = ["ZooKeeperLife", "ZooKeeperWork"]

_PERSISTENT, _EPHEMERAL, _SEQUENTIAL = 0, 1, 2
_NAMES = ("a", "b", "c", "d")
_SIZES = (0, 5, 60, 400, 3000)
_TICK_MS = 500


class ZooKeeperWork:
    """actions: of a life. snapshots: weight of the steps of snapshots, beside 20 of requests."""

    def __init__(self, actions: int = 80, snapshots: int = 6) -> None:
        self.actions = actions
        self.snapshots = snapshots


class _Client:
    """Sends requests; nobody reads the answers, which tell nothing that the marks do not."""

    def __init__(self, server: StandaloneServer, now: Moment) -> None:
        self._server = server
        self.connection: PeerConnection = server.connected("127.0.0.1", 1, now)
        self._send(encode(connecting(0, 60_000).parts, ""))

    def request(self, opcode: int, *parts: Part) -> None:
        self._send(struct.pack("!ii", 1, opcode) + encode(parts, ""))

    def _send(self, packet: bytes) -> None:
        self._server.received(self.connection, struct.pack("!i", len(packet)) + packet)


class ZooKeeperLife:
    """Lives in a process of its own, which ends with it."""

    def __init__(self, directory: Path, work: ZooKeeperWork, seed: object, shim: Shim) -> None:
        self._work = work
        self._rng = random.Random(f"{seed}")
        self._shim = shim
        self._now = Moment(1_000, 1_700_000_000_000)
        self._files = LogFiles(REAL_FILES, str(directory / "zookeeper"))
        self._server = StandaloneServer(ServerSettings(_TICK_MS, 60_000, keeps=True), self._now)
        self._clients: list[_Client] = []
        self._unwritten: list[LogBatch] = []
        self._snapshot: Iterator[bytes] | None = None
        self._broken = False

    # --- starting -----------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Recover; what readers can see then is promised. Raises StoreError."""
        self._files.load()
        self._server.restore(self._files.take_restored(), self._files.zxid, self._now)

    def check(self, history: History) -> None:
        """Whether the state is one that there was, and not older than what was acknowledged. Raises Broken."""
        states: dict[int, int] = {}
        kept = 0
        for mark in history.others:
            if mark["kind"] == "zk_state":
                states[int(str(mark["zxid"]))] = int(str(mark["state"]))
            elif mark["kind"] == "zk_kept":
                kept = int(str(mark["zxid"]))
        zxid, state = self._files.zxid, self._state()
        if zxid < kept:
            raise Broken(f"zookeeper: acknowledged writes are lost: it begins at zxid {zxid} of {kept}")
        if zxid and states.get(zxid) != state:
            raise Broken(f"zookeeper: a false message: at zxid {zxid} its state is one that it never had")
        self._shim.mark(kind="zk_kept", zxid=zxid)

    def _state(self) -> int:
        """A number that stands for all znodes and sessions."""
        return crc32(b"".join(sorted(self._server.snapshot_entries())))

    # --- working ------------------------------------------------------------------------------------------------------

    def work(self, actions: int | None = None) -> None:
        for _ in range(self._work.actions if actions is None else actions):
            if self._broken:
                return
            self._act()

    def finish(self) -> None:
        """Write all that was taken."""
        while self._snapshot is not None and not self._broken:
            self._go_on_with_snapshot()
        self._write()

    def close(self) -> None:
        self._files.close()

    def _act(self) -> None:
        kinds = ("request", "write", "snapshot")
        (kind,) = self._rng.choices(kinds, (20, 10, self._work.snapshots))
        if kind == "request":
            self._ask()
        elif kind == "write":
            self._write()
        else:
            self._go_on_with_snapshot()

    def _ask(self) -> None:
        if not self._clients or (len(self._clients) < 3 and self._rng.random() < 0.1):
            self._clients.append(_Client(self._server, self._now))
        client = self._rng.choice(self._clients)
        chance = self._rng.random()
        path: Part = ("text", "/" + "/".join(self._rng.choices(_NAMES, k=self._rng.choice((1, 1, 2)))))
        data: Part = ("buffer", bytes([self._rng.randrange(256)]) * self._rng.choice(_SIZES))
        if chance < 0.5:
            mode = self._rng.choice((_PERSISTENT, _PERSISTENT, _EPHEMERAL, _SEQUENTIAL))
            client.request(OpCode.CREATE, path, data, OPEN, ("int", mode))
        elif chance < 0.75:
            client.request(OpCode.SET_DATA, path, data, ("int", -1))
        elif chance < 0.95:
            client.request(OpCode.DELETE, path, ("int", -1))
        else:
            client.request(OpCode.CLOSE_SESSION)
            self._clients.remove(client)
        self._take()

    def _take(self) -> None:
        """Do what there is to do, and take what it writes: as the keeper does, behind what waits already."""
        while self._server.work(1000, self._now):
            pass
        batch = self._server.take_log()
        if batch is not None:
            self._shim.mark(kind="zk_state", zxid=batch.last, state=self._state())
            self._unwritten.append(batch)

    def _write(self) -> None:
        """What waits becomes one block, and is acknowledged."""
        batches, self._unwritten = self._unwritten, []
        if not batches:
            return
        last = batches[-1]
        if self._tried(
            lambda: self._files.append(b"".join(each for one in batches for each in one.entries), last.last)
        ):
            self._shim.mark(kind="zk_kept", zxid=last.last)
            self._server.synced(last.position)
            self._take()

    def _go_on_with_snapshot(self) -> None:
        """A step of it. It begins behind what waits, as the keeper's tasks lie."""
        if self._snapshot is None:
            self._write()
            if not self._broken and self._tried(self._files.begin_snapshot):
                self._snapshot = self._server.snapshot()
            return
        part = next(self._snapshot, None)
        if part is not None:
            self._write()
            if not self._broken:
                self._tried(lambda: self._files.add_to_snapshot(part))
            return
        self._snapshot = None
        self._write()
        if not self._broken:
            self._tried(self._files.finish_snapshot)

    def _tried(self, step: Callable[[], None]) -> bool:
        """Whether it was done; nothing is written behind a step that failed."""
        try:
            step()
        except OSError:
            self._broken = True
        return not self._broken
