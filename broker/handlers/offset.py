"""`offset`: the nearest earlier byte offset that surely begins a record (wire.md §4)."""

from __future__ import annotations

from metaq.protocol.statuses import Status
from metaq.protocol.text import OffsetQuery, encode_result

from ..broker import Broker

__all__ = ["answer_offset"]


def answer_offset(broker: Broker, query: OffsetQuery) -> bytes:
    """The segment start. Closed partitions answer too. Raises PartitionNotFound."""
    broker.metrics.offset(query.topic)
    log = broker.store.get(query.topic, query.partition)
    return encode_result(Status.SUCCESS, str(log.segment_start(query.offset)), query.opaque)
