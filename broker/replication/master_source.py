"""Read the partitions of a master: with `get` from a Java broker, with PULL and long polling from a metaq broker."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple, Protocol

from metaq.protocol.errors import PeerRefused, RemoteProtocolError
from metaq.protocol.frames import Frame
from metaq.protocol.limits import INT64_MAX
from metaq.protocol.pulls import NOT_DAMAGED, PullReply, PullRequest
from metaq.protocol.remoting import OffsetReply, PartitionRequest, StatsRequest
from metaq.protocol.statuses import RequestCode, ResponseCode, Status
from metaq.protocol.text import Result, Value, encode_get, encode_offset, encode_stats

from ..store.damage import Damaged
from .peer import Peer

__all__ = ["Fetched", "FrameSource", "MasterBounds", "MasterSource", "TextSource", "source_of"]

_TIMEOUT_SECONDS = 10.0
_WAIT_SECONDS = 10.0
"""If a metaq master has no new data, it waits at most this many seconds for new data before it answers."""


class MasterBounds(NamedTuple):
    """The first offset and the end offset of a partition's readable bytes."""

    first: int
    end: int


class Fetched(NamedTuple):
    """The answer to `fetch`. data: bytes of the master's log from the requested offset on, or b"" if the log ends at
    this offset now.

    moved_to: the offset at which the master says to continue, because it does not have the requested offset (any more),
    or None if it has this offset. end: the end offset of the master's readable data. behind: how many messages the
    master has after `data`. `end` and `behind` are None if the master's answer does not contain them. waited: whether
    the master waits for new data before it answers; if so, the slave can send its next request without a pause.
    damaged: if the master's data at the requested offset are damaged, the range [start, end) of the damaged bytes.
    """

    data: bytes | memoryview = b""
    moved_to: int | None = None
    end: int | None = None
    behind: int | None = None
    waited: bool = False
    damaged: Damaged | None = None


class MasterSource(Protocol):
    """Reads from a master over one connection. Every method may raise PeerLost, PeerTimedOut, PeerRefused."""

    exact_end: bool
    """Whether `fetch` returns no data after the end offset that `bounds` gives. It is False for a Java broker, because
    `fetch` also returns data that are not synced yet, and these are after this end offset.
    """

    async def bounds(self, topic: str, partition: int) -> MasterBounds | None:
        """Return the bounds of a partition, or None if the master has no data of it."""

    async def fetch(self, topic: str, partition: int, offset: int, max_bytes: int, *, verify: bool = False) -> Fetched:
        """Read bytes from `offset` on. If the first record is larger than max_bytes, a metaq master returns the whole
        record.

        verify: whether the master should check its data at `offset`, if it supports this. The caller sets `verify` if
        an earlier `fetch` from this offset has returned damaged data.
        """

    async def server_ini(self) -> bytes:
        """Return the bytes of the master's server.ini."""


def source_of(peer: Peer, group: str) -> MasterSource:
    """Return a MasterSource that reads from the master over the connection `peer`. group: the name of a consumer group
    that the requests contain; the master shows these requests under this name in its statistics.
    """
    return FrameSource(peer, group) if peer.speaks_frames else TextSource(peer, group)


