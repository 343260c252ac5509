"""Listen on the broker's port: accept connections, create a session for each connection, limit their number, and close
idle connections.
"""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING, Any, cast

from twisted.internet import tcp
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import Factory
from twisted.internet.task import LoopingCall

from metaq.protocol.errors import ConfigError

from ..network.session import Session
from ..network.transport import connection_class
from ..requests.gate import Gate
from ..runtime.account import SCAN_SECONDS, account_address
from .broker import Broker

if TYPE_CHECKING:
    from ..network.tls import Certificates  # imports ssl: only if configured

__all__ = ["IDLE_SECONDS", "SessionFactory", "listen"]

_log = logging.getLogger(__name__)

IDLE_SECONDS = 300
"""If the broker receives no data on a connection for this many seconds, it closes the connection, as in 1.x."""

_IDLE_SCAN_SECONDS = 30
_BACKLOG = 1000


class SessionFactory(Factory):
    """Creates a session for each connection, limits the number of connections and closes idle ones."""

    noisy = False

    def __init__(self, broker: Broker, gate: Gate, max_connections: int, *, http: bool = False) -> None:
        """max_connections: the most connections of the whole broker. http: whether some of these connections are
        reserved for the HTTP ports.
        """
        self._broker = broker
        self._gate = gate
        broker.account.use_descriptors(max_connections, http=http)
        self._sessions: dict[Session, str] = {}  # value: the address for whose limits the connection counts
        self._refused = 0
        self._refusal = ""
        self._idle_scan = LoopingCall(self._cut_idle)
        self._slow_scan = LoopingCall(self._cut_slow)
        for scan in (self._idle_scan, self._slow_scan):
            scan.clock = cast(Any, broker.reactor)

    def startFactory(self) -> None:  # noqa: N802
        self._idle_scan.start(_IDLE_SCAN_SECONDS, now=False)
        self._slow_scan.start(SCAN_SECONDS, now=False)

    def stopFactory(self) -> None:  # noqa: N802
        for scan in (self._idle_scan, self._slow_scan):
            if scan.running:
                scan.stop()

    def buildProtocol(self, addr: IAddress | None) -> Session | None:  # noqa: N802
        """Return a session for a new connection; return None if there are too many connections, so that Twisted closes
        the new connection at once.
        """
        connections = self._broker.account.connections
        address = account_address(getattr(addr, "host", "?"))
        if not connections.take(address):
            self._refused += 1
            self._refusal = connections.refusal(address)
            return None
        session = Session(self._gate, self._broker, self._lost)
        self._sessions[session] = address
        self._broker.connections = len(self._sessions)
        return session

    def close_all(self) -> None:
        """Close every connection as soon as its pending answers are sent."""
        for session in list(self._sessions):
            session.close()

    def abort_all(self, why: str) -> None:
        """Close every connection at once; answers that are not sent yet are lost. why: the reason, for the log."""
        for session in list(self._sessions):
            session.abort(why)

    def forgive(self, seconds: float) -> None:
        """Let every connection count as active `seconds` later than it was, because the clock is about to jump by as
        much. Otherwise the jump would make all connections idle.
        """
        for session in self._sessions:
            session.last_active += seconds

    def _lost(self, session: Session) -> None:
        address = self._sessions.pop(session, None)
        if address is not None:
            self._broker.account.connections.add(address, -1)
        self._broker.connections = len(self._sessions)

    def _cut_slow(self) -> None:
        self._broker.account.unfinished.look()
        self._broker.account.unsent.look()

    def _cut_idle(self) -> None:
        if self._refused:
            _log.warning("%d connections refused: %s", self._refused, self._refusal)
            self._refused = 0
        oldest = self._broker.reactor.seconds() - IDLE_SECONDS
        for session in [session for session in self._sessions if session.last_active < oldest]:
            session.abort(f"idle for {IDLE_SECONDS} seconds")


def listen(broker: Broker, factory: SessionFactory, reactor: Any, certificates: Certificates | None = None) -> tcp.Port:
    """Listen on the configured address and port. If the configured port is 0, the operating system chooses a free port,
    and this function stores its number in broker.port. Raises ConfigError if the broker cannot listen there.

    reactor: IReactorTime and IReactorFDSet. certificates: the certificates for connections with TLS. If it is None, all
    connections are without TLS.
    """
    address = broker.config.listen
    port = tcp.Port(broker.config.port, cast(Any, factory), _BACKLOG, address, reactor)
    port.transport = connection_class()
    if certificates is not None:
        port.transport = certificates.connection_class(port.transport, reactor)
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
