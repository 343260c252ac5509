"""One TCP connection to a broker on an event loop.

Requests are pipelined, as on a connection of the client with threads (transport/connection.py), and protocol/
client_stream.py finds the request of each answer. Everything runs on the event loop's thread. The `on_done` of every
request is called exactly once: with an answer, soon after the request's deadline, or when the connection ends.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, cast

from metaq.coordination.runtime.logs import get_log
from metaq.protocol.client_stream import ClientStream, Opening, Reply
from metaq.protocol.errors import (
    BrokerUnavailable,
    ClientError,
    MetaqError,
    RemoteProtocolError,
    RequestTimedOut,
    TlsFailed,
)
from metaq.protocol.record import Buffer

from ..runtime.waiting import Exchange, OnBegun, OnDone, Waiter
from ..settings.config import ConnectionConfig
from ..transport.channel import Build, KnownBroker
from ..transport.tls_remedies import NO_HANDSHAKE
from ..transport.wire import TICK, UNIX, Endpoint, no_connection, opening_failure, protection
from .loop import on_loop

if TYPE_CHECKING:
    from metaq.protocol.tls import TlsStream

__all__ = ["LoopConnection", "OnThread", "open_connection"]

log = get_log(__name__)

_JUST_NOW_SECONDS = 0.001
"""If data arrived at most this number of seconds ago, a send does not check whether the broker has closed the
connection, because the check is a system call.
"""

OnThread = Callable[[Callable[[], object]], Awaitable[object]]
"""The type of BlockingThread.run."""


class LoopConnection(KnownBroker, asyncio.Protocol):
    """An open connection to a broker; transport/connection.py describes the attributes that both clients have. Only the
    event loop's thread uses it.

    on_closed: called once, when the connection has ended.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        endpoint: Endpoint,
        stream: ClientStream[Exchange],
        tls: TlsStream | None,
        config: ConnectionConfig,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(endpoint, stream)
        self.expects_bulk = False
        self.failure: MetaqError | None = None
        self.on_closed: Callable[[LoopConnection], None] | None = None
        self._transport = transport
        self._stream = stream
        self._tls = tls
        self._config = config
        self._loop = loop
        self._clock = clock
        self._last_traffic = clock()
        self._look_is_set = False
        self._heartbeat_under_way = False

    # --- requests ---------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self.failure is not None

    @property
    def in_flight(self) -> int:
        """Number of requests that were sent and have no answer yet."""
        return len(self._stream.pending)

    def notice_end(self, now: float) -> MetaqError | None:
        """Return `failure`. If no request is in flight and the last answer is not very recent, first check at the
        socket whether the broker has closed the connection, which the loop may not have noticed yet.
        """
        if self.failure is None and not self._stream.pending and now - self._last_traffic >= _JUST_NOW_SECONDS:
            poll = select.poll()
            poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
            if poll.poll(0):
                self.fail(BrokerUnavailable(f"{self.endpoint} has closed the connection"))
        return self.failure

    def submit(
        self,
        build: Build,
        on_done: OnDone,
        deadline: float,
        *,
        background: bool = True,
        on_begun: OnBegun | None = None,
    ) -> None:
        """Send one request. build: a function that makes the request's bytes; if it raises LocalProtocolError, this
        method raises the same error. on_begun: ignored, because an answer is only seen as a whole.
        """
        request = Exchange(self.new_opaque(), on_done, deadline, background)
        self.send((request,), build(request.opaque))

    def send(self, requests: Sequence[Exchange], buffers: Sequence[Buffer]) -> None:
        """Send several requests without waiting for answers between them. buffers: the bytes of all requests, with
        their opaque numbers.
        """
        pending = self._stream.pending
        failure = self.failure
        if failure is None and len(pending) >= self._config.max_in_flight_requests:
            failure = BrokerUnavailable(f"{self.endpoint} has {len(pending)} requests under way already")
        if failure is not None:
            for request in requests:
                request.on_done(None, failure)
            return
        for request in requests:
            pending[request.opaque] = request
        requests[0].taken = True
        self._write(buffers)
        if not self._look_is_set:
            self._look_is_set = True
            self._loop.call_later(TICK, self._look)

    async def ask(self, build: Build, timeout: float | None = None) -> Reply:
        """Send a request, and wait at most `timeout` seconds for its answer (default: the request timeout). Raises
        RequestTimedOut, BrokerUnavailable, LocalProtocolError. An error answer is returned, not raised.
        """
        future: asyncio.Future[Reply] = self._loop.create_future()

        def done(reply: Reply | None, error: MetaqError | None) -> None:
            if future.done():
                return  # its task was cancelled
            if reply is not None:
                future.set_result(reply)
            else:
                future.set_exception(error or RequestTimedOut(f"{self.endpoint} did not answer in time"))

        seconds = self._config.request_timeout_seconds if timeout is None else timeout
        self.submit(build, done, self._clock() + seconds)
        return await future

    def call(self, build: Build, timeout: float | None = None) -> Reply:
        """Do the same as `ask`, on another thread than the event loop's, and block this thread meanwhile."""
        seconds = self._config.request_timeout_seconds if timeout is None else timeout
        return on_loop(self._loop, self.ask(build, seconds), seconds)

    def read_in_background(self) -> None:
        """Do nothing: the event loop reads all connections."""

    def drive(self, waiter: Waiter, deadline: float) -> None:
        """Raise ClientError: on an event loop no thread may wait for an answer."""
        raise ClientError(f"the connection to {self.endpoint} belongs to an event loop, where no thread may wait")

    def _write(self, buffers: Sequence[Buffer]) -> None:
        if self._tls is None:
            self._transport.write(buffers[0] if len(buffers) == 1 else b"".join(buffers))
        else:
            self._tls.write(buffers)
            self._transport.write(self._tls.take())

    # --- answers ----------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._last_traffic = self._clock()
        if self._tls is not None:
            try:
                self._tls.receive(data)
                data = self._tls.read()
            except TlsFailed as error:
                self.fail(BrokerUnavailable(f"the connection to {self.endpoint} broke: {error}"))
                return
            if not data:
                if self._tls.ended:
                    self.fail(BrokerUnavailable(f"{self._stream.peer} closed the connection"))
                return
        try:
            self._stream.receive(data)
        except RemoteProtocolError as error:
            self.fail(BrokerUnavailable(f"{self._stream.peer} sent something that is not the protocol: {error}"))
        self._tell()

    def connection_lost(self, error: Exception | None) -> None:
        if error is None:
            self.fail(BrokerUnavailable(f"{self._stream.peer} closed the connection"))
        else:
            self.fail(BrokerUnavailable(f"the connection to {self._stream.peer} broke: {error}"))

    def _tell(self) -> None:
        outcomes = self._stream.outcomes
        while outcomes:
            request, reply, error = outcomes.popleft()
            try:
                request.on_done(reply, error)
            except Exception:  # a bug there must not stop the answers to other requests
                log.exception("taking an answer failed")

    def _look(self) -> None:
        """End the requests whose deadline has passed. Runs every TICK seconds while requests are in flight."""
        self._look_is_set = False
        self._stream.expire(self._clock())
        self._tell()
        if self._stream.pending and not self._look_is_set:
            self._look_is_set = True
            self._loop.call_later(TICK, self._look)

    # --- heartbeat and end ------------------------------------------------------------------------------------------

    def beat(self) -> None:
        """Send a heartbeat if the connection had no traffic for the configured idle time."""
        now = self._clock()
        if self._heartbeat_under_way or self.closed:
            return
        if now - self._last_traffic < self._config.heartbeat_idle_seconds:
            return
        self._heartbeat_under_way = True
        deadline = now + self._config.heartbeat_timeout_seconds
        self.submit(lambda opaque: (self._stream.heartbeat(opaque),), self._on_heartbeat, deadline)

    def _on_heartbeat(self, _reply: Reply | None, error: MetaqError | None) -> None:
        self._heartbeat_under_way = False
        if isinstance(error, RequestTimedOut):
            self.fail(BrokerUnavailable(f"{self.endpoint} gave no sign of life"))

    def fail(self, failure: MetaqError) -> None:
        """End the connection with the error `failure`. The requests in flight end with it on the loop's next turn. If
        the connection has ended before, nothing happens.
        """
        if self.failure is not None:
            return
        self.failure = failure
        self._transport.abort()
        self._loop.call_soon(self._ended, failure)

    def _ended(self, failure: MetaqError) -> None:
        self._tell()
        self._stream.end(list(self._stream.pending), failure)
        self._tell()
        if self.on_closed is not None:
            self.on_closed(self)

    def close(self) -> None:
        """End the connection. Requests in flight end with BrokerUnavailable."""
        self.fail(BrokerUnavailable(f"the connection to {self.endpoint} was closed by this client"))


