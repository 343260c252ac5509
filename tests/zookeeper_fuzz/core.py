"""The standalone server's core in this process, with a clock that goes on only when somebody waits."""

from __future__ import annotations

from metaq.coordination.standalone.connections import PeerConnection
from metaq.coordination.standalone.log_entries import Restored
from metaq.coordination.standalone.server import Moment, ServerSettings, StandaloneServer

from .servers import MAX_SESSION_MS, MIN_SESSION_MS, TICK_MS
from .wires import Frames, Stuck, Wire

__all__ = ["CoreServer"]

_STEP_MS = 50
_WAIT_MS = 4 * MIN_SESSION_MS
_UNITS = 1000


class CoreServer:
    """One thread."""

    def __init__(self) -> None:
        self.now = Moment(5_000, 1_700_000_000_000)
        self._log = Restored()
        self._zxid = 0
        self.core = self._make()
        self._wires: dict[PeerConnection, _CoreWire] = {}

    def _make(self) -> StandaloneServer:
        settings = ServerSettings(TICK_MS, MAX_SESSION_MS, keeps=True)
        return StandaloneServer(settings, self.now)

    def restart(self) -> None:
        """Begin anew with what the log says. No client may be connected."""
        self.core = self._make()
        self.core.restore(self._log, self._zxid, self.now)
        self._log = Restored()
        for entries in self.core.snapshot():
            self._log.apply(entries)

    def connect(self) -> Wire:
        connection = self.core.connected("127.0.0.1", 1, self.now)
        wire = self._wires[connection] = _CoreWire(self, connection)
        return wire

    def received(self, connection: PeerConnection, data: bytes) -> None:
        self.core.received(connection, data)
        self.advance(1)

    def lost(self, connection: PeerConnection) -> None:
        self.core.lost(connection)
        self._wires.pop(connection, None)
        self._work()

    def advance(self, milliseconds: int) -> None:
        """Let time pass, and do what there is to do."""
        before = self.now
        self.now = Moment(before.ms + milliseconds, before.unix_ms + milliseconds)
        if before.ms // _STEP_MS != self.now.ms // _STEP_MS:
            self.core.tick(self.now)
        self._work()

    def _work(self) -> None:
        while True:
            more = self.core.work(_UNITS, self.now)
            batch = self.core.take_log()
            if batch is not None:
                self._log.apply(b"".join(batch.entries))
                self._zxid = batch.last
                self.core.synced(batch.position)
            ready = self.core.ready(_UNITS)
            for connection in ready:
                wire = self._wires[connection]
                wire.frames.feed(b"".join(self.core.take(connection)))
                if connection.finished:
                    wire.ended = True
                    self.lost(connection)
            if not more and batch is None and not ready:
                return


class _CoreWire(Wire):
    def __init__(self, server: CoreServer, connection: PeerConnection) -> None:
        self._server = server
        self._connection = connection
        self.frames = Frames()
        self.ended = False

    def send(self, data: bytes) -> None:
        if not self.ended:
            self._server.received(self._connection, data)

    def frame(self) -> bytes | None:
        waited = 0
        while True:
            frame = self.frames.next()
            if frame is not None:
                return frame
            if self.ended:
                return self.frames.cut_short()
            if waited > _WAIT_MS:
                raise Stuck(f"no answer within {_WAIT_MS} ms of its time")
            self._server.advance(_STEP_MS)
            waited += _STEP_MS

    def has_more(self, seconds: float) -> bool:
        return bool(self.frames) or self.ended

    def finish(self) -> None:
        self.close()

    def close(self) -> None:
        if not self.ended:
            self.ended = True
            self._server.lost(self._connection)
