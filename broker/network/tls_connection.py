"""A connection that the broker or the standalone ZooKeeper has accepted and that can use TLS. The objects are used only
on the reactor thread.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, ClassVar, cast

from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.main import CONNECTION_DONE, CONNECTION_LOST

from metaq.protocol.errors import TlsFailed
from metaq.protocol.record import Buffer
from metaq.protocol.tls import TlsStream

from .. import tuning
from ..runtime.few_lines import FewLines
from .transport import PlainConnection

__all__ = ["HANDSHAKE_SECONDS", "Handshakes", "TlsConnection"]

HANDSHAKE_SECONDS = 10.0
"""If a TLS handshake is not complete this many seconds after its start, the server closes the connection."""


class Handshakes:
    """Limits how long the TLS handshakes of all connections may work in one iteration of the reactor. A connection that
    gets no time does not read; its data stay in the socket, so the reactor calls it again in the next iteration.
    """

    def __init__(self, reactor: Any) -> None:
        """reactor: Twisted's reactor."""
        self.seconds: Callable[[], float] = reactor.seconds
        self._reactor = reactor
        self._spent = 0.0
        self._is_counting = False

    @property
    def has_time(self) -> bool:
        """Whether a handshake may work in this iteration."""
        return self._spent < tuning.HANDSHAKE_TURN_SECONDS

    def worked(self, since: float) -> None:
        """Record that a handshake has worked since the time `since`, of `seconds`."""
        self._spent += max(0.0, self.seconds() - since)
        if not self._is_counting:
            self._is_counting = True
            self._reactor.callLater(0, self._begin_anew)

    def _begin_anew(self) -> None:
        self._is_counting = False
        self._spent = 0.0


class TlsConnection(PlainConnection):
    """A connection that uses TLS after a call of `_begin`. Before the handshake is complete, nothing is sent but its
    messages.
    """

    refused: ClassVar[FewLines]
    """The log of refused TLS connections."""
    handshakes: ClassVar[Handshakes]
    """The time for the handshakes of all connections of this process."""
    _stream: TlsStream | None = None
    """Encrypts and decrypts the data; None if the connection does not use TLS."""
    _too_slow: Any = None

    def _begin(self, context: ssl.SSLContext) -> None:
        """Use TLS from now on. The next received bytes are the client's first bytes of the handshake."""
        self._stream = TlsStream(context, self._client_host, server_side=True)
        self._too_slow = self.reactor.callLater(HANDSHAKE_SECONDS, self._end_slow)

    def doRead(self) -> ConnectionLost | ConnectionDone | None:  # type: ignore[override]  # noqa: N802
        """Twisted calls this when data can be received."""
        if self._stream is None or self._stream.established:
            return super().doRead()
        if not self.handshakes.has_time:
            return None
        since = self.handshakes.seconds()
        try:
            return super().doRead()
        finally:
            self.handshakes.worked(since)

    def _established(self, stream: TlsStream) -> None:
        """Called when the handshake is complete, before any data are passed on. Subclasses may override this method."""

    @property
    def _client_host(self) -> str:
        return cast(str, self.getPeer().host)  # type: ignore[no-untyped-call]

    def _end_slow(self) -> None:
        self._too_slow = None
        self._say(f"its handshake took longer than {HANDSHAKE_SECONDS:g} seconds")
        self.abortConnection()  # type: ignore[no-untyped-call]

    def _say(self, reason: str) -> None:
        what = "TLS connection" if self._stream is not None else "connection"
        self.refused.info(f"the {what} of {self._client_host} is refused: {reason}")

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
                self._established(stream)
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

    def _dataReceived(self, data: bytes | None) -> ConnectionLost | ConnectionDone | None:  # type: ignore[override]  # noqa: N802
        if self._stream is None or not data:
            return super()._dataReceived(data)
        return self._decrypt(self._stream, data)
