"""SEND_BATCH: many records in one frame, checked and appended in one write."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from twisted.internet.defer import Deferred

from metaq.protocol.errors import ChecksumMismatch, MetaqError, PartitionClosed
from metaq.protocol.frames import Frame
from metaq.protocol.message_id import message_ids_from
from metaq.protocol.record import HEADER_BYTES, Buffer, iter_headers
from metaq.protocol.sends import SendBatchRequest, SendReply, split_batch

from ..broker import Broker, SyncSlaveLink
from ..partitions import ANY
from ..store.batch import SLICE_RECORDS, stamp_in_slices
from ..store.partition_log import PartitionLog
from .answers import Bytes, Work, answer_frame

__all__ = ["answer_send_batch", "puts_of"]


def answer_send_batch(broker: Broker, frame: Frame) -> Work:
    """All or nothing. Raises RemoteProtocolError, ChecksumMismatch and what refuses a put."""
    request = SendBatchRequest.from_ext(frame.ext)
    count = request.records
    sizes, records = split_batch(frame.body, count)
    broker.metrics.put(request.topic, count, len(records) - count * HEADER_BYTES)
    try:
        return (yield from _append(broker, frame, request, sizes, records))
    except MetaqError as error:
        if not isinstance(error, PartitionClosed):
            broker.metrics.put_refused(request.topic, count)
        raise


def _append(
    broker: Broker, frame: Frame, request: SendBatchRequest, sizes: npt.NDArray[np.int64], records: memoryview
) -> Work:
    """Stamped in slices, in memory of its own, then appended at once where the log ends by then."""
    chosen = request.partition == ANY
    partition = broker.partitions.choose(request.topic) if chosen else request.partition
    log = _log(broker, request.topic, partition, chosen)
    first_id = broker.message_ids.next(request.records)
    ids = message_ids_from(first_id, request.records)
    stamped = yield from stamp_in_slices(records, sizes, ids)
    if not stamped.intact.all():
        raise ChecksumMismatch
    if len(sizes) > SLICE_RECORDS:  # others were served meanwhile
        log = _log(broker, request.topic, partition, chosen)
    data, units = stamped.data, stamped.units
    units["offset"] += log.end_offset
    base = log.append((data,), units.view(np.uint8).data)
    answer = answer_frame(frame.opaque, SendReply(first_id, partition, base).to_ext())
    end = base + len(data)
    slave = broker.sync_slave
    if slave is None:
        return answer if log.visible_end >= end else _when_safe(log, end, None, [], [], answer)
    return _when_safe(log, end, slave, puts_of(data), ids.tolist(), answer)


def _log(broker: Broker, topic: str, partition: int, chosen: bool) -> PartitionLog:
    log = broker.partitions.for_put(topic, partition, chosen=chosen)
    if broker.sync_slave is not None:
        broker.sync_slave.check()
    return log


def _when_safe(
    log: PartitionLog,
    end: int,
    slave: SyncSlaveLink | None,
    puts: list[tuple[int, int, Buffer]],
    ids: list[int],
    answer: Bytes,
) -> Deferred[Bytes]:
    """The answer when the batch is visible, and a synchronous master's slave has all of it."""
    deferred: Deferred[Bytes] = Deferred()
    errors: list[MetaqError] = []
    missing = 1 if slave is None else 2

    def arrived(*found: MetaqError | None) -> None:
        nonlocal missing
        missing -= 1
        errors.extend(error for error in found if error is not None)
        if missing:
            return
        if errors:
            deferred.errback(errors[0])
        else:
            deferred.callback(answer)

    log.when_visible(end, arrived)
    if slave is not None:
        slave.replicate(log, puts, ids, lambda found: arrived(*found))
    return deferred


def puts_of(records: memoryview) -> list[tuple[int, int, Buffer]]:
    """(flag, checksum, body) of each record, for SyncSlaveLink.replicate."""
    return [
        (header.flag, header.checksum, records[header.start + HEADER_BYTES : header.end])
        for header in iter_headers(records, stored=False)
    ]
