"""The gate checks every request before the broker does anything for it. `Gate.admit` is called once for each request,
and returns the verb that serves the request. A verb is a row of the table in verbs.py.

The gate checks requests of both protocols, requests of the HTTP gateway, and requests for the dashboard's pages. If a
request has to wait after the check, the session keeps the verb, and the request is not checked again (session.py). A
parked pull does not pass `Gate.admit` again when it is resumed. The command `quit` is the only request that does not
pass the gate, because it only ends its own connection. The gate's methods that serve requests catch every exception and
make an error answer of it.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import GeneratorType
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

from twisted.internet.defer import Deferred

from metaq.protocol.access import ANYBODY, AccessOperation, Need, Principal
from metaq.protocol.errors import AccountSpent, MetaqError, QuotaExceeded
from metaq.protocol.frames import Frame
from metaq.protocol.put_run import PutRun
from metaq.protocol.requests import WireRequest
from metaq.protocol.statuses import ResponseCode, Status
from metaq.protocol.text import NO_OPAQUE, IgnoredAnswer, Put, TransactionCommand, encode_result
from metaq.protocol.transactions import TX_KEY, TransactionType

from ..access.control import Granted
from ..reading.answers import Answer, Bytes, Work, answer_bytes, answer_frame, error_frame, error_result
from ..reading.parkable import Loading, Parkable, Step
from ..runtime.account import Unsent, account_address
from .needs import NOTHING, Needs
from .put import PutGroup, answer_one_by_one

__all__ = ["Caller", "Check", "Gate", "Guard", "HttpPeer", "Nodes", "PageRequest", "Sees", "Served", "Verb"]

_log = logging.getLogger(__name__)

_ADMIN_ONLY = "admin requests are accepted only from the broker's own machine, unless it runs with --admin-from any"


class Caller(Protocol):
    """The sender of requests. All requests that arrive on one connection have the same Caller object. A local
    transaction can be used only by the Caller that has begun it.
    """

    @property
    def host(self) -> str:
        """The client's numeric address; `?` if it has none."""

    @property
    def address(self) -> str:
        """The address of the client, for whose limits the account counts the request."""

    @property
    def certified_hosts(self) -> frozenset[str]:
        """The DNS names, in lower case, and IP addresses that the client's verified certificate names. Empty if the
        client has shown no certificate, for example because the client does not use TLS.
        """

    @property
    def principal(self) -> Principal:
        """The broker or user that the client has shown to be, by its certificate or by logging in."""

    granted: Granted | None
    """What the client was permitted to do lately, for the guard."""

    @property
    def has_ended(self) -> bool:
        """Whether the client has closed the connection or its sending half, or the connection is lost."""


Served: TypeAlias = Answer | Work | Parkable
"""The result of serving a request: an answer, work that is done in slices, or a request that must be advanced with
`step`.
"""

_UNDER_WAY = (Parkable, GeneratorType)


@dataclass(slots=True)
class HttpPeer:
    """The sender of an HTTP request, for the gate's checks and for the verb of pages. The verb that serves a request of
    the gateway gets None as its caller, because HTTP requests have no common state such as a local transaction.
    """

    host: str
    principal: Principal = ANYBODY
    granted: Granted | None = None

    @property
    def address(self) -> str:
        """The address of the client, for whose limits the account counts the request."""
        return account_address(self.host)

    @property
    def certified_hosts(self) -> frozenset[str]:
        """Always empty: HTTP has no client certificates."""
        return frozenset()

    @property
    def has_ended(self) -> bool:
        """Always False, because an HTTP request is served and answered even if its client has closed the connection."""
        return False


class PageRequest(NamedTuple):
    """A request for a page of the dashboard."""

    words: list[str]
    """The parts of the URL's path."""
    changes: bool
    """Whether the request is a POST."""
    show: Callable[[], Any]
    """Returns the content of the page. If the request is a POST, the function first does what the request asks for."""

    @property
    def audit_name(self) -> str:
        """The name of this request in the audit log."""
        return f"{'POST' if self.changes else 'GET'} /{'/'.join(self.words)}"


class Nodes(Enum):
    """Which nodes of a broker set serve requests of one type. (A single broker serves requests of all types.)"""

    LEADER = 0
    READERS = 1
    """The leader serves all such requests. A follower serves such a request if the request has `follower=1` and the
    follower shows readers all committed messages.
    """
    ALL = 2


class Verb(NamedTuple):
    """A type of request. `serve` combines a decoder, an action and an encoder. The other fields tell the gate and the
    session how to treat requests of this type.
    """

    serve: Callable[[Any, Caller | None], Served]
    """serve(request, caller) serves a request. If it cannot serve the request, it raises MetaqError, or returns a
    Deferred that fails with MetaqError.
    caller: None for a client that sends a single request.
    """
    needs: Needs
    """Returns what the sender of a request must be permitted to do."""
    held: Callable[[Any], int] = lambda request: 0
    """held(request) returns how many bytes the request keeps in memory until it is answered."""
    stores: bool = False
    """Whether the request stores messages. If so, the session does not serve it while too many bytes of puts wait for
    the disk.
    """
    gathers: bool = False
    """Whether the request may be served together with the requests before and after it, in a PutGroup."""
    lists: bool = False
    """Whether the request asks for a list that can be long, so that the answer is made in slices. Such a request
    changes nothing.
    """
    repeatable: bool = False
    """Whether the client, if it gets no answer, can repeat the request and gets the same or newer data. If so, the
    broker is permitted to refuse a large answer when memory is scarce.
    """
    admin: bool = False
    """Whether the request is only for operators."""
    nodes: Nodes = Nodes.LEADER
    in_transaction: Verb | None = None
    """The verb that serves a request of this type in place of this verb, if the request has the key of a transaction.
    The field is None if requests of this type never have such a key.
    """


