"""One TCP connection to a broker, shared by any number of threads.

Requests are pipelined and matched to their answers by opaque. There is no thread that only reads: **a blocked caller
reads for everybody** (the leader), completes the answers of others as they come, and hands the role to another blocked
caller (a follower) when its own is there. So a single thread that sends and waits never switches threads. Only while
requests without a blocked caller are under way (futures, long polls) does a background thread hold the role.

Invariants (`_mutex` guards the role):
- `_leader` has the role: it reads, or has been handed the role and is about to;
- every request's `on_done` is called exactly once: with an answer, at its deadline, or when the connection ends;
- a request is entered in `_pending` before the role is looked at, and who gives the role up looks at `_pending` after
  that: so a request that needs a background reader always gets one.

**Interrupts.** A user's thread may leave any line with an exception that is not the line's own: KeyboardInterrupt, or
what a handler of SIGALRM raises. So:
- what is received, and the requests that it answers, are kept by one call of a C function each (`extend` of a chain
  of maps), which a signal's handler cannot divide: nothing that left the socket or `_pending` is only in a variable;
- what must follow in any case begins on a thread where no further interrupt comes, by one call of a C function;
- a request whose handler was interrupted gets a second call of `on_done`, with an error, from whoever reads next;
- an answer that was being taken apart, or a request that was being sent, ends the connection: where its bytes end is
  not known any more (`_parsing`, `_sending`). A request that was not being sent yet ends at once;
- a failed connection is brought to its end on the background thread, which no signal reaches.
"""

from __future__ import annotations

import itertools
import math
import operator
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat
from queue import SimpleQueue
from struct import Struct
from typing import Any, NamedTuple

from metaq.coordination.forks import ForkGuard
from metaq.coordination.interrupts import BackgroundThread, Bell, begin_elsewhere, is_interrupt
from metaq.coordination.logs import get_log
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

log = get_log(__name__)

Reply = Frame | SentReply | Answer
OnDone = Callable[[Reply | None, MetaqError | None], None]
"""Called once, on the thread that reads or on the background thread: it must not block.

If KeyboardInterrupt, or whatever a signal's handler raises, comes out of it or ends the thread's reading just behind
it, it is called once more, with BrokerUnavailable, from another thread.
"""
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
_CUT_SHORT = -math.inf
"""The deadline of a request whose sender was interrupted."""
_CUT_SHORT_SECONDS = 1e-4
"""How often it is looked whether an interrupted sender's requests are known."""
_STUCK_SECONDS = 2 * _TICK
"""A reader that has not looked at deadlines for so long may not do so soon."""
_CLOSE_SECONDS = 5.0
"""close() waits so long for the handlers of requests under way."""
_opaque_of = operator.attrgetter("opaque")


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

    __slots__ = ("background", "begun", "deadline", "on_begun", "on_done")

    def __init__(self, on_done: OnDone, deadline: float, background: bool, on_begun: OnBegun | None = None) -> None:
        self.on_done = on_done
        self.deadline = deadline
        self.background = background
        self.on_begun = on_begun
        self.begun = False  # on_done was called


class _Background:
    """Has the role while the background thread reads."""


