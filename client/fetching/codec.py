"""Encode requests for a partition's data, and decode the answers into chunks. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

from metaq.coordination.runtime.logs import get_log
from metaq.protocol.errors import BrokerUnavailable, PartitionClosed, RemoteProtocolError
from metaq.protocol.frames import Frame, encode_frame
from metaq.protocol.message_id import UNKNOWN_ID
from metaq.protocol.own_topics import RETRY_PREFIX
from metaq.protocol.pulls import NOT_DAMAGED, PullReply, PullRequest
from metaq.protocol.record import HEADER, HEADER_BYTES, is_blank, iter_headers
from metaq.protocol.refusals import frame_error, text_error
from metaq.protocol.statuses import RequestCode, ResponseCode, Status
from metaq.protocol.text import Result, Value, encode_get

from ..questions.stored_records import damaged_bytes
from ..settings.consumer_config import ConsumerConfig
from ..transport.connection import Build, Endpoint, Reply
from .chunk import Chunk
from .cursor import Request
from .tuning import LARGEST_GET_BYTES

__all__ = ["NotWhole", "PullCodec"]

log = get_log(__name__)

PullNews = tuple[Sequence[Chunk], float]
"""The chunks that an answer contains, and the seconds to wait before the next request."""


class NotWhole(RemoteProtocolError):
    """Raised if the broker does not deliver a complete record, because its answers are too small or the length of the
    record is damaged.
    """


class PullCodec:
    """Encodes one consumer's requests for data, and decodes the answers, for the text protocol and the framed protocol.

    Requests for the group's topic of failed messages have no tag filter, because these messages passed the filter when
    they were first delivered. is_slave: returns whether the broker at an endpoint is a slave; a slave may have fewer
    messages than its master had. reads_in_bulk: whether the consumer processes all messages of an answer in one step;
    then large answers are faster.
    """

    def __init__(
        self,
        group: str,
        tags: Collection[str] | None,
        config: ConsumerConfig,
        is_slave: Callable[[Endpoint], bool] = lambda _: False,
        where: str = "",
    ) -> None:
        self.reads_in_bulk = False
        self._group = group
        self._tags = tuple(sorted(tags or ()))
        self._retry_topic = f"{RETRY_PREFIX}{group}"  # The group's retry topic; the name is not checked yet.
        self._where = where
        self._config = config
        self._is_slave = is_slave
        # A filter omits messages before the position, and a follower may not have them yet: then ids cannot be
        # compared.
        self._sees_all = not (self._tags or where or config.read_from == "nearest")

    def encode(self, request: Request, frames: bool, unpacks: bool = False, takes_where: bool = False) -> Build:
        """Return a function that encodes the request when it is given the opaque (the number that links the answer to
        the request). frames: whether to use the framed protocol.
        unpacks: whether to tell the broker that this client can read compressed messages. takes_where: whether the
        broker can filter by content.
        """
        topic, _, number = request.cursor.partition
        config = self._config
        if not frames:
            get = partial(encode_get, topic, self._group, number, request.offset, request.size, unpacks=unpacks)
            return lambda opaque: (get(opaque=opaque),)
        size = config.arrow_fetch_bytes if self.reads_in_bulk else config.fetch_max_bytes
        pull = PullRequest(
            topic,
            number,
            request.offset,
            size,
            self._group,
            () if topic == self._retry_topic else self._tags,
            config.long_poll_ms,
            sizes=True,
            verify=request.verify,
            follower=config.read_from == "nearest",
            where=self._where if takes_where and topic != self._retry_topic else "",
            last_id=request.last_id if self._sees_all else UNKNOWN_ID,
        )
        return lambda opaque: (encode_frame(RequestCode.PULL, opaque, pull.to_ext()),)

    def end_of(self, head: Frame) -> int | None:
        """Return the offset of the partition where an answer's data end. The offset is read from the answer's header,
        before the answer's body has arrived. Return None if the caller does not need the offset.
        """
        if not self.reads_in_bulk or head.code != ResponseCode.SUCCESS:
            return None
        try:
            return PullReply.from_ext(head.ext).next_offset
        except RemoteProtocolError:  # the whole answer is taken next, and raises the same error
            return None

    def read(self, request: Request, reply: Reply, endpoint: Endpoint) -> PullNews:
        """Decode an answer, and return its chunks and the pause before the next request. Raises NotWhole,
        BrokerUnavailable, RemoteProtocolError; if the broker has refused the request, raises the error for the refusal
        (refusals.py).
        """
        chunks: Sequence[Chunk]
        pause = 0.0
        if isinstance(reply, Frame):
            chunks = self._read_frame(request, reply, endpoint)
        elif isinstance(reply, Value):
            chunks = _read_value(request, reply.data)
        elif not isinstance(reply, Result):
            raise BrokerUnavailable(f"{endpoint} answered a pull with something else: {reply!r}")
        elif reply.code == Status.NOT_FOUND:
            chunks, pause = (), request.cursor.nothing_came()
        elif reply.code == Status.MOVED and reply.text.strip().isdigit():
            chunks = self._go_on_at(request, int(reply.text), endpoint)
        else:
            error = text_error(reply, request.cursor.partition, endpoint)
            if not isinstance(error, PartitionClosed):
                raise error
            chunks, pause = (), request.cursor.nothing_came()
        for each in chunks:
            if each.end_offset < each.offset + each.bytes_left:
                raise RemoteProtocolError(f"{request.cursor}: an answer ends before its data")
        return chunks, pause

    def _read_frame(self, request: Request, frame: Frame, endpoint: Endpoint) -> Sequence[Chunk]:
        cursor, offset = request.cursor, request.offset
        if frame.code not in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED):
            raise frame_error(frame, cursor.partition, endpoint)
        reply = PullReply.from_ext(frame.ext)
        end = reply.next_offset
        if reply.id_before != UNKNOWN_ID and not self._is_slave(endpoint):
            cursor.doubt(request)
        if reply.damaged_from != NOT_DAMAGED:
            if end <= offset:
                raise RemoteProtocolError(f"{cursor}: damage ends before its begin")
            return (Chunk.damaged(damaged_bytes(cursor.partition, reply.damaged_from, end), offset),)
        if frame.code == ResponseCode.PULL_OFFSET_MOVED:
            if end < offset and end < reply.max_offset and cursor.was_led_back():
                raise RemoteProtocolError(
                    f"{cursor}: {endpoint} leads back from {offset} to {end} again, which was read already"
                )
            return self._go_on_at(request, end, endpoint)
        runs, sizes = reply.records_in(frame.body, offset)
        if not runs:
            return (Chunk.of(b"", offset, end),) if end != offset else ()
        ends = [start for start, _ in runs[1:]] + [end]  # a filtered answer has gaps between its runs
        return [Chunk.of(records, start, stop, sizes) for (start, records), stop in zip(runs, ends, strict=True)]

    def _go_on_at(self, request: Request, offset: int, endpoint: Endpoint) -> Sequence[Chunk]:
        """Return an empty chunk that lets the consumer go on at `offset`. The broker names this offset if the requested
        one is before the oldest or after the newest message that it can deliver. If a slave names an offset before the
        requested one, BrokerUnavailable is raised and the position stays, because the slave may only lack messages that
        the master has.
        """
        cursor, position = request.cursor, request.offset
        if offset < position and self._is_slave(endpoint):
            raise BrokerUnavailable(
                f"{cursor}: the slave {endpoint} ends at {offset} and the position is {position} already: waiting for "
                "the slave or the master"
            )
        if position == offset:
            raise RemoteProtocolError(f"{cursor}: the broker moves the position {offset} to itself")
        if offset < position:
            log.error(
                "%s: position %d is not readable, going on at %d: the partition has lost its end. Messages that came "
                "in its place before that are skipped: `metaq groups describe %s` says whether there are any",
                cursor,
                position,
                offset,
                self._group,
            )
        elif position or cursor.stood_at_0:  # otherwise "earliest" already begins at 0
            log.warning("%s: position %d is not readable, going on at %d", cursor, position, offset)
        return (Chunk.of(b"", offset, offset),)


def _read_value(request: Request, data: memoryview) -> Sequence[Chunk]:
    """Decode the data of a text answer, which is a slice of the log. The last record of the slice is usually
    incomplete.
    """
    complete = 0
    try:
        for header in iter_headers(data):
            complete = header.end
    except RemoteProtocolError:
        pass  # no header: deliver the good records before it first; the next answer then begins with it
    if complete:
        request.cursor.whole_records_came()
    elif _begins_damaged(data):
        complete = len(data)
    elif request.cursor.ask_for_more(len(data)):
        return ()
    else:
        raise NotWhole(
            f"the broker hands out {len(data)} bytes of the record at {request.offset}, which is longer: "
            "raise its maxTransferSize"
        )
    return (Chunk.of(data[:complete], request.offset, request.offset + complete),)


def _begins_damaged(data: memoryview) -> bool:
    if len(data) < HEADER_BYTES:
        return False
    header = HEADER.unpack_from(data)
    return not 0 <= header[0] <= LARGEST_GET_BYTES or is_blank(*header[:3])
