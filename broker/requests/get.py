"""Serve `get`: read bytes of a partition from an offset on (wire.md §4).

If a consumer group has a filter, an answer contains only the records that the filter accepts. A 1.x client adds the
number of received bytes to its offset. So after an answer without the rejected records, the client's next request has a
smaller offset than the true offset in the log. filters/remembered_places.py remembers the true offset, and explains why
no message is lost.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from metaq.protocol.errors import CompressionNotAccepted, FilterUnavailable, OffsetOutOfRange, PartitionNotFound
from metaq.protocol.limits import INT64_MAX
from metaq.protocol.record import HEADER_BYTES, Buffer, checksum
from metaq.protocol.statuses import Status
from metaq.protocol.text import Get, encode_result, encode_value_line

from ..filters.filter_table import Filter
from ..filters.judge import Chosen, Judge, choose_records
from ..filters.remembered_places import MAX_GAP_BYTES, PUT_RIGHT_SECONDS, Answered, FoundOffset, Key
from ..reading.answers import Answer, Bytes, put_failure
from ..reading.reading import Reading
from ..store.partition_log import PartitionLog

__all__ = ["answer_get"]

_LENGTH_BYTES = 4
_SLAVES = "meta-slave-group"


def _is_slave_group(group: str) -> bool:
    """Return whether this is the default group of a Java broker's slave, which copies records unchanged."""
    return group.startswith(_SLAVES)


def answer_get(reading: Reading, get: Get, connection: object) -> Answer:
    """Answer a `get`. The answer has data, or the offset at which the client must continue, or a text that says that
    there are no data yet. Raises PartitionClosed, PartitionNotFound and StoreError. Raises CompressionNotAccepted if
    the topic may have compressed messages and the client cannot read them.

    connection: identifies the client, because the broker remembers its earlier answers to this client. It is None for a
    client that sends a single request.
    """
    reading.metrics.get(get.topic)
    try:
        log = reading.partitions.for_read(get.topic, get.partition)
    except PartitionNotFound:
        reading.metrics.get_missed(get.topic)
        raise
    if get.max_size <= 0:
        return encode_result(Status.BAD_REQUEST, f"Bad request,invalid max size:{get.max_size}", get.opaque)
    if not get.unpacks and reading.partitions.takes_compressed(get.topic) and not _is_slave_group(get.group):
        raise CompressionNotAccepted(get.topic, get.group)
    readable = log.first_offset <= get.offset < log.visible_end
    try:
        filter_ = reading.filters.find(get.topic, get.group)
    except FilterUnavailable as error:
        return _failed(reading, get, error) if readable else _miss(reading, log, get)
    if filter_ is not None:
        reading.places.filtered.add((get.topic, get.group))
    if filter_ is not None or len(reading.places):
        key = get.topic, get.partition, get.group
        found = reading.places.find(connection, key, get.offset)
        if found.gap or filter_ is not None:
            return _of_filtered_group(_Filtered(reading, log, get, connection, key, found), filter_)
    if not readable:
        return _miss(reading, log, get)
    size = min(get.max_size, reading.max_answer_bytes)
    data = reading.cold_reads.read(log, get.group, get.offset, size)
    if isinstance(data, Deferred):
        return data.addCallbacks(partial(_whole_record, reading, log, get, size), partial(_gone, reading, log, get))
    return _whole_record(reading, log, get, size, data)


def _whole_record(reading: Reading, log: PartitionLog, get: Get, size: int, data: Buffer) -> Bytes | Deferred[Bytes]:
    """Answer a `get` with data. `size` is the broker's limit for an answer. If the first record is larger than `size`,
    but not larger than the number of bytes that the client has asked for, answer with this whole record.
    """
    if len(data) == size < get.max_size:
        end = HEADER_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "big", signed=True)
        if size < end <= get.max_size:
            whole = reading.cold_reads.run(get.group, partial(log.segments.snapshot().read, get.offset, end))
            return whole.addCallbacks(partial(_unfiltered, reading, log, get), partial(_gone, reading, log, get))
    return _unfiltered(reading, log, get, data)


