"""TLS on the broker's ports. The first byte of a connection shows whether the connection uses TLS.

`Certificates` has the SSL contexts for new connections, and makes new contexts when the files change.
`SecureConnection` is a FastConnection that encrypts and decrypts with a TlsStream, for the broker's own port.
`SecureHttpConnection` does the same on the HTTP ports, for Twisted's own kind of connections. The objects of all
classes are used only on the reactor thread.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, cast

from twisted.internet import tcp
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.main import CONNECTION_DONE, CONNECTION_LOST

from metaq.coordination.runtime.certificates import CertificateFiles
from metaq.coordination.runtime.zookeeper_login import ZooKeeperLogin
from metaq.protocol.access import ANYBODY, Principal
from metaq.protocol.errors import ConfigError, MetaqError, TlsFailed, TlsRequired
from metaq.protocol.record import Buffer
from metaq.protocol.tls import FIRST_BYTE, TlsStream

from ..configuration.security_ini import Plain, Security
from ..runtime.account import numeric_address
from ..runtime.few_lines import FewLines
from .transport import FastConnection, PlainConnection

if TYPE_CHECKING:
    from .session import Session

__all__ = ["HANDSHAKE_SECONDS", "CertificateState", "Certificates"]

_log = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 10.0
"""If a TLS handshake is not complete this many seconds after the client's first byte, the broker closes the
connection.
"""


class CertificateState(NamedTuple):
    """Facts about the certificate that the broker shows on new connections."""

    path: str
    name: str
    """The common name of the certificate's subject, or "" if the subject has no common name or the certificate has
    expired.
    """
    serial: str
    """The certificate's serial number in hexadecimal digits; empty if the certificate has expired."""
    expires: float
    """When the certificate expires, Unix seconds, or 0 if the certificate had already expired when it was read."""