_BACKGROUND = _Background()
_Outcome = tuple[_Pending | None, Reply | None, MetaqError | None]
"""A request that has ended (None: unknown, its deadline has passed), and what its `on_done` is to be called with."""


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
        self._sending = False
        self._backlog: deque[tuple[memoryview, float]] = deque()  # what the writer thread sends, and until when
        self._mutex = threading.Lock()
        self._leader: Waiter | _Background | None = None
        self._followers: dict[Waiter, None] = {}
        self._cutting_short: dict[int, None] = {}  # the first requests of those that `_cut_short` is about to look at
        self._taken_over: set[int] = set()  # requests whose sending was interrupted
        self._orphans = False  # a caller gave up waiting; its request is still under way, or is sent a moment later
        self._background: SimpleQueue[None] | None = None  # wakes the background thread; None: there is none
        self._failure: MetaqError | None = None
        self._ended = False  # it failed, and nothing is under way any more
        self._closers: list[Waiter] = []  # no Event: one whose wait was interrupted may keep its lock for ever
        self._background_thread: BackgroundThread | None = None
        self._told = False  # on_closed was called
        # the leader's, and with the role the next leader's
        self._received: list[bytes] = []  # at most one, which is not taken apart yet
        self._parsing = False
        self._outcomes: deque[_Outcome] = deque()
        self._receive_bytes = min(_FIRST_RECEIVE_BYTES, config.max_receive_bytes)
        self._next_expiry = 0.0
        self._last_traffic = clock()
        self._heartbeat_under_way = False
        self._polls = False  # signals keep a receive from ending at its tick
        self._seen: tuple[object, float, float] = (None, 0.0, 0.0)  # by `beat`: the leader and what it has done last
        self._seen_first = 0.0
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
        """As `submit`, with the request's bytes made for `opaque`, which came from `new_opaque`.

        If an interrupt comes out of it, see `has`.
        """
        self._guard.check()
        if len(self._pending) >= self._config.max_in_flight_requests:
            on_done(None, BrokerUnavailable(f"{self.endpoint} has {len(self._pending)} requests under way already"))
            return
        entered = 0
        try:
            self._pending[opaque] = _Pending(on_done, deadline, background, on_begun)
            entered = 1
            self._send_pending(buffers, deadline, background)
        except BaseException:
            self._cutting_short[opaque] = None
            begin_elsewhere((self._cut_short, (opaque,), (on_done,), entered))
            raise

    def submit_all(
        self,
        opaques: Sequence[int],
        builds: Sequence[Build],
        handlers: Sequence[OnDone],
        deadline: float,
        *,
        background: bool = True,
    ) -> None:
        """Many requests pipelined with as few system calls as possible; opaques: from `new_opaque`. Otherwise as
        `submit`; if an interrupt comes out of it, see `has`."""
        self._guard.check()
        buffers = [buffer for build, opaque in zip(builds, opaques, strict=True) for buffer in build(opaque)]
        entered = 0
        try:
            for opaque, on_done in zip(opaques, handlers, strict=True):
                self._pending[opaque] = _Pending(on_done, deadline, background)
                entered += 1
            self._send_pending(buffers, deadline, background)
        except BaseException:
            self._cutting_short[opaques[0]] = None
            begin_elsewhere((self._cut_short, opaques, handlers, entered))
            raise

    def _send_pending(self, buffers: Sequence[Buffer], deadline: float, background: bool) -> None:
        """Send what was entered into `_pending`, and have its answer read. Blocks for a tick or two at most."""
        self._send(buffers, deadline)
        if self._failure is not None or ((background or self._orphans) and self._leader is None):
            self._wake_background()

    def _cut_short(self, opaques: Sequence[int], handlers: Sequence[OnDone], entered: int) -> None:
        """The thread that was sending these was interrupted, when it had entered so many of them into `_pending`:
        whoever reads ends them. On a thread of its own."""
        for index, (opaque, on_done) in enumerate(zip(opaques, handlers, strict=True)):
            if (pending := self._pending.get(opaque)) is not None:
                pending.deadline = _CUT_SHORT
            elif index >= entered:
                self._pending[opaque] = _Pending(on_done, _CUT_SHORT, background=True)
            self._taken_over.add(opaque)
        self._cutting_short.pop(opaques[0], None)
        self._orphans = True
        self._look_again()

    def has(self, opaque: int) -> bool:
        """After `submit_built` or `submit_all` was interrupted, on another thread: whether this request's `on_done`
        will be called nevertheless, or is called now. Of several the first one is asked about first."""
        while opaque in self._cutting_short:
            time.sleep(_CUT_SHORT_SECONDS)
        return (
            opaque in self._taken_over
            or opaque in self._pending
            or any(reply is not None and reply.opaque == opaque for _, reply, _ in list(self._outcomes))
        )

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
        self._guard.check()
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
        nobody else does. In the process that made the connection, which the caller has looked at."""
        following = False
        try:
            while not waiter.done:
                if waiter.answered:
                    self._hand_over(waiter)  # it may have been handed the role in between
                    self.read_in_background()  # this thread may have promised to read for others
                    waiter.park_until_done(deadline, self._clock)
                    break
                following = not self._take_role(waiter)
                if following:
                    waiter.park(deadline - self._clock())
                else:
                    self._lead(waiter, deadline)
                    self._hand_over(waiter)
                if not waiter.done and self._clock() >= deadline:
                    break
            if following or not waiter.done:
                self._leave(waiter)
            else:
                waiter.go()
        except BaseException:
            begin_elsewhere((self._leave, waiter))
            raise

    def read_in_background(self) -> None:
        """Take back all promises to `drive`: have a thread read for whatever is under way."""
        self._orphans = True
        if self._pending and self._leader is None:
            self._wake_background()

    def close(self) -> None:
        """End the connection; requests under way get BrokerUnavailable. A process that was forked off only gives up its
        copy of the socket, whose connection is the parent's."""
        if self._guard.is_elsewhere:
            self._sock.close()
            return
        failure = BrokerUnavailable(f"the connection to {self.endpoint} was closed by this client")
        try:
            self._fail(failure)
        except BaseException:
            begin_elsewhere((self._fail, failure))
            raise
        if self._background is None and not self._ended:
            self._end()  # the interpreter is about to exit
        if self._background_thread is None or not self._background_thread.is_current:  # else a handler has called
            closer = Waiter()
            self._closers.append(closer)
            if not self._ended:  # looked at behind the line above, as `_end` looks behind setting it
                closer.park_until_done(time.monotonic() + _CLOSE_SECONDS, time.monotonic)

    # --- who reads --------------------------------------------------------------------------------------------------

    def _take_role(self, waiter: Waiter) -> bool:
        """True: the caller reads now. False: it has become a follower and shall park."""
        with self._mutex:
            if self._leader is waiter:  # handed over while it was parked
                return True
            if self._leader is None and self._failure is None:
                self._leader = waiter
                if waiter.mailbox is not None:
                    self._followers.pop(waiter, None)
                return True
            if waiter.mailbox is None:
                waiter.mailbox = Bell()
            self._followers[waiter] = None
        if waiter.done:
            waiter.mailbox.ring()  # finished before it had a mailbox
        return False

    def _leave(self, waiter: Waiter) -> None:
        """The waiter's thread goes away: it is no follower any more, and passes the role on. May be repeated, on any
        thread."""
        waiter.go()
        if not waiter.done and not waiter.returns:
            self._orphans = True
        self._hand_over(waiter)

    def _lead(self, waiter: Waiter, deadline: float) -> None:
        while not (waiter.done or waiter.answered) and self._failure is None:
            remaining = deadline - self._clock()
            if remaining <= 0:
                return
            self._read(remaining)

    def _hand_over(self, giver: Waiter | _Background) -> None:
        """Give the role, if the giver has it, to a follower, or to the background thread if a request needs it, or to
        nobody. May be repeated."""
        with self._mutex:
            if isinstance(giver, Waiter) and giver.mailbox is not None:
                self._followers.pop(giver, None)
            if self._leader is giver:
                self._leader = self._wake_heir() if self._followers and self._failure is None else None
        # only now: a request entered in the meantime saw a leader and relies on this look
        if self._leader is None and (self._pending or self._outcomes or self._parsing or self._failure is not None):
            self._look_again()

    def _wake_heir(self) -> Waiter | None:
        """The next leader. It is woken first, and finds the mutex taken: woken in vain, it would park again."""
        while self._followers:
            heir = next(iter(self._followers))
            if not heir.done:  # else it is about to be woken, and would only pass the role on
                assert heir.mailbox is not None
                heir.mailbox.ring()
                return heir  # which takes itself off the followers when it hands the role over
            self._followers.pop(heir, None)
        return None

    def _look_again(self) -> None:
        """Have the background thread do what nobody else is going to do. May be repeated, on any thread."""
        if self._leader is not None:
            return
        if self._failure is not None:
            if self._pending or self._outcomes or not self._ended:
                self._wake_background()
            else:
                self._sock.close()  # not before: the reader may have been in recv, and the number be reused
            return
        if self._outcomes or self._parsing or (self._pending and self._needs_background()):
            self._wake_background()

    def _needs_background(self) -> bool:
        if self._orphans:
            return True
        return any(pending.background for pending in list(self._pending.values()))

    def _wake_background(self) -> None:
        """Have the background thread read if nobody does, and end the connection if it has failed."""
        with self._mutex:
            if self._leader is not None and self._failure is None:
                return
            if self._background is None:
                wake: SimpleQueue[None] = SimpleQueue()
                name = f"metaq-reader-{self.endpoint.host}:{self.endpoint.port}"
                try:
                    thread = BackgroundThread(self._background_loop, name, wake)
                except RuntimeError as error:  # the interpreter is about to exit
                    log.debug("no thread to read from %s: %s", self.endpoint, error)
                    return
                self._background, self._background_thread = wake, thread
            self._background.put(None)  # first, as in `_wake_heir`
            if self._leader is None and (self._outcomes or self._failure is None):
                self._leader = _BACKGROUND

    def _background_loop(self, wake: SimpleQueue[None]) -> None:
        with self._mutex:
            if self._background is not wake:
                return  # starting it was interrupted, and another one took its place
        while True:
            wake.get()
            with self._mutex:
                leads = self._leader is _BACKGROUND
            if leads:
                self._lead_in_background()
            if self._failure is not None:
                self._end()
                with self._mutex:
                    if wake.empty():
                        self._background = None
                        return

    def _lead_in_background(self) -> None:
        while self._failure is None or self._outcomes:
            try:
                self._read(_TICK)
            except BaseException:  # SystemExit of a user's callback, for example: it must not end the reading
                log.exception(_HANDLER_FAILED)
            if not self._pending and not self._outcomes:
                self._orphans = False
                break
            if not (self._needs_background() or self._outcomes):
                break
        self._hand_over(_BACKGROUND)

    # --- bytes in ---------------------------------------------------------------------------------------------------

    def _read(self, patience: float) -> None:
        """Receive once, max(patience, one tick) seconds at most, and complete what that answers. Role holder only."""
        received = self._received
        if self._parsing or self._outcomes:
            self._go_on()
            return
        try:
            if self._polls and self._sock.gettimeout() is not None:
                self._sock.settimeout(None)  # for who sends
            if received:
                pass
            elif (patience < _TICK or self._polls) and not _readable(self._fileno, min(patience, _TICK)):
                self._expire()
                return
            elif self.expects_bulk and isinstance(self._reader, ReplyReader) and not self._polls:
                # in one system call straight to its own buffer, without the interpreter's lock in between
                received.extend(map(self._sock.recv, (self._reader.wanted_bytes,), (socket.MSG_WAITALL,)))
            else:
                received.extend(map(self._sock.recv, (self._receive_bytes,)))
        except (BlockingIOError, InterruptedError):
            self._expire()
            return
        except OSError as error:
            if is_interrupt(error):
                raise
            self._fail(BrokerUnavailable(f"the connection to {self.endpoint} broke: {error}"))
            return
        data = received[0]
        if not data:
            self._fail(BrokerUnavailable(f"{self.endpoint} closed the connection"))
            return
        if not self.expects_bulk and (len(data) == self._receive_bytes or self._receive_bytes > _FIRST_RECEIVE_BYTES):
            self._adapt(len(data))
        self._parsing = True
        try:
            replies = self._reader.receive(data)
            if self.expects_bulk and not replies:
                self._tell_begun()
        except RemoteProtocolError as error:
            self._fail(BrokerUnavailable(f"{self.endpoint} sent something that is not the protocol: {error}"))
            return
        if len(replies) == 1:  # the usual case of a caller that waits for each answer
            opaque = replies[0].opaque
            self._outcomes.append((self._pending.get(opaque), replies[0], None))
            self._pending.pop(opaque, None)  # last: between the two an interrupt finds it in both, which is no loss
        else:
            ended = map(self._pending.pop, map(_opaque_of, replies), repeat(None))
            self._outcomes.extend(zip(ended, replies, repeat(None)))
        self._parsing = False
        del received[:]
        self._complete()
        now = self._last_traffic = self._clock()
        if now >= self._next_expiry:
            self._expire()

    def _go_on(self) -> None:
        """The last reader was interrupted."""
        if self._parsing:
            self._fail(BrokerUnavailable(f"reading an answer of {self.endpoint} was interrupted"))
        self._complete()

    def _complete(self) -> None:
        """Call the handlers of requests that have ended. Role holder only."""
        outcomes = self._outcomes
        while outcomes:
            pending, reply, error = outcomes[0]
            if pending is not None:
                if pending.begun:  # and interrupted
                    reply, error = None, BrokerUnavailable(f"taking an answer of {self.endpoint} was interrupted")
                pending.begun = True
                try:
                    pending.on_done(reply, error)
                except Exception as failure:
                    if is_interrupt(failure):
                        raise
                    log.exception(_HANDLER_FAILED)
            outcomes.popleft()

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
        except Exception as failure:
            if is_interrupt(failure):
                raise
            log.exception(_HANDLER_FAILED)

    def _adapt(self, received: int) -> None:
        """Large replies need few system calls, small ones no large buffer."""
        if received == self._receive_bytes:
            self._receive_bytes = min(received * 4, self._config.max_receive_bytes)
        elif received < self._receive_bytes >> 4 > _FIRST_RECEIVE_BYTES >> 4:
            self._receive_bytes >>= 1

    def _expire(self) -> None:
        """Role holder only."""
        now = self._clock()
        self._next_expiry = now + _TICK
        late = [opaque for opaque, pending in list(self._pending.items()) if pending.deadline <= now]
        if late:
            errors = [self._lateness(self._pending.get(opaque)) for opaque in late]
            self._outcomes.extend(zip(map(self._pending.pop, late, repeat(None)), repeat(None), errors))
            self._complete()

    def _lateness(self, pending: _Pending | None) -> MetaqError:
        if pending is not None and pending.deadline == _CUT_SHORT:
            return BrokerUnavailable(f"sending a request to {self.endpoint} was interrupted")
        return RequestTimedOut(f"{self.endpoint} did not answer in time")

    # --- bytes out --------------------------------------------------------------------------------------------------

    def _send(self, buffers: Sequence[Buffer], deadline: float) -> None:
        """A thread writes for a tick. What the broker has not taken by then goes out on a thread of its own, and what
        is sent meanwhile behind it, so that nobody waits past a deadline for the broker to take others' requests.
        """
        broken: OSError | None = None
        with self._send_lock:
            if self._failure is not None:
                return
            if self._backlog:
                self._backlog.append((memoryview(b"".join(buffers)), deadline))
                return
            if not self._sending:  # else the last sender was interrupted
                try:
                    self._sending = True
                    if len(buffers) > 1 and sum(map(len, buffers)) > _SMALL_BYTES:
                        rest = self._send_scattered(buffers)
                    else:
                        data = buffers[0] if len(buffers) == 1 else b"".join(buffers)
                        try:
                            sent = self._sock.send(data)
                        except (BlockingIOError, InterruptedError):
                            sent = 0
                        rest = memoryview(data)[sent:].tobytes() if sent < len(data) else b""
                    if rest:
                        self._backlog.append((memoryview(rest), math.inf))  # its front is on its way
                        name = f"metaq-writer-{self.endpoint.host}:{self.endpoint.port}"
                        BackgroundThread(self._write_backlog, name)
                    self._sending = False
                    return
                except BaseException as error:
                    begin_elsewhere((self._fail_sending, error))
                    if not isinstance(error, OSError) or is_interrupt(error):
                        raise
                    broken = error
        self._fail_sending(broken)

    def _fail_sending(self, error: BaseException | None) -> None:
        if isinstance(error, OSError) and not is_interrupt(error):
            self._fail(BrokerUnavailable(f"the connection to {self.endpoint} broke: {error}"))
        else:
            self._fail(BrokerUnavailable(f"sending a request to {self.endpoint} was interrupted"))

    def _send_scattered(self, buffers: Sequence[Buffer]) -> bytes:
        """Returns what the socket did not take within a tick."""
        end = self._clock() + _TICK
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
        """Bytes the socket took within a tick."""
        try:
            return send(data)
        except (BlockingIOError, InterruptedError):
            return 0

    def _write_backlog(self) -> None:
        """Writer thread: as long as there is a backlog, nobody else writes."""
        while (rest := self._next_of_backlog()) is not None:
            patience = self._clock() + self._config.request_timeout_seconds
            while rest:
                try:
                    sent = self._try_send(self._sock.send, rest)
                except OSError as error:
                    self._fail(BrokerUnavailable(f"the connection to {self.endpoint} broke: {error}"))
                    break
                rest = rest[sent:]
                if sent:
                    patience = self._clock() + self._config.request_timeout_seconds
                elif self._clock() >= patience:
                    self._fail(BrokerUnavailable(f"{self.endpoint} does not take data"))
                    break
            with self._send_lock:
                self._backlog.popleft()

    def _next_of_backlog(self) -> memoryview | None:
        with self._send_lock:
            while self._backlog and (self._failure is not None or self._backlog[0][1] <= self._clock()):
                self._backlog.popleft()  # its caller has given up
            return self._backlog[0][0] if self._backlog else None

    # --- the end ----------------------------------------------------------------------------------------------------

    def _fail(self, failure: MetaqError) -> None:
        """The connection is of no use any more. May be repeated."""
        with self._mutex:
            if self._failure is None:
                self._failure = failure
        if not self._ended:
            self._shut_down()
            self._wake_background()

    def _shut_down(self) -> None:
        """Wake a thread inside recv or send."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            if is_interrupt(error):
                raise
            log.debug("shutting down the connection to %s: %s", self.endpoint, error)  # the peer was faster

    def _end(self) -> None:
        """Background thread, without the role: end all requests, and wake who waits."""
        while self._pending:
            try:
                _, pending = self._pending.popitem()
            except KeyError:
                break  # the leader took the last one
            _complete(pending, self._failure)
        with self._mutex:
            followers = list(self._followers)
            self._followers.clear()
        for follower in followers:
            assert follower.mailbox is not None
            follower.mailbox.ring()
        if self.on_closed is not None and not self._told:
            self._told = True
            self.on_closed(self)
        self._ended = True
        for closer in list(self._closers):
            closer.finish()
        self._look_again()

    # --- heartbeat --------------------------------------------------------------------------------------------------

    def beat(self) -> None:
        """Ask for a sign of life if there was no traffic for the idle time. Called by the pool's housekeeping."""
        now = self._clock()
        if self.closed:
            return
        seen = self._leader, self._next_expiry, self._last_traffic
        if seen != self._seen:
            self._seen, self._seen_first = seen, now
        elif self._leader is not None and now - self._seen_first > _STUCK_SECONDS:
            self._free_reader()
        if self._heartbeat_under_way:
            return
        if self._leader is None and _readable(self._fileno, 0):
            self._wake_background()  # nobody asked for anything: the broker closed the connection
            return
        if now - self._last_traffic < self._config.heartbeat_idle_seconds:
            return
        self._heartbeat_under_way = True
        self.submit(self._heartbeat, self._on_heartbeat, now + self._config.heartbeat_timeout_seconds)

    def _free_reader(self) -> None:
        """Signals whose handlers raise nothing, as a profiler's, come more often than a tick ends: Python repeats the
        receive for each, with its whole tick. From the next one on it does not block, and poll() waits instead, whose
        time Python keeps, for the price of a second system call per receive.
        """
        self._polls = True
        try:
            self._sock.settimeout(0)
        except OSError as error:  # closed meanwhile
            log.debug("the connection to %s: %s", self.endpoint, error)

    def _heartbeat(self, opaque: int) -> Sequence[Buffer]:
        if self.speaks_frames:
            return (encode_frame(RequestCode.HEARTBEAT, opaque, {}),)
        return (encode_version(opaque),)

    def _on_heartbeat(self, _reply: Reply | None, error: MetaqError | None) -> None:
        self._heartbeat_under_way = False
        if isinstance(error, RequestTimedOut):
            self._fail(BrokerUnavailable(f"{self.endpoint} gave no sign of life"))


def _complete(pending: _Pending, error: MetaqError | None) -> None:
    """Background thread only."""
    try:
        pending.on_done(None, error)
    except BaseException:  # as in `_lead_in_background`
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
        if is_interrupt(error):
            raise
        raise BrokerUnavailable(f"no connection to {endpoint} within {seconds:.1f} s: {error}") from error
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        version = _ask_version(sock, endpoint, deadline, clock)
        _set_ticks(sock)
    except BaseException as error:
        sock.close()
        if is_interrupt(error) or not isinstance(error, OSError | RemoteProtocolError):
            raise
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