def _unfiltered(reading: Reading, log: PartitionLog, get: Get, data: Buffer) -> Bytes | Deferred[Bytes]:
    """Answer a `get` with the bytes `data` unchanged, even if they begin in the middle of a record, as in 1.x.

    There is one exception to this. If `data` begins in the middle of a record, and the group has had a filter since the
    broker's start, the answer tells the client to continue at the start of this record. Otherwise a Java client could
    take the bytes for the header of a long record, and wait forever for the end of this record. Damaged data are
    returned, too; the client must notice the damage.
    """
    if (get.topic, get.group) not in reading.places.filtered:
        return _value(get, data)
    end = HEADER_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "big", signed=True)
    if HEADER_BYTES <= end <= len(data):
        body = memoryview(data)[HEADER_BYTES:end]
        if checksum(body) == int.from_bytes(data[_LENGTH_BYTES : 2 * _LENGTH_BYTES], "big"):
            return _value(get, data)
    start = _record_start(reading, log, get)
    if isinstance(start, Deferred):
        return start.addCallbacks(partial(_from_start, reading, get, data), partial(_gone, reading, log, get))
    return _from_start(reading, get, data, start)


def _from_start(reading: Reading, get: Get, data: Buffer, start: int) -> Bytes:
    if start == get.offset:
        return _value(get, data)
    reading.metrics.get_missed(get.topic)
    return encode_result(Status.MOVED, str(start), get.opaque)


def _value(get: Get, data: Buffer) -> Bytes:
    return [encode_value_line(len(data), get.opaque), data]


class _Filtered(NamedTuple):
    """A `get` of a consumer group that has or had a filter. found: the offset in the request, and the true offset in
    the log that the client means by it.
    """

    reading: Reading
    log: PartitionLog
    get: Get
    connection: object
    key: Key
    found: FoundOffset

    def move(self, offset: int) -> bytes:
        """Return the answer that tells the client to continue at `offset`."""
        self.reading.places.moved(self.connection, self.key, self.found, offset)
        self.reading.metrics.get_missed(self.get.topic)
        return encode_result(Status.MOVED, str(offset), self.get.opaque)

    def miss(self) -> bytes:
        """Return the answer to a request at whose offset there are no readable data."""
        stored, first = self.found.stored, self.log.first_offset
        if self.found.gap or stored < first:
            return self.move(max(stored, first))
        return _miss(self.reading, self.log, self.get)


def _of_filtered_group(request: _Filtered, filter_: Filter | None) -> Bytes | Deferred[Bytes]:
    reading, log, get, found = request.reading, request.log, request.get, request.found
    if not log.first_offset <= found.stored < log.visible_end:
        return request.miss()
    if filter_ is None or _must_be_put_right(reading, found):
        return request.move(found.stored)
    reading.places.claim(request.connection, request.key)
    if found.answers:
        return _choose(request, filter_)
    start = _record_start(reading, log, get)
    if isinstance(start, Deferred):
        return start.addCallbacks(partial(_begin, request, filter_), partial(_gone, reading, log, get))
    return _begin(request, filter_, start)


def _must_be_put_right(reading: Reading, found: FoundOffset) -> bool:
    since = found.behind_since
    overdue = since is not None and reading.seconds() - since >= PUT_RIGHT_SECONDS
    return found.gap > 0 and (overdue or found.gap >= MAX_GAP_BYTES)


def _record_start(reading: Reading, log: PartitionLog, get: Get) -> int | Deferred[int]:
    """Return the start offset of the record that contains the byte at the request's offset."""
    if log.lookup.is_indexed(get.offset):
        return reading.cold_reads.look_up(partial(log.lookup.record_start, get.offset), get.group)
    return reading.cold_reads.run(get.group, partial(log.segments.snapshot().record_start, get.offset))


