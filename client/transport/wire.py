"""Receive and send the bytes of one connection on its socket, on any thread. Received bytes are passed to the
connection's ClientStream.

**Interrupts** (interrupts.py). One call of a C function (`extend` of a map) takes received bytes from the socket and
stores them in `_received`. No signal handler can run in the middle of this call. So no interrupt can lose the bytes
after they have left the socket and before they are in `_received`. If a sending thread is interrupted, the connection
ends, because it is unknown how many bytes have been sent (`_sending`).

The code that connects imports no module. If an interrupt came while CPython imports a module, the lock of all imports
might stay locked for ever. Then every thread that resolves a host name would hang, because Python imports a module for
this.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401  (getaddrinfo would import it on a user's thread: see below)
import math
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

from metaq.coordination.runtime.interrupts import BackgroundThread, begin_elsewhere, is_interrupt
from metaq.coordination.runtime.logs import get_log
from metaq.protocol.client_stream import ClientStream, Opening
from metaq.protocol.errors import (
    AccessRefused,
    BrokerUnavailable,
    CannotConnect,
    MetaqError,
    RemoteProtocolError,
    TlsFailed,
)
from metaq.protocol.record import Buffer

from ..runtime.waiting import Exchange
from ..settings.config import ConnectionConfig
from ..settings.tls_config import TlsConfig
from ..settings.user_config import UserConfig
from .tls_remedies import tls_remedy

if TYPE_CHECKING:
    from .tls_socket import TlsSocket

__all__ = [
    "TICK",
    "UNIX",
    "Endpoint",
    "NoListener",
    "Wire",
    "connect",
    "load_modules",
    "no_connection",
    "opening_failure",
    "protection",
]

log = get_log(__name__)

TICK = 0.25
"""No system call on the socket blocks for more than this number of seconds; between two calls the reading thread checks
the requests' deadlines. So a request for which no thread waits ends at most this number of seconds after its deadline.
"""
_TIMEVAL = Struct("@ll")
_SMALL_BYTES = 32 * 1024
"""If the buffers of one call of `send` have at most this number of bytes in total, they are copied into one buffer
before they are sent, because that costs less than a sendmsg with several buffers.
"""
_MAX_IOV = 1000
"""Largest number of buffers in one sendmsg (Linux allows 1,024)."""
_FIRST_RECEIVE_BYTES = 16 * 1024


UNIX = "unix:"
"""The beginning of the address of a Unix socket; the path of the socket follows."""


class Endpoint(NamedTuple):
    """A broker's address. For a Unix socket the host is `unix:` with the path, and the port is 0."""

    host: str
    port: int

    @property
    def is_local(self) -> bool:
        """Whether this is the address of a Unix socket."""
        return self.host.startswith(UNIX)

    def __str__(self) -> str:
        if not self.port:
            return self.host
        return f"meta://[{self.host}]:{self.port}" if ":" in self.host else f"meta://{self.host}:{self.port}"


class NoListener(BrokerUnavailable):
    """ZooKeeper shows no listener of the wanted name for the broker. A broker that registers writes its listeners a
    moment after its own address, so the pool takes this for a wrong setting only if it lasts (LISTENER_SECONDS).
    """


