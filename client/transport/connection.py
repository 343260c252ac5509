"""One TCP connection to a broker, shared by any number of threads.

Requests are pipelined and matched to their answers by opaque (protocol/client_stream.py). wire.py has the socket, and
reading_role.py says which thread reads. The `on_done` of every request is called exactly once: with an answer, at its
deadline, or when the connection ends.

**Interrupts.** A user's thread may leave any line with an exception that is not the line's own: KeyboardInterrupt, or
what a handler of SIGALRM raises. So:
- the stream keeps what has ended, and what it received in part (`torn`: the connection ends), for whoever reads next;
- what must follow in any case begins on a thread where no further interrupt comes, by one call of a C function;
- a request whose handler was interrupted gets a second call of `on_done`, with an error, from whoever reads next;
- a request whose sender was interrupted ends soon, unless its answer comes first;
- a failed connection is brought to its end on the background thread, which no signal reaches.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Sequence

from metaq.coordination.forks import ForkGuard
from metaq.coordination.interrupts import begin_elsewhere, is_interrupt
from metaq.coordination.logs import get_log
from metaq.protocol.client_stream import ClientStream, Reply
from metaq.protocol.errors import BrokerUnavailable, MetaqError, RequestTimedOut
from metaq.protocol.record import Buffer

from ..runtime.waiting import Exchange, OnBegun, OnDone, Waiter
from ..settings.config import ConnectionConfig, Protocol
from .reading_role import HANDLER_FAILED, ReadingRole
from .wire import TICK, Endpoint, Wire, connect

__all__ = ["Build", "Call", "Connection", "Endpoint", "Exchange", "OnDone", "Reply", "open_connection"]

log = get_log(__name__)

Build = Callable[[int], Sequence[Buffer]]
"""Makes a request's bytes for the opaque it is given."""

_CUT_SHORT = -math.inf
"""The deadline of a request whose sender was interrupted."""
_STUCK_SECONDS = 2 * TICK
"""A reader that has not looked at deadlines for so long may not do so soon."""
_JUST_NOW_SECONDS = 0.001
"""An answer as fresh as this says that the broker has not closed the connection: to look costs one that blocks for each
of its sends a system call. `blocking-1`."""
_CLOSE_SECONDS = 5.0
"""close() waits so long for the handlers of requests under way."""


class Call(Waiter):
    """A request whose caller waits for it."""

    __slots__ = ("error", "opaque", "reply")

    def __init__(self, opaque: int) -> None:
        super().__init__()
        self.opaque = opaque
        self.reply: Reply | None = None
        self.error: MetaqError | None = None

    def on_done(self, reply: Reply | None, error: MetaqError | None) -> None:
        self.reply, self.error = reply, error
        self.finish()


