"""`get`: bytes of a partition from an offset on (wire.md §4)."""

from __future__ import annotations

from functools import partial

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from metaq.protocol.errors import FilterUnavailable, OffsetOutOfRange, PartitionNotFound
from metaq.protocol.limits import INT64_MAX
from metaq.protocol.record import HEADER_BYTES, Buffer
from metaq.protocol.statuses import Status
from metaq.protocol.text import Get, encode_result, encode_value_line

from ..answers import Answer, Bytes
from ..broker import Broker
from ..filters.judge import Judge, LeadingRun, find_leading_run
from ..store.partition_log import PartitionLog

__all__ = ["answer_get"]

_LENGTH_BYTES = 4


def answer_get(broker: Broker, get: Get) -> Answer:
    """Data, or where to go on, or that there is none yet. Raises PartitionClosed, PartitionNotFound, StoreError."""
    broker.metrics.get(get.topic)
    try:
        log = broker.partitions.for_read(get.topic, get.partition)
    except PartitionNotFound:
        broker.metrics.get_missed(get.topic)
        raise
    if get.max_size <= 0:
        return encode_result(Status.BAD_REQUEST, f"Bad request,invalid max size:{get.max_size}", get.opaque)
    if not log.first_offset <= get.offset < log.visible_end:
        return _miss(broker, log, get)
    try:
        filter_ = broker.filters.find(get.topic, get.group)
    except FilterUnavailable as error:
        return _failed(broker, get, error)
    if filter_ is not None:
        return _filtered(broker, log, get, Judge(filter_, get.group, get.topic, get.partition))
    size = min(get.max_size, broker.max_answer_bytes)
    data = broker.cold_reads.read(log, get.group, get.offset, size)
    if isinstance(data, Deferred):
        return data.addCallbacks(partial(_whole_record, broker, log, get, size), partial(_gone, broker, log, get))
    return _whole_record(broker, log, get, size, data)


def _whole_record(broker: Broker, log: PartitionLog, get: Get, size: int, data: Buffer) -> Bytes | Deferred[Bytes]:
    """The answer; a first record that our limit `size` would cut for ever is given whole if the client takes it."""
    if len(data) == size < get.max_size:
        record = HEADER_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "big", signed=True)
        if len(data) < record <= get.max_size:
            whole = broker.cold_reads.run(get.group, partial(log.read_blocking, get.offset, record))
            return whole.addCallbacks(partial(_value, get), partial(_gone, broker, log, get))
    return _value(get, data)


def _value(get: Get, data: Buffer) -> Bytes:
    return [encode_value_line(len(data), get.opaque), data]


def _filtered(broker: Broker, log: PartitionLog, get: Get, judge: Judge) -> Deferred[Bytes]:
    size = min(get.max_size, broker.config.max_transfer_size)
    find = partial(find_leading_run, judge, log.read_blocking, get.offset, size, get.max_size)
    found = broker.in_filter_thread(find)
    return found.addCallbacks(partial(_leading_run, broker, get), partial(_gone, broker, log, get))


def _leading_run(broker: Broker, get: Get, run: LeadingRun) -> Bytes:
    if run.data:
        return _value(get, run.data)
    broker.metrics.get_missed(get.topic)
    return encode_result(Status.MOVED, str(run.next_offset), get.opaque)


def _failed(broker: Broker, get: Get, error: FilterUnavailable) -> bytes:
    """1.x's words for whatever a get fails with: those of a put."""
    prefix = f"Put message to [broker '{broker.url}'] [partition '{get.topic}-{get.partition}'] failed."
    return encode_result(error.status, f"{prefix}Detail:{error}", get.opaque)


def _gone(broker: Broker, log: PartitionLog, get: Get, failure: Failure) -> Bytes:
    failure.trap(OffsetOutOfRange)  # type: ignore[no-untyped-call]  # retention was faster than the read
    return _miss(broker, log, get)


def _miss(broker: Broker, log: PartitionLog, get: Get) -> bytes:
    broker.metrics.get_missed(get.topic)
    if get.offset < log.first_offset:
        return encode_result(Status.MOVED, str(log.first_offset), get.opaque)
    beyond = get.offset > log.visible_end
    if beyond and (broker.config.move_consumers_past_end or get.offset == INT64_MAX):
        return encode_result(Status.MOVED, str(log.visible_end), get.opaque)
    return encode_result(Status.NOT_FOUND, f"Could not find message at position {get.offset}", get.opaque)
