"""A connected socket whose bytes pass TLS, with the methods of a socket that `Wire` uses."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Sequence

from metaq.protocol.errors import TlsFailed
from metaq.protocol.record import Buffer
from metaq.protocol.tls import TlsStream

__all__ = ["TlsSocket"]

_CHUNK_BYTES = 64 << 10
"""Plaintext that one `send` encrypts."""
_RECEIVE_BYTES = 256 << 10
_TORN = "an interrupt has torn the TLS connection"


class TlsSocket:
    """One thread at a time receives, one at a time sends; a receive and a send may run at once.

    All methods raise OSError as a socket's do, and TlsFailed is one of its causes: a connection that has failed is of
    no use.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, host: str, peer: str) -> None:
        """sock: connected, with a timeout for the handshake. host: the name or address that the certificate must have.
        Raises OSError."""
        self._sock = sock
        self._stream = TlsStream(context, peer, server_hostname=host)
        self._lock = threading.Lock()  # held while the stream works
        self._plaintext = b""
        self._unsent = memoryview(b"")  # records of the chunk that is being sent
        self._chunk = 0  # its plaintext bytes
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
                raise TimeoutError("no answer to the TLS handshake: does this port speak TLS?") from error
            if not data:
                raise ConnectionResetError("it closed the connection in the TLS handshake: does this port speak TLS?")

    @property
    def has_more(self) -> bool:
        """Whether there is plaintext that no receive has returned."""
        return bool(self._plaintext)

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Return up to `size` bytes, b"" at the end. flags: ignored; a caller that waits for all bytes calls again."""
        while not self._plaintext:
            if self._torn_in:
                raise ConnectionAbortedError(_TORN)
            data = self._sock.recv(_RECEIVE_BYTES)
            if not data:
                return b""
            self._torn_in = True
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
        """Send a first part of the data, and return its length. Raises BlockingIOError if the socket did not take all
        of it: the next call must have the same data, and goes on with it."""
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
        """As `send`, for the buffers one behind the other."""
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
