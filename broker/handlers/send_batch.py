"""SEND_BATCH: many records in one frame, checked and appended in one write."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from twisted.internet.defer import Deferred

from metaq.protocol.errors import MetaqError, PartitionClosed
from metaq.protocol.frames import Frame
from metaq.protocol.message_id import message_ids_from
from metaq.protocol.record import HEADER_BYTES, Buffer, iter_headers
from metaq.protocol.sends import SendBatchRequest, SendReply, split_batch

from ..answers import Answer, Bytes, answer_frame
from ..broker import Broker, SyncSlaveLink
from ..partitions import ANY
from ..store.batch import stamp_batch
from ..store.partition_log import PartitionLog

__all__ = ["answer_send_batch", "puts_of"]


def answer_send_batch(broker: Broker, frame: Frame) -> Answer:
    """All or nothing. Raises RemoteProtocolError, ChecksumMismatch and what refuses a put."""
    request = SendBatchRequest.from_ext(frame.ext)
    count = request.records
    sizes, records = split_batch(frame.body, count)
    broker.metrics.put(request.topic, count, len(records) - count * HEADER_BYTES)
    try:
        return _append(broker, frame, request, sizes, records)
    except MetaqError as error:
        if not isinstance(error, PartitionClosed):
            broker.metrics.put_refused(request.topic, count)
        raise


def _append(
    broker: Broker, frame: Frame, request: SendBatchRequest, sizes: npt.NDArray[np.int64], records: memoryview
) -> Answer:
    count = request.records
    chosen = request.partition == ANY
    partition = broker.partitions.choose(request.topic) if chosen else request.partition
    log = broker.partitions.for_put(request.topic, partition, chosen=chosen)
    slave = broker.sync_slave
    if slave is not None:
        slave.check()
    first_id = broker.message_ids.next(count)
    ids = message_ids_from(first_id, count)
    data, units = stamp_batch(records, sizes, log.end_offset, ids, broker.now_ms())
    base = log.append((data,), units)
    answer = answer_frame(frame.opaque, SendReply(first_id, partition, base).to_ext())
    end = base + len(data)
    if log.visible_end >= end and slave is None:
        return answer
    return _when_safe(log, end, slave, [] if slave is None else puts_of(data), ids.tolist(), answer)


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
