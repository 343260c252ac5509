"""The client's side of one connection: it finds the pending request for each received answer. No I/O, no thread, no
clock.

A driver (docs/decisions/060-connection-core.md) sends `Opening.request` first, and makes a ClientStream with the
version that the broker answers. For each request it takes an opaque, puts an object of its own into `pending`, and
sends the bytes that an encoder made for the opaque. It passes received bytes to `receive` and the time to `expire`, and
takes the results from `outcomes`.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable
from itertools import repeat
from operator import attrgetter, itemgetter
from typing import Generic, Protocol, TypeVar

from .errors import MetaqError, RemoteProtocolError, RequestTimedOut
from .frames import Frame, FrameStream, encode_frame, parse_frame, parse_frame_parts
from .limits import (
    COMPRESSED_MARK,
    DELAYS_MARK,
    FRAMES_MARK,
    HALF_CHECK_MARK,
    HALVES_MARK,
    INT32_MAX,
    MANY_MARK,
    SEQUENCES_MARK,
    SHARED_MARK,
    WHERE_MARK,
)
from .sends import SentReply, parse_sent_reply
from .statuses import RequestCode, Status
from .text import Answer, AnswerReader, Result, encode_version

__all__ = ["ClientStream", "EndedRequest", "Opening", "Reply", "ReplyReader"]

Reply = Frame | SentReply | Answer


class Timed(Protocol):
    """The driver's object for a request."""

    @property
    def deadline(self) -> float:
        """The time at which the request times out, in seconds of the driver's clock. It may change while the request is
        pending.
        """


R = TypeVar("R", bound=Timed)

EndedRequest = tuple[R, Reply | None, MetaqError | None]
"""A request that has ended, with its answer (also an error answer) or the reason why there is none."""

_opaque_of = attrgetter("opaque")
_request_of = itemgetter(0)


class ReplyReader(FrameStream[Frame | SentReply]):
    """Reads frames. The answer to a send is decoded into a SentReply (sends.py)."""

    def __init__(self) -> None:
        super().__init__(_parse_reply, parse_frame_parts)


def _parse_reply(data: bytes, position: int, length: int) -> Frame | SentReply:
    return parse_sent_reply(data, position, position + length) or parse_frame(data, position, length)


class Opening:
    """The first exchange on a connection: the text command `version`.

    Never send a frame to a Java broker: the broker would wait for CR LF for ever. Our broker's version says that it
    speaks frames.
    """

    request = encode_version(0)

    def __init__(self) -> None:
        self._reader = AnswerReader()

    def receive(self, data: bytes) -> str | None:
        """Take the next bytes, b"" for the end of the stream. Return the broker's version once it is complete.

        Raises RemoteProtocolError if the peer is not a metaq broker.
        """
        if not data:
            raise RemoteProtocolError("it closed the connection")
        for answer in self._reader.receive(data):
            if not isinstance(answer, Result) or answer.code != Status.SUCCESS:
                raise RemoteProtocolError(f"`version` was answered with {_told(answer)}")
            return answer.text
        return None


def _told(answer: Answer) -> str:
    return f"status {answer.code}: {answer.text}" if isinstance(answer, Result) else repr(answer)