class TextSource:
    """Reads from a Java broker, with text commands."""

    exact_end = False

    def __init__(self, peer: Peer, group: str) -> None:
        self._peer = peer
        self._group = group

    async def bounds(self, topic: str, partition: int) -> MasterBounds | None:
        first = await self._offset(topic, partition, 0)
        end = await self._offset(topic, partition, INT64_MAX)
        return None if first is None or end is None else MasterBounds(first, end)

    async def _offset(self, topic: str, partition: int, offset: int) -> int | None:
        answer = await self._peer.text(partial(encode_offset, topic, self._group, partition, offset), _TIMEOUT_SECONDS)
        if not isinstance(answer, Result):
            raise PeerRefused(f"{self._peer.name} answered 'offset' with data")
        if answer.code == Status.NOT_FOUND:
            return None
        return self._number(answer)

    def _number(self, answer: Result) -> int:
        text = answer.text.strip()
        if answer.code not in (Status.SUCCESS, Status.MOVED) or not (text.isascii() and text.isdigit()):
            raise PeerRefused(f"{self._peer.name} answered {answer.code} {answer.text[:200]}")
        return int(text)

    async def fetch(self, topic: str, partition: int, offset: int, max_bytes: int, *, verify: bool = False) -> Fetched:
        build = partial(encode_get, topic, self._group, partition, offset, max_bytes)
        answer = await self._peer.text(build, _TIMEOUT_SECONDS)
        if isinstance(answer, Value):
            return Fetched(answer.data)
        if answer.code == Status.MOVED:
            return Fetched(moved_to=self._number(answer))
        if answer.code == Status.NOT_FOUND:
            return Fetched()
        raise PeerRefused(f"{self._peer.name} answered {answer.code} {answer.text[:200]}")

    async def server_ini(self) -> bytes:
        answer = await self._peer.text(partial(encode_stats, "config"), _TIMEOUT_SECONDS)
        if not isinstance(answer, Result) or answer.code != Status.SUCCESS:
            raise PeerRefused(f"{self._peer.name} did not send its configuration")
        return answer.text.encode("utf-8")


class FrameSource:
    """Reads from a metaq broker, with frames."""

    exact_end = True

    def __init__(self, peer: Peer, group: str, wait_seconds: float = _WAIT_SECONDS) -> None:
        """wait_seconds: how long the master may delay an answer if it has no new data."""
        self._peer = peer
        self._group = group
        self._wait_seconds = wait_seconds

    async def bounds(self, topic: str, partition: int) -> MasterBounds | None:
        request = PartitionRequest(topic, partition).to_ext()
        first, end = [
            await self._peer.frame(code, request, _TIMEOUT_SECONDS)
            for code in (RequestCode.MIN_OFFSET, RequestCode.MAX_OFFSET)
        ]
        bounds = MasterBounds(
            OffsetReply.from_ext(self._good(first)).offset, OffsetReply.from_ext(self._good(end)).offset
        )
        return None if bounds == (0, 0) else bounds

    def _good(self, frame: Frame) -> dict[str, str]:
        if frame.code != ResponseCode.SUCCESS:
            raise PeerRefused(f"{self._peer.name} answered {frame.code} {frame.remark[:200]}")
        return dict(frame.ext)

    async def fetch(self, topic: str, partition: int, offset: int, max_bytes: int, *, verify: bool = False) -> Fetched:
        wait_ms = int(self._wait_seconds * 1000)
        request = PullRequest(topic, partition, offset, max_bytes, self._group, wait_ms=wait_ms, verify=verify)
        frame = await self._peer.frame(RequestCode.PULL, request.to_ext(), self._wait_seconds + _TIMEOUT_SECONDS)
        if frame.code not in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED):
            raise PeerRefused(f"{self._peer.name} answered {frame.code} {frame.remark[:200]}")
        try:
            reply = PullReply.from_ext(frame.ext)
        except RemoteProtocolError as error:
            raise PeerRefused(f"{self._peer.name} answered a pull with {error}") from error
        if reply.damaged_from != NOT_DAMAGED:
            return Fetched(end=reply.max_offset, damaged=Damaged(reply.damaged_from, reply.next_offset))
        if frame.code == ResponseCode.PULL_OFFSET_MOVED:
            return Fetched(moved_to=reply.next_offset, end=reply.max_offset)
        data = frame.body if frame.code == ResponseCode.SUCCESS else b""
        return Fetched(data, None, reply.max_offset, reply.behind, waited=True)

    async def server_ini(self) -> bytes:
        frame = await self._peer.frame(RequestCode.STATS, StatsRequest("config").to_ext(), _TIMEOUT_SECONDS)
        self._good(frame)
        return bytes(frame.body)
