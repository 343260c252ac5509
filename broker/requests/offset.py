"""`offset`: the nearest earlier byte offset that surely begins a record (wire.md §4)."""

from __future__ import annotations

from metaq.protocol.statuses import Status
from metaq.protocol.text import OffsetQuery, encode_result

from ..broker import Broker
from ..filters.places import Found

__all__ = ["answer_offset"]


def answer_offset(broker: Broker, query: OffsetQuery, connection: object) -> bytes:
    """The segment start. Closed partitions answer too. Raises PartitionNotFound."""
    broker.metrics.offset(query.topic)
    start = broker.store.get(query.topic, query.partition).segment_start(query.offset)
    if len(broker.places):  # the client goes there
        key = query.topic, query.partition, query.group
        broker.places.moved(connection, key, Found(start, start), start)
    return encode_result(Status.SUCCESS, str(start), query.opaque)
