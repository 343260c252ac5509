"""The transport of a connection. It is Twisted's transport with the three changes that speed up a protocol of requests
and answers most.

- `write` passes the data to the socket at once when nothing is buffered. Twisted's own `write` only buffers the data
  until the next iteration of the reactor. If a client waits for each answer before it sends the next message, this
  buffering costs two additional calls of epoll_ctl and one of epoll_wait for each message.
- Buffered data are sent without being copied; Twisted copies all buffered data into one buffer each time it sends.
- The size of the buffer into which data are received depends on how much arrives at once. If requests arrive singly,
  the buffer is small, because allocating a large buffer would take longer than handling the request. While many
  requests arrive together, a larger buffer is used. The rest of a large frame is received directly into the frame's
  buffer.

The benchmark for all three changes is `python -m bench --system ours --scenario blocking-1 --scenario batch --scenario
consume`.

No module except this one uses private attributes of Twisted. FastConnection was tested with some versions of Twisted.
For these versions `connection_class` returns FastConnection; for any other version it returns a class that uses
Twisted's own transport.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, cast

from twisted import __version__ as twisted_version
from twisted.internet import tcp
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.main import CONNECTION_DONE, CONNECTION_LOST

from metaq.protocol.access import ANYBODY, Principal
from metaq.protocol.record import Buffer

from .. import tuning

if TYPE_CHECKING:
    from .session import Session

__all__ = ["FastConnection", "PlainConnection", "connection_class"]

_log = logging.getLogger(__name__)

TESTED = ((24, 7), (26, 10))
"""The first and the last version of Twisted, each as (year, month), with which FastConnection was tested; it was also
tested with all versions between them. With an earlier or later version, `PlainConnection` is used.
"""

_MAX_BUFFERS = 512  # below Linux's IOV_MAX


def connection_class(version: str = twisted_version) -> type[tcp.Server]:
    """Return the class for accepted connections that works with this version of Twisted."""
    year, month = map(int, version.split(".")[:2])
    if TESTED[0] <= (year, month) <= TESTED[1]:
        return FastConnection
    _log.warning(
        "the fast transport is not tested with Twisted %s: this broker serves with Twisted's own, which is slower; "
        "install a version from %d.%d to %d.%d",
        *(version, *TESTED[0], *TESTED[1]),
    )
    return PlainConnection


class PlainConnection(tcp.Server):
    """An accepted connection that works with every version of Twisted, because it uses only Twisted's public
    interface.
    """

    def __init__(self, sock: socket.socket, *others: Any) -> None:
        """Accepts the arguments that Twisted passes to a connection."""
        self._set_options(sock)
        super().__init__(sock, *others)

    def _set_options(self, sock: socket.socket) -> None:
        """Set the options of a TCP socket."""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, tuning.KEEPALIVE_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, tuning.KEEPALIVE_SECONDS // 3)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)

    certified_hosts: frozenset[str] = frozenset()
    """The hosts that the client's verified certificate names; without TLS there are none."""

    principal: Principal = ANYBODY
    """The broker or user that the client's verified certificate names."""

    is_encrypted = False
    """Whether the connection uses TLS."""

    sent_bytes = 0
    """The number of bytes that were in the transport's buffer before they were sent. Bytes that `write` has passed to
    the socket at once do not count.
    """

    def is_reset(self) -> bool:
        """Return whether the client has reset the connection since the last call. This also works while the broker does
        not read from the connection.
        """
        return self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0

    def writeSomeData(self, data: bytes) -> int | ConnectionLost:  # noqa: N802
        """Send data as Twisted does: return the number of bytes sent, or the reason why none were sent."""
        sent = super().writeSomeData(data)
        if isinstance(sent, int):
            self.sent_bytes += sent
        return sent

    def write(self, data: Buffer) -> None:
        """Write data to the connection. The data are converted to bytes, because Twisted accepts nothing else."""
        super().write(bytes(data))  # type: ignore[no-untyped-call]

    def writeSequence(self, iovec: Iterable[Buffer]) -> None:  # noqa: N802
        """Like `write`, for several buffers."""
        super().writeSequence([bytes(data) for data in iovec])  # type: ignore[no-untyped-call]


