"""The Twisted protocol for both ends of a replication connection. The protocol runs on the reactor thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure

from metaq.protocol.errors import MetaqError, PeerLost, RemoteProtocolError
from metaq.protocol.record import Buffer
from metaq.protocol.replication_stream import MAX_MESSAGE_BYTES, StreamMessage, StreamReader

from ..runtime.reactor import Transport
from . import tuning

__all__ = ["StreamProtocol"]

_log = logging.getLogger(__name__)


class StreamProtocol(Protocol):
    """Represents one end of a replication connection. The object passes received messages to `on_messages`, and sends
    the bytes that its owner gives to `send`. If `on_messages` raises an exception, the object closes the connection.
    """

    large = False
    """Whether a large request is arriving. The transport of an accepted connection (network/transport.py) reads this
    attribute of its protocol object, because it receives large requests in another way. It is always False here,
    because no large request arrives on a replication connection.
    """

    def __init__(
        self,
        name: str,
        on_messages: Callable[[Sequence[StreamMessage]], None],
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        """name: the other side's name, for error messages. on_messages: called after each read with the messages that
        are now complete. max_message_bytes: if a message is larger, the connection ends.
        """
        self.name = name
        self.on_gone: Callable[[], None] | None = None
        """Called when Twisted reports that the connection is closed. The attribute `lost` contains the error that ended
        the connection. It can be set long before this call, for example by `close`.
        """
        self.lost: MetaqError | None = None
        self.on_lost: Callable[[MetaqError], None] | None = None
        self.full = False
        """Whether the transport's send buffer is full. While it is full, the owner should send nothing more."""
        self.drains = 0
        """How many times `full` has changed from True to False."""
        self._on_messages = on_messages
        self._reader = StreamReader(max_message_bytes)
        self._drained: list[Deferred[None]] = []

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Send the buffers. On a lost connection, do nothing."""
        if self.lost is None:
            cast(Transport, self.transport).writeSequence(buffers)

    def drained(self) -> Deferred[None]:
        """Return a Deferred that fires when the transport's send buffer has room, or when the connection is lost."""
        deferred: Deferred[None] = Deferred()
        if self.full and self.lost is None:
            self._drained.append(deferred)
        else:
            deferred.callback(None)
        return deferred

    def close(self, why: MetaqError | None = None) -> None:
        """Close the connection at once, without waiting until buffered bytes are sent. why: the reason that `lost`
        reports.
        """
        self._lose(why or PeerLost(f"the connection to {self.name} was closed"))

    # --- Twisted's calls ----------------------------------------------------------------------------------------------

    def connectionMade(self) -> None:  # noqa: N802
        transport = cast(Any, self.transport)
        transport.setTcpNoDelay(True)
        transport.bufferSize = tuning.STREAM_READ_BYTES
        transport.registerProducer(self, True)

    def dataReceived(self, data: bytes) -> None:  # noqa: N802
        if self.lost is None:
            try:
                messages = self._reader.receive(data)
            except RemoteProtocolError as error:
                self._lose(PeerLost(f"{self.name} sent what is not understood: {error}"))
            else:
                self.handle(messages)

    def handle(self, messages: Sequence[StreamMessage]) -> None:
        """Pass messages to `on_messages`, as if they had just arrived. Called for new messages and for messages that
        the owner had put aside.
        """
        try:
            if messages:
                self._on_messages(messages)
        except RemoteProtocolError as error:
            self._lose(PeerLost(f"{self.name} sent what is not understood: {error}"))
        except MetaqError as error:
            self._lose(error)
        except Exception as error:
            _log.exception("a message of %s could not be handled", self.name)
            self._lose(PeerLost(f"internal error: {error!r}"))

    def connectionLost(self, reason: Failure = connectionDone) -> None:  # noqa: N802
        self._lose(PeerLost(f"the connection to {self.name} was lost: {reason.getErrorMessage()}"))
        self._reader = StreamReader()  # frees up to a block at once, not at the next garbage collection
        gone, self.on_gone = self.on_gone, None
        if gone is not None:
            gone()

    def pauseProducing(self) -> None:  # noqa: N802
        self.full = True

    def resumeProducing(self) -> None:  # noqa: N802
        self.full = False
        self.drains += 1
        self._tell_drained()

    def stopProducing(self) -> None:  # noqa: N802
        """Do nothing: Twisted calls this method when the connection is gone, and then calls connectionLost, which does
        the work.
        """

    def _tell_drained(self) -> None:
        waiting, self._drained = self._drained, []
        for deferred in waiting:
            deferred.callback(None)

    def _lose(self, error: MetaqError) -> None:
        if self.lost is not None:
            return
        self.lost = error
        cast(Transport, self.transport).abortConnection()
        self._tell_drained()
        if self.on_lost is not None:
            self.on_lost(error)
