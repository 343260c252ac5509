"""Connect to other brokers, with TLS or without. The code of this module runs on the reactor thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.python.failure import Failure

from metaq.coordination.records.payloads import host_and_port
from metaq.protocol.errors import TlsFailed
from metaq.protocol.record import Buffer

from .reactor import ReactorTime

if TYPE_CHECKING:
    import ssl

    from metaq.protocol.tls import TlsStream

__all__ = ["Dialer", "meta_url"]

P = TypeVar("P", bound=Protocol)


def meta_url(host: str, port: int) -> str:
    """Return `meta://host:port`. host: a name or an IP address; this function adds the brackets of an IPv6 address."""
    return f"meta://{host_and_port(host, port)}"


class Dialer:
    """Opens connections to other brokers."""

    def __init__(self, reactor: ReactorTime, tls: Callable[[], ssl.SSLContext] | None = None) -> None:
        """tls: returns the TLS context for a new connection. If it is None, connections do not use TLS."""
        self._reactor: Any = reactor
        self._tls = tls

    def dial(self, host: str, port: int, seconds: float, make: Callable[[], P]) -> Deferred[P]:
        """Connect to another broker. `make` creates the Twisted protocol object for the connection. As soon as the
        connection is made, the Deferred gets this object. The Deferred fails with Twisted's errors if the connection
        cannot be made, or with TlsFailed if the other broker's certificate is refused or does not name `host`. seconds:
        the time limit for connecting, and again for the TLS handshake. Cancelling the Deferred ends the attempt.
        """
        endpoint = HostnameEndpoint(self._reactor, host, port, seconds)
        if self._tls is None:
            return cast("Deferred[P]", endpoint.connect(_factory(make)))
        from metaq.protocol.tls import TlsStream  # imports ssl: only if configured

        stream = TlsStream(self._tls(), meta_url(host, port), server_hostname=host)
        connecting: Deferred[Any] = endpoint.connect(_factory(lambda: _TlsConnection(stream, make())))
        return connecting.addCallback(lambda connection: connection.secured(self._reactor, seconds))


def _factory(make: Callable[[], Protocol]) -> Any:
    factory = Factory.forProtocol(make)
    factory.noisy = False
    return factory


class _TlsConnection(Protocol):
    """Adds TLS to a TCP connection. It stands between the TCP connection and the protocol object that the caller's
    `make` has returned, and all their data pass through it. For the TCP connection, this object is the Twisted
    protocol; for the protocol object, it is the transport. It decrypts the bytes that arrive on the TCP connection, and
    encrypts the bytes that the protocol object sends.
    """

    def __init__(self, stream: TlsStream, inner: Protocol) -> None:
        self._stream = stream
        self._inner = inner
        self._secured: Deferred[Protocol] = Deferred(lambda _: self._tcp.abortConnection())
        self._is_over = False

    @property
    def _tcp(self) -> Any:
        return self.transport

    def secured(self, reactor: Any, seconds: float) -> Deferred[Protocol]:
        """Return a Deferred that fires when the TLS handshake is done. Its result is the protocol object that uses this
        TLS connection. The Deferred fails if the connection ends before the handshake is done. seconds: the time limit
        for the handshake.
        """
        return self._secured.addTimeout(seconds, reactor)

    # --- as the protocol of the TCP connection ------------------------------------------------------------------------

    def connectionMade(self) -> None:  # noqa: N802
        self._tcp.setTcpNoDelay(True)
        self.dataReceived(b"")

    def dataReceived(self, data: bytes) -> None:  # noqa: N802
        stream = self._stream
        was_established = stream.established
        try:
            stream.receive(data)
            plaintext = stream.read()
        except TlsFailed as error:
            self._tcp.write(stream.take())  # the alert
            self._end(Failure(error))  # type: ignore[no-untyped-call]
            self._tcp.loseConnection()
            return
        if not was_established:
            self._tcp.write(stream.take())
            if stream.established:
                self._inner.makeConnection(cast(Any, self))  # type: ignore[no-untyped-call]
                self._secured.callback(self._inner)
        if plaintext and not self._is_over:
            self._inner.dataReceived(plaintext)
        if stream.ended:
            self._tcp.loseConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:  # noqa: N802
        if not self._stream.established and isinstance(reason.value, ConnectionDone):
            error = TlsFailed(self._stream.peer, "it closed the connection in the handshake: does this port speak TLS?")
            reason = Failure(error)  # type: ignore[no-untyped-call]
        self._end(reason)

    def _end(self, reason: Failure) -> None:
        if self._is_over:
            return
        self._is_over = True
        if self._stream.established:
            self._inner.connectionLost(reason)
        elif not self._secured.called:
            self._secured.errback(reason)

    # --- as the transport of the protocol inside ----------------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        self.writeSequence((data,))

    def writeSequence(self, iovec: Iterable[Buffer]) -> None:  # noqa: N802
        if not self._is_over:
            self._stream.write(iovec)
            self._tcp.write(self._stream.take())

    def loseConnection(self) -> None:  # noqa: N802
        self._stream.end()
        self._tcp.write(self._stream.take())
        self._tcp.loseConnection()

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the TCP connection, for all attributes of a transport that this class does not define:
        abortConnection, getPeer, registerProducer …
        """
        return getattr(self._tcp, name)

    @property
    def bufferSize(self) -> int:  # noqa: N802
        """Twisted's attribute of a TCP connection: the most bytes that one read from the connection returns."""
        return cast(int, self._tcp.bufferSize)

    @bufferSize.setter
    def bufferSize(self, size: int) -> None:  # noqa: N802
        self._tcp.bufferSize = size
