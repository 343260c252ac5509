"""Match the answers that a client's connection receives with the pending requests of the client. The code in this
module does no I/O, and uses no thread and no clock.

The code that does the I/O of a connection is called its driver (docs/decisions/060-connection-core.md). A driver first
sends `Opening.request`, and creates a ClientStream with the version in the broker's answer. For each request the driver
takes a new opaque (the number that the answer will repeat), stores an object that describes the request under this
opaque in `pending`, and sends the encoded request. The driver passes received bytes to `receive` and the current time
to `expire`, and takes the ended requests from `outcomes`.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable
from itertools import repeat
from operator import attrgetter, itemgetter
from typing import Generic, Protocol, TypeVar

from .errors import AccessRefused, MetaqError, RemoteProtocolError, RequestTimedOut
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
    """The object that a driver stores in `ClientStream.pending` for a request."""

    @property
    def deadline(self) -> float:
        """The time when the request times out, in seconds of the driver's clock. The driver may change the time while
        the request is pending.
        """


R = TypeVar("R", bound=Timed)

EndedRequest = tuple[R, Reply | None, MetaqError | None]
"""A request that has ended, its answer, and an error. If an answer has arrived, the error is None, even if the answer
itself reports that the broker refused the request. If no answer has arrived, the answer is None, and the error tells
why.
"""

_opaque_of = attrgetter("opaque")
_request_of = itemgetter(0)


class ReplyReader(FrameStream[Frame | SentReply]):
    """Parses the frames that a client receives. The answer to a send is decoded into a SentReply (sends.py)."""

    def __init__(self) -> None:
        super().__init__(_parse_reply, parse_frame_parts)


def _parse_reply(data: bytes, position: int, length: int) -> Frame | SentReply:
    return parse_sent_reply(data, position, position + length) or parse_frame(data, position, length)


class Opening:
    """The first exchange on a connection: the text command `version`.

    A client must not send a frame to a Java broker, because the broker would wait forever for the CR LF that ends a
    text command. If the broker is one of metaq's own, the version in its answer shows that the broker accepts frames.
    """

    request = encode_version(0)

    def __init__(self) -> None:
        self._reader = AnswerReader()

    def receive(self, data: bytes) -> str | None:
        """Take the next bytes of the stream, or b"" at its end. Return the broker's version if its answer is complete,
        otherwise None.

        Raises RemoteProtocolError if the peer is not a metaq broker. Raises AccessRefused if the broker refuses all
        requests on this connection, for example because it requires TLS.
        """
        if not data:
            raise RemoteProtocolError("it closed the connection")
        for answer in self._reader.receive(data):
            if isinstance(answer, Result) and answer.code == Status.FORBIDDEN:
                raise AccessRefused(answer.text)
            if not isinstance(answer, Result) or answer.code != Status.SUCCESS:
                raise RemoteProtocolError(f"`version` was answered with {_told(answer)}")
            return answer.text
        return None


def _told(answer: Answer) -> str:
    return f"status {answer.code}: {answer.text}" if isinstance(answer, Result) else repr(answer)


class ClientStream(Generic[R]):
    """The pending and the ended requests of one connection.

    pending: pending requests by opaque. A driver adds each request before it sends the bytes of the request; any thread
    may add requests. outcomes: ended requests, in the order in which they ended, each once; the driver removes them
    from the left. `receive`, `expire` and `outcomes` may be used by one thread at a time; any thread may call `end`.
    half_check_seconds: seconds from the arrival of a half message to its first check, when the broker first asks a
    producer for the outcome. The number applies to half messages that do not set a time of their own.
    half_check_seconds is None if the broker is an older one that does not report the number; such a broker asks the
    producers of the group in any order. torn: whether an exception has interrupted `receive`. After such an exception
    it is unknown where the next answer begins, so the driver must close the connection. The answers that were complete
    before the exception are in `outcomes`; their requests may be in `pending`, too.
    """

    def __init__(self, peer: str, peer_version: str = "", *, text: bool = False) -> None:
        """peer: the broker's name for error texts. peer_version: the broker's answer to `version`. text: whether to use
        the text protocol of metaq 1.x even if the broker accepts frames.
        """
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
        """Return a new opaque. An opaque is the number that a request and its answer have in common."""
        return next(self._opaques) & INT32_MAX

    def heartbeat(self, opaque: int) -> bytes:
        """Encode a heartbeat, a request that every broker answers at once."""
        return encode_frame(RequestCode.HEARTBEAT, opaque, {}) if self.speaks_frames else encode_version(opaque)

    @property
    def wanted_bytes(self) -> int | None:
        """The number of bytes that the driver should receive next. If the driver passes exactly this many bytes to each
        call of `receive`, the class need not copy received pieces to join them, and the driver can use `begun`. The
        value is None if the connection uses the text protocol; then the driver may receive any number of bytes.
        """
        return None if self._frames is None else self._frames.wanted_bytes

    @property
    def begun(self) -> tuple[R, Frame] | None:
        """If the header of an answer has arrived, but not its body: the request of this answer, and the answer as a
        frame with an empty body. The value is None in all other cases, and also if the driver has not received exactly
        `wanted_bytes` each time.
        """
        frame = None if self._frames is None else self._frames.begun
        request = None if frame is None else self.pending.get(frame.opaque)
        return None if request is None or not isinstance(frame, Frame) else (request, frame)

    def receive(self, data: bytes) -> None:
        """Take the next bytes from the connection. A request whose answer is complete moves from `pending` to
        `outcomes`. An answer without a pending request is dropped.

        Raises RemoteProtocolError for bytes that do not follow the protocol; the driver must then close the connection.
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
        """End all pending requests whose deadline has passed: they move to `outcomes` with RequestTimedOut. The cost is
        O(pending requests).
        """
        late = [opaque for opaque, request in list(self.pending.items()) if request.deadline <= now]
        if late:
            self.end(late, RequestTimedOut(f"{self.peer} did not answer in time"))

    def end(self, opaques: Iterable[int], error: MetaqError) -> None:
        """End the requests with these opaques if they are pending: they move to `outcomes` with `error`. If answers to
        these requests arrive later, the answers are dropped.
        """
        ended = map(self.pending.pop, opaques, repeat(None))
        self.outcomes.extend(filter(_request_of, zip(ended, repeat(None), repeat(error))))  # type: ignore[arg-type]


def _half_check_seconds(marks: list[str]) -> float | None:
    """Return the seconds from the arrival of a half message to its first check, which a word in the broker's answer to
    `version` states (HALF_CHECK_MARK). Return None if there is no such word. marks: the words of the answer.
    """
    for mark in marks:
        digits = mark.removeprefix(HALF_CHECK_MARK)
        if digits != mark and digits.isascii() and digits.isdigit() and len(digits) <= 15:
            return int(digits) / 1000
    return None