Check: TypeAlias = Callable[[Verb, WireRequest | PageRequest], None]
"""check(verb, request): raises MetaqError to refuse a request; the answer then has this error."""


class Guard(Protocol):
    """Decides whether the sender of a request may do what the request needs."""

    @property
    def by_grants(self) -> bool:
        """Whether the grants of users decide who may send operators' requests. If not, the sender's address decides."""

    def check(self, need: Need, peer: Caller, request: object) -> None:
        """Raise MetaqError if `peer` may not do what needs `need`. A request with several needs is refused if this
        raises for one of them. But the puts of a PutRun are separate requests: only the puts of the topics for which
        this raises are refused. request: the request that has this need.
        """

    def permits(self, need: Need, peer: Caller) -> bool:
        """Return whether `peer` may do what needs `need`, whether or not grants are enforced."""


Sees: TypeAlias = Callable[[str], bool] | None
"""sees(topic): whether the asker of a list may see this topic. None: all topics."""


class Gate:
    """The gate of a broker. Its methods never raise exceptions; they return error answers instead. Used only on the
    reactor thread.
    """

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
        """texts: the verbs of text commands and of PageRequest, by the type of the request. frames: the verbs of
        frames, by request code. admits(host): whether operators' requests are accepted from the address `host`.
        connection_lost: called when a connection is lost; drops what the broker keeps for this caller, such as its
        local transactions. unsent: tells whether there is memory for an answer.
        """
        self.texts = texts
        self.frames = frames
        self._admits = admits
        self._unsent = unsent
        self.check = check
        """The function that is called for every request and may refuse it. If it is None, no request is refused for
        its kind.
        """
        self.guard: Guard | None = None
        """The object that decides whether the sender of a request may do what the request needs. If it is None,
        everybody may do everything.
        """
        self.refuses_operator: Callable[[Frame, Caller, str], None] = lambda request, peer, why: None
        """The function that is called if an operator's request is refused because of its sender's address."""
        self.check_pull: Callable[[Parkable], None] | None = None
        """The function that is called before each step of a pull. It is needed because a pull that was permitted when
        it arrived may be forbidden while it waits. The function raises MetaqError to refuse the pull. If it is None,
        pulls are not checked again.
        """
        self.group = Verb(lambda group, caller: group.commit(), NOTHING, lambda group: group.held_bytes, stores=True)
        """The verb that serves a PutGroup."""
        self.new_group = new_group
        self.connection_lost = connection_lost

    def refusing(self, error: MetaqError) -> Gate:
        """Return a gate that refuses every request with this error."""
        gate = copy.copy(self)
        gate.admit = lambda request, peer: self.refusal(request, error)  # type: ignore[method-assign]
        return gate

    def refusal(self, request: WireRequest | PageRequest, error: MetaqError) -> Verb:
        """Return a verb that answers this request with the error. Each put of a PutRun gets an answer of its own."""
        if type(request) is PutRun:
            refused: dict[str | None, Exception] = dict.fromkeys(request.topics, error)
            return self.texts[PutRun]._replace(serve=partial(self._serve_run, refused))
        return Verb(partial(_refuse, error), NOTHING, nodes=Nodes.ALL)

    def admit(self, request: WireRequest | PageRequest, peer: Caller) -> Verb:
        """Check a request, and return the verb that serves it. If the request is forbidden, return a verb whose `serve`
        makes the refusal.
        """
        if type(request) is Frame:
            verb = self.frames.get(request.code, _UNKNOWN)
            if verb.in_transaction is not None and TX_KEY in request.ext:
                verb = verb.in_transaction
            guard = self.guard
            if verb.admin and not (self._admits(peer.host) if guard is None or not guard.by_grants else True):
                self.refuses_operator(request, peer, _ADMIN_ONLY)
                return _NO_OPERATOR
        else:
            verb = self.texts[type(request)]
            if verb.in_transaction is not None and request.tx_key is not None:  # type: ignore[union-attr]
                verb = verb.in_transaction
        return verb if self.check is None and self.guard is None else self._checked(verb, request, peer)

    def _checked(self, verb: Verb, request: WireRequest | PageRequest, peer: Caller) -> Verb:
        if type(request) is PutRun:
            refused = self._refused_puts(verb, request, peer)
            return verb._replace(serve=partial(self._serve_run, refused)) if refused else verb
        try:
            if self.check is not None:
                self.check(verb, request)
            if (guard := self.guard) is not None:
                for need in verb.needs(request):
                    guard.check(need, peer, request)
        except Exception as error:  # also for a bug of a check, so that only permitted requests are done
            return Verb(partial(_refuse, error), NOTHING)
        return verb

    def _refused_puts(self, verb: Verb, run: PutRun, peer: Caller) -> dict[str | None, Exception]:
        """Return the topics of a run whose puts are refused, with the reasons."""
        refused: dict[str | None, Exception] = {}
        try:
            if self.check is not None:
                self.check(verb, run)
            if (guard := self.guard) is not None:
                for need in verb.needs(run):
                    try:
                        guard.check(need, peer, run)
                    except MetaqError as error:
                        refused[need.topic] = error
        except Exception as error:  # also for a bug of a check
            return dict.fromkeys(run.topics, error)
        return refused

    def _serve_run(self, refused: Mapping[str | None, Exception], run: PutRun, caller: Caller | None) -> Work:
        def add(group: PutGroup, put: Put) -> None:
            if (error := refused.get(put.topic)) is None:
                group.add(put)
            else:
                group.refuse(_failed(put, error))

        return answer_one_by_one(partial(self.new_group, caller), run, add)

    def sees(self, peer: Caller | None) -> Sees:
        """Return a function that says which topics a list for this asker contains. A call takes some microseconds."""
        guard = self.guard
        if guard is None or peer is None or not guard.by_grants or guard.permits(Need(AccessOperation.SEE), peer):
            return None
        return lambda topic: guard.permits(Need(AccessOperation.SEE, topic), peer)

    def serve(self, verb: Verb, request: WireRequest, caller: Caller | None) -> Served:
        """Serve a request. verb: what `admit` has returned for this request."""
        try:
            served = verb.serve(request, caller)
        except Exception as error:
            return _unless_one_way(request, _failed(request, error))
        if isinstance(served, _UNDER_WAY):
            return served
        return _settled(request, cast(Answer, served))

    def go_on(self, request: WireRequest, work: Work) -> Answer | Work:
        """Do one slice of the work on a request. Return the answer, or `work` if more slices are needed."""
        try:
            next(work)
        except StopIteration as done:
            return _settled(request, done.value)
        except Exception as error:
            return _unless_one_way(request, _failed(request, error))
        return work

    def step(self, pull: Parkable, peer: Caller) -> Bytes | Deferred[Bytes] | Step | Loading:
        """Call `step` of a pull once, and return its result. If the result is Step.WAIT, the session decides whether
        the pull may wait. peer: the sender of the pull; its permissions may have changed since the pull has arrived.
        """
        try:
            if self.guard is not None:
                self.guard.check(pull.need, peer, pull)
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
        """Return the refusal of a pull that cannot be answered at once, and cannot wait because too many pulls wait
        already. why: the text of the refusal.
        """
        return answer_frame(pull.opaque, {}, ResponseCode.SYSTEM_BUSY, why)

    def beyond_quota(self, pull: Parkable, why: str) -> Bytes:
        """Return the refusal of a pull that cannot wait because of a quota. why: the text of the refusal."""
        return _failed(pull, QuotaExceeded(why))

    def if_room(
        self, request: WireRequest | Parkable, address: str, answer: Bytes | Deferred[Bytes]
    ) -> Bytes | Deferred[Bytes]:
        """Return `answer`, or a refusal in its place. It is refused if it is large and clients at this address have not
        received too many bytes of earlier answers yet.
        """
        fit = partial(self._if_room, request, address)
        return answer.addCallback(fit) if isinstance(answer, Deferred) else fit(answer)

    def _if_room(self, request: WireRequest | Parkable, address: str, answer: Bytes) -> Bytes:
        why = self._unsent.why_not(address, answer_bytes(answer))
        return answer if why is None else _failed(request, AccountSpent(why))