class Connection:
    """An open connection; see the module for who reads. All methods may be called on any thread.

    speaks_frames: the framed protocol was agreed on; else only text commands may be sent. takes_many: and SEND_MANY.
    takes_sequences: and numbers of a producer's sends. takes_delays: the broker keeps messages until their time.
    takes_halves: and half messages until the outcome of their transaction is known. knows_compressed: it tells
    compressed messages from others, in both protocols. takes_where: it filters pulls by content. takes_shared: it takes
    the requests of shared consumers. half_check_seconds: as in ClientStream.
    expects_bulk: set by who pulls; answers are large, so each is received whole, which costs small ones a second system
    call.
    """

    def __init__(
        self,
        sock: socket.socket,
        endpoint: Endpoint,
        stream: ClientStream[Exchange],
        config: ConnectionConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.endpoint = endpoint
        self.peer_version = stream.peer_version
        self.speaks_frames = stream.speaks_frames
        self.takes_many = stream.takes_many
        self.takes_sequences = stream.takes_sequences
        self.takes_delays = stream.takes_delays
        self.knows_compressed = stream.knows_compressed
        self.takes_where = stream.takes_where
        self.takes_shared = stream.takes_shared
        self.takes_halves = stream.takes_halves
        self.half_check_seconds = stream.half_check_seconds
        self.new_opaque = stream.new_opaque
        """For an Exchange."""
        self.expects_bulk = False
        self.on_closed: Callable[[Connection], None] | None = None
        self._stream = stream
        self._wire = Wire(sock, stream, config, clock, self._failed)
        self._config = config
        self._clock = clock
        name = f"metaq-reader-{endpoint.host}:{endpoint.port}"
        self._role = ReadingRole(name, self._wire, stream, self._read, self._end, clock)
        self._closers: list[Waiter] = []  # no Event: one whose wait was interrupted may keep its lock for ever
        self._told = False  # on_closed was called
        self._heartbeat_under_way = False
        self._seen: tuple[object, float, float] = (None, 0.0, 0.0)  # by `beat`: the leader and what it has done last
        self._seen_first = 0.0
        self._guard = ForkGuard(f"connection to {endpoint}")

    # --- requests ---------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._wire.failure is not None

    @property
    def failure(self) -> MetaqError | None:
        """Why the connection ended; None while it is open."""
        return self._wire.failure

    def notice_end(self, now: float) -> MetaqError | None:
        """The `failure`, also if the broker has closed the connection and nobody was reading who would know: what has
        not been sent yet is then known not to be stored. Not looked for just after an answer."""
        wire, pending = self._wire, self._stream.pending
        before = wire.last_traffic
        # looked at on both sides: what is there to be read may be the answer to a request of another thread
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
        """Requests sent and not answered yet."""
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
        """Send a request; as `send`. Raises LocalProtocolError (from `build`), too."""
        request = Exchange(self.new_opaque(), on_done, deadline, background, on_begun)
        self.send((request,), build(request.opaque))

    def send(self, requests: Sequence[Exchange], buffers: Sequence[Buffer]) -> None:
        """Send requests, pipelined, whose bytes were made for their opaques. All have one deadline and `background`.

        Raises only ClientError in a process that was forked off: nothing was sent and on_done is not called. If an
        interrupt comes out of it, `taken` of the first request tells for all of them.
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
        """The thread that was sending these was interrupted, when it had entered so many of them: whoever reads ends
        them. On a thread of its own."""
        for request in requests:
            request.deadline = _CUT_SHORT
        for request in requests[entered:]:
            self._stream.pending[request.opaque] = request
        self._role.read_in_background()

    def send_unanswered(self, data: Buffer, deadline: float) -> None:
        """Send a request that no broker answers. Raises BrokerUnavailable if the connection has ended."""
        self._guard.check()
        self._wire.send((data,), deadline)
        if self._wire.failure is not None:
            raise self._wire.failure

    def call(self, build: Build, timeout: float | None = None) -> Reply:
        """Send a request and wait for its answer, at most `timeout` seconds (default: the request timeout).

        Raises RequestTimedOut, BrokerUnavailable, LocalProtocolError. An error answer is returned, not raised.
        """
        deadline = self._deadline(timeout)
        return self._answer(self.begin(build, deadline), deadline)

    def begin(self, build: Build, deadline: float = math.inf) -> Call:
        """Send a small request whose answer the caller is going to `finish`, or else it closes the connection.

        Until then the answer waits in the socket, or at the broker. Raises LocalProtocolError.
        """
        call = Call(self.new_opaque())
        self.send((Exchange(call.opaque, call.on_done, deadline, background=False),), build(call.opaque))
        return call

    def finish(self, call: Call, timeout: float | None = None) -> Reply:
        """Wait for the answer to what was begun, `timeout` seconds from now on at most; otherwise as `call`."""
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
        """Block until `waiter` is done or the deadline has passed (look at `waiter.done`), reading for everybody if
        nobody else does. In the process that made the connection, which the caller has looked at."""
        self._role.drive(waiter, deadline)

    def read_in_background(self) -> None:
        """Take back all promises to `drive`: have a thread read for whatever is under way."""
        self._role.read_in_background()

    def fail(self, failure: MetaqError) -> None:
        """The connection is of no use any more: requests under way get `failure`, on its background thread. Not on a
        thread that an interrupt may reach."""
        self._wire.fail(failure)

    def close(self, timeout: float = _CLOSE_SECONDS) -> None:
        """End the connection; requests under way get BrokerUnavailable. Waits at most `timeout` seconds until they have
        got it: a call-back may hold that up. May be repeated. A process that was forked off only gives up its copy of
        the socket, whose connection is the parent's."""
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
        if not self._role.is_background:  # else a handler has called
            closer = Waiter()
            self._closers.append(closer)
            if not self._role.has_ended:  # looked at behind the line above, as `_end` looks behind setting it
                closer.park_until_done(time.monotonic() + timeout, time.monotonic)

    # --- what has come ----------------------------------------------------------------------------------------------

    def _read(self, patience: float) -> None:
        """Receive once, min(patience, one tick) seconds at most, and call the handlers of what has ended. Role holder
        only."""
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
            if request.told:  # and interrupted
                reply, error = None, BrokerUnavailable(f"taking an answer of {self.endpoint} was interrupted")
            elif error is not None and request.deadline == _CUT_SHORT:
                error = BrokerUnavailable(f"sending a request to {self.endpoint} was interrupted")
            request.told = True
            _call(request.on_done, reply, error)
            outcomes.popleft()
            request.on_done = _nothing  # which may lead back to the request: then only the collector would free both

    # --- the end ----------------------------------------------------------------------------------------------------

    def _failed(self) -> None:
        """The wire has failed. May be repeated."""
        if not self._role.has_ended:
            self._role.wake_background()

    def _end(self) -> None:
        """Background thread, without the role: end all requests, and wake who waits."""
        pending = self._stream.pending
        while pending:
            try:
                _, request = pending.popitem()
            except KeyError:
                break  # the leader took the last one
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
        """Ask for a sign of life if there was no traffic for the idle time. Called by the pool's housekeeping."""
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
            self._role.wake_background()  # nobody asked for anything: the broker closed the connection
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
    """For a request that has been told."""


def _call(handler: Callable[..., None], *arguments: object) -> None:
    """A bug in one request's handler must not stop the reading for all the others."""
    try:
        handler(*arguments)
    except Exception as failure:
        if is_interrupt(failure):
            raise
        log.exception(HANDLER_FAILED)


def open_connection(
    endpoint: Endpoint,
    config: ConnectionConfig,
    protocol: Protocol = "auto",
    timeout: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Connection:
    """Connect and agree on the protocol, within `timeout` seconds (at most the connect timeout).

    Raises BrokerUnavailable.
    """
    limit = config.connect_timeout_seconds
    sock, version = connect(endpoint, limit if timeout is None else max(0.001, min(limit, timeout)), clock)
    return Connection(sock, endpoint, ClientStream(str(endpoint), version, text=protocol == "text"), config, clock)
