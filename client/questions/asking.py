"""Send one question to one broker, on an open connection, in the framed or the text protocol.

Every function of this package blocks the calling thread for at most `timeout` seconds (default: the connection's
request timeout). Every function may raise BrokerUnavailable, RequestTimedOut and, if the answer is invalid,
RemoteProtocolError. If the broker is a Java broker that does not support the question, the function raises
RequestRefused. If a broker refuses the question for another reason, the function raises the error that refusals.py
defines for this refusal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from metaq.protocol.errors import MetaqError, NotLeader, RemoteProtocolError, RequestRefused
from metaq.protocol.frames import Frame, encode_frame
from metaq.protocol.refusals import frame_error, is_success
from metaq.protocol.statuses import RequestCode, Status
from metaq.protocol.text import Result

from ..records.results import TopicPartition
from ..transport.connection import Build, Endpoint, Reply

__all__ = [
    "LEADER_SECONDS",
    "Asked",
    "Follow",
    "HasEndpoint",
    "accepted",
    "as_frame",
    "as_result",
    "ask",
    "following",
    "need_frames",
]

_T = TypeVar("_T")

Follow = Callable[[MetaqError], float | None]
"""The type of ConnectionPool.follow and similar functions: it takes the error of a request, and returns the number of
seconds to wait before the request is sent again, or None if it must not be sent again.
"""

LEADER_SECONDS = 10.0
"""If a broker set has no leader, a request to the set waits at most this number of seconds for a leader, and then ends
with the error NotLeader.
"""


class HasEndpoint(Protocol):
    """The attribute of a connection that the texts of errors name."""

    @property
    def endpoint(self) -> Endpoint: ...


class Asked(HasEndpoint, Protocol):
    """The methods and attributes of a Connection that the functions of this package use."""

    @property
    def speaks_frames(self) -> bool: ...
    @property
    def knows_compressed(self) -> bool: ...
    @property
    def takes_where(self) -> bool: ...
    def call(self, build: Build, timeout: float | None = None) -> Reply: ...


def need_frames(connection: Asked, lacks: str, remedy: str) -> None:
    """Raise RequestRefused if the connection uses the text protocol, because the caller's question needs the framed
    protocol. lacks: what a Java broker cannot do, such as `cannot count messages`.
    """
    if not connection.speaks_frames:
        spoken = "is a Java broker (metaq 1.x), or is asked by text as one"
        text = f"{connection.endpoint} {spoken}, which {lacks}: {remedy}"
        raise RequestRefused(Status.BAD_REQUEST, text)


def following(
    follow: Follow,
    question: Callable[[], _T],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> _T:
    """Call `question`, which sends a request on a connection of a pool, and return its answer. If `question` raises an
    error that says that another node leads the broker set, `follow` makes the pool use that node's address from now on,
    and `question` is called again. Raises the errors of `question`, and NotLeader if no node has led the set for 10 s.
    """
    give_up = clock() + LEADER_SECONDS
    while True:
        try:
            return question()
        except NotLeader as error:
            pause = follow(error)
            if pause is None or clock() + pause >= give_up:
                raise
            sleep(pause)


def ask(
    connection: Asked,
    code: RequestCode,
    ext: Mapping[str, str | int],
    partition: TopicPartition,
    timeout: float | None,
    fine: tuple[int, ...] = (),
) -> Frame:
    """Send a frame without a body, and return the frame of the answer. partition: the partition that the texts of
    errors name. fine: response codes of the answer that, like SUCCESS, do not lead to an error.
    """
    reply = connection.call(lambda opaque: (encode_frame(code, opaque, ext),), timeout)
    return accepted(reply, connection, partition, fine)


def accepted(reply: Reply, connection: HasEndpoint, partition: TopicPartition, fine: tuple[int, ...]) -> Frame:
    """Return the reply if it is a frame with the code SUCCESS or one of the codes in `fine`. Otherwise raise the error
    that belongs to the reply's code or, if the reply is no frame, RemoteProtocolError.
    """
    frame = as_frame(reply, connection)
    if not is_success(frame) and frame.code not in fine:
        raise frame_error(frame, partition, connection.endpoint)
    return frame


def as_frame(reply: Reply, connection: HasEndpoint) -> Frame:
    """Return the reply, which must be a frame. Raises RemoteProtocolError if it is not a frame."""
    if not isinstance(reply, Frame):
        raise RemoteProtocolError(f"{connection.endpoint} answered a frame with text")
    return reply


def as_result(reply: Reply, connection: Asked) -> Result:
    """Return the reply to a text command, which must be a result line. Raises RemoteProtocolError if it is not a result
    line.
    """
    if not isinstance(reply, Result):
        raise RemoteProtocolError(f"{connection.endpoint} answered with {type(reply).__name__} instead of a result")
    return reply
