"""TLS for the connections to ZooKeeper's servers."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from metaq.protocol.errors import ConfigError

from ..runtime.certificates import CertificateFiles
from ..runtime.logs import get_log

if TYPE_CHECKING:
    import ssl

__all__ = ["ZkTls"]

log = get_log(__name__)


class ZkTls:
    """Encrypts new connections to ZooKeeper's servers. Any thread may call the methods.

    kazoo's own TLS is not used for three reasons. It does not read certificate files again when they have changed. By
    default it does not check the host name of a server. It always trusts the system's CAs in addition to the given
    ones.
    """

    def __init__(self, files: CertificateFiles) -> None:
        """files: the CA of the servers' certificates, and the certificate that this process shows. Raises ConfigError
        if a file cannot be used.
        """
        self._files = files
        self._context = files.client_context()

    def wrap(self, connected: socket.socket, host: str) -> ssl.SSLSocket:
        """Make the TLS handshake on a connected socket, within the socket's timeout, and return the encrypted socket.
        The call closes `connected` if it fails. host: the name or address that the server's certificate must contain.

        The certificate files are read again for each connection. If they cannot be used any more, the call uses their
        former content. Raises ssl.SSLError, TimeoutError, OSError.
        """
        try:
            self._context = self._files.client_context()
        except ConfigError as error:
            log.warning("the former certificate files for ZooKeeper stay in use: %s", error)
        try:
            return self._context.wrap_socket(connected, server_hostname=host)
        except BaseException:
            connected.close()
            raise

    @staticmethod
    def refusal(error: OSError) -> str:
        """Return a text that says why a TLS connection cannot be made and what to do. Return "" if the error has
        another cause than TLS.
        """
        import ssl

        if isinstance(error, ssl.SSLCertVerificationError):
            return f"its certificate is refused: {error.verify_message}: check `ca` and the name in the connect string"
        if not isinstance(error, ssl.SSLError):
            return ""
        if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNEXPECTED_EOF_WHILE_READING"):
            return "this port does not speak TLS: name the server's secureClientPort"
        return f"{(error.reason or str(error)).lower().replace('_', ' ')}: check `certificate` and `key`"
