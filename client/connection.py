"""One TCP connection to a broker, shared by any number of threads.

Requests are pipelined and matched to their answers by opaque. There is no thread that only reads: **a blocked caller
reads for everybody** (the leader), completes the answers of others as they come, and hands the role to another blocked
caller (a follower) when its own is there. So a single thread that sends and waits never switches threads. Only while
requests without a blocked caller are under way (futures, long polls) does a background thread hold the role.

Invariants (`_mutex` guards the role):
- `_reading` is true while exactly one thread reads, or has been handed the role and is about to;
- every request's `on_done` is called exactly once: with an answer, at its deadline, or when the connection ends;
- a request is entered in `_pending` before the role is looked at, and who gives the role up looks at `_pending` after
  that: so a request that needs a background reader always gets one.
"""

from __future__ import annotations

import itertools
import logging
import math
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from struct import Struct
from typing import Any, NamedTuple

from metaq.coordination.forks import ForkGuard
from metaq.protocol.errors import BrokerUnavailable, MetaqError, RemoteProtocolError, RequestTimedOut
from metaq.protocol.frames import Frame, encode_frame
from metaq.protocol.limits import FRAMES_MARK, MANY_MARK
from metaq.protocol.record import Buffer
from metaq.protocol.statuses import RequestCode, Status
from metaq.protocol.text import Answer, AnswerReader, Result, encode_version

from .config import ConnectionConfig, Protocol
from .reply_reader import ReplyReader, SentReply
from .waiting import Waiter

__all__ = ["Call", "Connection", "Endpoint", "OnDone", "Reply", "open_connection"]

log = logging.getLogger(__name__)

Reply = Frame | SentReply | Answer
OnDone = Callable[[Reply | None, MetaqError | None], None]
"""Called once, on the thread that reads (or that finds the connection broken): it must not block."""
OnBegun = Callable[[Frame], None]
"""Called with an answer whose body is still to come (empty here), on the thread that reads: it must not block."""
Build = Callable[[int], Sequence[Buffer]]
"""Makes a request's bytes for the opaque it is given."""

_TICK = 0.25
"""Seconds a system call may block before deadlines are looked at; requests of nobody's end at most this much late."""
_TIMEVAL = Struct("@ll")
_SMALL_BYTES = 32 * 1024
"""Up to here joining buffers costs less than a scatter list."""
_MAX_IOV = 1000
"""Buffers per sendmsg (Linux allows 1,024)."""
_FIRST_RECEIVE_BYTES = 16 * 1024
_HANDLER_FAILED = "a handler of an answer failed"
"""A bug in one request's handler must not stop the reading for all the others, so it is logged."""