class Wire:
    """A connected socket with the ClientStream that gets its data. Only one thread at a time may call `read`. Any
    thread may call the other methods.
    """

    def __init__(
        self,
        sock: socket.socket | TlsSocket,
        stream: ClientStream[Exchange],
        config: ConnectionConfig,
        clock: Callable[[], float],
        on_failure: Callable[[], None],
    ) -> None:
        """on_failure: a function that is called after `failure` was set, perhaps several times, and on any thread."""
        self.failure: MetaqError | None = None
        self.last_traffic = clock()
        self.next_expiry = 0.0
        self._sock = sock
        self._fileno = sock.fileno()
        self._tls: TlsSocket | None = None if isinstance(sock, socket.socket) else sock
        self._stream = stream
        self._config = config
        self._clock = clock
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._sending = False
        self._backlog: deque[tuple[memoryview, float]] = deque()  # data for the writer thread, with deadlines
        self._received: list[bytes] = []  # at most one element, which the stream has not taken yet
        self._receive_bytes = min(_FIRST_RECEIVE_BYTES, config.max_receive_bytes)
        self._polls = False  # set if signals prevent receives from ending after a tick

    # --- bytes in ---------------------------------------------------------------------------------------------------

    def read(self, patience: float, bulk: bool) -> bool:
        """Receive data once, for at most `patience` seconds or TICK, whichever is shorter, and pass the data to the
        stream. Return whether any data came.

        bulk: true if large answers are expected; then each answer is received as a whole into a separate buffer.
        """
        try:
            came = self._receive(patience, self._stream.wanted_bytes if bulk and not self._polls else None)
        except (BlockingIOError, InterruptedError):
            came = False
        except OSError as error:
            if is_interrupt(error):
                raise
            self._fail_broken(error)
            return False
        now = self._clock()
        if came:
            data = self._received[0]
            if not data:
                self.fail(BrokerUnavailable(f"{self._stream.peer} closed the connection"))
                return False
            self.last_traffic = now  # set while the requests still count as pending: see Connection.notice_end
            try:
                self._stream.receive(data)
            except RemoteProtocolError as error:
                self.fail(BrokerUnavailable(f"{self._stream.peer} sent something that is not the protocol: {error}"))
                return False
            del self._received[:]
        if now >= self.next_expiry:
            self.next_expiry = now + TICK
            self._stream.expire(now)
        return came

    def _receive(self, patience: float, exactly: int | None) -> bool:
        """Receive bytes from the socket and append them to `_received`. Return whether `_received` contains data.
        Raises OSError.
        """
        if self._received:
            return True  # the thread that received this data was interrupted
        if self._polls and self._sock.gettimeout() is not None:
            self._sock.settimeout(None)  # senders may block
        if (patience < TICK or self._polls) and not self._is_readable(min(patience, TICK)):
            return False
        if exactly:  # one system call, so the interpreter's lock is taken only once
            self._received.extend(map(self._sock.recv, (exactly,), (socket.MSG_WAITALL,)))
            return True
        self._received.extend(map(self._sock.recv, (self._receive_bytes,)))
        received = len(self._received[0])
        if received == self._receive_bytes:  # large answers need few system calls, small ones no large buffer
            self._receive_bytes = min(received * 4, self._config.max_receive_bytes)
        elif received < self._receive_bytes >> 4 > _FIRST_RECEIVE_BYTES >> 4:
            self._receive_bytes >>= 1
        return True

    @property
    def is_readable(self) -> bool:
        """Whether the socket has received data that was not read yet, or the broker has closed the connection."""
        return self._is_readable(0)

    def _is_readable(self, seconds: float) -> bool:
        if self._tls is not None and self._tls.has_more:
            return True
        poll = select.poll()
        poll.register(self._fileno, select.POLLIN)
        return bool(poll.poll(max(0.0, seconds) * 1000))

    def free_reader(self) -> None:
        """Make all later receive calls wait for data by poll() first, although that costs a second system call each
        time.

        This is needed if a profiler, for example, causes signals at shorter intervals than TICK, and the signal handler
        raises nothing. After each such signal, Python restarts a blocking receive with the full TICK as its time limit,
        so the receive would never end. A poll() that is restarted after a signal waits only for the rest of its time.
        """
        self._polls = True
        try:
            self._sock.settimeout(0)
        except OSError as error:  # closed meanwhile
            log.debug("the connection to %s: %s", self._stream.peer, error)

    # --- bytes out --------------------------------------------------------------------------------------------------

    def send(self, buffers: Sequence[Buffer], deadline: float) -> None:
        """Send the bytes in `buffers`, or do nothing if the connection has failed. The calling thread writes for at
        most TICK seconds. If bytes are left after this time, a separate writer thread sends them, and after them the
        bytes of later calls of `send`. The writer thread drops the bytes of a later call if the call's deadline has
        passed before their turn comes. So a caller need not wait in `send` until a slow broker has taken the earlier
        requests of other callers.
        """
        broken: OSError | None = None
        with self._lock:
            if self.failure is not None:
                return
            if self._backlog:
                self._backlog.append((memoryview(b"".join(buffers)), deadline))
                return
            if not self._sending:  # if it is set, the last sender was interrupted
                try:
                    self._sending = True
                    if rest := self._send_now(buffers):
                        self._backlog.append((memoryview(rest), math.inf))  # its first part has been sent
                        BackgroundThread(self._send_backlog, f"metaq-writer-{self._stream.peer}")
                    self._sending = False
                    return
                except BaseException as error:
                    begin_elsewhere((self._fail_sending, error))
                    if not isinstance(error, OSError) or is_interrupt(error):
                        raise
                    broken = error
        self._fail_sending(broken)

    def _send_now(self, buffers: Sequence[Buffer]) -> bytes:
        """Send the buffers for at most TICK seconds. Return the data that the socket has not accepted in this time."""
        if len(buffers) == 1 or sum(map(len, buffers)) <= _SMALL_BYTES:
            data = buffers[0] if len(buffers) == 1 else b"".join(buffers)
            sent = self._try_send(self._sock.send, data)
            return memoryview(data)[sent:].tobytes() if sent < len(data) else b""
        end = self._clock() + TICK
        for start in range(0, len(buffers), _MAX_IOV):
            views = [memoryview(buffer) for buffer in buffers[start : start + _MAX_IOV]]
            while views:
                sent = self._try_send(self._sock.sendmsg, views)
                while views and sent >= len(views[0]):
                    sent -= len(views.pop(0))
                if sent:
                    views[0] = views[0][sent:]
                if views and self._clock() >= end:
                    return b"".join((*views, *buffers[start + _MAX_IOV :]))
        return b""

    @staticmethod
    def _try_send(send: Callable[[Any], int], data: object) -> int:
        """Call `send` once with the data. Return the number of bytes that the socket has taken within TICK seconds."""
        try:
            return send(data)
        except (BlockingIOError, InterruptedError):
            return 0

    def _send_backlog(self) -> None:
        """Send the data that earlier calls of `send` could not send. This method runs on the writer thread. As long as
        such data exists, no other thread writes to the socket.
        """
        while (rest := self._next_of_backlog()) is not None:
            patience = self._clock() + self._config.request_timeout_seconds
            while rest:
                try:
                    sent = self._try_send(self._sock.send, rest)
                except OSError as error:
                    self._fail_broken(error)
                    break
                rest = rest[sent:]
                if sent:
                    patience = self._clock() + self._config.request_timeout_seconds
                elif self._clock() >= patience:
                    self.fail(BrokerUnavailable(f"{self._stream.peer} does not take data"))
                    break
            with self._lock:
                self._backlog.popleft()

    def _next_of_backlog(self) -> memoryview | None:
        with self._lock:
            while self._backlog and (self.failure is not None or self._backlog[0][1] <= self._clock()):
                self._backlog.popleft()  # its caller has given up
            return self._backlog[0][0] if self._backlog else None

    # --- the end ----------------------------------------------------------------------------------------------------

    def fail(self, failure: MetaqError) -> None:
        """End the connection because of `failure`, and wake the threads that block in recv and send. If the connection
        has failed before, the first failure is kept.
        """
        self.failure = self.failure or failure
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            if is_interrupt(error):
                raise
            log.debug("shutting down the connection to %s: %s", self._stream.peer, error)  # closed already
        self._on_failure()

    def _fail_broken(self, error: OSError) -> None:
        self.fail(BrokerUnavailable(f"the connection to {self._stream.peer} broke: {error}"))

    def _fail_sending(self, error: BaseException | None) -> None:
        if isinstance(error, OSError) and not is_interrupt(error):
            self._fail_broken(error)
        else:
            self.fail(BrokerUnavailable(f"sending a request to {self._stream.peer} was interrupted"))

    def close(self) -> None:
        """Close the socket. Do not call this method while a thread is inside `read`: the operating system may give the
        closed file descriptor to another file, and the thread would read from that file.
        """
        self._sock.close()


