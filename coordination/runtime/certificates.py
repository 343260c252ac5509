"""Make TLS contexts from certificates in PEM files. The module `ssl` is imported only when the first context is made,
so that a program without TLS starts faster.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from metaq.protocol.errors import ConfigError

if TYPE_CHECKING:
    import ssl

__all__ = ["CertificateFiles", "ClientCertificates", "check_secret"]

T = TypeVar("T")

ClientCertificates = Literal["none", "optional", "required"]
"""Whether a server asks clients for a certificate, and whether it refuses clients without one."""

_HANDSHAKE_STEPS = 3
"""In a TLS handshake in memory, the two sides take turns to read and write. Each side has this number of turns, which
is enough for every handshake.
"""


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """Paths of PEM files for TLS. ca: the file with the certificates of the CAs that may sign the other side's
    certificate.
    certificate, key: the files of this side's certificate and private key; give both or none. Intermediate certificates
    are in the file `certificate`, after this side's certificate. option: the name of the option in error messages.
    """

    ca: str = ""
    certificate: str = ""
    key: str = ""
    option: str = "tls"

    def client_context(self) -> ssl.SSLContext:
        """Return the TLS context for connections to brokers. The context requires TLS 1.2 or newer. The broker's
        certificate must contain the host's name. The certificate must be signed by a CA in `ca`; if `ca` is not given,
        by a CA that the system trusts. Raises ConfigError if a file cannot be used.
        """
        import ssl

        context = self._trusting(lambda: ssl.create_default_context(cafile=self.ca or None))
        if self.certificate or self.key:
            self._present(context)
        return context

    def server_context(self, client_certificates: ClientCertificates) -> ssl.SSLContext:
        """Return the TLS context for connections from clients. client_certificates: whether clients must show a
        certificate. Raises ConfigError if a file cannot be used.
        """
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        self._present(context)
        if client_certificates != "none":
            self._trusting(lambda: context.load_verify_locations(self.ca))
            required = client_certificates == "required"
            context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        return context

    def own_certificate(self) -> dict[str, object]:
        """Return this side's certificate as `ssl.SSLSocket.getpeercert` shows it. Raises ConfigError if a file cannot
        be used, and also if the certificate has expired, because the TLS handshake then fails.

        Python's `ssl` cannot show the own certificate of a side, only the certificate of the other side of a
        connection. So this method makes a TLS handshake between two sides in memory: one side shows this certificate;
        the other side trusts only this certificate, and returns what it has received.
        """
        import ssl

        served, asking = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.own_context()
        self._present(served)
        there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
        client, server = asking.wrap_bio(back, there), served.wrap_bio(there, back, server_side=True)
        for side in (client, server) * _HANDSHAKE_STEPS:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                raise ConfigError(f"{self.option}.certificate", self.certificate, error.verify_message) from error
        return dict(client.getpeercert() or {})

    def own_context(self) -> ssl.SSLContext:
        """Return the TLS context for connections to a server that shows this certificate: the context trusts only this
        certificate, whatever its host is. Raises ConfigError if the file cannot be used.
        """
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            context.load_verify_locations(self.certificate)
        except OSError as error:
            raise ConfigError(f"{self.option}.certificate", self.certificate, f"it cannot be read: {error}") from error
        return context

    def stamps(self) -> list[tuple[int, int, int] | None]:
        """Return a value that is another one after a file was changed."""
        stamps: list[tuple[int, int, int] | None] = []
        for path in filter(None, (self.certificate, self.key, self.ca)):
            try:
                found = os.stat(path)
                stamps.append((found.st_ctime_ns, found.st_size, found.st_ino))
            except OSError:
                stamps.append(None)
        return stamps

    def _present(self, context: ssl.SSLContext) -> None:
        for name, path in (("certificate", self.certificate), ("key", self.key)):
            if not path:
                raise ConfigError(f"{self.option}.{name}", "", "name a PEM file: a certificate and its key go together")
            if not os.access(path, os.R_OK):
                raise ConfigError(f"{self.option}.{name}", path, "it cannot be read: name a PEM file of yours")
        check_secret(f"{self.option}.key", self.key)
        try:
            context.load_cert_chain(self.certificate, self.key, password=_no_password)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            remedy = f"it is no PEM certificate with the key {self.key}: {error}"
            raise ConfigError(f"{self.option}.certificate", self.certificate, remedy) from error

    def _trusting(self, load: Callable[[], T]) -> T:
        if self.ca and not os.access(self.ca, os.R_OK):
            raise ConfigError(f"{self.option}.ca", self.ca, "it cannot be read: name a PEM file of certificates")
        try:
            return load()
        except OSError as error:
            raise ConfigError(f"{self.option}.ca", self.ca, f"it has no PEM certificates: {error}") from error


def check_secret(option: str, path: str) -> None:
    """Raise ConfigError if a file that contains a secret cannot be read, or if anybody except the file's owner may
    access it.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise ConfigError(option, path, f"it cannot be read: {error.strerror}") from error
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigError(option, path, f"others may read this secret: chmod 600 {path}")


def _no_password() -> str:
    """Raise an error, because encrypted private keys are not supported. OpenSSL calls this function to get the password
    of such a key. If OpenSSL were given no function, it would ask for the password on the terminal.
    """
    raise ValueError(
        "the key is encrypted: metaq reads keys without a password, and checks that only you can read them"
    )