class Endpoint(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"meta://[{self.host}]:{self.port}" if ":" in self.host else f"meta://{self.host}:{self.port}"


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


class _Pending:
    """A request under way. `background`: no caller is blocked for it, so a thread must read on its behalf."""

    __slots__ = ("background", "deadline", "on_begun", "on_done")

    def __init__(self, on_done: OnDone, deadline: float, background: bool, on_begun: OnBegun | None = None) -> None:
        self.on_done = on_done
        self.deadline = deadline
        self.background = background
        self.on_begun = on_begun


class Connection:
    """An open connection; see the module for who reads. All methods may be called on any thread.

    speaks_frames: the framed protocol was agreed on; else only text commands may be sent. takes_many: and SEND_MANY.
    """

    def __init__(
        self,
        sock: socket.socket,
        endpoint: Endpoint,
        reader: ReplyReader | AnswerReader,
        config: ConnectionConfig,
        peer_version: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.endpoint = endpoint
        self.peer_version = peer_version
        self.speaks_frames = isinstance(reader, ReplyReader)
        self.takes_many = self.speaks_frames and MANY_MARK in peer_version.split()
        self._sock = sock
        self._fileno = sock.fileno()
        self._reader = reader
        self._config = config
        self._clock = clock
        self._opaques = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self._send_lock = threading.Lock()
        self._mutex = threading.Lock()
        self._reading = False
        self._followers: dict[Waiter, None] = {}
        self._orphans = False  # a caller gave up waiting; its request is still under way, or is sent a moment later
        self._background: SimpleQueue[None] | None = None
        self._failure: MetaqError | None = None
        self._receive_bytes = min(_FIRST_RECEIVE_BYTES, config.max_receive_bytes)
        self._next_expiry = 0.0
        self._last_traffic = clock()
        self._heartbeat_under_way = False
        self._guard = ForkGuard(f"connection to {endpoint}")
        self.on_closed: Callable[[Connection], None] | None = None
        self.expects_bulk = False
        """Set by who pulls: answers are large, so each is received whole; costs small ones a second system call."""

    # --- requests ---------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._failure is not None

    @property
    def failure(self) -> MetaqError | None:
        """Why the connection ended; None while it is open."""
        return self._failure

    @property
    def in_flight(self) -> int:
        """Requests sent and not answered yet."""
        return len(self._pending)

    def submit(
        self,
        build: Build,
        on_done: OnDone,
        deadline: float,
        *,
        background: bool = True,
        on_begun: OnBegun | None = None,
    ) -> None:
        """Send a request; `on_done` gets its answer, RequestTimedOut at `deadline` (clock time, monotonic seconds), or
        BrokerUnavailable when the connection ends.

        background=False promises that a thread is going to `drive` this connection until the answer is there.
        on_begun: gets a large answer before its body is received, if `expects_bulk`; `on_done` follows in any case.
        Raises only LocalProtocolError (from `build`), and ClientError in a process that was forked off: nothing was
        sent and on_done is not called.
        """
        opaque = self.new_opaque()
        self.submit_built(opaque, build(opaque), on_done, deadline, background, on_begun)

    def new_opaque(self) -> int:
        """For a request whose bytes the caller makes itself, with `submit_built`."""
        return next(self._opaques) & 0x7FFFFFFF

    def submit_built(
        self,
        opaque: int,
        buffers: Sequence[Buffer],
        on_done: OnDone,
        deadline: float,
        background: bool,
        on_begun: OnBegun | None = None,
    ) -> None:
        """As `submit`, with the request's bytes made for `opaque`, which came from `new_opaque`."""
        self._guard.check()
        if len(self._pending) >= self._config.max_in_flight_requests:
            on_done(None, BrokerUnavailable(f"{self.endpoint} has {len(self._pending)} requests under way already"))
            return
        self._pending[opaque] = _Pending(on_done, deadline, background, on_begun)
        self._send_pending(buffers, deadline, background)

    def submit_all(
        self, builds: Sequence[Build], handlers: Sequence[OnDone], deadline: float, *, background: bool = True
    ) -> None:
        """Many requests pipelined with as few system calls as possible; otherwise as `submit`."""
        self._guard.check()
        opaques = [self.new_opaque() for _ in builds]
        buffers = [buffer for build, opaque in zip(builds, opaques, strict=True) for buffer in build(opaque)]
        for opaque, on_done in zip(opaques, handlers, strict=True):
            self._pending[opaque] = _Pending(on_done, deadline, background)
        self._send_pending(buffers, deadline, background)

    def _send_pending(self, buffers: Sequence[Buffer], deadline: float, background: bool) -> None:
        """Send what was entered into `_pending`, and have its answer read."""
        if self._failure is not None:
            self._complete_all()
            return
        self._send(buffers, deadline)
        if (background or self._orphans) and not self._reading:
            self._wake_background()

    def send_unanswered(self, data: Buffer, deadline: float) -> None:
        """Send a request that no broker answers. Raises BrokerUnavailable if the connection has ended."""
        self._guard.check()
        self._send((data,), deadline)
        if self._failure is not None:
            raise self._failure

    def call(self, build: Build, timeout: float | None = None) -> Reply:
        """Send a request and wait for its answer, at most `timeout` seconds (default: the request timeout).

        Raises RequestTimedOut, BrokerUnavailable, LocalProtocolError. An error answer is returned, not raised.
        """
        deadline = self._deadline(timeout)
        return self._answer(self._begin(build, deadline), deadline)

    def begin(self, build: Build) -> Call:
        """Send a small request whose answer the caller is going to `finish`, or else it closes the connection.

        Until then the answer waits in the socket, or at the broker, and has no deadline. Raises LocalProtocolError.
        """
        return self._begin(build, math.inf)

    def finish(self, call: Call, timeout: float | None = None) -> Reply:
        """Wait for the answer to what was begun, `timeout` seconds from now on at most; otherwise as `call`."""
        deadline = self._deadline(timeout)
        if (pending := self._pending.get(call.opaque)) is not None:
            pending.deadline = deadline
        return self._answer(call, deadline)

    def _deadline(self, timeout: float | None) -> float:
        return self._clock() + (self._config.request_timeout_seconds if timeout is None else timeout)

    def _begin(self, build: Build, deadline: float) -> Call:
        call = Call(self.new_opaque())
        self.submit_built(call.opaque, build(call.opaque), call.on_done, deadline, background=False)
        return call

    def _answer(self, call: Call, deadline: float) -> Reply:
        self.drive(call, deadline)
        if call.error is not None:
            raise call.error
        if call.reply is None:
            raise RequestTimedOut(f"{self.endpoint} did not answer in time")
        return call.reply

    def drive(self, waiter: Waiter, deadline: float) -> None:
        """Block until `waiter` is done or the deadline has passed (look at `waiter.done`), reading for everybody if
        nobody else does."""
        self._guard.check()
        try:
            while not waiter.done:
                if self._take_role(waiter):
                    self._lead(waiter, deadline)
                else:
                    waiter.park(deadline - self._clock())
                if not waiter.done and self._clock() >= deadline:
                    break
        finally:
            waiter.go()
        if waiter.mailbox is not None or not waiter.done:  # else it never was a follower
            self._leave(waiter)

    def read_in_background(self) -> None:
        """Take back all promises to `drive`: have a thread read for whatever is under way."""
        self._orphans = True
        if self._pending and not self._reading:
            self._wake_background()

    def close(self) -> None:
        """End the connection; requests under way get BrokerUnavailable. A process that was forked off only gives up its
        copy of the socket, whose connection is the parent's."""
        if self._guard.is_elsewhere:
            self._sock.close()
            return
        self._fail(BrokerUnavailable(f"the connection to {self.endpoint} was closed by this client"))

    # --- who reads --------------------------------------------------------------------------------------------------

    def _take_role(self, waiter: Waiter) -> bool:
        """True: the caller reads now. False: it has become a follower and shall park."""
        with self._mutex:
            if not self._reading and self._failure is None:
                self._reading = True
                if waiter.mailbox is not None:
                    self._followers.pop(waiter, None)
                return True
            if waiter.leads:  # handed over while it was parked
                waiter.leads = False
                return True
            if waiter.mailbox is None:
                waiter.mailbox = SimpleQueue()
            self._followers[waiter] = None
        if waiter.done:
            waiter.mailbox.put(None)  # finished before it had a mailbox
        return False

    def _leave(self, waiter: Waiter) -> None:
        """The waiter's thread goes away: it is no follower any more, and passes on a role it was just handed."""
        with self._mutex:
            self._followers.pop(waiter, None)
            leads, waiter.leads = waiter.leads, False
        if not waiter.done and not waiter.returns:
            self._orphans = True
        if leads:
            self._hand_over()
        elif self._orphans and self._pending and not self._reading:
            self._wake_background()

    def _lead(self, waiter: Waiter, deadline: float) -> None:
        try:
            while not waiter.done and self._failure is None:
                remaining = deadline - self._clock()
                if remaining <= 0:
                    return
                self._read(remaining)
        finally:
            self._hand_over()

    def _hand_over(self) -> None:
        """Give the role to a follower, or to the background thread if a request needs it, or to nobody."""
        with self._mutex:
            if self._failure is not None:
                self._reading = False
                self._sock.close()
                return
            while self._followers:
                heir = next(iter(self._followers))
                del self._followers[heir]
                if heir.done:
                    continue  # it is about to be woken, and would only pass the role on
                heir.leads = True
                assert heir.mailbox is not None
                heir.mailbox.put(None)
                return
            self._reading = False
        # only now: a request entered in the meantime saw `_reading` and relies on this look
        if self._pending and self._needs_background():
            self._wake_background()

    def _needs_background(self) -> bool:
        if self._orphans:
            return True
        return any(pending.background for pending in list(self._pending.values()))

    def _wake_background(self) -> None:
        with self._mutex:
            if self._reading or self._failure is not None:
                return
            self._reading = True
            if self._background is None:
                self._background = SimpleQueue()
                name = f"metaq-reader-{self.endpoint.host}:{self.endpoint.port}"
                threading.Thread(target=self._background_loop, args=(self._background,), name=name, daemon=True).start()
            self._background.put(None)

    def _background_loop(self, wake: SimpleQueue[None]) -> None:
        while True:
            wake.get()
            while self._failure is None:
                self._read(_TICK)
                if not self._pending:
                    self._orphans = False
                    break
                if not self._needs_background():
                    break
            self._hand_over()
            if self._failure is not None:
                return

    # --- bytes in ---------------------------------------------------------------------------------------------------

    def _read(self, patience: float) -> None:
        """Receive once, max(patience, one tick) seconds at most, and complete what that answers. Role holder only."""
        try:
            if patience < _TICK and not _readable(self._fileno, patience):
                self._expire()
                return
            if self.expects_bulk and isinstance(self._reader, ReplyReader):
                # in one system call straight to its own buffer, without the interpreter's lock in between
                data = self._sock.recv(self._reader.wanted_bytes, socket.MSG_WAITALL)
            else:
                data = self._sock.recv(self._receive_bytes)
        except (BlockingIOError, InterruptedError):
            self._expire()
            return
        except OSError as error:
            self._fail(BrokerUnavailable(f"the connection to {self.endpoint} broke: {error}"))
            return
        if not data:
            self._fail(BrokerUnavailable(f"{self.endpoint} closed the connection"))
            return
        if not self.expects_bulk:
            self._adapt(len(data))
        try:
            replies = self._reader.receive(data)
            if self.expects_bulk and not replies:
                self._tell_begun()
        except RemoteProtocolError as error:
            self._fail(BrokerUnavailable(f"{self.endpoint} sent something that is not the protocol: {error}"))
            return
        for reply in replies:
            pending = self._pending.pop(reply.opaque, None)
            if pending is None:
                continue  # an answer after its deadline
            try:
                pending.on_done(reply, None)
            except Exception:
                log.exception(_HANDLER_FAILED)
        now = self._last_traffic = self._clock()
        if now >= self._next_expiry:
            self._expire()

    def _tell_begun(self) -> None:
        """Tell who wants to know that the body of an answer comes next. Raises RemoteProtocolError."""
        begun = self._reader.begun if isinstance(self._reader, ReplyReader) else None
        if not isinstance(begun, Frame):
            return
        pending = self._pending.get(begun.opaque)
        if pending is None or pending.on_begun is None:
            return
        try:
            pending.on_begun(begun)
        except Exception:
            log.exception(_HANDLER_FAILED)

    def _adapt(self, received: int) -> None:
        """Large replies need few system calls, small ones no large buffer."""
        if received == self._receive_bytes:
            self._receive_bytes = min(received * 4, self._config.max_receive_bytes)
        elif received < self._receive_bytes >> 4 > _FIRST_RECEIVE_BYTES >> 4:
            self._receive_bytes >>= 1

    def _expire(self) -> None:
        now = self._clock()
        self._next_expiry = now + _TICK
        for opaque, pending in list(self._pending.items()):
            if pending.deadline <= now and self._pending.pop(opaque, None) is not None:
                _complete(pending, RequestTimedOut(f"{self.endpoint} did not answer in time"))

    # --- bytes out --------------------------------------------------------------------------------------------------

    def _send(self, buffers: Sequence[Buffer], deadline: float) -> None:
        with self._send_lock:
            if self._failure is not None:
                return
            try:
                if len(buffers) > 1 and sum(map(len, buffers)) > _SMALL_BYTES:
                    self._send_scattered(buffers, deadline)
                    return
                data = buffers[0] if len(buffers) == 1 else b"".join(buffers)
                sent = self._try_send(self._sock.send, data, deadline)
                if sent < len(data):
                    self._send_rest(memoryview(data)[sent:], deadline)
                return
            except OSError as error:
                failure = BrokerUnavailable(f"the connection to {self.endpoint} broke: {error}")
            except RequestTimedOut as error:
                failure = BrokerUnavailable(str(error))
        self._fail(failure)

    def _send_rest(self, rest: memoryview, deadline: float) -> None:
        while rest:
            rest = rest[self._try_send(self._sock.send, rest, deadline) :]

    def _send_scattered(self, buffers: Sequence[Buffer], deadline: float) -> None:
        for start in range(0, len(buffers), _MAX_IOV):
            views = [memoryview(buffer) for buffer in buffers[start : start + _MAX_IOV]]
            while views:
                sent = self._try_send(self._sock.sendmsg, views, deadline)
                while views and sent >= len(views[0]):
                    sent -= len(views.pop(0))
                if sent:
                    views[0] = views[0][sent:]

    def _try_send(self, send: Callable[[Any], int], data: object, deadline: float) -> int:
        """Bytes the socket took within a tick; RequestTimedOut once the deadline has passed."""
        try:
            return send(data)
        except (BlockingIOError, InterruptedError):
            if self._clock() >= deadline:
                raise RequestTimedOut(f"{self.endpoint} does not take data") from None
            return 0

    # --- the end ----------------------------------------------------------------------------------------------------

    def _fail(self, failure: MetaqError) -> None:
        with self._mutex:
            if self._failure is not None:
                return
            self._failure = failure
            followers = list(self._followers)
            self._followers.clear()
            self._shut_down()
        self._complete_all()
        for follower in followers:
            assert follower.mailbox is not None
            follower.mailbox.put(None)
        if self._background is not None:
            self._background.put(None)
        if self.on_closed is not None:
            self.on_closed(self)

    def _shut_down(self) -> None:
        """Wake a thread inside recv or send; the reader closes the socket (its number may be reused from then on)."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            log.debug("shutting down the connection to %s: %s", self.endpoint, error)  # the peer was faster
        if not self._reading:
            self._sock.close()

    def _complete_all(self) -> None:
        while self._pending:
            try:
                _, pending = self._pending.popitem()
            except KeyError:
                return  # another thread took the last one
            _complete(pending, self._failure)

    # --- heartbeat --------------------------------------------------------------------------------------------------

    def beat(self) -> None:
        """Ask for a sign of life if there was no traffic for the idle time. Called by the pool's housekeeping."""
        now = self._clock()
        if self._heartbeat_under_way or self.closed:
            return
        if not self._reading and _readable(self._fileno, 0):
            self._wake_background()  # nobody asked for anything: the broker closed the connection
            return
        if now - self._last_traffic < self._config.heartbeat_idle_seconds:
            return
        self._heartbeat_under_way = True
        self.submit(self._heartbeat, self._on_heartbeat, now + self._config.heartbeat_timeout_seconds)

    def _heartbeat(self, opaque: int) -> Sequence[Buffer]:
        if self.speaks_frames:
            return (encode_frame(RequestCode.HEARTBEAT, opaque, {}),)
        return (encode_version(opaque),)

    def _on_heartbeat(self, _reply: Reply | None, error: MetaqError | None) -> None:
        self._heartbeat_under_way = False
        if isinstance(error, RequestTimedOut):
            self._fail(BrokerUnavailable(f"{self.endpoint} gave no sign of life"))


def _complete(pending: _Pending, error: MetaqError | None) -> None:
    try:
        pending.on_done(None, error)
    except Exception:
        log.exception(_HANDLER_FAILED)


def _readable(fileno: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(fileno, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))


# --- opening ----------------------------------------------------------------------------------------------------------


def open_connection(
    endpoint: Endpoint,
    config: ConnectionConfig,
    protocol: Protocol = "auto",
    timeout: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Connection:
    """Connect and agree on the protocol, within `timeout` seconds (at most the connect timeout).

    The opening request is the text command `version`: our broker's answer says that it speaks frames, a Java broker's
    does not (and must never be sent one: it would wait for CR LF for ever). Raises BrokerUnavailable.
    """
    limit = config.connect_timeout_seconds
    seconds = limit if timeout is None else max(0.001, min(limit, timeout))
    deadline = clock() + seconds
    try:
        sock = socket.create_connection(endpoint, timeout=seconds)
    except OSError as error:
        raise BrokerUnavailable(f"no connection to {endpoint} within {seconds:.1f} s: {error}") from error
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        version = _ask_version(sock, endpoint, deadline, clock)
        _set_ticks(sock)
    except (OSError, RemoteProtocolError) as error:
        sock.close()
        raise BrokerUnavailable(f"{endpoint} did not answer as a metaq broker: {error}") from error
    frames = protocol == "auto" and FRAMES_MARK in version.split()
    reader = ReplyReader() if frames else AnswerReader()
    return Connection(sock, endpoint, reader, config, version, clock)


def _ask_version(sock: socket.socket, endpoint: Endpoint, deadline: float, clock: Callable[[], float]) -> str:
    sock.sendall(encode_version(0))
    reader = AnswerReader()
    while True:
        sock.settimeout(max(0.001, deadline - clock()))
        data = sock.recv(4096)
        if not data:
            raise RemoteProtocolError("it closed the connection")
        for answer in reader.receive(data):
            if not isinstance(answer, Result) or answer.code != Status.SUCCESS:
                raise RemoteProtocolError(f"`version` was answered with {answer!r}")
            return answer.text


def _set_ticks(sock: socket.socket) -> None:
    """Block in the kernel for one tick at most: one system call per receive, where a Python timeout would take two."""
    sock.settimeout(None)
    tick = _TIMEVAL.pack(0, int(_TICK * 1e6))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, tick)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, tick)
