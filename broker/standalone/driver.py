"""Connect the standalone ZooKeeper (`metaq.coordination.standalone`) to sockets and to the clock, with Twisted.
All code of this module runs on one reactor thread.
"""

from __future__ import annotations

import errno
import logging
import resource
import time
from collections.abc import Callable
from typing import Any, cast

from twisted.internet import tcp
from twisted.internet.defer import DeferredList
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import Factory
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.python.failure import Failure

from metaq.coordination.standalone.connections import PeerConnection
from metaq.coordination.standalone.server import Moment, StandaloneServer
from metaq.protocol.errors import ConfigError

from ..runtime.account import Quotas, Shares, account_address
from ..runtime.reactor import Transport
from .keeper import Keeper
from .log_files import LogFiles

__all__ = ["ServerDriver", "moment"]

_log = logging.getLogger(__name__)

UNITS_IN_TURN = 256
"""The maximum number of simple requests, or parts of long requests, that one turn of the server handles. To handle this
number of them takes a few milliseconds.
"""

PEERS_IN_TURN = 256
"""The maximum number of connections to which one turn of the server sends answers."""

BUFFERED_BYTES = 256 * 1024
"""If the unsent answers and the waiting requests of one connection together have more than this many bytes, the driver
stops reading from this connection.
"""

MOST_CONNECTIONS = 65_536
"""The maximum number of connections of all addresses together. The limit is lower if the process is not allowed to open
so many file descriptors.
"""

DESCRIPTORS_FOR_OTHERS = 64
"""How many of the file descriptors that the process may open are kept free of connections, for files and other work.
"""

_BACKLOG = 1000


