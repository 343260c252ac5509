"""A connected socket that encrypts its data by TLS. The class has the socket methods that `Wire` calls."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Sequence

from metaq.protocol.errors import TlsFailed
from metaq.protocol.record import Buffer
from metaq.protocol.tls import TlsStream

from .tls_remedies import NO_HANDSHAKE

__all__ = ["TlsSocket"]

_CHUNK_BYTES = 64 << 10
"""One call of `send` encrypts and sends at most this number of bytes of the data."""
_SMALL_RECEIVE_BYTES = 16 << 10
_RECEIVE_BYTES = 256 << 10
"""The next call of `recv` of the socket asks for this number of bytes if the last one has received at least
_SMALL_RECEIVE_BYTES, else for these: the buffer of a large one costs as much as the encryption of a small message.
"""
_TORN = "an interrupt has torn the TLS connection"


class TlsSocket:
    """A TLS connection with the methods of a socket. Only one thread at a time may receive, and only one thread at a
    time may send. One thread may receive while another thread sends.

    All methods raise OSError, as the methods of a socket do. The cause of the OSError may be a TlsFailed. After an
    error the connection cannot be used any more.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, host: str, peer: str) -> None:
        """sock: a connected socket with a timeout for the handshake. host: the host name or address that the broker's
        certificate must contain. Raises OSError.
        """
        self._sock = sock
        self._stream = TlsStream(context, peer, server_hostname=host)
        self._lock = threading.Lock()  # held while a thread uses the stream
        self._plaintext = b""
        self._receive_bytes = _SMALL_RECEIVE_BYTES
        self._unsent = memoryview(b"")  # unsent TLS records of the current chunk
        self._chunk = 0  # plaintext bytes of the current chunk
        self._torn_in = self._torn_out = False  # an interrupt has left `recv` or `send` between two of its steps
        self.fileno = sock.fileno
        self.settimeout, self.gettimeout, self.setsockopt = sock.settimeout, sock.gettimeout, sock.setsockopt
        self.shutdown, self.close = sock.shutdown, sock.close
        self._shake_hands()

    def _shake_hands(self) -> None:
        data = b""
        while True:
            try:
                self._stream.receive(data)
            except TlsFailed as error:
                self._sock.sendall(self._stream.take())
                raise OSError(error) from error
            self._sock.sendall(self._stream.take())
            if self._stream.established:
                return
            try:
                data = self._sock.recv(_RECEIVE_BYTES)
            except TimeoutError as error:
                raise TimeoutError(NO_HANDSHAKE) from error
            if not data:
                raise ConnectionResetError("it closed the connection in the TLS handshake")

    @property
    def has_more(self) -> bool:
        """Whether there is decrypted data that `recv` has not returned yet."""
        return bool(self._plaintext)

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Return up to `size` bytes, or b"" at the end of the stream. flags: ignored. So even if the caller passes
        MSG_WAITALL, fewer than `size` bytes may come. The caller must then call `recv` again for the rest.
        """
        while not self._plaintext:
            if self._torn_in:
                raise ConnectionAbortedError(_TORN)
            data = self._sock.recv(self._receive_bytes)
            if not data:
                return b""
            self._torn_in = True
            self._receive_bytes = _RECEIVE_BYTES if len(data) >= _SMALL_RECEIVE_BYTES else _SMALL_RECEIVE_BYTES
            try:
                with self._lock:
                    self._stream.receive(data)
                    self._plaintext = self._stream.read()
            except TlsFailed as error:
                raise OSError(error) from error
            self._torn_in = False
            if self._stream.ended and not self._plaintext:
                return b""
        if len(self._plaintext) <= size:
            found, self._plaintext = self._plaintext, b""
        else:
            found, self._plaintext = self._plaintext[:size], self._plaintext[size:]
        return found

    def send(self, data: Buffer) -> int:
        """Send the first bytes of the data, at most _CHUNK_BYTES, and return their number. Raises BlockingIOError if
        the socket has not accepted all of these bytes. After this error the caller must call `send` with the same data
        again, which sends the rest of the encrypted bytes.
        """
        if self._torn_out:
            raise ConnectionAbortedError(_TORN)
        if not self._unsent:
            chunk = memoryview(data)[:_CHUNK_BYTES]
            self._torn_out = True
            with self._lock:
                self._stream.write((chunk,))
                self._unsent = memoryview(self._stream.take())
            self._chunk = len(chunk)
            self._torn_out = False
        while self._unsent:
            self._unsent = self._unsent[self._sock.send(self._unsent) :]
        return self._chunk

    def sendmsg(self, buffers: Sequence[Buffer]) -> int:
        """Send the concatenated buffers, and return the number of bytes sent, as `send` does."""
        first: list[Buffer] = []
        size = 0
        for data in buffers:
            first.append(data)
            size += len(data)
            if size >= _CHUNK_BYTES:
                break
        return self.send(first[0] if len(first) == 1 else b"".join(first))

    def sendall(self, data: Buffer) -> None:
        """Send all of the data."""
        left = memoryview(data)
        while left:
            left = left[self.send(left) :]
