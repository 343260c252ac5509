"""`sync`: a synchronous master's message, stored with its id; any other broker has no handler for it (wire.md §4)."""

from __future__ import annotations

from twisted.internet.defer import Deferred

from metaq.protocol.errors import ChecksumMismatch, MetaqError, PartitionClosed
from metaq.protocol.record import checksum
from metaq.protocol.statuses import Status
from metaq.protocol.text import NO_CHECKSUM, Sync, encode_result

from ..broker import Broker
from ..store.batch import encode_puts
from .answers import Answer

__all__ = ["answer_sync"]

NO_SYNC_HANDLER = "未注册请求处理器，请求处理器类为com.taobao.metamorphosis.network.SyncCommand"
"""1.x's own words: no request handler is registered for the class."""


def answer_sync(broker: Broker, sync: Sync) -> Answer:
    """Now, or when the message is safe."""
    if not broker.stores_syncs:
        return encode_result(Status.UNAVAILABLE, NO_SYNC_HANDLER, sync.opaque)
    broker.metrics.put(sync.topic, 1, len(sync.body))
    try:
        return _store(broker, sync)
    except MetaqError as error:
        return _refuse(broker, sync, error)


def _store(broker: Broker, sync: Sync) -> Answer:
    found = checksum(sync.body)
    if found != sync.checksum != NO_CHECKSUM:
        raise ChecksumMismatch
    log = broker.partitions.for_put(sync.topic, sync.partition)
    puts = [(sync.flag, found, sync.body)]
    base = log.append(*encode_puts(puts, log.end_offset, (sync.message_id,), broker.now_ms()))
    answer = encode_result(Status.SUCCESS, f"{sync.message_id} {sync.partition} {base}", sync.opaque)
    end = log.end_offset
    if log.visible_end >= end:
        return answer
    settled: Deferred[MetaqError | None] = Deferred()
    log.when_visible(end, settled.callback)
    return settled.addCallback(lambda error: answer if error is None else _refuse(broker, sync, error))


def _refuse(broker: Broker, sync: Sync, error: MetaqError) -> bytes:
    text = str(error)
    if isinstance(error, PartitionClosed):
        text = text[:1].upper() + text[1:]
    else:
        broker.metrics.put_refused(sync.topic)
    prefix = f"Put message to [broker '{broker.url}'] [partition '{sync.topic}-{sync.partition}'] failed."
    return encode_result(error.status, f"{prefix}Detail:{text}", sync.opaque)