class FastConnection(PlainConnection):
    """An accepted connection with the three changes that the module's docstring describes."""

    bufferSize = 64 * 1024  # buffered bytes that pause the session  # noqa: N815
    large_buffers: ClassVar[set[FastConnection]] = set()
    """The connections whose socket has a receive buffer of RECEIVE_BYTES in the kernel; their number is limited."""
    _read_bytes = tuning.SMALL_READ_BYTES

    def doRead(self) -> ConnectionLost | ConnectionDone | None:  # type: ignore[override]  # noqa: N802
        """Twisted calls this when data can be received. Receive data once and pass them to the session; but if
        `reads_later` of the session returns True, do nothing: the session receives the data in the connection's next
        turn.
        """
        session: Session = self.protocol  # `cast` is a call, and shows in bench blocking-1
        if session.large and session.reads_later():
            return None
        return self.read_once()

    def read_once(self) -> ConnectionLost | ConnectionDone | None:
        """Receive data once now, and pass them to the session. Return None, or, if the connection has ended, the reason
        of its end.
        """
        session: Session = self.protocol
        space = session.space if session.large else None
        try:
            if space is not None:
                since = session.seconds()
                count = self.socket.recv_into(space)
            else:
                data = self.socket.recv(self._read_bytes)
                count = len(data)
        except BlockingIOError:
            return None
        except OSError:
            return CONNECTION_LOST
        if not count:
            return CONNECTION_DONE
        if space is not None:
            session.received(count, since)
        else:
            if count >= tuning.RECEIVES_MUCH_BYTES or self._read_bytes != tuning.SMALL_READ_BYTES:
                self._fit_reads(count)
            session.dataReceived(data)
        return None

    def _fit_reads(self, count: int) -> None:
        """Choose how many bytes the next read may receive, and the size of the socket's receive buffer. count: number
        of bytes that the present read has received.
        """
        self._read_bytes = tuning.LARGE_READ_BYTES if count >= tuning.SMALL_READ_BYTES else tuning.SMALL_READ_BYTES
        large = FastConnection.large_buffers
        if count < tuning.RECEIVES_MUCH_BYTES or self in large or len(large) >= tuning.MAX_LARGE_BUFFERS:
            return
        if _may_receive():
            large.add(self)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, tuning.RECEIVE_BYTES)

    def connectionLost(self, reason: Any) -> None:  # noqa: N802
        """Twisted calls this when the connection has ended. If this connection had a large receive buffer, their
        number, which is limited, decreases by one; so another connection may get one.
        """
        FastConnection.large_buffers.discard(self)
        super().connectionLost(reason)

    def write(self, data: Buffer) -> None:
        """Write data to the connection. Bytes that the socket accepts now are sent at once; the remaining bytes are
        buffered.
        """
        if self._nothing_buffered:
            try:
                sent = self.socket.send(data)
            except OSError:  # the socket is full or broken: the reactor will try again and find out
                sent = 0
            if sent == len(data):
                return
            data = memoryview(data)[sent:]
        self._buffer((data,))

    def writeSequence(self, iovec: Iterable[Buffer]) -> None:  # noqa: N802
        """Like `write`, for several buffers, which are not joined."""
        buffers = list(iovec)
        if len(buffers) > _MAX_BUFFERS:
            buffers = [b"".join(buffers)]
        if self._nothing_buffered:
            try:
                sent = self.socket.sendmsg(buffers)
            except OSError:
                sent = 0
            buffers = _rest(buffers, sent)
        self._buffer(buffers)

    def doWrite(self) -> Any:  # noqa: N802
        """Send buffered data. When no buffered data are left, call Twisted's own `doWrite`."""
        buffers = cast(list[Buffer], self._tempDataBuffer)
        if buffers:
            try:
                sent = self.socket.sendmsg(buffers[:_MAX_BUFFERS])
            except BlockingIOError:
                return None
            except OSError:
                return CONNECTION_LOST
            self._tempDataBuffer = cast(list[bytes], _rest(buffers, sent))
            self._tempDataLen -= sent
            self.sent_bytes += sent
            if self._tempDataLen:
                return None
        return super().doWrite()  # type: ignore[no-untyped-call]

    @property
    def _nothing_buffered(self) -> bool:
        return bool(self.connected) and not (self._tempDataLen or self.disconnecting)

    def _buffer(self, buffers: Iterable[Buffer]) -> None:
        if not self.connected:
            return
        for data in buffers:
            if data:
                self._tempDataBuffer.append(cast(bytes, data))  # Twisted joins them, so any buffer may be used
                self._tempDataLen += len(data)
        if self._tempDataLen:
            self._maybePauseProducer()  # type: ignore[no-untyped-call]
            self.startWriting()  # type: ignore[no-untyped-call]


@cache
def _may_receive() -> bool:
    """Return whether the system allows a receive buffer of RECEIVE_BYTES (net.core.rmem_max). If the system does not
    allow it, the broker does not set the size of the buffer at all: the kernel then chooses the size itself, and this
    size can be larger than net.core.rmem_max.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, tuning.RECEIVE_BYTES)
        return probe.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= tuning.RECEIVE_BYTES


def _rest(buffers: list[Buffer], sent: int) -> list[Buffer]:
    """Return the content of the buffers without their first `sent` bytes."""
    for number, data in enumerate(buffers):
        if sent < len(data):
            return [memoryview(data)[sent:], *buffers[number + 1 :]]
        sent -= len(data)
    return []
