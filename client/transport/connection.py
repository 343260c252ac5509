"""One TCP connection to a broker, shared by any number of threads.

Requests are pipelined. Each answer has the same opaque number as its request (protocol/client_stream.py). wire.py
contains the socket, and reading_role.py decides which thread reads. The `on_done` of every request is called exactly
once: with an answer, at the request's deadline, or when the connection ends. Only after an interrupt it can be called
twice (see below).

**Interrupts.** A signal handler may raise an exception at any line of a user's thread, for example KeyboardInterrupt or
an exception of a SIGALRM handler. Therefore:
- the stream keeps requests that have ended, so that the next reader can call their handlers. If received data was
  processed only in part, the stream records this (`torn`), and the connection ends;
- steps that must be executed after an interrupt are started by one call of a C function, and run on a thread that no
  interrupt reaches;
- if the handler of a request was interrupted, the next reader calls the request's `on_done` again, with an error;
- if the sender of a request was interrupted, the request ends soon, unless its answer comes first;
- the background thread, which no signal reaches, ends a failed connection.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from metaq.coordination.runtime.forks import ForkGuard
from metaq.coordination.runtime.interrupts import begin_elsewhere, is_interrupt
from metaq.coordination.runtime.logs import get_log
from metaq.protocol.client_stream import ClientStream, Reply
from metaq.protocol.errors import BrokerUnavailable, MetaqError, RequestTimedOut
from metaq.protocol.record import Buffer

from ..runtime.waiting import Exchange, OnBegun, OnDone, Waiter
from ..settings.config import ConnectionConfig
from .channel import Build, KnownBroker
from .reading_role import HANDLER_FAILED, ReadingRole
from .wire import TICK, Endpoint, Wire, connect

if TYPE_CHECKING:
    from .tls_socket import TlsSocket

__all__ = ["Build", "Call", "Connection", "Endpoint", "Exchange", "OnDone", "Reply", "open_connection"]

log = get_log(__name__)

_CUT_SHORT = -math.inf
"""The deadline that a request gets if its sender was interrupted."""
_STUCK_SECONDS = 2 * TICK
"""If the reading thread has not checked the deadlines of requests for this number of seconds, its receive call probably
does not return, because frequent signals restart the call again and again. From then on the reading thread waits for
data by poll() (Wire.free_reader).
"""
_JUST_NOW_SECONDS = 0.001
"""If an answer arrived at most this number of seconds ago, a send does not check whether the broker has closed the
connection. The check is a system call, which would slow down a caller that waits for the answer of each send (measured
by the benchmark `blocking-1`).
"""
_CLOSE_SECONDS = 5.0
"""close() waits at most this number of seconds until the `on_done` callbacks of the requests in flight have run."""


class Call(Waiter):
    """A request whose caller waits for the answer."""

    __slots__ = ("error", "opaque", "reply")

    def __init__(self, opaque: int) -> None:
        super().__init__()
        self.opaque = opaque
        self.reply: Reply | None = None
        self.error: MetaqError | None = None

    def on_done(self, reply: Reply | None, error: MetaqError | None) -> None:
        self.reply, self.error = reply, error
        self.finish()


class Connection(KnownBroker):
    """An open connection to a broker. reading_role.py decides which thread reads from it. Any thread may call the
    methods.

    expects_bulk: true if large answers are expected. Each answer is then received into a buffer of its own size, which
    costs a second system call for a small answer. The code that pulls messages sets expects_bulk.
    """

    def __init__(
        self,
        sock: socket.socket | TlsSocket,
        endpoint: Endpoint,
        stream: ClientStream[Exchange],
        config: ConnectionConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(endpoint, stream)
        self.expects_bulk = False
        self.on_closed: Callable[[Connection], None] | None = None
        self._stream = stream
        self._wire = Wire(sock, stream, config, clock, self._failed)
        self._config = config
        self._clock = clock
        name = f"metaq-reader-{endpoint.host}:{endpoint.port}"
        self._role = ReadingRole(name, self._wire, stream, self._read, self._end, clock)
        self._closers: list[Waiter] = []  # not Events: an interrupted wait may leave an Event's lock locked permanently
        self._told = False  # whether on_closed was called
        self._heartbeat_under_way = False
        self._seen: tuple[object, float, float] = (None, 0.0, 0.0)  # for `beat`: the leader and its last action
        self._seen_first = 0.0
        self._guard = ForkGuard(f"connection to {endpoint}")

    # --- requests ---------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._wire.failure is not None

    @property
    def failure(self) -> MetaqError | None:
        """The error with which the connection ended. It is None while the connection is open."""
        return self._wire.failure

    def notice_end(self, now: float) -> MetaqError | None:
        """Return `failure`. If no request is in flight and the last answer is not very recent, first check at the
        socket whether the broker has closed the connection. If a caller calls this method before it sends a request,
        and the connection has ended, the caller knows that the broker has not got the request. Without the check, it
        would send the request, get no answer, and not know whether the broker got the request.
        """
        wire, pending = self._wire, self._stream.pending
        before = wire.last_traffic
        # `pending` is checked before and after, because readable data may be the answer to a request of another thread.
        if (
            now - before >= _JUST_NOW_SECONDS
            and not pending
            and wire.is_readable
            and not pending
            and wire.last_traffic == before
        ):
            self._wire.fail(BrokerUnavailable(f"{self.endpoint} has closed the connection"))
        return self._wire.failure

    @property
    def in_flight(self) -> int:
        """Number of requests that were sent and have no answer yet."""
        return len(self._stream.pending)

    def submit(
        self,
        build: Build,
        on_done: OnDone,
        deadline: float,
        *,
        background: bool = True,
        on_begun: OnBegun | None = None,
    ) -> None:
        """Send one request, as `send` does. build: a function that makes the request's bytes; if it raises
        LocalProtocolError, this method raises the same error.
        """
        request = Exchange(self.new_opaque(), on_done, deadline, background, on_begun)
        self.send((request,), build(request.opaque))

    def send(self, requests: Sequence[Exchange], buffers: Sequence[Buffer]) -> None:
        """Send several requests without waiting for answers between them. buffers: the bytes of all requests, with
        their opaque numbers. All requests must have the same values of `deadline` and `background`.

        The only error that is raised is ClientError, in a forked process; then nothing was sent, and on_done is not
        called. If an interrupt ends the call, look at `taken` of the first request: its value applies to all requests.
        """
        self._guard.check()
        pending, first, entered = self._stream.pending, requests[0], 0
        if len(pending) >= self._config.max_in_flight_requests:
            full = BrokerUnavailable(f"{self.endpoint} has {len(pending)} requests under way already")
            for request in requests:
                request.on_done(None, full)
            return
        try:
            first.taken = True
            for request in requests:
                pending[request.opaque] = request
                entered += 1
            self._wire.send(buffers, first.deadline)
            self._role.read_for(first)
        except BaseException:
            begin_elsewhere((self._cut_short, requests, entered))
            raise

    def _cut_short(self, requests: Sequence[Exchange], entered: int) -> None:
        """End these requests, because the thread that was sending them was interrupted: give them a deadline in the
        past, so that the next reading thread ends them. The interrupted thread had added only the first `entered` of
        the requests to the stream. This method runs on a separate thread.
        """
        for request in requests:
            request.deadline = _CUT_SHORT
        for request in requests[entered:]:
            self._stream.pending[request.opaque] = request
        self._role.read_in_background()

    def send_unanswered(self, data: Buffer, deadline: float) -> None:
        """Send a request that has no answer. Raises BrokerUnavailable if the connection has ended."""
        self._guard.check()
        self._wire.send((data,), deadline)
        if self._wire.failure is not None:
            raise self._wire.failure

    def call(self, build: Build, timeout: float | None = None) -> Reply:
        """Send a request and wait at most `timeout` seconds for its answer (default: the request timeout).

        Raises RequestTimedOut, BrokerUnavailable, LocalProtocolError. An error answer is returned, not raised.
        """
        deadline = self._deadline(timeout)
        return self._answer(self.begin(build, deadline), deadline)

    def begin(self, build: Build, deadline: float = math.inf) -> Call:
        """Send a small request without waiting for the answer. The caller must call `finish` for it later, or close the
        connection.

        Until `finish` is called, perhaps no thread reads from the connection. The answer then stays in the socket or at
        the broker. Raises LocalProtocolError.
        """
        call = Call(self.new_opaque())
        self.send((Exchange(call.opaque, call.on_done, deadline, background=False),), build(call.opaque))
        return call

    def finish(self, call: Call, timeout: float | None = None) -> Reply:
        """Wait at most `timeout` seconds, from now on, for the answer to a request that `begin` has sent. Return the
        answer, and raise errors, as `call` does.
        """
        self._guard.check()
        deadline = self._deadline(timeout)
        if (request := self._stream.pending.get(call.opaque)) is not None:
            request.deadline = deadline
        return self._answer(call, deadline)

    def _deadline(self, timeout: float | None) -> float:
        return self._clock() + (self._config.request_timeout_seconds if timeout is None else timeout)

    def _answer(self, call: Call, deadline: float) -> Reply:
        self.drive(call, deadline)
        if call.error is not None:
            raise call.error
        if call.reply is None:
            raise RequestTimedOut(f"{self.endpoint} did not answer in time")
        return call.reply

    def drive(self, waiter: Waiter, deadline: float) -> None:
        """Block until `waiter` is done or the deadline has passed; `waiter.done` tells which of the two has happened.
        Meanwhile, read the answers for all callers if no other thread reads. The caller must have checked that the
        current process has made the connection.
        """
        self._role.drive(waiter, deadline)

    def read_in_background(self) -> None:
        """Ensure that some thread reads the answers to all requests in flight. Call this method if a thread that has
        sent a request with background=False will not call `drive` to read the answer.
        """
        self._role.read_in_background()

    def fail(self, failure: MetaqError) -> None:
        """End the connection with the error `failure`. The background thread reports this error to the requests in
        flight. Do not call this method on a thread that an interrupt may reach.
        """
        self._wire.fail(failure)

    def close(self, timeout: float = _CLOSE_SECONDS) -> None:
        """End the connection. Requests in flight end with BrokerUnavailable. This method waits until the callbacks of
        these requests have been called, but at most `timeout` seconds, because a callback may block. `close` may be
        called again. In a forked process `close` only closes the process's copy of the socket, because the connection
        belongs to the parent process.
        """
        if self._guard.is_elsewhere:
            self._wire.close()
            return
        failure = BrokerUnavailable(f"the connection to {self.endpoint} was closed by this client")
        try:
            self._wire.fail(failure)
        except BaseException:
            begin_elsewhere((self._wire.fail, failure))
            raise
        if not (self._role.has_thread or self._role.has_ended):
            self._end()  # the interpreter is about to exit
        if not self._role.is_background:  # if it is the background thread, a handler has called this
            closer = Waiter()
            self._closers.append(closer)
            if not self._role.has_ended:  # order matters: `_end` sets it before it looks at `_closers`
                closer.park_until_done(time.monotonic() + timeout, time.monotonic)

    # --- answers ----------------------------------------------------------------------------------------------------

    def _read(self, patience: float) -> None:
        """Receive data once, for at most `patience` seconds or TICK, whichever is shorter. Then call the handlers of
        the requests that have ended. Only the thread that has the reading role may call this.
        """
        stream = self._stream
        if stream.torn:
            self._wire.fail(BrokerUnavailable(f"reading an answer of {self.endpoint} was interrupted"))
        elif not stream.outcomes and self._wire.read(patience, self.expects_bulk) and self.expects_bulk:
            begun = None if stream.outcomes else stream.begun
            if begun is not None and begun[0].on_begun is not None:
                _call(begun[0].on_begun, begun[1])
        outcomes = stream.outcomes
        while outcomes:
            request, reply, error = outcomes[0]
            if request.told:  # its handler was called, but interrupted
                reply, error = None, BrokerUnavailable(f"taking an answer of {self.endpoint} was interrupted")
            elif error is not None and request.deadline == _CUT_SHORT:
                error = BrokerUnavailable(f"sending a request to {self.endpoint} was interrupted")
            request.told = True
            _call(request.on_done, reply, error)
            outcomes.popleft()
            request.on_done = _nothing  # breaks a reference cycle with the request

    # --- the end ----------------------------------------------------------------------------------------------------

    def _failed(self) -> None:
        """Called when sending to or receiving from the socket has failed: let the background thread end the connection.
        A repeated call does no harm.
        """
        if not self._role.has_ended:
            self._role.wake_background()

    def _end(self) -> None:
        """End all requests in flight with the connection's failure, and wake the waiting threads. This method runs on
        the background thread while that thread does not have the reading role.
        """
        pending = self._stream.pending
        while pending:
            try:
                _, request = pending.popitem()
            except KeyError:
                break  # the leader has removed the last request
            try:
                request.on_done(None, self._wire.failure)
            except BaseException:  # as in `_lead_in_background`
                log.exception(HANDLER_FAILED)
        self._role.free_followers()
        if self.on_closed is not None and not self._told:
            self._told = True
            self.on_closed(self)
        self._role.has_ended = True
        for closer in list(self._closers):
            closer.finish()
        self._role.look_again()

    # --- heartbeat --------------------------------------------------------------------------------------------------

    def beat(self) -> None:
        """Send a heartbeat if the connection had no traffic for the configured idle time. The pool's housekeeping
        thread calls this.
        """
        now, wire = self._clock(), self._wire
        if self.closed:
            return
        seen = self._role.leader, wire.next_expiry, wire.last_traffic
        if seen != self._seen:
            self._seen, self._seen_first = seen, now
        elif self._role.leader is not None and now - self._seen_first > _STUCK_SECONDS:
            wire.free_reader()
        if self._heartbeat_under_way:
            return
        if self._role.leader is None and wire.is_readable:
            self._role.wake_background()  # an answer without a request means that the broker closed the connection
            return
        if now - wire.last_traffic < self._config.heartbeat_idle_seconds:
            return
        self._heartbeat_under_way = True
        deadline = now + self._config.heartbeat_timeout_seconds
        self.submit(lambda opaque: (self._stream.heartbeat(opaque),), self._on_heartbeat, deadline)

    def _on_heartbeat(self, _reply: Reply | None, error: MetaqError | None) -> None:
        self._heartbeat_under_way = False
        if isinstance(error, RequestTimedOut):
            self._wire.fail(BrokerUnavailable(f"{self.endpoint} gave no sign of life"))


def _nothing(_reply: Reply | None, _error: MetaqError | None) -> None:
    """Do nothing. This function replaces the on_done of a request after the request's handler was called."""


def _call(handler: Callable[..., None], *arguments: object) -> None:
    """Call a handler, and log its exceptions. A bug in a handler must not stop the reading of the answers to other
    requests.
    """
    try:
        handler(*arguments)
    except Exception as failure:
        if is_interrupt(failure):
            raise
        log.exception(HANDLER_FAILED)


def open_connection(
    endpoint: Endpoint,
    config: ConnectionConfig,
    timeout: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Connection:
    """Connect to the broker, agree with it on the protocol, and log in if there is a `config.user`, within `timeout`
    seconds but at most the configured connect timeout.

    Raises BrokerUnavailable. Raises AccessRefused if the login is refused. Raises ConfigError if the files of
    `config.tls` or the password of `config.user` cannot be used.
    """
    limit = config.connect_timeout_seconds
    seconds = limit if timeout is None else max(0.001, min(limit, timeout))
    sock, version = connect(endpoint, seconds, clock, config.tls, config.user)
    return Connection(
        sock, endpoint, ClientStream(str(endpoint), version, text=config.protocol == "text"), config, clock
    )
