"""The gate: every request passes `Gate.admit` once, before anything is done for it, and gets the row that serves it.

Requests of both protocols, of the HTTP gateway and for the dashboard's pages pass it. A request that waits afterwards
keeps its row (session.py); a pull under way was admitted before. Only `quit` does not pass: it ends only its own
connection. `serve` and its companions turn every error into an answer. verbs.py has the table.
"""

from __future__ import annotations

import copy
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
    """The sender of requests: one object for all requests of a connection. Local transactions belong to it."""

    @property
    def host(self) -> str:
        """The numeric address of the connection's other end; `?` if it has none."""

    @property
    def address(self) -> str:
        """The address that the account charges."""

    @property
    def has_ended(self) -> bool:
        """Whether the client has closed the connection or its sending half, or the connection was lost."""


Served: TypeAlias = Answer | Work | Parkable
"""An answer, work to do in slices, or a pull to step."""

_UNDER_WAY = (Parkable, GeneratorType)


class HttpPeer(NamedTuple):
    """The sender of an HTTP request. Its requests share no state, so verbs do not get it as a caller."""

    host: str

    @property
    def address(self) -> str:
        """The address that the account charges."""
        return account_address(self.host)

    @property
    def has_ended(self) -> bool:
        """Always False: a request by HTTP is answered whether or not its client has gone."""
        return False


class PageRequest(NamedTuple):
    """A request for a page of the dashboard."""

    words: list[str]
    """The parts of its path."""
    changes: bool
    """Whether it is a POST."""
    topic: str | None
    show: Callable[[], Any]
    """Makes the page, or does what the request asks."""


def _named_topic(request: Any) -> tuple[str | None, ...]:
    return (request.ext.get("topic") if type(request) is Frame else getattr(request, "topic", None),)


class Nodes(Enum):
    """The nodes of a broker set that serve a request. A single broker serves all requests."""

    LEADER = 0
    READERS = 1
    """The leader; and if the request has `follower=1`, a follower that shows all committed messages."""
    ALL = 2


class Verb(NamedTuple):
    """A row of the table: a decoder, an action and an encoder, composed to `serve`, and what the gate needs."""

    serve: Callable[[Any, Caller | None], Served]
    """serve(request, caller). Raises MetaqError, also later. caller: None for a client of a single request."""
    held: Callable[[Any], int] = lambda request: 0
    """The bytes that a request keeps in memory until it is answered."""
    stores: bool = False
    """Whether it brings messages: it is not served while too many messages wait for the disk."""
    gathers: bool = False
    """Whether it may be served together with its neighbours, in a PutGroup."""
    lists: bool = False
    """Whether it changes nothing, and lists so much that its answer is made in slices."""
    repeatable: bool = False
    """Whether a large answer may be refused: a repeated request gets the same data, or the data of that time."""
    admin: bool = False
    """Whether it is for operators."""
    topics: Callable[[Any], Iterable[str | None]] = _named_topic
    """Gives the topics that a request names, each once; only None if it names none."""
    nodes: Nodes = Nodes.LEADER
    in_transaction: Verb | None = None
    """The row that serves it instead if it has the key of a transaction."""


Check: TypeAlias = Callable[[Verb, WireRequest | PageRequest, str | None, Caller], None]
"""check(row, request, topic, peer): raise MetaqError to refuse a request; the answer has that error.

It is called for each topic of a request (once with None if there is none), and any refusal refuses the request. The
puts of a run are separate requests: it is called once for each topic of the run, and refuses only that topic's puts.
"""


class Gate:
    """Never raises: every error becomes an answer. Lives on the reactor thread."""

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
        """texts: rows by the type of the command, including PageRequest. frames: rows by code. admits(host): whether
        operators' requests are accepted from there. connection_lost: forgets a caller's state. unsent: knows whether
        there is room for an answer."""
        self.texts = texts
        self.frames = frames
        self._admits = admits
        self._unsent = unsent
        self.check = check
        """Called for every request; None: all are permitted."""
        self.check_pull: Callable[[Parkable], None] | None = None
        """Called each time that a pull resumes: the reason for its admission may be gone. Raises MetaqError."""
        self.group = Verb(lambda group, caller: group.commit(), lambda group: group.held_bytes, stores=True)
        """The row that serves a PutGroup."""
        self.new_group = new_group
        self.connection_lost = connection_lost

    def refusing(self, error: MetaqError) -> Gate:
        """Return a gate for a connection whose every request is refused with this error."""
        refusal = Verb(partial(_refuse, error), nodes=Nodes.ALL)
        gate = copy.copy(self)
        gate.admit = lambda request, peer: refusal  # type: ignore[method-assign]
        return gate

    def admit(self, request: WireRequest | PageRequest, peer: Caller) -> Verb:
        """Return the row that serves a request. For a forbidden request it is a row that refuses it at its turn."""
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
            except Exception as error:  # also a bug of the check: only permitted requests are done
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
        """Serve a request. verb: the result of `admit` for it."""
        try:
            served = verb.serve(request, caller)
        except Exception as error:
            return _unless_one_way(request, _failed(request, error))
        if isinstance(served, _UNDER_WAY):
            return served
        return _settled(request, cast(Answer, served))

    def go_on(self, request: WireRequest, work: Work) -> Answer | Work:
        """Do a slice of a request's work. Return the work if there is more to do, else the answer."""
        try:
            next(work)
        except StopIteration as done:
            return _settled(request, done.value)
        except Exception as error:
            return _unless_one_way(request, _failed(request, error))
        return work

    def step(self, pull: Parkable) -> Bytes | Deferred[Bytes] | Step | Loading:
        """Advance a pull; the caller decides whether it may wait."""
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
        """Return the answer to a pull whose wait has ended."""
        try:
            return pull.nothing()
        except MetaqError as error:
            return _failed(pull, error)

    def too_many_pulls(self, pull: Parkable, why: str) -> Bytes:
        """Return the answer to a pull that would have to wait while too many others wait."""
        return answer_frame(pull.opaque, {}, ResponseCode.SYSTEM_BUSY, why)

    def if_room(
        self, request: WireRequest | Parkable, address: str, answer: Bytes | Deferred[Bytes]
    ) -> Bytes | Deferred[Bytes]:
        """Give the answer, or a refusal if it is large and the address has no room for answers that clients may
        leave."""
        fit = partial(self._if_room, request, address)
        return answer.addCallback(fit) if isinstance(answer, Deferred) else fit(answer)

    def _if_room(self, request: WireRequest | Parkable, address: str, answer: Bytes) -> Bytes:
        why = self._unsent.why_not(address, answer_bytes(answer))
        return answer if why is None else _failed(request, AccountSpent(why))


def _settled(request: WireRequest, answer: Answer) -> Answer:
    """Turn the failure of a verb's later answer into an answer."""
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
    """Return the answer to a failed request. An error that is no MetaqError is a bug: the log gets it in full, the
    client only its name."""
    framed = isinstance(request, Frame | Parkable)
    opaque: int = getattr(request, "opaque", NO_OPAQUE)
    if isinstance(error, MetaqError):
        return error_frame(opaque, error) if framed else error_result(opaque, error)
    _log.error("request %.200r failed", opaque if framed else request, exc_info=error)
    text = f"internal error: {type(error).__name__}"
    if framed:
        return answer_frame(opaque, {}, ResponseCode.SYSTEM_ERROR, text)
    return encode_result(Status.ERROR, text, opaque)
