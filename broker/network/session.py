"""One connection of a client. A session receives requests and sends answers within memory limits. How a request is
served is decided in requests/gate.py; new connections are accepted in server.py.

- All requests of one read are served together, and their answers are sent in one write.
- Answers to text commands are sent in the order of the commands, even if an earlier answer must wait for the disk.
  Answers to frames contain the request's opaque, so they are sent as soon as they are ready.
- The requests of a connection are served in turns, between which other connections are served. When a turn has taken a
  few milliseconds, the remaining requests wait for a later turn of the connection. A single long request is handled in
  slices, and later requests of the connection wait until it is done. If one read has very many requests, a turn decodes
  only a limited number of them. In each iteration of the reactor, the turns of all connections together get a limited
  time (runtime/turns.py).
- If a client closes its sending half (`nc -N`) or the whole connection (which looks the same to the broker), the broker
  sends the pending answers and then closes the connection. If the client has a parked pull, the pull is answered at
  once, as if its waiting time were over. A client that has closed only its sending half can read this answer. Without
  the answer, the connection would stay open until the pull's waiting time ends.
- The memory that a connection uses is limited. While the transport's buffer has more bytes than its limit, or too many
  bytes of this connection wait for the disk, the session reads nothing from the connection and serves no further
  request. Requests that the session has already read wait in `_queue`, which has at most the requests of one read. The
  requests in `_queue` count as unfinished requests (account.py). A second limit is for the bytes of puts that wait for
  the disk, on all connections together. While it is exceeded, a session whose next request is a put reads nothing and
  serves no further request (pending_puts.py).
- If the user of a connection has used up one of his rates, such as the bytes that he may send in a second, the session
  reads nothing and serves no further request of the connection for some time (runtime/user_rates.py).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial, wraps
from types import GeneratorType
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeAlias, cast, final
from typing import Protocol as Interface

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IHalfCloseableProtocol
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from metaq.protocol.access import NO_USER, Principal, Quota
from metaq.protocol.errors import AccessRefused, MetaqError, QuotaExceeded, TlsNotServed
from metaq.protocol.frames import Frame
from metaq.protocol.put_run import PutRun
from metaq.protocol.record import Buffer
from metaq.protocol.requests import RequestReader, WireRequest
from metaq.protocol.statuses import RequestCode
from metaq.protocol.text import Quit, TransactionCommand, Version
from metaq.protocol.tls_bytes import NO_TLS_ALERT

from .. import tuning
from ..access.control import AccessControl, Granted
from ..configuration.listeners_ini import ListenerRules
from ..reading.answers import Answer, Bytes, Work, answer_bytes
from ..reading.long_poll import ParkedPulls
from ..reading.parkable import Loading, Parkable, Step
from ..requests.acquire import Acquire
from ..requests.gate import Gate, Verb
from ..requests.needs import NOTHING
from ..requests.pull import Pull
from ..requests.put import PutGroup
from ..runtime.account import Account, account_address
from ..runtime.few_lines import FewLines
from ..runtime.pending_puts import PendingPuts
from ..runtime.reactor import ReactorTime, Transport
from ..runtime.turns import ConnectionTurns, WorkPlaces
from ..runtime.user_rates import READ, REQUESTED, SENT

__all__ = ["MAX_PARKED_PULLS", "MAX_PENDING_BYTES", "Session"]

_log = logging.getLogger(__name__)

MAX_PENDING_BYTES = 8 << 20
"""While more than this many bytes of a connection are pending, the broker does not read from the connection. Three
things count as pending: the bytes of puts that wait for a sync, of data that are being read from the disk, and of
answers that wait for earlier answers.
"""

MAX_PARKED_PULLS = 16_384
"""The maximum number of waiting pulls of one connection. A consumer of 10,000 partitions needs 10,000 waiting pulls.
"""


class SessionServices(Interface):
    """The attributes of the broker that all sessions use."""

    reactor: ReactorTime
    turns: ConnectionTurns
    account: Account
    parked: ParkedPulls
    pending_puts: PendingPuts
    closed_lines: FewLines
    access: AccessControl


class Successor(Interface):
    """A Twisted protocol that takes over a connection from a session (`Session.become`)."""

    on_gone: Callable[[], None] | None
    """A function that the session stores here; the new protocol calls it when the connection is closed."""

    def makeConnection(self, transport: Any) -> object: ...  # noqa: N802


class _Slot:
    """An answer that is not sent yet; a queue of such objects keeps the answers of a connection in the order of their
    requests. answer: None until the answer is known. held: the number of bytes that count as pending until the answer
    is known. put: how many of these bytes the broker also counts as bytes of pending puts.
    """

    __slots__ = ("answer", "held", "put")

    def __init__(self, held: int, answer: Bytes | None = None, put: int = 0) -> None:
        self.answer = answer
        self.held = held
        self.put = put


def _memory(request: WireRequest) -> int:
    """Return how many bytes a request keeps in memory: for a frame the size of the buffer that contains it, and for a
    PutRun (several puts that arrived together) the total size of their bodies.
    """
    if type(request) is Frame:
        return memoryview(request.body.obj).nbytes
    return request.body_bytes if type(request) is PutRun else 0


@final
class _Admitted(NamedTuple):
    """A request in `_queue` that has already passed the gate; when it is served, the gate does not check it again."""

    verb: Verb
    request: WireRequest


_Queued: TypeAlias = WireRequest | Parkable | _Admitted

_NOT_ADMITTED = frozenset((Pull, Acquire, Quit))
"""The classes of requests that the gate does not check when they are served: Pull and Acquire, because the gate has
checked them when they arrived, and Quit (the command `quit`), because it only ends its own connection.
"""

_OUTCOMES = frozenset((RequestCode.TRANSACTION, RequestCode.TRANSACTION_OUTCOME, RequestCode.END_HALF))
"""Frames that decide transactions or ask for their outcome. A quota of connections refuses none of them: a coordinator
could take the refusal of a commit for a rollback.
"""

P = ParamSpec("P")


def _counts(rules: ListenerRules) -> str:
    """Return what a client of the listener can do in place of a login with a password."""
    if "certificate" in rules.login:
        return "show a client certificate"
    return "it knows users only by their addresses" if "address" in rules.login else "it knows no users"


def _or_close(step: Callable[Concatenate[Session, P], None]) -> Callable[Concatenate[Session, P], None]:
    """Decorate a method so that the connection is closed if the method raises an exception. Without the decorator, no
    caller would notice the exception, and the connection would hang forever.
    """

    @wraps(step)
    def guarded(self: Session, /, *arguments: P.args, **more: P.kwargs) -> None:
        try:
            step(self, *arguments, **more)
        except Exception as error:
            self._broken(error)

    return guarded


@implementer(IHalfCloseableProtocol)
class Session(Protocol):
    """The Twisted protocol of one connection. The session is also the connection's producer in Twisted's sense: Twisted
    tells it to pause while the client does not receive its answers.
    """

    def __init__(
        self,
        gate: Gate,
        shared: SessionServices,
        on_lost: Callable[[Session], None] = lambda session: None,
        rules: ListenerRules | None = None,
        on_source: Callable[[Session, str], str | None] = lambda session, host: None,
    ) -> None:
        """on_lost: called when the connection is lost. rules: the rules of the listener; None if only [tls] counts.
        on_source: called when a proxy has told the client's address; returns why this client may not connect, or None.
        """
        self.host = "?"
        """The numeric address of the client."""
        self.last_active = shared.reactor.seconds()
        """The time when data last arrived on the connection, in seconds of the reactor's clock."""
        self._gate = gate
        self._rules = rules
        self._on_source = on_source
        self._access = shared.access
        self._ends = False  # the connection ends with the answer to the next request, which is a refusal
        self._reactor = shared.reactor
        self._turns = shared.turns
        self._all_parked = shared.parked
        self._pending_puts = shared.pending_puts
        self._account = shared.account
        self.address = "?"
        """The client address for which the account counts what this connection uses."""
        self._principal: Principal | None = None  # not known yet
        self.user = NO_USER
        """The user for whose quotas this connection counts, with what its requests take."""
        self._counted = False  # among the connections of `user`
        self._rates = shared.account.rates
        self._debtor = NO_USER  # the user because of whose rates the connection waits, if it waits
        self.granted: Granted | None = None
        self._closed_lines = shared.closed_lines
        self.seconds = shared.reactor.seconds
        self._on_lost = on_lost
        self._reader = RequestReader(tuning.READ_REQUESTS)
        self._queue: deque[_Queued] = deque()
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._ordered: deque[_Slot] = deque()  # text answers that wait for an earlier one
        self._pending = 0  # number of answers that are not known yet, without parked pulls
        self._pending_bytes = 0
        self._parked: set[Parkable] = set()
        self._full = False  # the transport's buffer is full
        self._serving = False  # requests are being served now; no other request may overtake them
        self._yielding = False  # the rest of the queue waits for the connection's next turn
        self._busy = 0  # above 0 if there was lately more work than one turn may do; each read subtracts 1
        self._work: tuple[Verb, WireRequest, Work] | None = None  # handled in slices; then `_yielding` is set
        self._held_back = False  # held back because too many puts of all connections wait
        self._received_bytes = 0  # bytes received since no request was left unserved
        self._held_bytes = 0  # how many of them the account has counted
        self._fresh = False  # a request was completed since the last count
        self._crowded = False  # its address, or all addresses together, hold too many bytes
        self._reads_later = False  # the rest of a large frame will be read in a later turn
        self._reading = True
        self._half_closed = False  # the client sends nothing more
        self._closing = False  # no more requests are taken
        self._closed = False  # the transport was told to close
        self._lost = False

    # --- Twisted's calls ----------------------------------------------------------------------------------------------

    def connectionMade(self) -> None:  # noqa: N802
        self._transport = cast(Transport, self.transport)
        self._transport.registerProducer(self, True)
        self.host = getattr(self._transport.getPeer(), "host", "?")
        self.address = account_address(self.host)

    def refuse(self, error: MetaqError, *, ends: bool = False) -> None:
        """From now on refuse all requests of this connection with this error. ends: whether the connection ends with
        the first refusal.
        """
        self._gate = self._gate.refusing(error)
        self._rules = None
        self._ends = ends

    def comes_from(self, host: str) -> str | None:
        """Record the client's address that a proxy has told, before the first request. Return the reason if this client
        may not connect.
        """
        if (why := self._on_source(self, host)) is None:
            self.host = host
            self.address = account_address(host)
        return why

    def dataReceived(self, data: bytes) -> None:  # noqa: N802
        self.last_active = now = self.seconds()
        if self._closing:
            return
        self._received_bytes += len(data)
        if self._busy:
            self._busy -= 1
        turns = self._turns
        if turns.timed and turns.defers(self._busy) and not (self._reader.more or self._yielding):
            self._reader.keep(data)
            self._wait_turn()
            self._update_reading()
            if self._rates.limited and self._rates.spend(self.user, SENT, len(data)):
                self._delay()
            return
        self._take(self._reader.receive(data))
        if self._rates.limited and self._rates.spend(self.user, SENT, len(data)):
            self._delay()
        if turns.has_worked(now):
            self._busy = tuning.BUSY_READS

    @property
    def large(self) -> bool:
        """Whether only the first part of a large frame was received up to now, so that the next bytes on the connection
        belong to this frame. If so, the transport receives them directly into the buffer that `space` returns.
        """
        return self._reader.large is not None

    @property
    def space(self) -> memoryview | None:
        """The buffer into which the transport may receive the next bytes (requests.py), or None if there is no such
        buffer. After the transport has filled (a part of) the buffer, it calls `received`.
        """
        space = None if self._closing else self._reader.space
        return None if space is None else space[: self._account.unfinished.room(self, self.address)]

    def reads_later(self) -> bool:
        """Return True if the transport must not receive into `space` now, because the time for work in this iteration
        of the reactor is used up. In this case the connection receives in its next turn.
        """
        if self._yielding or not self._turns.defers(self._busy):
            return False
        self._reads_later = True
        self._wait_turn()
        self._update_reading()
        return True

    def received(self, count: int, since: float | None = None) -> None:
        """Handle `count` bytes that the transport has received into `space`. since: when the transport began to receive
        them.
        """
        self.last_active = now = self.seconds()
        self._received_bytes += count
        self._reader.fill(count)
        if not self._reader.more:
            self._finish_turn()
        elif self._yielding or self._turns.defers(self._busy):
            if not self._yielding:
                self._wait_turn()
            self._update_reading()
        else:
            self._take(self._reader.receive(b""))
        if self._rates.limited and self._rates.spend(self.user, SENT, count):
            self._delay()
        if self._turns.has_worked(now if since is None else since):
            self._busy = tuning.BUSY_READS

    def _take(self, requests: list[WireRequest]) -> None:
        if self._queue or self._yielding:
            self._queue.extend(requests)
        elif requests and self._turns.timed and self._turns.defers(self._busy):
            self._queue.extend(requests)
            self._wait_turn()
        else:
            self._serve(requests)
        self._has_taken(requests)
        self._finish_turn()

    def _has_taken(self, requests: list[WireRequest]) -> None:
        """Record that these requests were decoded from received data. If the data contain more requests, these are
        decoded in a later turn of this connection, so that other connections are served in between.
        """
        if self._reader.more and not self._yielding:
            self._yield_turn()
        if requests:
            self._fresh = True
            if self._rates.limited:
                count = 0
                for each in requests:
                    count += len(each.bodies) if type(each) is PutRun else 1
                if self._rates.spend(self.user, REQUESTED, count):
                    self._delay()

    def _delay(self) -> None:
        """The user of this connection is in debt: serve what is being served, but read and serve nothing more until he
        is out of debt.
        """
        if not (self._debtor or self._closing):
            self._debtor = self.user
            self._rates.wait(self.user, self, self._is_out_of_debt)
            self._update_reading()

    @_or_close
    def _is_out_of_debt(self) -> None:
        self._debtor = NO_USER
        self.last_active = self.seconds()
        self._resume()

    def _wait_no_more(self) -> None:
        if self._debtor:
            self._rates.drop(self._debtor, self)
            self._debtor = NO_USER

    def _count_held(self) -> None:
        """Tell the account how many bytes the unserved requests of this connection have. These are the bytes of an
        incomplete request, of whole requests that wait, and of the request under way.
        """
        held = self._reader.held_bytes
        waits = bool(self._queue) or self._reader.more
        if not (held or waits or self._held_bytes or self._work):  # after most reads; its benchmark: blocking-1
            self._received_bytes = 0
            self._fresh = False
            return
        if not waits:
            self._received_bytes = held
            if self._work is not None:
                self._received_bytes += _memory(self._work[1])
        # a connection whose requests wait for this broker or are under way keeps its rank; one that its client holds up
        # does not
        done = self._work is None and (self._full or self._debtor != NO_USER or not waits)
        held, fresh = self._received_bytes, self._fresh and done
        self._fresh = self._fresh and not done
        if held == self._held_bytes and not (held and fresh):
            return
        self._held_bytes = held
        unfinished = self._account.unfinished
        if unfinished.has(self, self.address, held, fresh, self._cut):
            self._crowded = self._crowded and held > 0
        elif not (self._crowded or self._lost or waits):  # if it waits for a turn, it is counted then
            self._crowded = True
            unfinished.wait(self, self.address, self._let_in)

    def _cut(self, why: str) -> bool:
        """The account calls this if the requests of this connection arrive too slowly (Unfinished.look). If the
        connection waits for its client to send the rest of a request, abort it and return True. If the requests are
        complete and wait only until this broker serves them, do nothing and return False.
        """
        slow = self._reading and self._work is None and not self._lost
        if slow:
            self.abort(why)
        return slow

    @_or_close
    def _let_in(self) -> None:
        self._crowded = False
        self._update_reading()

    def readConnectionLost(self) -> None:  # noqa: N802
        """Twisted calls this when the client sends nothing more. Close the connection when all requests are done."""
        self._half_closed = True
        if not self._closing:
            self._all_parked.wake(self._parked)
        self._resume()

    @property
    def certified_hosts(self) -> frozenset[str]:
        """The hosts that the client's verified certificate names, as Caller.certified_hosts describes."""
        return self._transport.certified_hosts

    @property
    def principal(self) -> Principal:
        """The user that has logged in on this connection. Without a login, the broker or the user that the client's
        verified certificate names, or ANYBODY.
        """
        if self._principal is None:
            self._principal = self._transport.principal
        return self._principal

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        return self._transport.is_encrypted

    def logged_in(self, principal: Principal) -> None:
        """Record that the client has logged in as this user."""
        self._principal = principal
        self.granted = None
        self._wait_no_more()
        self._count_no_more()
        self._account.users.add(self.user, Quota.WAITING_PULLS, -len(self._parked))
        self.user = principal.user
        self._account.users.add(self.user, Quota.WAITING_PULLS, len(self._parked))

    def _admit_first(self, request: WireRequest, peer: Session) -> Verb:
        """Admit a request on a connection that is not counted for its user yet. The first request for which one must be
        somebody counts it; this request is refused if the user may have no more connections, and so is each further one
        until he may.
        """
        verb = self._gate.admit(request, peer)
        if verb.needs is NOTHING:
            return verb
        self.user = self._account.asker_user = self.principal.user
        if self._rates.limited and self._rates.spend(self.user, REQUESTED, 0):
            self._delay()  # so that a new connection brings no request of a user in debt
        if type(request) is TransactionCommand or (type(request) is Frame and request.code in _OUTCOMES):
            return verb
        try:
            self._account.users.take(self.user, Quota.CONNECTIONS)
        except QuotaExceeded as error:
            return self._gate.refusal(request, error)
        self._counted = True
        return verb

    def _asks(self) -> None:
        """Let what is served from now on count for this connection's address and user."""
        self._account.asker = self.address
        self._account.asker_user = self.user

    def _count_no_more(self) -> None:
        if self._counted:
            self._counted = False
            self._account.users.add(self.user, Quota.CONNECTIONS, -1)

    @property
    def has_ended(self) -> bool:
        """Whether the client has closed the connection or its sending half, or the connection is lost (as in
        Caller).
        """
        return self._half_closed or self._lost

    def writeConnectionLost(self) -> None:  # noqa: N802
        """Do nothing. Twisted calls this only after this side has closed its sending half, which the broker never
        does.
        """

    def connectionLost(self, reason: Failure = connectionDone) -> None:  # noqa: N802
        self._lost = self._closing = True
        self._queue.clear()
        self._account.unsent.taken(self)
        self._all_parked.wake(self._parked)  # so that they no longer wait
        self._pending_puts.drop(self)
        self._account.unfinished.drop(self, self.address)
        self._reader = RequestReader()  # frees up to a frame now instead of at the next garbage collection
        self._held_bytes = 0
        self._count_held()  # the request under way
        self._gate.connection_lost(self)
        self._count_no_more()
        self._wait_no_more()
        self._on_lost(self)

    def pauseProducing(self) -> None:  # noqa: N802
        """Twisted calls this when the transport's buffer is full. Stop reading and serving requests."""
        self._full = True
        self._update_reading()

    def resumeProducing(self) -> None:  # noqa: N802
        """Twisted calls this when the transport's buffer is empty. Read and serve requests again."""
        self._full = False
        self._account.unsent.taken(self)
        self.last_active = self.seconds()
        self._resume()

    def stopProducing(self) -> None:  # noqa: N802
        """Do nothing. Twisted calls this when the connection is lost, and calls connectionLost afterwards."""

    # --- serving ------------------------------------------------------------------------------------------------------

    @property
    def _blocked(self) -> bool:
        return self._full or self._held_back or self._debtor != NO_USER or self._pending_bytes > MAX_PENDING_BYTES

    def _serve(self, requests: Iterable[_Queued]) -> None:
        """Serve requests in order, until a request must wait; put this request and the following ones into `_queue`."""
        self._serving = True
        try:
            self._asks()
            group: PutGroup | None = None
            plain = self._counted and self._rules is None
            admit: Callable[[Any, Session], Verb] = self._gate.admit if plain else self._admit
            turn_end = self.seconds() + tuning.TURN_SECONDS
            served_run = False
            requests = iter(requests)
            for queued in requests:
                request: WireRequest | Parkable
                verb: Verb | None
                kind: type
                if type(queued) is _Admitted:
                    verb, request = queued
                    kind = type(request)
                else:
                    request = queued
                    kind = type(request)
                    verb = None if kind in _NOT_ADMITTED else admit(request, self)
                if verb is not None and verb.gathers:
                    if group is None:
                        if self._yielding or self._debtor:
                            self._put_off(verb, request, requests)
                            return
                        if self._pending_puts.full:
                            self._hold_back(verb, request, requests)
                            return
                        group = self._gate.new_group(self)
                    group.add(request)
                    if group.is_full:
                        self._commit(group)
                        group = None
                        if not self._yielding:
                            self._yield_turn()
                    continue
                if group is not None:  # later requests must see the effect of these puts
                    self._commit(group)
                    group = None
                if self._out_bytes >= tuning.WRITE_BYTES:
                    self._flush()
                if self._blocked or self._yielding:
                    self._put_off(verb, request, requests)
                    return
                if kind is Quit:
                    self.close()
                    return
                if verb is not None and verb.stores and self._pending_puts.full:
                    self._hold_back(verb, request, requests)
                    return
                if kind is PutRun:  # like a group, it does not end the turn; only a further run waits for the next
                    if served_run and self.seconds() >= turn_end:
                        self._yield_turn()
                        self._put_off(verb, request, requests)
                        return
                    served_run = True
                self._serve_one(verb, request)
                if self._ends:
                    self.close()
                    return
                if self._closed:  # the connection was handed over (`become`) or aborted
                    return
                if self._work is not None:  # later requests wait for its end
                    self._queue.extend(requests)
                    return
                if kind is not PutRun and self.seconds() >= turn_end and not self._yielding:
                    self._yield_turn()
            if group is not None:
                self._commit(group)
        finally:
            self._serving = False

    def _put_off(self, verb: Verb | None, request: WireRequest | Parkable, following: Iterator[_Queued]) -> None:
        """Put this request and the following ones into `_queue`, to be served later."""
        self._queue.append(request if verb is None else _Admitted(verb, cast(WireRequest, request)))
        self._queue.extend(following)

    def _hold_back(self, verb: Verb, request: WireRequest | Parkable, following: Iterator[_Queued]) -> None:
        """Put these requests into `_queue`, and read nothing from the connection, until fewer bytes of puts (of all
        connections) wait for the disk.
        """
        self._put_off(verb, request, following)
        self._wait_for_room()

    def _wait_for_room(self) -> None:
        self._held_back = True
        self._pending_puts.wait(self, self._let_go)

    @_or_close
    def _let_go(self) -> None:
        self._held_back = False
        self._resume()

    def _yield_turn(self) -> None:
        """End this turn, because its time is over, and ask for a later turn for the remaining requests."""
        self._busy = tuning.BUSY_READS
        self._wait_turn()

    def _wait_turn(self) -> None:
        self._yielding = True
        self._turns.wait(self._go_on, self._busy, self.address)

    @_or_close
    def _go_on(self) -> None:
        """Do the next turn of this connection: continue the requests that wait."""
        self._yielding = False
        since = self.seconds()
        if self._reads_later:
            self._reads_later = False
            if not (self._lost or self._debtor):
                self._transport.read_once()
        if self._work is not None:
            verb, request, work = self._work
            self._asks()
            self._work = None
            self._fresh = True
            self._pending -= 1
            if verb.lists and self._has_gone():  # nobody would get the list
                self._turns.listing.end()
            else:
                self._work_off(verb, request, work)
            if self._lost:
                self._count_held()
        if not self._lost and not self._yielding:
            self._go_on_serving()
        if self.seconds() - since >= tuning.TURN_SECONDS:
            self._busy = tuning.BUSY_READS

    def _work_off(self, verb: Verb, request: WireRequest, work: Work) -> None:
        """Handle a request until it is done or this turn's time is over. If the connection is lost, the request is
        nevertheless handled to its end.
        """
        turn_end = self.seconds() + tuning.TURN_SECONDS
        while True:
            answer = self._gate.go_on(request, work)
            if not isinstance(answer, GeneratorType):
                if (places := self._places(verb, request)) is not None:
                    places.end()
                self._answer(verb, request, cast(Answer, answer))
                return
            if self.seconds() >= turn_end:
                break
        self._put_aside(verb, request, work)
        self._yield_turn()

    def _has_gone(self) -> bool:
        """Return whether the connection is lost. While a request is under way, nothing is read from the connection, so
        the end of the connection would not be noticed. Therefore this method asks the socket.
        """
        if not self._lost and self._transport.is_reset():
            self._end("reset by the client")
        return self._lost or self._closed

    def _places(self, verb: Verb, request: WireRequest) -> WorkPlaces | None:
        """Return the WorkPlaces object that limits how many requests of this kind are handled at the same time, or None
        if there is no such limit.
        """
        if verb.lists:
            return self._turns.listing
        return self._turns.large if _memory(request) >= tuning.LARGE_WORK_BYTES else None

    def _put_aside(self, verb: Verb, request: WireRequest, work: Work) -> None:
        self._work = verb, request, work
        self._pending += 1

    def _admit(self, request: WireRequest, peer: Session) -> Verb:
        """Let the gate check a request, if the rules of the listener permit it."""
        if self._rules is not None and (refusal := self._refused_by(self._rules, request)) is not None:
            return refusal
        return self._gate.admit(request, peer) if self._counted else self._admit_first(request, peer)

    def _refused_by(self, rules: ListenerRules, request: WireRequest) -> Verb | None:
        """Return a verb that refuses the request if the rules of the listener do not permit it, None if they do."""
        is_frame = isinstance(request, Frame)
        if isinstance(request, Frame) and request.code == RequestCode.AUTHENTICATE and "password" not in rules.login:
            why = f"the listener {rules.name} of this broker takes no logins with a password: {_counts(rules)}"
            self._access.login_refused(self.host, why)
            return self._gate.refusal(request, AccessRefused(why))
        if ("frames" if is_frame else "text") not in rules.protocols and type(request) is not Version:
            served = "only the text protocol of 1.x" if is_frame else "only the framed protocol"
            self._ends = True
            return self._gate.refusal(
                request,
                AccessRefused(f"the listener {rules.name} of this broker serves {served}: connect to another listener"),
            )
        return None

    def _serve_one(self, verb: Verb | None, request: WireRequest | Parkable) -> None:
        if verb is None or isinstance(request, Parkable):
            self._serve_pull(cast(Parkable, request))
            return
        served = self._gate.serve(verb, request, self)
        if isinstance(served, Parkable):
            self._serve_pull(served)
        elif isinstance(served, GeneratorType):
            places = self._places(verb, request)
            if verb.lists and self._has_gone():
                return
            if places is not None and not places.begin(self._go_on, self.address):
                self._put_aside(verb, request, served)
                self._yielding = True
            else:
                self._work_off(verb, request, served)
        else:
            self._answer(verb, request, cast(Answer, served))

    def _commit(self, group: PutGroup) -> None:
        self._answer(self._gate.group, group, group.commit())

    def _serve_pull(self, pull: Parkable) -> None:
        answer = self._gate.step(pull, self)
        if isinstance(answer, Deferred):
            if pull.repeatable:
                self._gate.if_room(pull, self.address, answer)
            self._answer_later(answer, pull.max_bytes, ordered=False)
        elif not isinstance(answer, (Step, Loading)):
            self._write(cast(Bytes, self._gate.if_room(pull, self.address, answer)))
        elif not isinstance(answer, Loading) and (pull.expired or self._half_closed):
            self._write(self._gate.give_up(pull))
        elif len(self._parked) >= MAX_PARKED_PULLS:
            self._write(self._gate.too_many_pulls(pull, "too many pulls wait on this connection"))
        elif (why := self._account.waiting.why_not(self.address, pull.held_bytes)) is not None:
            self._write(self._gate.too_many_pulls(pull, why))
        elif (why := self._account.users.why_not(self.user, Quota.WAITING_PULLS)) is not None:
            self._write(self._gate.beyond_quota(pull, why))
        else:
            self._waits(pull)
            if isinstance(answer, Loading):
                answer.done.addCallbacks(lambda _: self._come_back(pull), lambda failure: self._broken(failure.value))
            elif answer is Step.AGAIN:
                self._reactor.callLater(0, self._come_back, pull)
            else:
                self._all_parked.park(pull, lambda: self._come_back(pull))

    def _waits(self, pull: Parkable) -> None:
        self._parked.add(pull)
        self._account.waiting.add(self.address, pull.held_bytes)
        self._account.users.add(self.user, Quota.WAITING_PULLS)

    def _waits_no_more(self, pull: Parkable) -> None:
        self._parked.remove(pull)
        self._account.waiting.add(self.address, -pull.held_bytes)
        self._account.users.add(self.user, Quota.WAITING_PULLS, -1)

    @_or_close
    def _come_back(self, pull: Parkable) -> None:
        """Continue to serve a parked pull. Called when the pull is resumed, because there are new data or its deadline
        has come.
        """
        if pull in self._parked:
            self._waits_no_more(pull)
        if self._closing:
            return
        if not (self._queue or self._blocked or self._yielding):
            self._asks()
            self._serve_pull(pull)
        elif pull.put_aside() and not self._blocked:
            self._write(self._gate.give_up(pull))
        else:
            self._queue.append(pull)
            return
        self._finish_turn()

    # --- answers ------------------------------------------------------------------------------------------------------

    def _answer(self, verb: Verb, request: WireRequest | PutGroup, answer: Answer) -> None:
        ordered = type(request) is not Frame
        if answer is not None and (verb.repeatable or verb.lists):
            answer = self._gate.if_room(cast(WireRequest, request), self.address, answer)
        if isinstance(answer, bytes | list):
            if ordered and self._ordered:
                slot = _Slot(answer_bytes(answer), answer)
                self._ordered.append(slot)
                self._pending_bytes += slot.held
            else:
                self._write(answer)
        elif answer is not None:
            self._answer_later(answer, verb.held(request), ordered=ordered, put=verb.stores)

    def _answer_later(self, answer: Deferred[Bytes], held: int, *, ordered: bool, put: bool = False) -> None:
        """Send the answer when it is known. held: bytes that are kept in memory until then. put: whether these are the
        bytes of a put.
        """
        slot = _Slot(held, put=held if put else 0)
        self._pending_puts.add(slot.put)
        if ordered:
            self._ordered.append(slot)
        self._pending += 1
        self._pending_bytes += held
        answer.addBoth(self._settled, slot, ordered)

    @_or_close
    def _settled(self, answer: Bytes | Failure, slot: _Slot, ordered: bool) -> None:
        """Send an answer that is now known. answer: a Failure if it could not be made."""
        self._pending -= 1
        self._pending_bytes -= slot.held
        self._pending_puts.settle(slot.put)
        if isinstance(answer, Failure):
            self._broken(cast(BaseException, answer.value))
            return
        if self._lost:
            return
        if not ordered:
            self._write(answer)
        else:
            slot.answer, slot.held = answer, answer_bytes(answer)
            self._pending_bytes += slot.held
            self._write_ordered()
        self._resume()

    def _broken(self, error: BaseException) -> None:
        """End the connection after a bug in the handling of a request. The session cannot answer the request, because
        it is unknown whether the request has had its effect. Twisted, too, ends a connection when the handling of its
        data raises an exception.
        """
        _log.error("a request of %s failed", self.host, exc_info=error)
        if not self._lost:
            self._end(f"internal error: {type(error).__name__}")

    def _end(self, why: str) -> None:
        """Take no more requests, and abort the connection."""
        self._closing = self._closed = True
        self._queue.clear()
        self.abort(why)

    def _write_ordered(self) -> None:
        ordered = self._ordered
        while ordered and (answer := ordered[0].answer) is not None:
            self._pending_bytes -= ordered.popleft().held
            self._write(answer)

    def _write(self, answer: Bytes) -> None:
        if isinstance(answer, bytes):
            self._out.append(answer)
            self._out_bytes += len(answer)
        else:
            self._out += answer
            self._out_bytes += sum(map(len, answer))

    def _flush(self) -> None:
        out, size = self._out, self._out_bytes
        if not size or self._lost:
            return
        self._out, self._out_bytes = [], 0
        if self._rates.limited and self._rates.spend(self.user, READ, size):
            self._delay()
        if size < tuning.WRITE_BYTES:
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))
        else:
            self._transport.writeSequence(out)
        if self._full:
            self._account.unsent.add(self, size)

    @property
    def sent_bytes(self) -> int:
        """The number of bytes of answers that were sent after a wait in the transport's buffer (as in the protocol
        Receiver).
        """
        return self._transport.sent_bytes

    # --- state --------------------------------------------------------------------------------------------------------

    def _resume(self) -> None:
        """Try to serve the requests that were put off. Called whenever the reason for putting them off may no longer
        exist.
        """
        if self._serving:  # the caller that is serving continues, and ends the turn
            return
        if not self._may_go_on:
            self._flush()
            self._finish_turn()
            return
        if self._turns.defers(self._busy):
            self._wait_turn()
            self._finish_turn()
        else:
            now = self.seconds()
            self._go_on_serving()
            self._turns.has_worked(now)

    @property
    def _may_go_on(self) -> bool:
        """Whether a request is waiting that may be served now."""
        return bool(self._queue or self._reader.more) and not (self._blocked or self._yielding or self._closing)

    def _go_on_serving(self) -> None:
        self._flush()
        while self._may_go_on:
            if self._queue:
                waiting, self._queue = self._queue, deque()
                self._serve(waiting)
            else:
                requests = self._reader.receive(b"")
                self._serve(requests)
                self._has_taken(requests)
            self._flush()
        self._finish_turn()

    def _finish_turn(self) -> None:
        self._flush()
        if self._reader.failure is not None and not self._queue:
            if not self._closing:
                self._log_end(str(self._reader.failure))
                if isinstance(self._reader.failure, TlsNotServed):
                    self._transport.write(NO_TLS_ALERT)
            self.close()
        elif self._closing or (self._half_closed and not (self._queue or self._reader.more or self._parked)):
            self.close()
        else:
            self._update_reading()

    def _update_reading(self) -> None:
        self._count_held()
        if self._pending_puts.full and not self._held_back and self._reader.space is not None:
            self._wait_for_room()  # a large frame is a put; its received part is kept
        reading = not (self._blocked or self._crowded or self._queue or self._reader.more or self._reads_later)
        if reading != self._reading and not (self._closing or self._half_closed):
            self._reading = reading
            if reading:
                if self._held_bytes:
                    self._account.unfinished.read_again(self, self.address)
                self._transport.resumeProducing()
            else:
                self._transport.pauseProducing()

    def close(self) -> None:
        """Take no more requests, and close the connection when all pending answers are written."""
        self._closing = True
        self._queue.clear()
        if not self._pending and not self._lost and not self._closed:
            self._closed = True
            self._flush()
            self._transport.unregisterProducer()  # a paused producer would keep the transport open
            self._transport.loseConnection()

    def become(self, protocol: Successor) -> None:
        """Hand the connection over to another Twisted protocol. Called for a request that is not answered by the
        session, on a connection that has no other requests. The account continues to count the connection among those
        of its client address until the new protocol calls `on_gone`.
        """
        self._closing = self._closed = True
        self._queue.clear()
        transport = self._transport
        transport.unregisterProducer()
        self._pending_puts.drop(self)
        self._account.unfinished.drop(self, self.address)
        self._gate.connection_lost(self)
        self._count_no_more()  # only brokers need such connections
        self._wait_no_more()
        self._on_lost(self)
        self._account.connections.add(self.address, 1)
        protocol.on_gone = partial(self._account.connections.add, self.address, -1)
        cast(Any, transport).protocol = protocol
        if not self._reading:  # the request had to wait for its turn, and until then nothing more was read
            transport.resumeProducing()
        protocol.makeConnection(transport)

    def _peer(self) -> str:
        return f"{self.host}:{getattr(self._transport.getPeer(), 'port', '?')}"

    def abort(self, why: str) -> None:
        """Close the connection at once. Data that are not sent yet are lost. why: the reason, for the log."""
        self._log_end(why)
        self._transport.abortConnection()

    def _log_end(self, why: str) -> None:
        self._closed_lines.info(f"connection from {self._peer()} closed: {why}")
