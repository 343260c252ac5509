"""Parse the requests that a broker receives on a connection. Frames and text commands may be mixed; the first byte of
each request tells which of the two it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from .errors import RemoteProtocolError, TlsNotServed
from .frames import Frame, frame_bytes, parse_frame
from .limits import MAX_LINE_BYTES
from .put_run import MOST_PUTS, PutRun, parse_put_run
from .sends import parse_common_send
from .text import Put, Sync, TextCommand, TooLargePut, parse_command, parse_common_put
from .tls_bytes import FIRST_BYTE

__all__ = ["FRAME_COST", "RequestReader", "WireRequest", "one_by_one"]

WireRequest = TextCommand | PutRun | Frame

CHUNK_BYTES = 64
"""While a request is incomplete, each received piece of it is kept as a separate bytes object. Such an object takes
this number of bytes of memory in addition to the piece itself.
"""

FRAME_COST = 4
"""A usual SEND is a frame that sends.parse_common_send can parse. To decode any other frame costs this many times as
much as to decode a usual SEND or a text command, because JSON must be parsed, which takes 20 µs.
"""

_SPACE_BYTES = 1 << 20
"""When a large frame's buffer is full, it is enlarged by this number of bytes, or by its present size if that is more.
"""

_LARGE_FRAME_BYTES = 64 << 10
"""Minimum size in bytes of a frame that gets a buffer of its own. The transport can receive directly into this
buffer.
"""


def one_by_one(requests: Iterable[WireRequest]) -> Iterator[TextCommand | Frame]:
    """Yield the given requests, but replace each PutRun by its single puts, for a caller that handles single puts."""
    for request in requests:
        if isinstance(request, PutRun):
            yield from request.puts()
        else:
            yield request


class RequestReader:
    """Parses a stream of bytes into requests. The class does no I/O.

    The cost is O(bytes): each byte is copied at most once when received pieces are joined, regardless of the size of
    the pieces. Sizes are limited before memory is allocated: a header line by MAX_LINE_BYTES, a body by MAX_BODY_BYTES,
    a frame by MAX_FRAME_BYTES. If a put announces a larger body than MAX_BODY_BYTES, the bytes of this body are dropped
    when they arrive.

    The rest of a large frame can be received directly into the frame's buffer: while `space` is not None, the caller
    receives bytes into `space` and then calls `received`. The body of such a frame is a writable buffer.

    Bytes that are not a valid request set `failure` and end the stream. `receive` still returns the requests that come
    before the invalid bytes, because 1.x answers them before it closes the connection.
    """

    def __init__(self, most: int = 0) -> None:
        """most: maximum number of requests that one call returns; 0 means no maximum. A PutRun counts as one request,
        and a frame that is not a usual SEND counts as FRAME_COST requests, because it takes longer to decode.
        """
        self.failure: RemoteProtocolError | None = None
        self.more = False
        """Whether the received bytes may contain complete requests that no call has returned yet. Call `receive`
        without bytes to get these requests.
        """
        self.large: memoryview | None = None
        """The buffer of a large frame that is not parsed yet, or None if there is no such frame. The buffer may be
        smaller than the frame.
        """
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
        """Number of bytes of the incomplete request that have been received and are kept until the rest arrives."""
        return self._chunk_bytes + self._large_filled

    @property
    def held_bytes(self) -> int:
        """Memory in bytes that the incomplete request takes, including CHUNK_BYTES for each received piece. So a
        request that arrives byte by byte takes many times its size. Complete requests that are not parsed yet are not
        included.
        """
        return 0 if self.more else self._chunk_bytes + CHUNK_BYTES * len(self._chunks) + self._large_filled

    @property
    def space(self) -> memoryview | None:
        """The buffer for the next bytes of a large frame that has not arrived completely. The value is None if no large
        frame is incomplete; then pass the next bytes to `receive`. The buffer is never much larger than the part of the
        frame that has arrived, so that a client cannot make the broker use much memory by announcing large frames that
        it never sends.
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
        """Record that `count` bytes, at least one, were received into `space`. Return the frame if it is complete
        now.
        """
        self.fill(count)
        return self.receive(b"") if self.more else []

    def fill(self, count: int) -> None:
        """Like `received`, but do not parse the frame if it is complete. Set `more` instead; the next call of `receive`
        parses the frame.
        """
        self._large_filled += count
        self.more = self._large_filled == self._large_bytes

    def keep(self, data: bytes) -> None:
        """Store the next bytes of the connection; the next call of `receive` parses them. Must not be called while
        `more` is true.
        """
        self._kept, self.more = data, True

    def receive(self, data: bytes) -> list[WireRequest]:
        """Take the next bytes of the connection; return the requests that are complete now, in order."""
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
        """Parse the large frame, which is complete now."""
        self.large, self._large_filled = None, 0
        try:
            return [parse_frame(frame, 0, len(frame))]
        except RemoteProtocolError as failure:
            self._fail(failure)
            return []

    def _requests(self, data: bytes, position: int) -> list[WireRequest]:
        """Parse the requests that begin at `position` of `data`, and keep the bytes after the last complete one."""
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
        if data[position] == FIRST_BYTE:
            raise TlsNotServed("the client speaks TLS, and this port does not")
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