def moment() -> Moment:
    return Moment(time.monotonic_ns() // 1_000_000, time.time_ns() // 1_000_000)


class _Peer(TwistedProtocol):
    """The Twisted protocol of one connection."""

    large = False  # for FastConnection: the next bytes have no place of their own

    def __init__(self, driver: ServerDriver, host: str, port: int) -> None:
        self._driver = driver
        self.host = host
        self._port = port
        self._transport = cast(Transport, None)
        self._connection: PeerConnection | None = None
        self._full = False
        self._silenced = False

    def connectionMade(self) -> None:  # noqa: N802
        self._transport = cast(Transport, self.transport)
        self._transport.registerProducer(self, True)
        self._connection = self._driver.connected(self, self.host, self._port)

    def identified(self, name: str) -> None:
        """Called by a connection to the secure port: `name` is the name of the client's verified certificate."""
        if self._connection is not None:
            self._connection.identities["x509", name] = None

    def dataReceived(self, data: bytes) -> None:  # noqa: N802
        connection = self._connection
        if connection is not None and not connection.finished:
            self._driver.received(connection, data)
            self._regulate()

    def connectionLost(self, reason: Failure = cast(Failure, None)) -> None:  # noqa: N802, B008
        connection, self._connection = self._connection, None
        if connection is not None:
            self._driver.lost(self, connection)

    def pauseProducing(self) -> None:  # noqa: N802
        """Called by Twisted when the transport's send buffer is full: stop sending answers to this connection and
        reading requests from it.
        """
        self._full = True
        self._regulate()

    def resumeProducing(self) -> None:  # noqa: N802
        """Called by Twisted when the transport's send buffer is empty: send answers and read requests again."""
        self._full = False
        self.flush()
        self._regulate()

    def stopProducing(self) -> None:  # noqa: N802
        """Do nothing: Twisted calls this method when the connection is lost, and then calls connectionLost, which does
        the work.
        """

    def flush(self) -> None:
        """Send the answers that wait for this connection, and close the connection if the server has finished with it.
        Do nothing while the send buffer is full.
        """
        connection = self._connection
        if connection is None or self._full:
            return
        if connection.out:
            self._transport.write(b"".join(self._driver.take(connection)))
        if connection.finished and not self._full:
            self._transport.unregisterProducer()
            self._transport.loseConnection()

    def _regulate(self) -> None:
        """Stop reading from the connection while its send buffer is full or while `_is_too_much` is True for it. Start
        reading again afterwards.
        """
        connection = self._connection
        silenced = self._full or (connection is not None and _is_too_much(connection))
        if silenced != self._silenced and connection is not None and not connection.finished:
            self._silenced = silenced
            if silenced:
                self._transport.pauseProducing()
                self._driver.silenced[self] = None
            else:
                self._transport.resumeProducing()
                self._driver.silenced.pop(self, None)

    def listen_again(self) -> None:
        """Called after requests were handled: read from the connection again if few enough of its requests still
        wait.
        """
        self._regulate()

    def abort(self) -> None:
        self._transport.abortConnection()


def _is_too_much(connection: PeerConnection) -> bool:
    """Return whether a connection's unsent answers and requests that wait to be handled have more than BUFFERED_BYTES
    bytes together. If only a part of a request has arrived, its bytes do not count. If they counted, a request larger
    than the limit could never be received.
    """
    return connection.unsent + (connection.buffered if connection.whole else 0) > BUFFERED_BYTES


class ServerDriver(Factory):
    """Listens on the ports of a standalone ZooKeeper server, passes received requests to the server, and sends its
    answers. Its methods run on the reactor thread.

    files: the server's files, already loaded, or None if no data are kept. failure: None until a write to the files
    fails. After such a failure, the driver stops by itself, and this is the error. stopped: called when the driver no
    longer listens.
    """

    noisy = False

    def __init__(self, server: StandaloneServer, reactor: Any, files: LogFiles | None = None) -> None:
        self.failure: Exception | None = None
        self.stopped: Callable[[], object] = lambda: None
        self.silenced: dict[_Peer, None] = {}
        self._server = server
        self._reactor = reactor
        self._keeper: Keeper | None = None
        if files is not None:
            self._keeper = Keeper(files, reactor, self._synced, self._soon, self._failed)
        self._peers: dict[PeerConnection, _Peer] = {}
        self._shares = Shares("connections", "", _connection_limit(), Quotas().address_share)
        self._scheduled = False
        self._ports: list[tcp.Port] = []
        self._timer: Any = None
        self._due_ms: int | None = None
        self._stalled_ms = 0

    def listen(self, host: str, port: int, connections: type[tcp.Server]) -> None:
        """Begin to accept connections at this address. connections: the class of the accepted connections. The call may
        be repeated for further ports. Raises ConfigError if that fails.
        """
        listening = tcp.Port(port, cast(Any, self), _BACKLOG, host, self._reactor)
        listening.transport = connections
        try:
            listening.startListening()
        except CannotListenError as error:
            cause = error.socketError
            reason = cause.strerror if isinstance(cause, OSError) else cause
            taken = isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE
            remedy = "stop the other program or choose another port" if taken else "choose another address or port"
            raise ConfigError("port", port, f"cannot listen on {host}:{port} ({reason}): {remedy}") from error
        self._ports.append(listening)
        if self._timer is None:
            self._tick()

    def close(self) -> None:
        """Stop listening, abort every connection, and write all accepted changes. Blocks until they are on the disk."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ports, self._ports = self._ports, []
        for peer in list(self._peers.values()):
            peer.abort()
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None
        if ports:
            ends = [each.stopListening() for each in ports]  # type: ignore[no-untyped-call]
            DeferredList(ends, consumeErrors=True).addBoth(lambda _: self.stopped())

    def _failed(self, error: Exception) -> None:
        """Stop the server after its files could not be written. No more answers are sent, because the content of the
        disk is unknown.
        """
        self.failure = error
        self.close()

    def buildProtocol(self, addr: IAddress | None) -> _Peer | None:  # noqa: N802
        host, port = getattr(addr, "host", "?"), getattr(addr, "port", 0)
        if not self._shares.take(account_address(host)):
            _log.warning("a connection from %s is refused: there are too many", host)
            return None
        return _Peer(self, host, port)

    def connected(self, peer: _Peer, host: str, port: int) -> PeerConnection:
        connection = self._server.connected(host, port, self._now())
        self._peers[connection] = peer
        return connection

    def received(self, connection: PeerConnection, data: bytes) -> None:
        self._server.received(connection, data)
        self._soon(now=True)

    def take(self, connection: PeerConnection) -> list[bytes]:
        waited = connection.waits
        taken = self._server.take(connection)
        if waited:
            self._soon()
        return taken

    def lost(self, peer: _Peer, connection: PeerConnection) -> None:
        self._shares.add(account_address(peer.host), -1)
        del self._peers[connection]
        self.silenced.pop(peer, None)
        self._server.lost(connection)
        self._soon()

    def _now(self) -> Moment:
        """Return the present time of the server's clock. This clock stands still while something prevents the reactor
        thread from running. So after such a pause, the requests that arrived during the pause are handled before any
        session can expire.
        """
        now = moment()
        return now._replace(ms=now.ms - self._stalled_ms)

    def _tick(self) -> None:
        tick_ms = self._server.settings.tick_time_ms
        now = self._now()
        if self._due_ms is not None and now.ms - self._due_ms > tick_ms:
            self._stalled_ms += now.ms - self._due_ms
            now = self._now()
        self._server.tick(now)
        wait_ms = tick_ms - now.ms % tick_ms
        self._due_ms = now.ms + wait_ms
        self._timer = self._reactor.callLater(wait_ms / 1000, self._tick)
        self._soon()

    def _synced(self, position: int) -> None:
        self._server.synced(position)
        self._soon(now=True)

    def _soon(self, now: bool = False) -> None:
        if self._scheduled:
            return
        self._scheduled = True
        if now:
            self._turn()
        else:
            self._reactor.callLater(0, self._turn)

    def _turn(self) -> None:
        """Do one turn: handle a limited number of requests and send a limited number of answers, so that other work of
        the reactor is not delayed. If work is left, schedule the next turn.
        """
        server = self._server
        more = server.work(UNITS_IN_TURN, self._now())
        if self._keeper is not None:
            more |= self._keeper.look_after(server)
        ready = server.ready(PEERS_IN_TURN)
        for connection in ready:
            self._peers[connection].flush()
        for peer in list(self.silenced):
            peer.listen_again()
        if more or len(ready) == PEERS_IN_TURN:
            self._reactor.callLater(0, self._turn)
        else:
            self._scheduled = False


def _connection_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(MOST_CONNECTIONS, max(16, soft - DESCRIPTORS_FOR_OTHERS) if soft >= 0 else MOST_CONNECTIONS)
