"""The gateway, which replaces the jettyBroker plugin of metaq 1.x: get, put and offset by HTTP (semantics.md §7).

The requests are `GET /get/…`, `POST /put/…` and `GET /offset/…`; only the first letter of the path matters. Each
request gets the answer that metaq's text protocol would give: the answer's status code becomes the HTTP status, and the
answer's body becomes the HTTP body.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from io import BytesIO
from typing import Any, TypeAlias, cast

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from twisted.web.http import NOT_ALLOWED
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request

from metaq.protocol.errors import AccessRefused, RemoteProtocolError
from metaq.protocol.limits import INT32_MAX, INT64_MAX
from metaq.protocol.record import Buffer
from metaq.protocol.statuses import Status
from metaq.protocol.text import NO_CHECKSUM, AnswerReader, Get, OffsetQuery, Put, Result, encode_result

from ..access.logins import Logins
from ..network.session import SessionServices
from ..reading.answers import Answer, Bytes, answer_bytes
from ..requests.gate import Gate, HttpPeer
from ..runtime.account import account_address
from ..runtime.pending_puts import PendingPuts
from ..runtime.user_rates import READ, REQUESTED, SENT
from .peers import host_of, peer_of, refusal_status

__all__ = ["Gateway"]

_log = logging.getLogger(__name__)

_OPAQUE = 0

_PUT_METHODS = (b"POST", b"PUT")

_Command: TypeAlias = Get | OffsetQuery | Put


class Gateway(Resource):
    """The only HTTP resource of the gateway. Used only on the reactor thread. Puts and gets are handled like puts and
    gets in the text protocol.
    """

    isLeaf = True  # noqa: N815

    def __init__(self, gate: Gate, shared: SessionServices, logins: Logins) -> None:
        super().__init__()
        self._logins = logins
        self._account = shared.account
        self._rates = shared.account.rates
        self._gate = gate
        self._pending_puts = shared.pending_puts
        self._turns = shared.turns
        self._commands: dict[bytes, Callable[[Request], _Command]] = {
            b"g": self._get,
            b"p": self._put,
            b"o": self._offset,
        }

    def render(self, request: Request) -> int:
        """Serve an HTTP request at once, or, if other work waits already, in the next turn of the client address from
        which the request came. If its user has used up one of his rates, serve it when he is out of debt; until then
        the broker reads nothing more from this HTTP connection.
        """
        lost = request.notifyFinish()
        lost.addErrback(lambda _: None)  # the client has left; its answer is dropped
        self._do(request, partial(self._render, request, lost))
        return NOT_DONE_YET

    def _do(self, request: Request, turn: Callable[[], None]) -> None:
        self._turns.do(turn, account_address(host_of(request)))

    def _render(self, request: Request, lost: Deferred[None], known: HttpPeer | None = None) -> None:
        """Serve a request. known: its sender, if the request has waited because of the sender's rates."""
        if lost.called:
            return
        command = self._commands.get(request.path[1:2])
        if command is None:
            _finish(request, Status.BAD_REQUEST, b"Invalid request")
            return
        if command == self._put and request.method not in _PUT_METHODS:
            request.setHeader("allow", b", ".join(_PUT_METHODS))
            _finish(request, NOT_ALLOWED, b"put by POST: a GET may come from an image of any web page")
            return
        try:
            peer = known or peer_of(request, self._logins)
            user = peer.principal.user
            if self._rates.limited and self._rates.spend(user, REQUESTED, 0):
                self._rates.wait(user, request, partial(self._do, request, partial(self._render, request, lost, peer)))
                if known is None:
                    lost.addCallback(lambda _: self._rates.drop(user, request))
                return
            answer = self._ask(command(request), peer)
        except RemoteProtocolError as error:
            _finish(request, Status.BAD_REQUEST, str(error).encode())
            return
        except AccessRefused as error:
            _finish(request, refusal_status(request, None), str(error).encode())
            return
        if self._rates.limited:
            self._rates.spend(user, REQUESTED, 1)
            self._rates.spend(user, SENT, cast(BytesIO, request.content).getbuffer().nbytes)
        if isinstance(answer, Deferred):
            answer.addErrback(_failed).addCallback(lambda late: self._finish_late(request, late, lost, user))
        else:
            status, body = self._status_and_body(cast(Bytes, answer), user)
            _finish(request, refusal_status(request, peer) if status == Status.FORBIDDEN else status, body)

    def _status_and_body(self, answer: Bytes, user: str) -> tuple[int, Buffer]:
        """Decode an answer of the text protocol, and count it for its user. Return its status code and body."""
        if self._rates.limited:
            self._rates.spend(user, READ, answer_bytes(answer))
        (parsed,) = AnswerReader().receive(b"".join(answer) if isinstance(answer, list) else answer)
        if isinstance(parsed, Result):
            return parsed.code, parsed.text.encode()
        return Status.SUCCESS, parsed.data

    def _finish_late(self, request: Request, answer: Bytes, lost: Deferred[None], user: str) -> None:
        if not lost.called:
            _finish(request, *self._status_and_body(answer, user))

    def _get(self, request: Request) -> Get:
        topic, group = _text(request, "topic"), _text(request, "group", "")
        partition, offset = _integer(request, "partition"), _integer(request, "offset", limit=INT64_MAX)
        return Get(topic, group, partition, offset, _integer(request, "maxsize"), _OPAQUE)

    def _offset(self, request: Request) -> OffsetQuery:
        topic, group = _text(request, "topic"), _text(request, "group", "")
        offset = _integer(request, "offset", limit=INT64_MAX)
        return OffsetQuery(topic, group, _integer(request, "partition"), offset, _OPAQUE)

    def _ask(self, command: _Command, peer: HttpPeer) -> Answer:
        verb = self._gate.admit(command, peer)
        pending = self._pending_puts
        if verb.stores and pending.full:  # a request is a single put, so it does not help to stop reading
            busy = f"{pending.bytes} bytes of puts wait for the disk, at most {pending.limit} may: try again later"
            return encode_result(Status.UNAVAILABLE, busy, _OPAQUE)
        self._account.asker = peer.address
        self._account.asker_user = peer.principal.user
        answer = cast(Answer, self._gate.serve(verb, command, None))
        if verb.repeatable:
            return self._gate.if_room(command, peer.address, cast("Bytes | Deferred[Bytes]", answer))
        if verb.stores and isinstance(answer, Deferred):
            held = verb.held(command)
            pending.add(held)
            answer.addBoth(_settle, pending, held)
        return answer

    def _put(self, request: Request) -> Put:
        body = cast(BytesIO, request.content).getvalue()  # does not copy the body
        length = _integer(request, "length")
        if length != len(body):
            raise RemoteProtocolError(f"length={length}, but the body has {len(body)} bytes")
        return Put(
            _text(request, "topic"),
            _integer(request, "partition"),
            _integer(request, "flag"),
            _integer(request, "checksum", NO_CHECKSUM),
            None,
            _OPAQUE,
            body,
        )