def no_connection(endpoint: Endpoint, seconds: float, error: OSError) -> str:
    """Return the text of the error for a broker to which no connection could be made within `seconds`."""
    if isinstance(error, TimeoutError):
        return f"no connection to {endpoint} within {seconds:.1f} s"
    if isinstance(error, socket.gaierror):
        return f"no connection to {endpoint}: this machine cannot resolve that name, the broker's hostName: {error}"
    return f"no connection to {endpoint}: {error}"


def _connect(endpoint: Endpoint, seconds: float) -> socket.socket:
    sock = socket.create_connection(endpoint, timeout=seconds)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _connect_local(endpoint: Endpoint, seconds: float) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(seconds)
        sock.connect(endpoint.host.removeprefix(UNIX))
    except BaseException:
        sock.close()
        raise
    return sock


def load_modules(config: ConnectionConfig) -> None:
    """Import the modules that only connections with TLS or with a login need, because they import ssl or scramp. A
    client calls this when it is created, so that connecting imports no module later.
    """
    if config.tls is not None:
        from . import tls_socket  # noqa: F401
    if config.user is not None:
        from . import login  # noqa: F401


def protection(
    endpoint: Endpoint, tls: TlsConfig | None, user: UserConfig | None
) -> tuple[TlsConfig | None, UserConfig | None]:
    """Return how a client with these settings connects to this address: with which TLS, and as which user. Raises
    NoListener if the broker has no address for this client.
    """
    if endpoint.is_local:
        return None, None  # the kernel tells the broker who the user is
    if not endpoint.port:
        raise NoListener(endpoint.host)  # the reason why there is no address (at_listener)
    return tls, user