class Certificates:
    """The SSL contexts for new TLS connections, both for connections from clients and for connections to other brokers.
    If the certificate files have changed, the next call of `look` makes new contexts; connections that are open
    continue with the old ones.
    """

    def __init__(self, security: Security) -> None:
        """security: the settings in security.ini. Raises ConfigError if the certificate files cannot be used."""
        self._security = security
        self._seen = self._stamps()  # before reading, so that the next look notices a change in between
        self.context, self._to_brokers = self._load()
        self.state = self._state()
        self._refused: FewLines | None = None
        self.failure: MetaqError | None = None
        """The reason why the broker cannot use the certificate files that are on the disk now, or None if it uses them.
        """

    @property
    def plain(self) -> Plain:
        """Which clients may connect without TLS: only clients on this machine, all clients, or no client."""
        return self._security.plain

    def user_at(self, host: str) -> Principal:
        """Return the user to whom security.ini gives the address `host`, or ANYBODY if it gives it to no user."""
        address = numeric_address(host) if self._security.addresses else None
        if address is not None:
            for network, user in self._security.addresses:
                if address in network:
                    return Principal("address", user)
        return ANYBODY

    def connection_class(self, plain_class: type[tcp.Server], reactor: Any) -> type[tcp.Server]:
        """Return the transport class for a port with TLS. plain_class: the transport class for a port without TLS.
        Raises ConfigError if FastConnection does not support this version of Twisted.
        """
        security = self._security
        _log.info(
            "the port speaks TLS, with the certificate %s; client certificates: %s; connections without TLS: %s",
            *(security.files.certificate, security.client_certificates, security.plain),
        )
        if not issubclass(plain_class, FastConnection):
            remedy = "TLS needs a version of Twisted that the fast transport was tested with: see the line above"
            raise ConfigError("--security", self._security.files.option, remedy)
        return self._secured(SecureConnection, reactor)

    def http_connection_class(self, reactor: Any) -> type[tcp.Server]:
        """Return the transport class for an HTTP port with TLS."""
        return self._secured(SecureHttpConnection, reactor)

    def _secured(self, kind: type[_Secured], reactor: Any) -> type[tcp.Server]:
        if self._refused is None:
            self._refused = FewLines(_log, "TLS connections refused", reactor)
        return type(kind.__name__, (kind,), {"certificates": self, "refused": self._refused})

    def look(self) -> None:
        """If the certificate files have changed since they were last read, read them again, and use the new certificate
        for new connections. This method never raises an exception. If the files cannot be used, the method logs the
        reason, and the broker continues to use the former certificate.
        """
        stamps = self._stamps()
        if stamps == self._seen:
            return
        self._seen = stamps
        try:
            self.context, self._to_brokers = self._load()
            self.state = self._state()
        except ConfigError as error:
            self.failure = error
            _log.error("the former certificate stays in use: %s", error)
        else:
            self.failure = None
            _log.warning("new connections get the certificate %s", self._security.files.certificate)

    @property
    def zookeeper(self) -> CertificateFiles | None:
        """The files for TLS with ZooKeeper. If it is None, ZooKeeper is used without TLS."""
        return self._security.zookeeper

    @property
    def zookeeper_login(self) -> ZooKeeperLogin | None:
        """The user and password by which the broker identifies itself to ZooKeeper."""
        return self._security.zookeeper_login

    @property
    def brokers_required(self) -> bool:
        """Whether this broker refuses a request of a type that only brokers send if the connection's peer has not shown
        a broker's certificate.
        """
        return self._security.brokers == "required"

    @property
    def to_brokers(self) -> Callable[[], ssl.SSLContext] | None:
        """A function that returns the SSL context for a connection to another broker. The property is None if
        connections to other brokers do not use TLS.
        """
        return None if self._security.brokers == "plain" else (lambda: self._to_brokers)

    def _load(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """Read the certificate files. Return two SSL contexts: one for connections from clients, and one for
        connections to other brokers.
        """
        files = self._security.files
        served = files.server_context(self._security.client_certificates)
        return served, served if self._security.brokers == "plain" else files.client_context()

    def _state(self) -> CertificateState:
        """Read the broker's certificate, and return its state. If the certificate has expired, log this, because
        clients refuse an expired certificate.
        """
        path = self._security.files.certificate
        try:
            shown = self._security.files.own_certificate()
        except ConfigError as error:
            _log.error("clients refuse this broker's certificate: %s", error)
            return CertificateState(path, "", "", 0.0)
        names = [value for part in cast(Any, shown["subject"]) for name, value in part if name == "commonName"]
        expires = ssl.cert_time_to_seconds(str(shown["notAfter"]))
        return CertificateState(path, "".join(names[:1]), str(shown["serialNumber"]), expires)

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        files = self._security.files
        stamps: list[tuple[int, int, int] | None] = []
        for path in filter(None, (files.certificate, files.key, files.ca)):
            try:
                found = os.stat(path)
                stamps.append((found.st_ctime_ns, found.st_size, found.st_ino))
            except OSError:
                stamps.append(None)
        return stamps


def may_be_plain(plain: Plain, host: str) -> bool:
    """Return whether the setting `plain` allows a connection without TLS from this numeric address."""
    if plain != "loopback":
        return plain == "everywhere"
    address = numeric_address(host)
    return address is not None and address.is_loopback


class _Secured(PlainConnection):
    """A connection that the broker has accepted, with or without TLS. Subclasses pass the received bytes to `_decrypt`
    if `_stream` is not None.
    """

    certificates: ClassVar[Certificates]
    refused: ClassVar[FewLines]
    _stream: TlsStream | None = None
    _is_known = False  # whether it is known if this is TLS
    _too_slow: Any = None

    def doRead(self) -> ConnectionLost | ConnectionDone | None:  # type: ignore[override]  # noqa: N802
        if not self._is_known:
            try:
                first = self.socket.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                return None
            except OSError:
                return CONNECTION_LOST
            if not first:
                return CONNECTION_DONE
            self._know(first[0] == FIRST_BYTE)
        return super().doRead()

    def _know(self, is_tls: bool) -> None:
        self._is_known = True
        host = self._client_host
        if is_tls:
            self._stream = TlsStream(self.certificates.context, host, server_side=True)
            self._too_slow = self.reactor.callLater(HANDSHAKE_SECONDS, self._end_slow)
        elif not may_be_plain(self.certificates.plain, host):
            self._refuse(TlsRequired())

    @property
    def _client_host(self) -> str:
        return cast(str, self.getPeer().host)  # type: ignore[no-untyped-call]

    def _refuse(self, error: MetaqError) -> None:
        """Called if the connection does not use TLS although it must: from now on answer each request on it with
        `error`.
        """
        raise NotImplementedError

    @property
    def certified_hosts(self) -> frozenset[str]:  # type: ignore[override]
        """The hosts that the client's verified certificate names."""
        return frozenset() if self._stream is None else self._stream.certified_hosts

    @property
    def principal(self) -> Principal:  # type: ignore[override]
        """The broker or user that the client's verified certificate names, or the user whom its address names."""
        certified = ANYBODY if self._stream is None else self._stream.principal
        return self.certificates.user_at(self._client_host) if certified == ANYBODY else certified

    @property
    def is_encrypted(self) -> bool:  # type: ignore[override]
        """Whether the connection uses TLS."""
        return self._stream is not None

    def _end_slow(self) -> None:
        self._too_slow = None
        self._say(f"its handshake took longer than {HANDSHAKE_SECONDS:g} seconds")
        self.abortConnection()  # type: ignore[no-untyped-call]

    def _say(self, reason: str) -> None:
        self.refused.info(f"the TLS connection of {self._client_host} is refused: {reason}")

    def _decrypt(self, stream: TlsStream, data: bytes) -> ConnectionLost | ConnectionDone | None:
        """Continue the handshake, or decrypt received bytes and give them to `_give`. Return the reason if the
        connection must be closed.
        """
        try:
            was_established = stream.established
            stream.receive(data)
            plaintext = stream.read()
        except TlsFailed as error:
            self._say(error.reason)
            with suppress(OSError):  # the alert; Twisted drops what it has not sent when this method returns
                self.socket.send(stream.take())
            return CONNECTION_LOST
        if not was_established:
            super().write(stream.take())
            if stream.established:
                self._stop_timer()
        if plaintext:
            self._give(plaintext)
        return CONNECTION_DONE if stream.ended else None

    def _give(self, plaintext: bytes) -> None:
        """Pass decrypted bytes to the protocol object. A TLS record has at most 16 KiB and is decrypted as a whole; so
        `plaintext` has at most 16 KiB more than one read takes from the socket.
        """
        cast(Any, self.protocol).dataReceived(plaintext)

    def write(self, data: Buffer) -> None:
        if self._stream is None:
            super().write(data)
        else:
            self._encrypted((data,))

    def writeSequence(self, iovec: Iterable[Buffer]) -> None:  # noqa: N802
        if self._stream is None:
            super().writeSequence(iovec)
        else:
            self._encrypted(iovec)

    def _encrypted(self, buffers: Iterable[Buffer]) -> None:
        stream = self._stream
        assert stream is not None
        if self.connected and stream.established:
            stream.write(buffers)
            super().write(stream.take())

    def loseConnection(self) -> None:  # noqa: N802
        if self._stream is not None and self._stream.established and not self.disconnecting:
            self._stream.end()
            super().write(self._stream.take())
        super().loseConnection()  # type: ignore[no-untyped-call]

    def connectionLost(self, reason: Any) -> None:  # noqa: N802
        self._stop_timer()
        super().connectionLost(reason)

    def _stop_timer(self) -> None:
        if self._too_slow is not None:
            self._too_slow.cancel()
            self._too_slow = None


class SecureConnection(_Secured, FastConnection):
    """A connection to the broker's own port."""

    def _refuse(self, error: MetaqError) -> None:
        cast("Session", self.protocol).refuse(error)

    def read_once(self) -> ConnectionLost | ConnectionDone | None:
        stream = self._stream
        if stream is None:
            return super().read_once()
        try:
            data = self.socket.recv(self._read_bytes)
        except BlockingIOError:
            return None
        except OSError:
            return CONNECTION_LOST
        if not data:
            return CONNECTION_DONE
        self._fit_reads(len(data))
        return self._decrypt(stream, data)

    def _give(self, plaintext: bytes) -> None:
        left = memoryview(plaintext)
        while left and self.connected:
            session = cast("Session", self.protocol)
            space = session.space if session.large else None
            if space is None or len(space) == 1:  # one byte if there is no room; this data is in memory already
                session.dataReceived(plaintext if len(left) == len(plaintext) else left.tobytes())
                return
            count = min(len(space), len(left))
            since = session.seconds()
            space[:count] = left[:count]
            session.received(count, since)
            left = left[count:]


class _HttpProtocol(Protocol):
    """The protocol object of an HTTP connection."""

    refusal: str | None
    """The reason why each request of this connection is refused, or None if requests are answered."""


class SecureHttpConnection(_Secured):
    """A connection to an HTTP port."""

    def _refuse(self, error: MetaqError) -> None:
        cast(_HttpProtocol, self.protocol).refusal = str(error)

    def _dataReceived(self, data: bytes | None) -> ConnectionLost | ConnectionDone | None:  # type: ignore[override]  # noqa: N802
        if self._stream is None or not data:
            return super()._dataReceived(data)
        return self._decrypt(self._stream, data)
