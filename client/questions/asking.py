"""Ask one broker one question, on an open connection in either protocol.

Every function of this package blocks the calling thread for at most `timeout` seconds (default: the connection's
request timeout). It raises BrokerUnavailable, RequestTimedOut; RemoteProtocolError for an invalid answer;
RequestRefused if a Java broker does not support the question; or the error in refusals.py that belongs to the broker's
refusal.
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
    "READER_GROUP",
    "Asked",
    "Follow",
    "accepted",
    "as_frame",
    "as_result",
    "ask",
    "following",
    "need_frames",
]

_T = TypeVar("_T")

Follow = Callable[[MetaqError], float | None]
"""Returns the seconds to wait before another try, as ConnectionPool.follow does."""

LEADER_SECONDS = 10.0
"""Seconds without a leader of the broker set after which a request ends with NotLeader."""

READER_GROUP = "Just_for_Browser"
"""The group name that 1.x's TopicBrowser, a reader without a group, sends. No group state exists under this name."""


class Asked(Protocol):
    """The members of a Connection that questions use."""

    @property
    def endpoint(self) -> Endpoint: ...
    @property
    def speaks_frames(self) -> bool: ...
    @property
    def knows_compressed(self) -> bool: ...
    @property
    def takes_where(self) -> bool: ...
    def call(self, build: Build, timeout: float | None = None) -> Reply: ...


def need_frames(connection: Asked, lacks: str, remedy: str) -> None:
    """Raise RequestRefused if the connection uses text commands. lacks: what a Java broker cannot do, such as `cannot
    count messages`.
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
    """Call `question`, which takes its connection from a pool, and return its answer. If another node leads the broker
    set, ask again there. Raises the question's errors; NotLeader if no node leads the set for 10 s.
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
    """Send a frame without a body, and return the answer. partition: the partition that errors name. fine: response
    codes besides SUCCESS that are not errors.
    """
    reply = connection.call(lambda opaque: (encode_frame(code, opaque, ext),), timeout)
    return accepted(reply, connection, partition, fine)


def accepted(reply: Reply, connection: Asked, partition: TopicPartition, fine: tuple[int, ...]) -> Frame:
    """Return the reply if it is a frame with SUCCESS or one of the codes `fine`; otherwise raise its error."""
    frame = as_frame(reply, connection)
    if not is_success(frame) and frame.code not in fine:
        raise frame_error(frame, partition, connection.endpoint)
    return frame


def as_frame(reply: Reply, connection: Asked) -> Frame:
    """Return the reply as a frame. Raises RemoteProtocolError."""
    if not isinstance(reply, Frame):
        raise RemoteProtocolError(f"{connection.endpoint} answered a frame with text")
    return reply


def as_result(reply: Reply, connection: Asked) -> Result:
    """Return the reply to a text command as a result line. Raises RemoteProtocolError."""
    if not isinstance(reply, Result):
        raise RemoteProtocolError(f"{connection.endpoint} answered with {type(reply).__name__} instead of a result")
    return reply