class _Handshake(asyncio.Protocol):
    """Receives the bytes of a new connection until it is ready for requests."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.left: deque[bytes] = deque()
        """The received bytes that `receive` has not returned yet."""
        self._waiter: asyncio.Future[None] | None = None

    def data_received(self, data: bytes) -> None:
        self.left.append(data)
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self.left.append(b"")
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def receive(self) -> bytes:
        """Return the next bytes, or b"" if the connection has ended."""
        while not self.left:
            self._waiter = self._loop.create_future()
            await self._waiter
        return self.left.popleft()


async def open_connection(
    endpoint: Endpoint,
    config: ConnectionConfig,
    on_thread: OnThread,
    loop: asyncio.AbstractEventLoop,
    clock: Callable[[], float],
) -> LoopConnection:
    """Connect to the broker, agree with it on the protocol, and log in if there is a `config.user`, within the
    configured connect timeout. on_thread: runs a blocking function on a thread; used for the look-up of a host name,
    and for the computation of a login.

    Raises BrokerUnavailable; NoListener if the broker has no listener of the wanted name. Raises AccessRefused if the
    login is refused, and CannotConnect if TLS fails. Raises ConfigError if the files of `config.tls` or the password of
    `config.user` cannot be used.
    """
    seconds = config.connect_timeout_seconds
    tls_config, user = protection(endpoint, config.tls, config.user)
    context = None if tls_config is None else tls_config.context()
    handshake = _Handshake(loop)
    transport: asyncio.Transport | None = None
    tls: TlsStream | None = None
    step = ""
    version: str | None = None

    async def receive() -> bytes:
        """Return the next decrypted bytes, or b"" if the connection has ended."""
        while True:
            data = await handshake.receive()
            if tls is None or not data:
                return data
            tls.receive(data)
            if plain := tls.read():
                return plain
            if tls.ended:
                return b""

    def write(data: bytes) -> None:
        assert transport is not None, "it is connected"
        if tls is None:
            transport.write(data)
        else:
            tls.write((data,))
            transport.write(tls.take())

    try:
        async with asyncio.timeout(seconds):
            transport = await _connect(endpoint, handshake, on_thread, loop)
            if context is not None:
                from metaq.protocol.tls import TlsStream

                step = NO_HANDSHAKE
                tls = TlsStream(context, str(endpoint), server_hostname=endpoint.host)
                await _shake_hands(tls, transport, handshake)
            step = "no answer to `version`"
            opening = Opening()
            write(opening.request)
            while version is None:
                version = opening.receive(await receive())
            if user is not None:
                from ..transport.login import Login

                step = "no answer to the login"
                login = Login(user, str(endpoint), version)
                write(login.request)
                while not login.done:
                    data = await receive()
                    if answer := cast(bytes, await on_thread(lambda data=data: login.receive(data))):  # type: ignore[misc]
                        write(answer)
    except BaseException as error:
        if transport is not None:
            transport.abort()
        if transport is None and isinstance(error, OSError):
            raise BrokerUnavailable(no_connection(endpoint, seconds, error)) from error
        if isinstance(error, TimeoutError):
            raise BrokerUnavailable(f"{endpoint} did not answer as a metaq broker: {step}") from error
        shaken = tls is not None and tls.established
        failure = opening_failure(endpoint, error, tls_config, shaken=shaken, answered=version is not None)
        if failure is None:
            raise
        raise failure from error
    stream: ClientStream[Exchange] = ClientStream(str(endpoint), version, text=config.protocol == "text")
    connection = LoopConnection(transport, endpoint, stream, tls, config, loop, clock)
    transport.set_protocol(connection)
    for data in handshake.left:  # such as TLS session tickets, which may come at any time
        if data:
            connection.data_received(data)
    if transport.is_closing():  # the handshake's protocol was told of the end
        connection.fail(BrokerUnavailable(f"{endpoint} closed the connection"))
    return connection


async def _connect(
    endpoint: Endpoint, handshake: _Handshake, on_thread: OnThread, loop: asyncio.AbstractEventLoop
) -> asyncio.Transport:
    """Connect to the first address of the broker that accepts, or to its Unix socket. Raises OSError."""
    if endpoint.is_local:
        transport, _ = await loop.create_unix_connection(lambda: handshake, endpoint.host.removeprefix(UNIX))
        return transport
    addresses = [endpoint.host]
    if not _is_address(endpoint.host):
        found = await on_thread(lambda: socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM))
        infos = cast("list[tuple[int, int, int, str, tuple[str, int]]]", found)
        addresses = [address[0] for *_, address in infos]
    for place, address in enumerate(addresses):
        try:
            transport, _ = await loop.create_connection(lambda: handshake, address, endpoint.port)
            return transport
        except OSError as error:
            if isinstance(error, TimeoutError) or place == len(addresses) - 1:
                raise
    raise OSError(f"{endpoint.host} has no address")


def _is_address(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
            return True
        except OSError:
            continue
    return False


async def _shake_hands(tls: TlsStream, transport: asyncio.Transport, handshake: _Handshake) -> None:
    data = b""
    while True:
        try:
            tls.receive(data)
        finally:
            transport.write(tls.take())  # also an alert that tells the broker of a failure
        if tls.established:
            return
        data = await handshake.receive()
        if not data:
            raise ConnectionResetError("it closed the connection in the TLS handshake")
