"""What a handler may answer, and the bytes of the answers that have no handler of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from twisted.internet.defer import Deferred

from metaq.protocol.frames import RESPONSE, encode_frame
from metaq.protocol.record import Buffer
from metaq.protocol.statuses import ResponseCode

__all__ = ["Answer", "Bytes", "answer_frame"]

Bytes: TypeAlias = bytes | list[Buffer]
"""A whole answer, in one buffer or several (large data is not joined to its header)."""

Answer: TypeAlias = Bytes | Deferred[Bytes] | None
"""Bytes now, bytes later, or none at all."""


def answer_frame(
    opaque: int,
    ext: Mapping[str, str | int],
    code: ResponseCode = ResponseCode.SUCCESS,
    remark: str = "",
    body: int = 0,
) -> bytes:
    """Prefix and header of an answer whose body has `body` bytes; the caller sends the body after it."""
    return encode_frame(code, opaque, ext, body, flag=RESPONSE, remark=remark)
