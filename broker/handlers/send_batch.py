"""SEND_BATCH: many records in one frame, checked and appended in one write."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from twisted.internet.defer import Deferred

from metaq.protocol.errors import MetaqError, PartitionClosed
from metaq.protocol.frames import Frame
from metaq.protocol.message_id import message_ids_from
from metaq.protocol.record import HEADER_BYTES
from metaq.protocol.remoting import SendBatchRequest, SendReply, split_batch

from ..answers import Answer, Bytes, answer_frame
from ..broker import Broker
from ..partitions import ANY
from ..store.batch import stamp_batch

__all__ = ["answer_send_batch"]


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
    first_id = broker.message_ids.next(count)
    data, units = stamp_batch(records, sizes, log.end_offset, message_ids_from(first_id, count), broker.now_ms())
    base = log.append((data,), units)
    answer = answer_frame(frame.opaque, SendReply(first_id, partition, base).to_ext())
    end = base + len(data)
    if log.visible_end >= end:
        return answer
    deferred: Deferred[Bytes] = Deferred()

    def settled(error: MetaqError | None) -> None:
        if error is None:
            deferred.callback(answer)
        else:
            deferred.errback(error)

    log.when_visible(end, settled)
    return deferred
