"""Serve the requests about offsets: `offset`, MIN_OFFSET, MAX_OFFSET, the searches by time and by count, and
MESSAGE_COUNTS.

If a partition is configured but has no data, requests of the framed protocol are answered as if the partition began and
ended at offset 0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from twisted.internet.defer import Deferred

from metaq.protocol.errors import PartitionNotFound
from metaq.protocol.remoting import (
    MessageCountsReply,
    MessageCountsRequest,
    OffsetReply,
    PartitionRequest,
    SearchByCountRequest,
    SearchByTimeRequest,
)
from metaq.protocol.statuses import Status
from metaq.protocol.text import OffsetQuery, encode_result

from ..filters.remembered_places import FoundOffset
from ..reading.answers import then
from ..reading.reading import Reading
from ..store.partition_log import PartitionLog

__all__ = ["Lookups"]

T = TypeVar("T")


class Lookups:
    """The actions that serve the requests about offsets. Each method except `nearest` raises PartitionClosed,
    TopicNotAccepted, InvalidName, WrongPartition.
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def min_offset(self, request: PartitionRequest) -> OffsetReply:
        log = self._reading.partitions.find(request.topic, request.partition)
        return self._offset(request.topic, 0 if log is None else log.first_offset)

    def max_offset(self, request: PartitionRequest) -> OffsetReply:
        log = self._reading.partitions.find(request.topic, request.partition)
        return self._offset(request.topic, 0 if log is None else log.visible_end)

    def by_time(self, request: SearchByTimeRequest) -> OffsetReply | Deferred[OffsetReply]:
        return self._search(request, lambda log: log.lookup.offset_at_time(request.time_ms))

    def by_count(self, request: SearchByCountRequest) -> OffsetReply | Deferred[OffsetReply]:
        return self._search(
            request, lambda log: log.lookup.offset_after(request.offset, request.messages, request.max_bytes)
        )

    def _search(
        self, request: SearchByTimeRequest | SearchByCountRequest, look_up: Callable[[PartitionLog], int]
    ) -> OffsetReply | Deferred[OffsetReply]:
        log = self._reading.partitions.find(request.topic, request.partition)
        if log is None:
            return self._offset(request.topic, 0)
        return then(self._reading.cold_reads.look_up(partial(look_up, log)), partial(self._offset, request.topic))

    def _offset(self, topic: str, offset: int) -> OffsetReply:
        self._reading.metrics.offset(topic)
        return OffsetReply(offset)

    def counts(self, request: MessageCountsRequest) -> MessageCountsReply | Deferred[MessageCountsReply]:
        log = self._reading.partitions.find(request.topic, request.partition)
        if log is None:
            return MessageCountsReply(0, 0, 0, 0)
        return then(self._reading.cold_reads.look_up(partial(_before, log, request)), partial(_counts, log))

    def nearest(self, query: OffsetQuery, connection: object) -> bytes:
        """Answer an `offset` command with the start of the segment that contains the requested offset (wire.md §4); a
        record certainly begins there.

        A request about a closed partition is answered, too. Raises only PartitionNotFound.
        """
        reading = self._reading
        reading.metrics.offset(query.topic)
        log = reading.partitions.stored(query.topic, query.partition)
        if log is None:
            raise PartitionNotFound(query.topic, query.partition)
        start = log.segments.start_of(query.offset)
        if len(reading.places):  # the client will continue there
            key = query.topic, query.partition, query.group
            reading.places.moved(connection, key, FoundOffset(start, start), start)
        return encode_result(Status.SUCCESS, str(start), query.opaque)


def _before(log: PartitionLog, request: MessageCountsRequest) -> tuple[int, int]:
    """Return two values about the request's offset: the number of messages before it, and the result of
    `other_id_before` (the id of the last message before it, if this id differs from the message id in the request).
    """
    lookup, offset = log.lookup, request.offset
    return lookup.count_before(offset), lookup.other_id_before(offset, request.last_id)


def _counts(log: PartitionLog, before: tuple[int, int]) -> MessageCountsReply:
    count, other_id = before
    return MessageCountsReply(log.segments.message_count, count, log.first_offset, log.visible_end, other_id)