class ClientStream(Generic[R]):
    """The pending and the ended requests of one connection.

    pending: pending requests by opaque. A driver enters each before its bytes are sent. Any thread. outcomes: ended
    requests in order, each once; the driver takes them from the left. Only one thread at a time may call `receive` and
    `expire` and take outcomes; any thread may call `end`. half_check_seconds: seconds from the arrival of a half
    message to its first check, unless the message sets them itself; None for an older broker, which does not report
    them and asks any producer of the group. torn: whether an exception has interrupted `receive`. Then it is unknown
    where the next answer begins: close the connection. The answers completed by then are in `outcomes`; their requests
    may also still be in `pending`.
    """

    def __init__(self, peer: str, peer_version: str = "", *, text: bool = False) -> None:
        """peer: the broker, as errors name it. text: speak metaq 1.x's commands even if the broker speaks frames."""
        marks = peer_version.split()
        self.peer = peer
        self.peer_version = peer_version
        self.speaks_frames = not text and FRAMES_MARK in marks
        self.takes_many = self.speaks_frames and MANY_MARK in marks
        self.takes_sequences = self.speaks_frames and SEQUENCES_MARK in marks
        self.takes_delays = DELAYS_MARK in marks
        self.knows_compressed = COMPRESSED_MARK in marks
        self.takes_where = self.speaks_frames and WHERE_MARK in marks
        self.takes_shared = self.speaks_frames and SHARED_MARK in marks
        self.takes_halves = self.speaks_frames and HALVES_MARK in marks
        self.half_check_seconds = _half_check_seconds(marks)
        self.pending: dict[int, R] = {}
        self.outcomes: deque[EndedRequest[R]] = deque()
        self.torn = False
        self._opaques = itertools.count(1)
        self._frames = ReplyReader() if self.speaks_frames else None
        self._reader: ReplyReader | AnswerReader = self._frames or AnswerReader()

    def new_opaque(self) -> int:
        """Return the number of the next request."""
        return next(self._opaques) & INT32_MAX

    def heartbeat(self, opaque: int) -> bytes:
        """Return a request that every broker answers at once."""
        return encode_frame(RequestCode.HEARTBEAT, opaque, {}) if self.speaks_frames else encode_version(opaque)

    @property
    def wanted_bytes(self) -> int | None:
        """The number of bytes that the driver should receive next. If it receives exactly this many each time, no bytes
        must be joined, and `begun` is available. None: not supported.
        """
        return None if self._frames is None else self._frames.wanted_bytes

    @property
    def begun(self) -> tuple[R, Frame] | None:
        """The request whose answer is complete except for its body, and that answer with an empty body. Requires that
        exactly `wanted_bytes` were received each time."""
        frame = None if self._frames is None else self._frames.begun
        request = None if frame is None else self.pending.get(frame.opaque)
        return None if request is None or not isinstance(frame, Frame) else (request, frame)

    def receive(self, data: bytes) -> None:
        """Take the next bytes. Answered requests become outcomes; an answer to no request is dropped.

        Raises RemoteProtocolError: close the connection.
        """
        self.torn = True
        replies = self._reader.receive(data)
        if len(replies) == 1:  # the usual case of a caller that waits for each answer
            opaque = replies[0].opaque
            if (request := self.pending.get(opaque)) is not None:
                self.outcomes.append((request, replies[0], None))
                self.pending.pop(opaque, None)  # last: after an exception the request is in at least one of them
        elif replies:
            ended = map(self.pending.pop, map(_opaque_of, replies), repeat(None))
            self.outcomes.extend(filter(_request_of, zip(ended, replies, repeat(None))))  # type: ignore[arg-type]
        self.torn = False

    def expire(self, now: float) -> None:
        """Turn requests past their deadline into outcomes with RequestTimedOut. Cost: O(pending requests)."""
        late = [opaque for opaque, request in list(self.pending.items()) if request.deadline <= now]
        if late:
            self.end(late, RequestTimedOut(f"{self.peer} did not answer in time"))

    def end(self, opaques: Iterable[int], error: MetaqError) -> None:
        """Turn those of these requests that are pending into outcomes with `error`. Later answers to them are
        dropped.
        """
        ended = map(self.pending.pop, opaques, repeat(None))
        self.outcomes.extend(filter(_request_of, zip(ended, repeat(None), repeat(error))))  # type: ignore[arg-type]


def _half_check_seconds(marks: list[str]) -> float | None:
    """Return the seconds to the first check of a half message, from the words of the broker's version; None if it has
    no such word.
    """
    for mark in marks:
        digits = mark.removeprefix(HALF_CHECK_MARK)
        if digits != mark and digits.isascii() and digits.isdigit() and len(digits) <= 15:
            return int(digits) / 1000
    return None
