"""What a verb may answer, and the encoders: of replies, of errors, and of 1.x's own texts."""

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
"""A whole answer, in one buffer or several (large data is not joined to its header)."""

Answer: TypeAlias = Bytes | Deferred[Bytes] | None
"""Bytes now, bytes later, or none at all."""

Work: TypeAlias = Generator[None, None, Answer]
"""A request that may take long: a few milliseconds up to each `yield`, where others may be served, then its answer."""


class ReplyFields(Protocol):
    """A reply of protocol/."""

    def to_ext(self) -> dict[str, str | int]: ...


def answer_bytes(answer: Bytes) -> int:
    """The size of an answer."""
    return sum(map(len, answer)) if isinstance(answer, list) else len(answer)


def then(result: T | Deferred[T], convert: Callable[[T], U]) -> U | Deferred[U]:
    """`convert` of a result, at once if it is there."""
    return result.addCallback(convert) if isinstance(result, Deferred) else convert(result)


# --- frames -----------------------------------------------------------------------------------------------------------


def answer_frame(
    opaque: int,
    ext: Mapping[str, str | int],
    code: ResponseCode = ResponseCode.SUCCESS,
    remark: str = "",
    body: int = 0,
) -> bytes:
    """Prefix and header of an answer whose body has `body` bytes; the caller sends the body after it."""
    return encode_frame(code, opaque, ext, body, flag=RESPONSE, remark=remark)


def reply_frame(opaque: int, reply: ReplyFields) -> bytes:
    """A successful answer that is all in its extFields."""
    return encode_frame(ResponseCode.SUCCESS, opaque, reply.to_ext(), flag=RESPONSE)


def body_frame(opaque: int, body: Buffer) -> Bytes:
    """A successful answer that is all in its body."""
    return [answer_frame(opaque, {}, body=len(body)), body]


def json_frame(opaque: int, value: Any) -> Bytes:
    """A successful answer whose body is `value` as JSON (UTF-8)."""
    return body_frame(opaque, encode_json(value))


def encode_json(value: Any) -> bytes:
    """As the body of an answer: UTF-8."""
    return simplejson.dumps(value).encode("utf-8")


def error_frame(opaque: int, error: MetaqError) -> bytes:
    """How a frame is told of an error."""
    if isinstance(error, TransactionRefused):
        ext = {} if error.xa_code is None else {"xaCode": error.xa_code}
        return answer_frame(opaque, ext, ResponseCode.TRANSACTION_REFUSED, str(error))
    leader = {LEADER: error.url} if isinstance(error, NotLeader) else {}
    return answer_frame(opaque, leader, response_code(error), str(error))


# --- text -------------------------------------------------------------------------------------------------------------


def error_result(opaque: int, error: MetaqError) -> bytes:
    """How a text command is told of an error."""
    return encode_result(error.status, _with_capital(error), opaque)


def put_failure(url: str, topic: str, partition: int, error: MetaqError, *, capital: bool = False) -> str:
    """1.x's words for a put that failed, and for a get that its group's filter failed.

    capital: of a closed partition's text, which 1.x's slave writes so here too.
    """
    detail = _with_capital(error) if capital else str(error)
    return f"Put message to [broker '{url}'] [partition '{topic}-{partition}'] failed.Detail:{detail}"


def _with_capital(error: MetaqError) -> str:
    """1.x writes the text of a closed partition with a capital where no prefix stands before it."""
    text = str(error)
    return text[:1].upper() + text[1:] if isinstance(error, PartitionClosed) else text
