"""The secure port of the standalone ZooKeeper. All code of this module runs on the reactor thread."""

from __future__ import annotations

import logging
import socket
import ssl
from typing import Any, ClassVar, Protocol, cast

from twisted.internet import tcp

from metaq.coordination.servers.server_tls import ServerTls
from metaq.coordination.standalone.distinguished_names import certificate_name
from metaq.protocol.errors import ConfigError
from metaq.protocol.tls import TlsStream

from ..network.tls_connection import Handshakes, TlsConnection
from ..runtime.few_lines import FewLines

__all__ = ["secure_connection_class"]

_log = logging.getLogger(__name__)


class _ServedCertificate:
    """The TLS context for new connections. If the files have changed, the next connection gets a new context."""

    def __init__(self, tls: ServerTls) -> None:
        """Raises ConfigError if the files cannot be used."""
        self._tls = tls
        self._seen = tls.files.stamps()  # before reading, so that a change in between is noticed
        self._context = tls.context()

    def context(self) -> ssl.SSLContext:
        """Return the context for a new connection. If changed files cannot be used, log the reason, and return the
        former context.
        """
        stamps = self._tls.files.stamps()
        if stamps != self._seen:
            self._seen = stamps
            try:
                self._context = self._tls.context()
            except ConfigError as error:
                _log.error("the former certificate stays in use: %s", error)
            else:
                _log.warning("new connections get the certificate %s", self._tls.files.certificate)
        return self._context


class _Identified(Protocol):
    """The protocol object of a connection to the secure port."""

    def identified(self, name: str) -> None:
        """Called at most once, before the first data. name: the name of the client's verified certificate."""


class _SecureServerConnection(TlsConnection):
    """A connection to the secure port. It uses TLS from its first byte on, so nothing that a client sends without TLS
    reaches the server, and the server's answers leave only encrypted.
    """

    certificate: ClassVar[_ServedCertificate]

    def __init__(self, sock: socket.socket, *others: Any) -> None:
        """Accepts the arguments that Twisted passes to a connection."""
        super().__init__(sock, *others)
        self._begin(self.certificate.context())

    def _established(self, stream: TlsStream) -> None:
        if certificate := stream.certificate_bytes:
            cast(_Identified, self.protocol).identified(certificate_name(certificate))


def secure_connection_class(tls: ServerTls, reactor: Any) -> type[tcp.Server]:
    """Return the class for accepted connections of a secure port. Raises ConfigError if the files of `tls` cannot be
    used.
    """
    refused = FewLines(_log, "TLS connections refused", reactor)
    attributes = {"certificate": _ServedCertificate(tls), "refused": refused, "handshakes": Handshakes(reactor)}
    return type("SecureServerConnection", (_SecureServerConnection,), attributes)
