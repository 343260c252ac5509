"""The port: Twisted's TCP server with the three changes that a request-reply protocol gains most from.

- `Connection.write` gives the data to the socket at once when nothing is buffered. Twisted's own write waits for the
  reactor's next turn, which costs a blocking sender two epoll_ctl and one more epoll_wait for each message.
- What the socket does not take is sent on from where it is; Twisted joins all that is buffered each time it writes.
- Reads of a fitting size: a small buffer for single requests (a large one costs more than the request), a larger one
  while requests come in bulk, and the rest of a large frame straight to its place.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Iterable
from functools import cache
from typing import Any, cast

from twisted.internet import tcp
from twisted.internet.error import CannotListenError, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IAddress
from twisted.internet.main import CONNECTION_DONE, CONNECTION_LOST
from twisted.internet.protocol import Factory
from twisted.internet.task import LoopingCall

from metaq.protocol.errors import ConfigError
from metaq.protocol.record import Buffer

from ..broker import Broker
from ..requests.verbs import make_gate
from .session import Session

__all__ = ["IDLE_SECONDS", "Connection", "SessionFactory", "listen"]

_log = logging.getLogger(__name__)

IDLE_SECONDS = 300
"""Connections without traffic are cut after this long, as in 1.x."""

_IDLE_SCAN_SECONDS = 30
_BACKLOG = 1000
_SMALL_READ_BYTES = 64 * 1024  # malloc still serves it from its heap; beyond that each read maps fresh pages
_LARGE_READ_BYTES = 512 * 1024
_RECEIVE_BYTES = 4 << 20
"""A small request takes a kibibyte of the socket's receive buffer, which grows by the payload only. Thousands of
requests would not get into it, and the fewer are read together, the more each costs.
"""
_MAX_BUFFERS = 512  # below Linux's IOV_MAX


class Connection(tcp.Server):
    """One accepted connection."""

    bufferSize = 64 * 1024  # what may be buffered before the session is paused  # noqa: N815
    _read_bytes = _SMALL_READ_BYTES

    def doRead(self) -> ConnectionLost | ConnectionDone | None:  # type: ignore[override]  # noqa: N802
        """Receive once and have it served."""
        session = cast(Session, self.protocol)
        space = session.space
        try:
            if space is not None:
                count = self.socket.recv_into(space)
            else:
                data = self.socket.recv(self._read_bytes)
                count = len(data)
        except BlockingIOError:
            return None
        except OSError:
            return CONNECTION_LOST
        if not count:
            return CONNECTION_DONE
        if space is not None:
            session.received(count)
        else:
            self._read_bytes = _LARGE_READ_BYTES if count >= _SMALL_READ_BYTES else _SMALL_READ_BYTES
            session.dataReceived(data)
        return None

    def __init__(self, sock: socket.socket, *others: Any) -> None:
        """Twisted's signature."""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if _may_receive():
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
        super().__init__(sock, *others)

    def write(self, data: Buffer) -> None:
        """Send what the socket takes now, buffer the rest."""
        if self._nothing_buffered:
            try:
                sent = self.socket.send(data)
            except OSError:  # full, or broken: the reactor tries again and finds out
                sent = 0
            if sent == len(data):
                return
            data = memoryview(data)[sent:]
        self._buffer((data,))

    def writeSequence(self, iovec: Iterable[Buffer]) -> None:  # noqa: N802
        """The same for several buffers, which are not joined first."""
        buffers = list(iovec)
        if len(buffers) > _MAX_BUFFERS:
            buffers = [b"".join(buffers)]
        if self._nothing_buffered:
            try:
                sent = self.socket.sendmsg(buffers)
            except OSError:
                sent = 0
            buffers = _rest(buffers, sent)
        self._buffer(buffers)

    def doWrite(self) -> Any:  # noqa: N802
        """Send on what is buffered; with nothing left, do what Twisted does then."""
        buffers = cast(list[Buffer], self._tempDataBuffer)
        if buffers:
            try:
                sent = self.socket.sendmsg(buffers[:_MAX_BUFFERS])
            except BlockingIOError:
                return None
            except OSError:
                return CONNECTION_LOST
            self._tempDataBuffer = cast(list[bytes], _rest(buffers, sent))
            self._tempDataLen -= sent
            if self._tempDataLen:
                return None
        return super().doWrite()  # type: ignore[no-untyped-call]

    @property
    def _nothing_buffered(self) -> bool:
        return bool(self.connected) and not (self._tempDataLen or self.disconnecting)

    def _buffer(self, buffers: Iterable[Buffer]) -> None:
        if not self.connected:
            return
        for data in buffers:
            if data:
                self._tempDataBuffer.append(cast(bytes, data))  # joined by Twisted, so any buffer will do
                self._tempDataLen += len(data)
        if self._tempDataLen:
            self._maybePauseProducer()  # type: ignore[no-untyped-call]
            self.startWriting()  # type: ignore[no-untyped-call]


