"""A broker's input: frames and text commands mixed, distinguished by each request's first byte."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from .errors import RemoteProtocolError
from .frames import Frame, frame_bytes, parse_frame
from .limits import MAX_LINE_BYTES
from .put_run import MOST_PUTS, PutRun, parse_put_run
from .sends import parse_common_send
from .text import Put, Sync, TextCommand, TooLargePut, parse_command, parse_common_put

__all__ = ["FRAME_COST", "RequestReader", "WireRequest", "one_by_one"]

WireRequest = TextCommand | PutRun | Frame

CHUNK_BYTES = 64
"""Bytes of memory that each piece of an incomplete request takes besides its content."""

FRAME_COST = 4
"""Number of usual SENDs and text commands that are decoded in the time of one other frame, 20 µs, whose JSON must be
parsed.
"""

_SPACE_BYTES = 1 << 20
"""A large frame's buffer grows by this many bytes, or by as many as were received if that is more."""

_LARGE_FRAME_BYTES = 64 << 10
"""Frames of this size or more get a buffer of their own, into which the transport can receive."""


def one_by_one(requests: Iterable[WireRequest]) -> Iterator[TextCommand | Frame]:
    """Yield the same requests with each run split into single puts, for a caller that takes puts one by one."""
    for request in requests:
        if isinstance(request, PutRun):
            yield from request.puts()
        else:
            yield request


