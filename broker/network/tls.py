"""TLS on the broker's ports. The first byte of a connection shows whether the connection uses TLS.

`Certificates` has the SSL contexts for new connections, and makes new contexts when the files change.
`SecureConnection` is a FastConnection that encrypts and decrypts with a TlsStream, for the broker's own port.
`SecureHttpConnection` does the same on the HTTP ports, for Twisted's own kind of connections. The objects of all
classes are used only on the reactor thread.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, cast

from twisted.internet import tcp
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.main import CONNECTION_DONE, CONNECTION_LOST

from metaq.coordination.runtime.certificates import CertificateFiles
from metaq.coordination.runtime.zookeeper_login import ZooKeeperLogin
from metaq.protocol.access import ANYBODY, Principal
from metaq.protocol.errors import ConfigError, MetaqError, RemoteProtocolError, TlsRequired
from metaq.protocol.proxy_header import ProxyHeaderReader, ProxySource
from metaq.protocol.tls_bytes import FIRST_BYTE, NO_TLS_ALERT

from ..configuration.listeners_ini import MAIN, MAIN_RULES, ListenerRules
from ..configuration.security_ini import Plain, Security
from ..runtime.account import numeric_address
from ..runtime.few_lines import FewLines
from .tls_connection import Handshakes, TlsConnection
from .transport import FastConnection

if TYPE_CHECKING:
    from .session import Session

__all__ = ["PROXY_HEADER_SECONDS", "CertificateState", "Certificates"]

_log = logging.getLogger(__name__)


PROXY_HEADER_SECONDS = 10.0
"""If the PROXY protocol header of a proxy is not complete after this many seconds, the broker closes the connection."""


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
        self._seen = self._security.files.stamps()  # before reading, so that the next look notices a change in between
        self.context, self._to_brokers = self._load()
        self.state = self._state()
        self._refused: FewLines | None = None
        self._handshakes: Handshakes | None = None
        self.failure: MetaqError | None = None
        """The reason why the broker cannot use the certificate files that are on the disk now, or None if it uses them.
        """

    @property
    def listeners(self) -> tuple[ListenerRules, ...]:
        """The listeners in security.ini."""
        return self._security.listeners

    @property
    def main_rules(self) -> ListenerRules | None:
        """The rules of the main port. None if security.ini has no section [listener NAME]: then only [tls] counts."""
        if not self.listeners:
            return None
        return next((each for each in self.listeners if each.name == MAIN), MAIN_RULES)

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

    @property
    def users_by_address(self) -> Mapping[str, Sequence[str]]:
        """The networks that security.ini gives to users, by the user's name."""
        found: dict[str, list[str]] = {}
        for network, user in self._security.addresses:
            found.setdefault(user, []).append(str(network))
        return found

    def connection_class(
        self,
        plain_class: type[tcp.Server],
        reactor: Any,
        rules: ListenerRules = MAIN_RULES,
    ) -> type[tcp.Server]:
        """Return the transport class for a port with TLS. plain_class: the transport class for a port without TLS.
        rules: the rules of the port. Raises ConfigError if FastConnection does not support this version of Twisted.
        """
        security = self._security
        if rules.name == MAIN:
            _log.info(
                "the port speaks TLS, with the certificate %s; client certificates: %s; connections without TLS: %s",
                *(security.files.certificate, security.client_certificates, security.plain),
            )
        if not issubclass(plain_class, FastConnection):
            remedy = "TLS needs a version of Twisted that the fast transport was tested with: see the line above"
            raise ConfigError("--security", self._security.files.option, remedy)
        return self._secured(SecureConnection, reactor, rules)

    def http_connection_class(self, reactor: Any) -> type[tcp.Server]:
        """Return the transport class for an HTTP port with TLS."""
        return self._secured(SecureHttpConnection, reactor, MAIN_RULES)

    def _secured(self, kind: type[_Secured], reactor: Any, rules: ListenerRules) -> type[tcp.Server]:
        if self._refused is None:
            self._refused = FewLines(_log, "TLS connections refused", reactor)
            self._handshakes = Handshakes(reactor)
        attributes = {"certificates": self, "refused": self._refused, "handshakes": self._handshakes, "rules": rules}
        return type(kind.__name__, (kind,), attributes)

    def look(self) -> None:
        """If the certificate files have changed since they were last read, read them again, and use the new certificate
        for new connections. This method never raises an exception. If the files cannot be used, the method logs the
        reason, and the broker continues to use the former certificate.
        """
        stamps = self._security.files.stamps()
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


