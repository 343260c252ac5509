"""TLS without I/O: decrypt the bytes that a connection has received, and encrypt the bytes to send.

Brokers and clients of metaq use this module; the encryption itself is done by OpenSSL, through Python's module ssl. In
this module OpenSSL reads and writes memory buffers instead of a socket. As OpenSSL does not use the socket, one thread
can send on a connection's socket while another thread waits to receive. For the same reason a broker can itself read
the first byte of a connection, by which it recognizes whether the connection uses TLS.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import ip_address
from typing import cast

from .access import ANYBODY, Principal, is_user
from .errors import TlsFailed
from .record import Buffer

__all__ = ["TlsStream"]

_READ_BYTES = 16 << 10
"""Maximum number of bytes of plaintext that one TLS record can contain."""
_ALL_BYTES = 1 << 30
_JOINED_BYTES = 64 << 10
"""Successive buffers are joined before encryption as long as their total size is less than this number of bytes,
because copying them costs less than additional TLS records.
"""


class TlsStream:
    """Encrypts and decrypts the data of one TLS connection, at one of its two ends. The methods may be called by one
    thread at a time.
    """

    def __init__(
        self, context: ssl.SSLContext, peer: str, *, server_side: bool = False, server_hostname: str | None = None
    ) -> None:
        """peer: the name of the program at the other end of the connection, for error texts. server_hostname: for a
        client, the name that the server's certificate must contain.
        """
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side, server_hostname)
        self.peer = peer
        """The name of the program at the other end of the connection, for error texts."""
        self.established = False
        """Whether the handshake is complete, so that data can be sent in both directions."""
        self.ended = False
        """Whether the peer has sent the TLS alert close_notify, which means that the peer sends no more data."""

    def receive(self, data: Buffer) -> None:
        """Take bytes that the connection has received, and continue the handshake if it is not complete. A call with
        empty `data` begins the handshake. Raises TlsFailed; the caller should then send the bytes that `take` returns,
        which tell the peer about the error.
        """
        if data:
            self._incoming.write(data)
        if not self.established:
            self._shake_hands()

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise _failed(self.peer, error) from error
        self.established = True

    def read(self, size: int = _ALL_BYTES) -> bytes:
        """Return the decrypted data, at most `size` bytes. Return b"" if no complete TLS record has arrived, or if the
        peer has ended its stream and all data was returned. The returned data may be longer than the bytes of the last
        `receive` call, because the first bytes of a TLS record may have arrived earlier. Raises TlsFailed.
        """
        parts: list[bytes] = []
        left = size
        while left > 0 and self.established and not self.ended:
            try:
                part = self._tls.read(min(left, _READ_BYTES))
            except ssl.SSLWantReadError:
                break
            except ssl.SSLError as error:
                if error.reason != "UNEXPECTED_EOF_WHILE_READING" and not isinstance(error, ssl.SSLZeroReturnError):
                    raise _failed(self.peer, error) from error
                part = b""
            if not part:
                self.ended = True
                break
            parts.append(part)
            left -= len(part)
            if not (self._incoming.pending or self._tls.pending()):
                break  # another read would only raise SSLWantReadError; its benchmark: bench.secure, single sends
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, buffers: Iterable[Buffer]) -> None:
        """Encrypt data to send; `take` returns the result. May only be called when `established` is true."""
        small: list[Buffer] = []
        size = 0
        for data in buffers:
            if size + len(data) < _JOINED_BYTES:
                small.append(data)
                size += len(data)
                continue
            self._encrypt(small)
            small, size = [], 0
            self._tls.write(data)
        self._encrypt(small)

    def _encrypt(self, small: list[Buffer]) -> None:
        data = small[0] if len(small) == 1 else b"".join(small)
        if len(data):
            self._tls.write(data)

    def take(self) -> bytes:
        """Return the bytes to send on the connection: handshake messages, encrypted records and alerts."""
        return self._outgoing.read()

    def end(self) -> None:
        """Record that this program sends no more data. `take` then returns a TLS alert; the alert tells the peer that
        no more data follows.
        """
        with suppress(ssl.SSLError):  # the other side has not said so yet, or the handshake is not over
            self._tls.unwrap()

    @property
    def certificate(self) -> dict[str, object]:
        """The peer's verified certificate, in the form of `ssl.SSLSocket.getpeercert`. The dict is empty if the peer
        has no certificate.
        """
        found: dict[str, object] = dict(self._tls.getpeercert() or {}) if self.established else {}
        return found

    @property
    def certificate_bytes(self) -> bytes:
        """The peer's verified certificate in DER. It is b"" if the peer has no certificate."""
        return (self._tls.getpeercert(True) or b"") if self.certificate else b""

    @property
    def certified_hosts(self) -> frozenset[str]:
        """The DNS names, in lower case, and the IP addresses in the peer's verified certificate."""
        named = cast("Iterable[tuple[str, str]]", self.certificate.get("subjectAltName", ()))
        return frozenset(
            str(ip_address(name)) if kind == "IP Address" else name.lower()
            for kind, name in named
            if kind in ("IP Address", "DNS")
        )

    @property
    def principal(self) -> Principal:
        """Who the peer is, by its verified certificate. A certificate that names a host is a broker's; the name is one
        of its hosts. Another certificate is a user's; its subject's common name is the user's name.
        """
        if hosts := self.certified_hosts:
            return Principal("broker", min(hosts))
        subject = cast("Iterable[Iterable[tuple[str, str]]]", self.certificate.get("subject", ()))
        names = [value for part in subject for kind, value in part if kind == "commonName"]
        return Principal("user", names[0]) if len(names) == 1 and is_user(names[0]) else ANYBODY


def _failed(peer: str, error: ssl.SSLError) -> TlsFailed:
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsFailed(peer, f"its certificate is refused: {error.verify_message}", is_ours=True)
    return TlsFailed(peer, (error.reason or str(error)).lower().replace("_", " "))
