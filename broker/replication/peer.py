"""A connection from a slave to its master, or from a synchronous master to its slave. Used only on the reactor thread.

A ClientStream encodes the requests and decodes the answers, and Twisted sends and receives the bytes.
client/transport/connection.py does the same for blocking threads.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, cast

from twisted.internet.defer import Deferred
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.task import LoopingCall, deferLater
from twisted.python.failure import Failure

from metaq.coordination.runtime.backoff import Backoff
from metaq.protocol.client_stream import ClientStream, Reply
from metaq.protocol.errors import (
    MetaqError,
    PeerLost,
    PeerTimedOut,
    RemoteProtocolError,
    ReplicationError,
    RequestTimedOut,
    TlsFailed,
)
from metaq.protocol.frames import Frame, encode_frame
from metaq.protocol.record import Buffer
from metaq.protocol.text import Answer, Result, encode_version

from ..runtime.dialing import meta_url
from ..runtime.host import Host
from ..runtime.reactor import Transport
from ..runtime.scheduled_calls import repeat

__all__ = ["CONNECT_SECONDS", "KeptPeer", "OnReply", "Peer", "connect"]

_log = logging.getLogger(__name__)

OnReply = Callable[[Reply | None, MetaqError | None], None]
"""Called with the outcome of a request: done(reply, None), or done(None, error). The error is PeerLost or
PeerTimedOut.
"""

CONNECT_SECONDS = 5.0
"""Two steps may each take this many seconds: making a connection, and then waiting for the first answer on it."""

_SWEEP_SECONDS = 0.1


class _Asked(NamedTuple):
    done: OnReply
    deadline: float


class Peer(Protocol):
    """An open connection to another broker. The connection uses the text protocol until `agree` is called. It counts as
    lost also when the other broker has sent malformed data.
    """

    def __init__(self, reactor: Any, name: str) -> None:
        """name: name of the other broker, used in the text of errors."""
        self.name = name
        self.lost: MetaqError | None = None
        self.on_lost: Callable[[Exception], None] | None = None
        self._reactor = reactor
        self._stream = ClientStream[_Asked](name)
        self._sweep: LoopingCall | None = None

    # --- asking -------------------------------------------------------------------------------------------------------

    def send(self, build: Callable[[int], Sequence[Buffer]], done: OnReply, timeout: float) -> None:
        """Send the bytes that `build(opaque)` returns. `done` is called once, at the latest after `timeout` seconds."""
        if self.lost is not None:
            done(None, self.lost)
            return
        opaque = self._stream.new_opaque()
        self._stream.pending[opaque] = _Asked(done, self._reactor.seconds() + timeout)
        # Twisted takes only bytes
        buffers = [each if isinstance(each, bytes) else bytes(each) for each in build(opaque)]
        cast(Transport, self.transport).writeSequence(buffers)

    def text(self, build: Callable[[int], bytes], timeout: float) -> Deferred[Answer]:
        """Send a text command; the Deferred gets its answer. Fails with PeerLost, PeerTimedOut."""
        return self._ask(lambda opaque: (build(opaque),), timeout)

    def frame(self, code: int, ext: Mapping[str, str | int], timeout: float) -> Deferred[Frame]:
        """Send a frame without a body; the Deferred gets its answer. Fails with PeerLost, PeerTimedOut."""
        return self._ask(lambda opaque: (encode_frame(code, opaque, ext),), timeout)

    def heartbeat(self, timeout: float) -> Deferred[Answer]:
        """Send a `version` command, to find out whether the other broker still answers. To be called only while the
        connection uses the text protocol. Fails with PeerLost, PeerTimedOut.
        """
        return self.text(encode_version, timeout)

    def _ask(self, build: Callable[[int], Sequence[Buffer]], timeout: float) -> Deferred[Any]:
        deferred: Deferred[Any] = Deferred()

        def done(reply: Reply | None, error: MetaqError | None) -> None:
            if error is None:
                deferred.callback(reply)
            else:
                deferred.errback(error)

        self.send(build, done, timeout)
        return deferred

    @property
    def version(self) -> str:
        """The version of metaq that the other broker reports."""
        return self._stream.peer_version

    @property
    def speaks_frames(self) -> bool:
        return self._stream.speaks_frames

    @property
    def waiting(self) -> int:
        """The number of unanswered requests."""
        return len(self._stream.pending)

    def close(self) -> None:
        """Close the connection. Requests that still wait for an answer fail with PeerLost."""
        self._lose(PeerLost(f"the connection to {self.name} was closed"))

    # --- Twisted's calls ----------------------------------------------------------------------------------------------

    def connectionMade(self) -> None:  # noqa: N802
        cast(Any, self.transport).setTcpNoDelay(True)
        self._sweep = repeat(_SWEEP_SECONDS, self._expire, self._reactor, f"the time limit of requests to {self.name}")

    def dataReceived(self, data: bytes) -> None:  # noqa: N802
        try:
            self._stream.receive(data)
        except RemoteProtocolError as error:
            self._lose(PeerLost(f"{self.name} sent a malformed answer: {error}"))
        self._tell()

    def connectionLost(self, reason: Failure = connectionDone) -> None:  # noqa: N802
        self._lose(PeerLost(f"the connection to {self.name} was lost: {reason.getErrorMessage()}"))

    def agree(self, version: str, frames: bool) -> None:
        """Set the protocol of the connection from now on. It consists of frames if `frames` is true and the other
        broker's version supports frames, and otherwise of text commands. When this method is called, no request may be
        waiting for an answer.
        """
        self._stream = ClientStream(self.name, version, text=not frames)

    def _lose(self, error: MetaqError) -> None:
        if self.lost is not None:
            return
        self.lost = error
        if self._sweep is not None:
            self._sweep.stop()
        cast(Transport, self.transport).abortConnection()
        self._stream.end(list(self._stream.pending), error)
        self._tell()
        if self.on_lost is not None:
            self.on_lost(error)

    def _expire(self) -> None:
        self._stream.expire(self._reactor.seconds())
        self._tell()

    def _tell(self) -> None:
        outcomes = self._stream.outcomes
        while outcomes:
            asked, reply, error = outcomes.popleft()
            asked.done(reply, PeerTimedOut(str(error)) if isinstance(error, RequestTimedOut) else error)


def connect(broker: Host, host: str, port: int, timeout: float, *, frames: bool = True) -> Deferred[Peer]:
    """Open a connection to another broker, and find out the broker's version and protocol. Fails with PeerLost,
    PeerTimedOut.

    host: a name or an address, IPv6 without brackets. timeout: seconds for connecting, and again for the first answer.
    frames: False to use text commands even if the other broker supports frames.
    """
    name = meta_url(host, port)
    connecting = broker.dial(host, port, timeout, lambda: Peer(broker.reactor, name))

    def refused(failure: Failure) -> NoReturn:
        if isinstance(failure.value, TlsFailed):
            raise PeerLost(failure.getErrorMessage())
        raise PeerLost(f"no connection to {name}: {failure.getErrorMessage()}")

    def connected(peer: Peer) -> Deferred[Peer]:
        asked = peer.text(encode_version, timeout)
        return asked.addCallbacks(_agree, _give_up, callbackArgs=(peer, frames), errbackArgs=(peer,))

    return connecting.addCallbacks(connected, refused)


def _agree(answer: Answer, peer: Peer, frames: bool) -> Peer:
    peer.agree(answer.text if isinstance(answer, Result) else "", frames)
    return peer


def _give_up(failure: Failure, peer: Peer) -> Failure:
    peer.close()
    return failure


Serve = Callable[[Peer, Deferred[None]], Awaitable[None]]
"""serve(peer, lost): uses a connection; returns after `lost` has fired."""


class KeptPeer:
    """Keeps a connection to one other broker open. When the connection is lost or an attempt to connect fails, it
    connects again, with longer and longer pauses, as often as necessary.
    """

    def __init__(self, broker: Host, pauses: Backoff, complaint: str, *, frames: bool = True) -> None:
        """complaint: the format of a log line; its only argument is the reason why there is no connection. frames: see
        `connect`.
        """
        self.peer: Peer | None = None
        """The open connection, or None while there is no connection."""
        self.error = ""
        """The reason why there is no connection."""
        self.since_ms = 0
        """When the connection was last made or lost (wall clock, Unix ms), or 0 if no connection was ever made.
        """
        self.stopped = False
        self._broker = broker
        self._pauses = pauses
        self._complaint = complaint
        self._frames = frames

    async def keep(
        self, where: Callable[[], Awaitable[tuple[str, int] | None]], serve: Serve, tried: Callable[[], None]
    ) -> None:
        """Keep the connection until `stop` is called. where: returns the host and port to connect to; if `where`
        returns None, it is called again later. tried: called after a failed attempt to connect.
        """
        while not self.stopped:
            address = await where()
            if address is None:
                continue
            try:
                peer = await connect(self._broker, *address, CONNECT_SECONDS, frames=self._frames)
            except ReplicationError as error:
                self.trouble(str(error))
                tried()
                await deferLater(cast(Any, self._broker.reactor), self._pauses.next())
                continue
            self._pauses.reset()
            await self._use(peer, serve)

    async def _use(self, peer: Peer, serve: Serve) -> None:
        lost: Deferred[None] = Deferred()
        if peer.lost is not None:
            return

        def gone(error: Exception) -> None:
            self.peer = None
            lost.callback(None)

        peer.on_lost = gone
        self.peer, self.error, self.since_ms = peer, "", self._broker.now_ms()
        if self.stopped:
            peer.close()
        await serve(peer, lost)
        self.since_ms = self._broker.now_ms()
        if not self.stopped:
            self.trouble(str(peer.lost))

    def stop(self) -> None:
        """Close the connection to the other broker, and do not connect again."""
        self.stopped = True
        self.restart()

    def restart(self) -> None:
        """Close the connection to the other broker, so that `keep` connects again."""
        if self.peer is not None:
            self.peer.close()

    def trouble(self, text: str) -> None:
        """Log the reason why there is no connection, unless it is the reason that was logged last."""
        if text != self.error:
            self.error = text
            _log.warning(self._complaint, text)