def _settled(request: WireRequest, answer: Answer) -> Answer:
    """Return a verb's answer. If it is a Deferred that fails, give it an error answer in place of the failure."""
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


_UNKNOWN = Verb(_unknown_code, NOTHING, nodes=Nodes.ALL)
_NO_OPERATOR = Verb(_no_operator, NOTHING, nodes=Nodes.ALL)


def _refuse(error: Exception, request: object, caller: Caller | None) -> Answer:
    if type(request) is IgnoredAnswer or (type(request) is TransactionCommand and request.type is TransactionType.END):
        return None  # the text protocol never answers this
    raise error


def _failed(request: WireRequest | Parkable, error: BaseException) -> bytes:
    """Return the answer to a failed request. An error that is not a MetaqError is a bug; it is logged with its
    traceback, and the client gets only the name of its type.
    """
    framed = isinstance(request, Frame | Parkable)
    opaque: int = getattr(request, "opaque", NO_OPAQUE)
    if isinstance(error, MetaqError):
        return error_frame(opaque, error) if framed else error_result(opaque, error)
    _log.error("request %.200r failed", opaque if framed else request, exc_info=error)
    text = f"internal error: {type(error).__name__}"
    if framed:
        return answer_frame(opaque, {}, ResponseCode.SYSTEM_ERROR, text)
    return encode_result(Status.ERROR, text, opaque)
