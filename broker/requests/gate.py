"""The gate: every request passes `Gate.admit` once, before anything is done for it, and gets the row that serves it.

Requests of both protocols, of the HTTP gateway and for the dashboard's pages pass it. What waits after that keeps its
row (session.py); a pull under way is served already. Only `quit` stays outside: it ends its own connection and nothing
else. `serve` and its companions make an answer of whatever goes wrong. verbs.py has the table.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import partial
from types import GeneratorType
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

from twisted.internet.defer import Deferred

from metaq.protocol.errors import AccountSpent, MetaqError
from metaq.protocol.frames import Frame
from metaq.protocol.put_run import PutRun
from metaq.protocol.requests import WireRequest
from metaq.protocol.statuses import ResponseCode, Status
from metaq.protocol.text import NO_OPAQUE, IgnoredAnswer, Put, TransactionCommand, encode_result
from metaq.protocol.transactions import TX_KEY, TransactionType

from ..reading.answers import Answer, Bytes, Work, answer_bytes, answer_frame, error_frame, error_result
from ..reading.parkable import Loading, Parkable, Step
from ..runtime.account import Unsent, account_address
from .put import PutGroup, answer_one_by_one

__all__ = ["Caller", "Check", "Gate", "HttpPeer", "Nodes", "PageRequest", "Verb"]

_log = logging.getLogger(__name__)

_ADMIN_ONLY = "admin requests are accepted only from the broker's own machine, unless it runs with --admin-from any"


class Caller(Protocol):
    """Who asks: the same object for all requests of a connection. Local transactions belong to it."""

    @property
    def host(self) -> str:
        """Numeric address of the connection's other end; `?` if it has none."""

    @property
    def address(self) -> str:
        """What it counts as in the account."""

    @property
    def has_ended(self) -> bool:
        """The client has closed the connection, or its sending half, or it was lost."""


Served: TypeAlias = Answer | Work | Parkable
"""An answer, work to be done in slices, or a pull to be stepped."""

_UNDER_WAY = (Parkable, GeneratorType)


class HttpPeer(NamedTuple):
    """Who asks by HTTP. Its requests have nothing in common, so it is no caller to a verb."""

    host: str

    @property
    def address(self) -> str:
        """What it counts as in the account."""
        return account_address(self.host)

    @property
    def has_ended(self) -> bool:
        """It waits for its answer."""
        return False


class PageRequest(NamedTuple):
    """A request for a page of the dashboard."""

    words: list[str]
    """The parts of its path."""
    changes: bool
    """It is a POST."""
    topic: str | None
    show: Callable[[], Any]
    """Makes what is shown, or does what is asked."""


def _named_topic(request: Any) -> tuple[str | None, ...]:
    return (request.ext.get("topic") if type(request) is Frame else getattr(request, "topic", None),)


class Nodes(Enum):
    """Which nodes of a broker set serve a request. A broker by itself serves all."""

    LEADER = 0
    READERS = 1
    """The leader, and a follower that shows what is committed, if the request says so (`follower=1`)."""
    ALL = 2


class Verb(NamedTuple):
    """A row of the table: a decoder, an action and an encoder, composed to `serve`, and what the gate has to know."""

    serve: Callable[[Any, Caller | None], Served]
    """serve(request, caller). Raises MetaqError, also later. caller: None for a client of a single request."""
    held: Callable[[Any], int] = lambda request: 0
    """Bytes that a request keeps in memory until it is answered."""
    stores: bool = False
    """It brings messages: it is not served while too many of them wait for the disk."""
    gathers: bool = False
    """It may be served with its neighbours, in a PutGroup."""
    lists: bool = False
    """It changes nothing, and its answer, of much that there is, is made in slices."""
    repeatable: bool = False
    """A large answer may be left out: who asks again is told the same, or what is there then."""
    admin: bool = False
    """It is for operators."""
    topics: Callable[[Any], Iterable[str | None]] = _named_topic
    """The topics that a request names, each once; None alone if it names none."""
    nodes: Nodes = Nodes.LEADER
    in_transaction: Verb | None = None
    """What serves it instead if it has the key of a transaction."""


Check: TypeAlias = Callable[[Verb, WireRequest | PageRequest, str | None, Caller], None]
"""check(row, request, topic, peer): may this be done? Raises MetaqError to refuse it; the answer says so.

It is asked for each topic of a request (once with None if there is none), and any refusal refuses the request. The puts
of a run only came together: it is asked once for each topic of the run, and the puts of the refused topics are refused.
"""


