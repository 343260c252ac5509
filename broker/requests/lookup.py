"""Frames that ask where things are: MIN_OFFSET, MAX_OFFSET, the searches by time and by count, MESSAGE_COUNTS; and
HEARTBEAT.

A configured partition without data is one that begins and ends at 0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from twisted.internet.defer import Deferred

from metaq.protocol.frames import Frame
from metaq.protocol.remoting import (
    MessageCountsReply,
    MessageCountsRequest,
    OffsetReply,
    PartitionRequest,
    SearchByCountRequest,
    SearchByTimeRequest,
)

from ..broker import Broker
from ..store.partition_log import PartitionLog
from .answers import Answer, answer_frame

__all__ = [
    "answer_counts",
    "answer_heartbeat",
    "answer_max_offset",
    "answer_min_offset",
    "answer_search_by_count",
    "answer_search_by_time",
]

T = TypeVar("T")


def answer_min_offset(broker: Broker, frame: Frame) -> bytes:
    request = PartitionRequest.from_ext(frame.ext)
    log = broker.partitions.find(request.topic, request.partition)
    return _offset(broker, frame, request.topic, 0 if log is None else log.first_offset)


def answer_max_offset(broker: Broker, frame: Frame) -> bytes:
    request = PartitionRequest.from_ext(frame.ext)
    log = broker.partitions.find(request.topic, request.partition)
    return _offset(broker, frame, request.topic, 0 if log is None else log.visible_end)


def answer_search_by_time(broker: Broker, frame: Frame) -> Answer:
    request = SearchByTimeRequest.from_ext(frame.ext)
    log = broker.partitions.find(request.topic, request.partition)
    if log is None:
        return _offset(broker, frame, request.topic, 0)
    found = broker.cold_reads.look_up(partial(log.offset_at_time, request.time_ms))
    return _then(found, partial(_offset, broker, frame, request.topic))


def answer_search_by_count(broker: Broker, frame: Frame) -> Answer:
    request = SearchByCountRequest.from_ext(frame.ext)
    log = broker.partitions.find(request.topic, request.partition)
    if log is None:
        return _offset(broker, frame, request.topic, 0)
    look_up = partial(log.offset_after, request.offset, request.messages, request.max_bytes)
    return _then(broker.cold_reads.look_up(look_up), partial(_offset, broker, frame, request.topic))


def _then(found: T | Deferred[T], answer: Callable[[T], bytes]) -> Answer:
    return found.addCallback(answer) if isinstance(found, Deferred) else answer(found)


def _offset(broker: Broker, frame: Frame, topic: str, offset: int) -> bytes:
    broker.metrics.offset(topic)
    return answer_frame(frame.opaque, OffsetReply(offset).to_ext())


def answer_counts(broker: Broker, frame: Frame) -> Answer:
    request = MessageCountsRequest.from_ext(frame.ext)
    log = broker.partitions.find(request.topic, request.partition)
    if log is None:
        return answer_frame(frame.opaque, MessageCountsReply(0, 0, 0, 0).to_ext())
    found = broker.cold_reads.look_up(partial(log.count_before, request.offset))
    return _then(found, partial(_counts, frame, log))


def _counts(frame: Frame, log: PartitionLog, before: int) -> bytes:
    reply = MessageCountsReply(log.message_count, before, log.first_offset, log.visible_end)
    return answer_frame(frame.opaque, reply.to_ext())


def answer_heartbeat(broker: Broker, frame: Frame) -> bytes:
    return answer_frame(frame.opaque, {})