def may_be_plain(plain: Plain, host: str) -> bool:
    """Return whether the setting `plain` allows a connection without TLS from this numeric address."""
    if plain != "loopback":
        return plain == "everywhere"
    address = numeric_address(host)
    return address is not None and address.is_loopback


class _Secured(TlsConnection):
    """A connection that the broker has accepted, with or without TLS. Subclasses pass the received bytes to `_decrypt`
    if `_stream` is not None.
    """

    certificates: ClassVar[Certificates]
    rules: ClassVar[ListenerRules]
    _is_known = False  # whether it is known if this is TLS

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
            is_tls = first[0] == FIRST_BYTE
            if is_tls and not self.handshakes.has_time:
                return None
            since = self.handshakes.seconds()
            if not self._know(is_tls):
                return CONNECTION_LOST
            if is_tls:  # making the TlsStream takes a tenth of a millisecond
                self.handshakes.worked(since)
        return super().doRead()

    def _know(self, is_tls: bool) -> bool:
        """Decide what the first byte means. Return False if the connection must be closed."""
        self._is_known = True
        host, rule = self._client_host, self.rules.tls
        if is_tls and rule == "none":
            self._say(f"the listener {self.rules.name} does not speak TLS")
            with suppress(OSError):  # so that the client knows that it need not try again
                self.socket.send(NO_TLS_ALERT)
            return False
        if is_tls:
            self._begin(self.certificates.context)
        elif rule == "required":
            self._refuse(TlsRequired(self.rules.name))
        elif rule is None and not may_be_plain(self.certificates.plain, host):
            self._refuse(TlsRequired())
        return True

    def _refuse(self, error: MetaqError) -> None:
        """Called if the connection does not use TLS although it must: from now on answer each request on it with
        `error`.
        """
        raise NotImplementedError

    @property
    def certified_hosts(self) -> frozenset[str]:  # type: ignore[override]
        """The hosts that the client's verified certificate names. Empty if certificates do not count on this
        listener.
        """
        if self._stream is None or "certificate" not in self.rules.login:
            return frozenset()
        return self._stream.certified_hosts

    @property
    def principal(self) -> Principal:  # type: ignore[override]
        """The broker or user that the client's verified certificate names, or the user whom its address names, as far
        as the listener lets them count.
        """
        login = self.rules.login
        if self._stream is not None and "certificate" in login and self._stream.principal != ANYBODY:
            return self._stream.principal
        return self.certificates.user_at(self._client_host) if "address" in login else ANYBODY

    @property
    def is_encrypted(self) -> bool:  # type: ignore[override]
        """Whether the connection uses TLS."""
        return self._stream is not None


class SecureConnection(_Secured, FastConnection):
    """A connection to the broker's own port or to a listener."""

    _header: ProxyHeaderReader | None = None  # as long as a proxy has not told the client's address
    _source: ProxySource | None = None

    def __init__(self, sock: socket.socket, *others: Any) -> None:
        """Accepts the arguments that Twisted passes to a connection."""
        super().__init__(sock, *others)
        if self.rules.proxy and self.rules.is_proxy(numeric_address(self._client_host)):
            self._header = ProxyHeaderReader()
            self._too_slow = self.reactor.callLater(PROXY_HEADER_SECONDS, self._end_without_header)

    def getPeer(self) -> Any:  # noqa: N802
        """Return the client's address; behind a proxy the one that the proxy has told."""
        if self._source is None:
            return super().getPeer()  # type: ignore[no-untyped-call]
        return (IPv6Address if ":" in self._source.host else IPv4Address)("TCP", *self._source)

    def doRead(self) -> ConnectionLost | ConnectionDone | None:  # type: ignore[override]  # noqa: N802
        if self._header is None:
            return super().doRead()
        return self._read_header(self._header)

    def _read_header(self, header: ProxyHeaderReader) -> ConnectionLost | ConnectionDone | None:
        try:
            data = self.socket.recv(header.missing)
            if not data:
                return CONNECTION_DONE
            header.receive(data)
        except BlockingIOError:
            return None
        except OSError:
            return CONNECTION_LOST
        except RemoteProtocolError as error:
            self._say(str(error))
            return CONNECTION_LOST
        if header.missing:
            return None
        self._header = None
        self._stop_timer()
        if header.source is not None:
            if (why := cast("Session", self.protocol).comes_from(header.source.host)) is not None:
                self._say(why)
                return CONNECTION_LOST
            self._source = header.source
        return None

    def _end_without_header(self) -> None:
        self._too_slow = None
        self._say(f"its proxy has sent no PROXY protocol header within {PROXY_HEADER_SECONDS:g} seconds")
        self.abortConnection()  # type: ignore[no-untyped-call]

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