def _begin(request: _Filtered, filter_: Filter, start: int) -> Bytes | Deferred[Bytes]:
    """Answer a request whose offset does not belong to any answer that the broker remembers, so that it is treated as
    an offset in the log. start: where the record that contains this offset begins.
    """
    if start != request.get.offset:
        return request.move(start)
    return _choose(request, filter_)


def _choose(request: _Filtered, filter_: Filter) -> Deferred[Bytes]:
    reading, log, get, found = request.reading, request.log, request.get, request.found
    judge = Judge(filter_, get.group, get.topic, get.partition)
    size = min(get.max_size, reading.max_transfer_bytes)
    gap = MAX_GAP_BYTES - found.gap
    choose = partial(choose_records, judge, log.segments.snapshot().read, found.stored, size, get.max_size, gap)
    chosen = reading.in_filter_thread(choose)
    return chosen.addCallbacks(partial(_chosen, request), partial(_passed_by, request))


def _chosen(request: _Filtered, chosen: Chosen) -> Bytes:
    reading, get, found = request.reading, request.get, request.found
    if request.connection is None:
        return _only_leading(request, chosen)
    if not chosen.data:
        return request.miss() if chosen.next_offset == found.stored else request.move(chosen.next_offset)
    whole = len(chosen.client_ends) > 0
    size = len(chosen.data) if whole else 0  # a cut or damaged record does not advance the client
    behind = chosen.next_offset - get.offset > size
    since = found.behind_since if found.gap else reading.seconds() if behind else None
    ends = chosen.client_ends, chosen.stored_ends
    answer = Answered(get.offset, size, found.stored, chosen.next_offset, *ends, since)
    reading.places.answered(request.connection, request.key, found, answer)
    return _value(get, chosen.data)


def _only_leading(request: _Filtered, chosen: Chosen) -> Bytes:
    """Answer a client that sends a single request. The broker cannot remember answers for such a client, so the bytes
    of an answer must be adjacent in the log: the answer has the accepted records before the first rejected one. If the
    first record is rejected, the answer has the offset of the first accepted record.
    """
    stored = request.found.stored
    if leading := chosen.leading:
        return _value(request.get, chosen.data[:leading])
    if len(chosen.client_ends):
        return request.move(stored + int(chosen.stored_ends[0]) - int(chosen.client_ends[0]))
    return request.miss() if chosen.next_offset == stored else request.move(chosen.next_offset)


def _passed_by(request: _Filtered, failure: Failure) -> Bytes:
    failure.trap(OffsetOutOfRange)  # type: ignore[no-untyped-call]  # retention was faster than the read
    return request.miss()


def _failed(reading: Reading, get: Get, error: FilterUnavailable) -> bytes:
    """Return the answer to a `get` whose filter is unavailable. As in 1.x, it has the same text as the answer to a put
    that has failed.
    """
    text = put_failure(reading.url(), get.topic, get.partition, error)
    return encode_result(error.status, text, get.opaque)


def _gone(reading: Reading, log: PartitionLog, get: Get, failure: Failure) -> Bytes:
    failure.trap(OffsetOutOfRange)  # type: ignore[no-untyped-call]  # retention was faster than the read
    return _miss(reading, log, get)


def _miss(reading: Reading, log: PartitionLog, get: Get) -> bytes:
    reading.metrics.get_missed(get.topic)
    if get.offset < log.first_offset:
        return encode_result(Status.MOVED, str(log.first_offset), get.opaque)
    beyond = get.offset > log.visible_end
    if beyond and (reading.moves_past_end or get.offset == INT64_MAX):
        return encode_result(Status.MOVED, str(log.visible_end), get.opaque)
    return encode_result(Status.NOT_FOUND, f"Could not find message at position {get.offset}", get.opaque)