def _settle(answer: Any, pending: PendingPuts, size: int) -> Any:
    pending.settle(size)
    return answer


def _failed(failure: Failure) -> Bytes:
    """Make the answer to a request whose handling has failed because of a bug, and return it. The broker's log gets the
    whole error, and the client gets only the name of the error's type.
    """
    error = failure.value
    _log.error("a request by HTTP failed", exc_info=cast(Any, error))
    return encode_result(Status.ERROR, f"internal error: {type(error).__name__}", _OPAQUE)


def _text(request: Request, name: str, default: str | None = None) -> str:
    values = cast(dict[bytes, list[bytes]], request.args).get(name.encode())
    if values:
        return values[0].decode("utf-8", "replace")
    if default is None:
        raise RemoteProtocolError(f"parameter {name} is missing")
    return default


def _integer(request: Request, name: str, default: int | None = None, limit: int = INT32_MAX) -> int:
    text = _text(request, name, None if default is None else "")
    if not text and default is not None:
        return default
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19) or not -limit - 1 <= int(text) <= limit:
        raise RemoteProtocolError(f"parameter {name}={text[:40]!r} is not an integer in [{-limit - 1}, {limit}]")
    return int(text)


def _finish(request: Request, status: int, body: Buffer) -> None:
    request.setResponseCode(status)
    request.setHeader("content-type", "application/octet-stream" if request.path[1:2] == b"g" else "text/plain")
    request.setHeader("content-length", str(len(body)))
    request.write(bytes(body))
    request.finish()
