"""The TLS settings of a ZooKeeper server that metaq starts on this machine."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from metaq.protocol.errors import ConfigError

from ..runtime.certificates import CertificateFiles, ClientCertificates

if TYPE_CHECKING:
    import ssl

__all__ = ["ServerTls"]


@dataclass(frozen=True, slots=True)
class ServerTls:
    """The certificate of a server's secure port, and whether clients must show a certificate there.

    files: the server's certificate and key, and as `ca` the CAs of the clients' certificates. client_certificates: as
    Apache's `ssl.clientAuth`: "none" is its `none`, "optional" its `want`, and "required" its `need`.
    """

    files: CertificateFiles
    client_certificates: ClientCertificates = "optional"

    def context(self) -> ssl.SSLContext:
        """Read the files, and return the TLS context for connections from clients. Raises ConfigError if a file cannot
        be used.
        """
        if self.client_certificates != "none" and not self.files.ca:
            remedy = f"name the CA of the clients' certificates: they are {self.client_certificates}"
            raise ConfigError(f"{self.files.option}.ca", "", remedy)
        return self.files.server_context(self.client_certificates)

    def check(self) -> None:
        """Raise ConfigError if a file cannot be used, or if the server's certificate has expired, so that every client
        would refuse it.
        """
        self.context()
        try:
            self.files.own_certificate()
        except ConfigError as error:
            remedy = f"{error.remedy}, so no client accepts this certificate: make a new one"
            raise ConfigError(error.option, error.value, remedy) from error

    def is_shown_at(self, host: str, port: int, timeout: float = 1.0) -> bool:
        """Return whether a server with this certificate accepts TLS connections at an address. timeout: in seconds."""
        try:
            with (
                socket.create_connection((host, port), timeout=timeout) as connected,
                self.files.own_context().wrap_socket(connected),
            ):
                return True
        except OSError:
            return False