class Gate:
    """Never raises: what goes wrong becomes an answer. Lives on the reactor thread."""

    def __init__(
        self,
        texts: Mapping[type, Verb],
        frames: Mapping[int, Verb],
        new_group: Callable[[Caller | None], PutGroup],
        admits: Callable[[str], bool],
        connection_lost: Callable[[Caller], None],
        unsent: Unsent,
        check: Check | None = None,
    ) -> None:
        """texts: by the type of the command, with that of pages. frames: by their code. admits(host): whether
        operators' requests are accepted from there. connection_lost: forgets what belongs to a caller. unsent: knows
        which answers there is room for."""
        self.texts = texts
        self.frames = frames
        self._admits = admits
        self._unsent = unsent
        self.check = check
        """Asked about every request; None while there is nothing to ask."""
        self.check_pull: Callable[[Parkable], None] | None = None
        """Asked each time that a pull under way goes on: what it was admitted by may be over. Raises MetaqError."""
        self.group = Verb(lambda group, caller: group.commit(), lambda group: group.held_bytes, stores=True)
        """What serves a PutGroup."""
        self.new_group = new_group
        self.connection_lost = connection_lost

    def admit(self, request: WireRequest | PageRequest, peer: Caller) -> Verb:
        """The row that serves a request. If it may not be done, that is a row that refuses it in its turn."""
        if type(request) is Frame:
            verb = self.frames.get(request.code, _UNKNOWN)
            if verb.in_transaction is not None and TX_KEY in request.ext:
                verb = verb.in_transaction
            if verb.admin and not self._admits(peer.host):
                return _NO_OPERATOR
        else:
            verb = self.texts[type(request)]
            if verb.in_transaction is not None and request.tx_key is not None:  # type: ignore[union-attr]
                verb = verb.in_transaction
        return verb if self.check is None else self._checked(self.check, verb, request, peer)

    def _checked(self, check: Check, verb: Verb, request: WireRequest | PageRequest, peer: Caller) -> Verb:
        refused: dict[str | None, Exception] = {}
        for topic in verb.topics(request):
            try:
                check(verb, request, topic, peer)
            except Exception as error:  # also a bug of the check: what it did not permit is not done
                refused[topic] = error
        if not refused:
            return verb
        if type(request) is PutRun:
            return verb._replace(serve=partial(self._serve_run, refused))
        return Verb(partial(_refuse, next(iter(refused.values()))))

    def _serve_run(self, refused: Mapping[str | None, Exception], run: PutRun, caller: Caller | None) -> Work:
        def add(group: PutGroup, put: Put) -> None:
            if (error := refused.get(put.topic)) is None:
                group.add(put)
            else:
                group.refuse(_failed(put, error))

        return answer_one_by_one(partial(self.new_group, caller), run, add)

    def serve(self, verb: Verb, request: WireRequest, caller: Caller | None) -> Served:
        """What a request is answered. verb: what `admit` gave for it."""
        try:
            served = verb.serve(request, caller)
        except Exception as error:
            return _unless_one_way(request, _failed(request, error))
        if isinstance(served, _UNDER_WAY):
            return served
        return _settled(request, cast(Answer, served))

    def go_on(self, request: WireRequest, work: Work) -> Answer | Work:
        """Do a slice of the work of a request: the work itself if there is more to do, else the answer."""
        try:
            next(work)
        except StopIteration as done:
            return _settled(request, done.value)
        except Exception as error:
            return _unless_one_way(request, _failed(request, error))
        return work

    def step(self, pull: Parkable) -> Bytes | Deferred[Bytes] | Step | Loading:
        """Advance a pull; whether it may wait is for the caller to decide."""
        try:
            if self.check_pull is not None:
                self.check_pull(pull)
            answer = pull.step()
        except Exception as error:
            return _failed(pull, error)
        if isinstance(answer, Deferred):
            return answer.addErrback(lambda failure: _failed(pull, cast(BaseException, failure.value)))
        return answer

    def give_up(self, pull: Parkable) -> Bytes:
        """The answer to a pull whose wait has ended."""
        try:
            return pull.nothing()
        except MetaqError as error:
            return _failed(pull, error)

    def too_many_pulls(self, pull: Parkable, why: str) -> Bytes:
        """The answer to a pull that would have to wait while too many others wait."""
        return answer_frame(pull.opaque, {}, ResponseCode.SYSTEM_BUSY, why)

    def if_room(
        self, request: WireRequest | Parkable, address: str, answer: Bytes | Deferred[Bytes]
    ) -> Bytes | Deferred[Bytes]:
        """The answer, or a refusal if it is large and its address has no room for what a client may not take."""
        fit = partial(self._if_room, request, address)
        return answer.addCallback(fit) if isinstance(answer, Deferred) else fit(answer)

    def _if_room(self, request: WireRequest | Parkable, address: str, answer: Bytes) -> Bytes:
        why = self._unsent.why_not(address, answer_bytes(answer))
        return answer if why is None else _failed(request, AccountSpent(why))


def _settled(request: WireRequest, answer: Answer) -> Answer:
    """The answer of a verb, which may still fail."""
    if type(answer) is Deferred:
        answer.addErrback(lambda failure: _failed(request, cast(BaseException, failure.value)))
    return _unless_one_way(request, answer)


def _unless_one_way(request: WireRequest, answer: Answer) -> Answer:
    if type(request) is not Frame or not request.is_one_way:
        return answer
    return answer.addCallback(lambda _: b"") if isinstance(answer, Deferred) else None


def _unknown_code(frame: Frame, caller: Caller | None) -> Bytes:
    text = f"no request has the code {frame.code}"
    return answer_frame(frame.opaque, {}, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text)


def _no_operator(frame: Frame, caller: Caller | None) -> Bytes:
    return answer_frame(frame.opaque, {}, ResponseCode.NO_PERMISSION, _ADMIN_ONLY)


_UNKNOWN, _NO_OPERATOR = Verb(_unknown_code, nodes=Nodes.ALL), Verb(_no_operator, nodes=Nodes.ALL)


def _refuse(error: Exception, request: object, caller: Caller | None) -> Answer:
    if type(request) is IgnoredAnswer or (type(request) is TransactionCommand and request.type is TransactionType.END):
        return None  # the text protocol never answers it
    raise error


def _failed(request: WireRequest | Parkable, error: BaseException) -> bytes:
    """The answer to a request that failed. Any but a MetaqError is a bug: the log gets it, the client its name."""
    framed = isinstance(request, Frame | Parkable)
    opaque: int = getattr(request, "opaque", NO_OPAQUE)
    if isinstance(error, MetaqError):
        return error_frame(opaque, error) if framed else error_result(opaque, error)
    _log.error("request %.200r failed", opaque if framed else request, exc_info=error)
    text = f"internal error: {type(error).__name__}"
    if framed:
        return answer_frame(opaque, {}, ResponseCode.SYSTEM_ERROR, text)
    return encode_result(Status.ERROR, text, opaque)
