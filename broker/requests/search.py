"""VIEW_MESSAGE_BY_ID and QUERY_MESSAGE: messages by their id and by a key, from one partition or all of a topic."""

from __future__ import annotations

from functools import partial

from twisted.internet.defer import Deferred

from metaq.protocol.frames import Frame
from metaq.protocol.limits import MAX_FOUND_MESSAGES, MAX_FRAME_BYTES, MAX_FRAME_HEADER_BYTES
from metaq.protocol.record import Buffer
from metaq.protocol.searches import (
    FOUND_ROW_BYTES,
    FoundReply,
    FoundRow,
    QueryMessageRequest,
    ViewMessageRequest,
    encode_found,
)
from metaq.protocol.statuses import ResponseCode

from ..broker import Broker
from ..store.search_values import KeyQuery
from .answers import Bytes, answer_frame
from .searches import SearchResult

__all__ = ["answer_query_message", "answer_view_message"]

_MOST_BYTES = MAX_FRAME_BYTES - MAX_FRAME_HEADER_BYTES - MAX_FOUND_MESSAGES * FOUND_ROW_BYTES


def answer_view_message(broker: Broker, frame: Frame) -> Deferred[Bytes]:
    """Raises what Searches.by_id raises."""
    request = ViewMessageRequest.from_ext(frame.ext)
    found = broker.searches.by_id(request.topic, request.partition, request.message_id, _max_bytes(broker))
    return found.addCallback(partial(_answer, frame))


def answer_query_message(broker: Broker, frame: Frame) -> Deferred[Bytes]:
    """Raises what Searches.by_key raises."""
    request = QueryMessageRequest.from_ext(frame.ext)
    query = KeyQuery(request.key, request.max_messages, request.begin_ms, request.end_ms, request.oldest_first)
    found = broker.searches.by_key(request.topic, request.partition, query, _max_bytes(broker))
    return found.addCallback(partial(_answer, frame))


def _max_bytes(broker: Broker) -> int:
    return min(broker.config.max_transfer_size, _MOST_BYTES)


def _answer(frame: Frame, result: SearchResult) -> Bytes:
    rows = [FoundRow(match.partition, match.offset, match.time_ms, match.size) for match, _ in result.records]
    table = encode_found(rows)
    reply = FoundReply(len(rows), result.unsearched, result.more)
    code = ResponseCode.SUCCESS if rows else ResponseCode.QUERY_NOT_FOUND
    size = len(table) + sum(row.size for row in rows)
    parts: list[Buffer] = [answer_frame(frame.opaque, reply.to_ext(), code, body=size), table]
    return [*parts, *(data for _, data in result.records)]
