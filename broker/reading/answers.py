"""The answers of verbs, and the encoders of replies, errors and 1.x's own texts."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, Protocol, TypeAlias, TypeVar

import simplejson
from twisted.internet.defer import Deferred

from metaq.protocol.errors import (
    MetaqError,
    NotLeader,
    PartitionClosed,
    TransactionRefused,
)
from metaq.protocol.frames import RESPONSE, encode_frame
from metaq.protocol.record import Buffer
from metaq.protocol.refusals import LEADER, response_code
from metaq.protocol.statuses import ResponseCode
from metaq.protocol.text import encode_result

__all__ = [
    "Answer",
    "Bytes",
    "Work",
    "answer_bytes",
    "answer_frame",
    "body_frame",
    "encode_json",
    "error_frame",
    "error_result",
    "json_frame",
    "put_failure",
    "reply_frame",
    "then",
]

T = TypeVar("T")
U = TypeVar("U")

Bytes: TypeAlias = bytes | list[Buffer]
"""A whole answer, in one buffer or several (large data are not joined to their header)."""

Answer: TypeAlias = Bytes | Deferred[Bytes] | None
"""Bytes now, bytes later, or no answer."""

Work: TypeAlias = Generator[None, None, Answer]
"""A long request: it takes a few milliseconds up to each `yield`, where others may be served, and returns its
answer."""


class ReplyFields(Protocol):
    """A reply of protocol/."""

    def to_ext(self) -> dict[str, str | int]: ...


def answer_bytes(answer: Bytes) -> int:
    """The size of an answer."""
    return sum(map(len, answer)) if isinstance(answer, list) else len(answer)


def then(result: T | Deferred[T], convert: Callable[[T], U]) -> U | Deferred[U]:
    """Return `convert` of a result, at once if the result is there."""
    return result.addCallback(convert) if isinstance(result, Deferred) else convert(result)


# --- frames -----------------------------------------------------------------------------------------------------------


def answer_frame(
    opaque: int,
    ext: Mapping[str, str | int],
    code: ResponseCode = ResponseCode.SUCCESS,
    remark: str = "",
    body: int = 0,
) -> bytes:
    """Return prefix and header of an answer whose body has `body` bytes; the caller sends the body after it."""
    return encode_frame(code, opaque, ext, body, flag=RESPONSE, remark=remark)


def reply_frame(opaque: int, reply: ReplyFields) -> bytes:
    """Return a successful answer with only extFields."""
    return encode_frame(ResponseCode.SUCCESS, opaque, reply.to_ext(), flag=RESPONSE)


def body_frame(opaque: int, body: Buffer) -> Bytes:
    """Return a successful answer with only a body."""
    return [answer_frame(opaque, {}, body=len(body)), body]


def json_frame(opaque: int, value: Any) -> Bytes:
    """Return a successful answer whose body is `value` as JSON (UTF-8)."""
    return body_frame(opaque, encode_json(value))


def encode_json(value: Any) -> bytes:
    """Return `value` as JSON in UTF-8, for the body of an answer."""
    return simplejson.dumps(value).encode("utf-8")


def error_frame(opaque: int, error: MetaqError) -> bytes:
    """Return the answer to a frame for an error."""
    if isinstance(error, TransactionRefused):
        ext = {} if error.xa_code is None else {"xaCode": error.xa_code}
        return answer_frame(opaque, ext, ResponseCode.TRANSACTION_REFUSED, str(error))
    leader = {LEADER: error.url} if isinstance(error, NotLeader) else {}
    return answer_frame(opaque, leader, response_code(error), str(error))


# --- text -------------------------------------------------------------------------------------------------------------


def error_result(opaque: int, error: MetaqError) -> bytes:
    """Return the answer to a text command for an error."""
    return encode_result(error.status, _with_capital(error), opaque)


def put_failure(url: str, topic: str, partition: int, error: MetaqError, *, capital: bool = False) -> str:
    """Return 1.x's words for a failed put, and for a get whose group's filter failed.

    capital: whether a closed partition's text begins with a capital; 1.x's slave writes it so here too.
    """
    detail = _with_capital(error) if capital else str(error)
    return f"Put message to [broker '{url}'] [partition '{topic}-{partition}'] failed.Detail:{detail}"


def _with_capital(error: MetaqError) -> str:
    """Return an error's text. 1.x begins a closed partition's text with a capital unless a prefix stands before it."""
    text = str(error)
    return text[:1].upper() + text[1:] if isinstance(error, PartitionClosed) else text