@cache
def _may_receive() -> bool:
    """Whether the system allows that much (net.core.rmem_max). Else the kernel's own choice may be larger."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
        return probe.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= _RECEIVE_BYTES


def _rest(buffers: list[Buffer], sent: int) -> list[Buffer]:
    """What is left of the buffers behind the first `sent` bytes."""
    for number, data in enumerate(buffers):
        if sent < len(data):
            return [memoryview(data)[sent:], *buffers[number + 1 :]]
        sent -= len(data)
    return []


class Port(tcp.Port):
    """Twisted's port, with our connections."""

    transport = Connection  # type: ignore[assignment]


class SessionFactory(Factory):
    """Makes a session for each connection, bounds their number and cuts idle ones."""

    noisy = False

    def __init__(self, broker: Broker, max_connections: int) -> None:
        self._broker = broker
        self._gate = make_gate(broker)
        self._max_connections = max_connections
        self._sessions: set[Session] = set()
        self._refused = 0
        self._idle_scan = LoopingCall(self._cut_idle)
        self._idle_scan.clock = cast(Any, broker.reactor)

    def startFactory(self) -> None:  # noqa: N802
        self._idle_scan.start(_IDLE_SCAN_SECONDS, now=False)

    def stopFactory(self) -> None:  # noqa: N802
        if self._idle_scan.running:
            self._idle_scan.stop()

    def buildProtocol(self, addr: IAddress | None) -> Session | None:  # noqa: N802
        """A session, or None to close the connection at once."""
        if len(self._sessions) >= self._max_connections:
            self._refused += 1
            return None
        session = Session(self._gate, self._broker, self._lost)
        self._sessions.add(session)
        self._broker.connections = len(self._sessions)
        return session

    def close_all(self) -> None:
        """Close every connection after the answers that are due."""
        for session in list(self._sessions):
            session.close()

    def _lost(self, session: Session) -> None:
        self._sessions.discard(session)
        self._broker.connections = len(self._sessions)

    def _cut_idle(self) -> None:
        if self._refused:
            _log.warning("%d connections refused: there are %d already", self._refused, self._max_connections)
            self._refused = 0
        oldest = self._broker.reactor.seconds() - IDLE_SECONDS
        for session in [session for session in self._sessions if session.last_active < oldest]:
            session.abort(f"idle for {IDLE_SECONDS} seconds")


def listen(broker: Broker, factory: SessionFactory, reactor: Any) -> Port:
    """Listen on the configured address and port (0: a free one, then in broker.port). Raises ConfigError if that cannot
    be.

    reactor: IReactorTime and IReactorFDSet.
    """
    address = broker.config.listen
    port = Port(broker.config.port, cast(Any, factory), _BACKLOG, address, reactor)
    try:
        port.startListening()
    except CannotListenError as error:
        reason = error.socketError.strerror if isinstance(error.socketError, OSError) else error.socketError
        taken = isinstance(error.socketError, OSError) and error.socketError.errno in (errno.EADDRINUSE, errno.EACCES)
        if address and not taken:
            remedy = f"cannot listen there ({reason}): name an address of this machine"
            raise ConfigError("--listen", address, remedy) from error
        remedy = f"cannot listen there ({reason}): stop the other program or set another serverPort"
        raise ConfigError("serverPort", broker.config.port, remedy) from error
    broker.port = port.getHost().port  # type: ignore[no-untyped-call]
    return port