def opening_failure(
    endpoint: Endpoint, error: BaseException, tls: TlsConfig | None, *, shaken: bool, answered: bool
) -> MetaqError | None:
    """Return the error to raise if a connected socket could not be made ready because of `error`, or None if `error`
    itself is to be raised. tls: the settings that were used. shaken: whether the TLS handshake is complete. answered:
    whether the broker has told its version.
    """
    if isinstance(error, AccessRefused) and not answered:
        return AccessRefused(f"{endpoint}: {error}")
    failed = error if isinstance(error, TlsFailed) else error.__cause__
    if tls is not None and isinstance(failed, TlsFailed):
        remedy = tls_remedy(failed, endpoint.host, tls)
        return CannotConnect(f"no connection to {endpoint}: {failed}: {remedy}")
    if tls is not None and not shaken and isinstance(error, ConnectionError):
        remedy = (
            "it closed the connection in the TLS handshake: this port does not speak TLS, or the broker is stopping. "
            "Start the broker with --security, name another port or listener, or leave out the section [tls] of the "
            "profile"
        )
        return BrokerUnavailable(f"no connection to {endpoint}: {remedy}")
    if isinstance(error, OSError | RemoteProtocolError):
        return BrokerUnavailable(f"{endpoint} did not answer as a metaq broker: {error}")
    return None


def connect(
    endpoint: Endpoint,
    seconds: float,
    clock: Callable[[], float],
    tls: TlsConfig | None = None,
    user: UserConfig | None = None,
) -> tuple[socket.socket | TlsSocket, str]:
    """Connect to the broker within `seconds`. Return the socket and the text of the broker's version. user: logs in as
    this user, which needs `tls`; None: no login.

    Raises BrokerUnavailable. Raises AccessRefused if the broker requires TLS, if it refuses the login, or if it is not
    the one that knows the user. Raises CannotConnect if TLS fails, and NoListener if the broker has no listener of the
    wanted name. Raises ConfigError if the files of `tls` or the user's password cannot be used.
    """
    deadline = clock() + seconds
    tls, user = protection(endpoint, tls, user)
    context = None if tls is None else tls.context()
    try:
        sock = _connect_local(endpoint, seconds) if endpoint.is_local else _connect(endpoint, seconds)
    except OSError as error:
        if is_interrupt(error):
            raise
        raise BrokerUnavailable(no_connection(endpoint, seconds, error)) from error
    asked: socket.socket | TlsSocket = sock
    opening, version = Opening(), None
    try:
        if context is not None:
            from .tls_socket import TlsSocket  # see load_modules

            sock.settimeout(max(0.001, deadline - clock()))
            asked = TlsSocket(sock, context, endpoint.host, str(endpoint))
        asked.sendall(opening.request)
        while version is None:
            sock.settimeout(max(0.001, deadline - clock()))
            version = opening.receive(asked.recv(4096))
        if user is not None:
            assert context is not None, "ConnectionConfig refuses a user without TLS"
            from .login import Login  # see load_modules

            login = Login(user, str(endpoint), version)
            asked.sendall(login.request)
            while not login.done:
                sock.settimeout(max(0.001, deadline - clock()))
                asked.sendall(login.receive(asked.recv(4096)))
        # Let the kernel limit blocking to one tick. Then a receive needs one system call; a Python timeout needs two.
        sock.settimeout(None)
        tick = _TIMEVAL.pack(0, int(TICK * 1e6))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, tick)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, tick)
    except BaseException as error:
        sock.close()
        if is_interrupt(error):
            raise
        failure = opening_failure(endpoint, error, tls, shaken=asked is not sock, answered=version is not None)
        if failure is None:
            raise
        raise failure from error
    return asked, version