class RequestReader:
    """Turns a stream of bytes into requests; no I/O.

    Cost: O(bytes); a byte is joined at most once, whatever the size of the chunks. Buffers are bounded in advance: a
    line by MAX_LINE_BYTES, a body by MAX_BODY_BYTES, a frame by MAX_FRAME_BYTES. The body of a larger put is dropped on
    arrival.

    The rest of a large frame can be received straight to its place: while `space` is not None, receive into it and call
    `received`. Such a frame's body is writable.

    Wrong bytes set `failure` and end the stream: `receive` still returns the requests before them, because 1.x answers
    those before it closes.
    """

    def __init__(self, most: int = 0) -> None:
        """most: maximum requests that one call returns, 0: all. A run of puts counts as one, a frame other than a usual
        SEND as FRAME_COST."""
        self.failure: RemoteProtocolError | None = None
        self.more = False
        """Whether the received bytes may contain further requests: call `receive` without bytes to get them."""
        self.large: memoryview | None = None
        """The buffer of a large frame that is not parsed yet. It may be smaller than the frame."""
        self._most = most
        self._costs = 0  # cost of this call's requests beyond 1 each
        self._looks_for_runs = True
        self._rest = b""  # with `more`: the received bytes, and where the next request begins in them
        self._rest_start = 0
        self._kept = b""  # or these bytes, which follow an incomplete request
        self._chunks: list[bytes] = []
        self._chunk_bytes = 0
        self._missing = 0  # bytes to collect before the next parsing
        self._dropping = 0  # bytes still to come of a body that is too large
        self._large_bytes = self._large_filled = 0  # its total size, and the received part

    @property
    def buffered_bytes(self) -> int:
        """Bytes of an incomplete request held now."""
        return self._chunk_bytes + self._large_filled

    @property
    def held_bytes(self) -> int:
        """Memory of the incomplete request in bytes. A request that arrives in single bytes takes many times its size.
        Bytes that are merely unparsed are not included.
        """
        return 0 if self.more else self._chunk_bytes + CHUNK_BYTES * len(self._chunks) + self._large_filled

    @property
    def space(self) -> memoryview | None:
        """The buffer for the rest of a large frame, or for a part of the rest; None if the next bytes go to `receive`.
        It is never much larger than the received part, because memory from the heap is resident if it was used
        before.
        """
        large, filled = self.large, self._large_filled
        if large is None or self.more:
            return None
        if filled == len(large):
            more = np.empty(min(self._large_bytes, filled + max(filled, _SPACE_BYTES)), np.uint8).data
            more[:filled] = large
            self.large = large = more
        return large[filled:]

    def received(self, count: int) -> list[WireRequest]:
        """Take `count` bytes, at least one, that were received into `space`. Return the frame if that completes it."""
        self.fill(count)
        return self.receive(b"") if self.more else []

    def fill(self, count: int) -> None:
        """As `received`, but do not parse a complete frame yet: set `more`."""
        self._large_filled += count
        self.more = self._large_filled == self._large_bytes

    def keep(self, data: bytes) -> None:
        """Take the next bytes of the connection without parsing them. Must not be called while `more` is set."""
        self._kept, self.more = data, True

    def receive(self, data: bytes) -> list[WireRequest]:
        """Take the next bytes of the connection; return the requests they complete, in order."""
        if self._kept:
            data = self._kept + data
            self._kept, self.more = b"", False
        if self.more and self.large is not None:
            self.more = False
            return self._whole(self.large) + (self.receive(data) if data else [])
        if self.more:
            rest, start = self._rest, self._rest_start
            self._rest, self.more = b"", False
            return self._requests(rest[start:] + data, 0) if data else self._requests(rest, start)
        if self.failure is not None:
            return []
        if self.large is not None and (space := self.space) is not None:
            taken = min(len(data), len(space))
            space[:taken] = data[:taken]
            return self.received(taken) + (self.receive(data[taken:]) if taken < len(data) else [])
        if self._dropping:
            dropped = min(len(data), self._dropping)
            self._dropping -= dropped
            if dropped == len(data):
                return []
            data = data[dropped:]
        if self._missing > len(data):
            self._chunks.append(data)
            self._chunk_bytes += len(data)
            self._missing -= len(data)
            return []
        if self._chunks:
            self._chunks.append(data)
            data = b"".join(self._chunks)
            self._chunks.clear()
            self._chunk_bytes = 0
        self._missing = 0
        return self._requests(data, 0)

    def _whole(self, frame: memoryview) -> list[WireRequest]:
        """Parse the large frame, which is complete."""
        self.large, self._large_filled = None, 0
        try:
            return [parse_frame(frame, 0, len(frame))]
        except RemoteProtocolError as failure:
            self._fail(failure)
            return []

    def _requests(self, data: bytes, position: int) -> list[WireRequest]:
        """Return the requests that begin at this position of `data`; keep the bytes after them."""
        requests: list[WireRequest] = []
        most = self._most
        self._costs = 0
        full = False
        if self._looks_for_runs and data[position : position + 1] != b"\0":
            if position:
                data, position = data[position:], 0
            run, position = parse_put_run(data, most and MOST_PUTS)
            if run is not None:
                requests += run.pieces()
                full = bool(most) and len(run.bodies) >= MOST_PUTS
        try:
            while position < len(data):
                if most and (full or len(requests) + self._costs >= most):
                    self.more = True
                    break
                if data[position] == 0:
                    end = self._frame(data, position, requests)
                else:
                    put, position = parse_common_put(data, position)
                    if put is not None:
                        requests.append(put)
                        continue
                    end = self._text(data, position, requests)
                if end == 0:
                    break
                position = end
        except RemoteProtocolError as failure:
            self._fail(failure)
            return requests
        self._looks_for_runs = full or not self.more  # if others precede the next run, each look costs the same
        if self.more:
            self._rest, self._rest_start = data, position
        elif position < len(data):
            self._chunks.append(data[position:] if position else data)
            self._chunk_bytes = len(data) - position
        return requests

    def _fail(self, failure: RemoteProtocolError) -> None:
        failure.__traceback__ = failure.__cause__ = failure.__context__ = None  # they keep the frame, up to 16 MiB
        self.failure = failure

    def _frame(self, data: bytes, position: int, requests: list[WireRequest]) -> int:
        length = frame_bytes(data, position)
        end = position + length
        if length >= _LARGE_FRAME_BYTES and end > len(data):
            self._large_bytes, self._large_filled = length, len(data) - position
            self.large = np.frombuffer(data, np.uint8)[position:].copy().data
            return len(data)
        if length == 0 or end > len(data):
            self._missing = max(0, end - len(data))
            return 0
        request = parse_common_send(data, position, length)
        if request is None:
            request = parse_frame(data, position, length)
            self._costs += FRAME_COST - 1
        requests.append(request)
        return end

    def _text(self, data: bytes, position: int, requests: list[WireRequest]) -> int:
        line_end = data.find(b"\r\n", position, position + MAX_LINE_BYTES + 2)
        if line_end < 0:
            if len(data) - position > MAX_LINE_BYTES:
                raise RemoteProtocolError(f"no line end within {MAX_LINE_BYTES} bytes")
            return 0
        command, body_bytes = parse_command(data[position:line_end])
        body = line_end + 2
        end = body + body_bytes
        if isinstance(command, TooLargePut):
            self._dropping = max(0, end - len(data))
            end = min(end, len(data))
        if end > len(data):
            self._missing = end - len(data)
            return 0
        if body_bytes and isinstance(command, (Put, Sync)):
            command = command._replace(body=data[body:end])
        requests.append(command)
        return end
