"""The types of answers, and the functions that encode replies and errors. Answers to text commands have the texts of
metaq 1.x.
"""

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
"""The bytes of a whole answer, in one buffer or in a list of buffers. With a list, large data need not be copied into
one buffer with their header.
"""

Answer: TypeAlias = Bytes | Deferred[Bytes] | None
"""The answer's bytes, a Deferred of these bytes, or None for a request that gets no answer."""

Work: TypeAlias = Generator[None, None, Answer]
"""The work on a long request, as a generator that returns the answer. Between one `yield` and the next the generator
runs for a few milliseconds; at each `yield` the broker can serve other requests.
"""


class ReplyFields(Protocol):
    """A reply to a request; the package protocol/ defines the classes of replies."""

    def to_ext(self) -> dict[str, str | int]: ...


def answer_bytes(answer: Bytes) -> int:
    """Return the size of an answer in bytes."""
    return sum(map(len, answer)) if isinstance(answer, list) else len(answer)


def then(result: T | Deferred[T], convert: Callable[[T], U]) -> U | Deferred[U]:
    """Return convert(result). For a Deferred, return a Deferred of the converted result."""
    return result.addCallback(convert) if isinstance(result, Deferred) else convert(result)


# --- frames -----------------------------------------------------------------------------------------------------------


def answer_frame(
    opaque: int,
    ext: Mapping[str, str | int],
    code: ResponseCode = ResponseCode.SUCCESS,
    remark: str = "",
    body: int = 0,
) -> bytes:
    """Return the prefix and the header of an answer whose body has `body` bytes. The caller sends the body after
    them.
    """
    return encode_frame(code, opaque, ext, body, flag=RESPONSE, remark=remark)


def reply_frame(opaque: int, reply: ReplyFields) -> bytes:
    """Return the frame of a successful answer that has only extFields and no body."""
    return encode_frame(ResponseCode.SUCCESS, opaque, reply.to_ext(), flag=RESPONSE)


def body_frame(opaque: int, body: Buffer) -> Bytes:
    """Return the frame of a successful answer that has only a body and no extFields."""
    return [answer_frame(opaque, {}, body=len(body)), body]


def json_frame(opaque: int, value: Any) -> Bytes:
    """Return the frame of a successful answer whose body is `value` as JSON (UTF-8)."""
    return body_frame(opaque, encode_json(value))


def encode_json(value: Any) -> bytes:
    """Return `value` as JSON in UTF-8, for the body of an answer."""
    return simplejson.dumps(value).encode("utf-8")


def error_frame(opaque: int, error: MetaqError) -> bytes:
    """Return the answer to a frame that has failed with this error."""
    if isinstance(error, TransactionRefused):
        ext = {} if error.xa_code is None else {"xaCode": error.xa_code}
        return answer_frame(opaque, ext, ResponseCode.TRANSACTION_REFUSED, str(error))
    leader = {LEADER: error.url} if isinstance(error, NotLeader) else {}
    return answer_frame(opaque, leader, response_code(error), str(error))


# --- text -------------------------------------------------------------------------------------------------------------


def error_result(opaque: int, error: MetaqError) -> bytes:
    """Return the answer to a text command that has failed with this error."""
    return encode_result(error.status, _with_capital(error), opaque)


def put_failure(url: str, topic: str, partition: int, error: MetaqError, *, capital: bool = False) -> str:
    """Return the text that metaq 1.x puts into the answer to a failed put. It is also the text of the answer to a get
    if the filter of the consumer group is unavailable.

    capital: whether the text about a closed partition begins with a capital letter, as in the answers of 1.x's slave.
    """
    detail = _with_capital(error) if capital else str(error)
    return f"Put message to [broker '{url}'] [partition '{topic}-{partition}'] failed.Detail:{detail}"


def _with_capital(error: MetaqError) -> str:
    """Return the text of an error. The text about a closed partition begins with a capital letter, because it does so
    in those answers of 1.x that consist of nothing else.
    """
    text = str(error)
    return text[:1].upper() + text[1:] if isinstance(error, PartitionClosed) else text
