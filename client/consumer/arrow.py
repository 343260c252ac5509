"""Messages as an Arrow record batch. Imports pyarrow, which is an extra: `pip install 'metaq[spark]'`."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from ..message import Message

__all__ = ["SCHEMA", "record_batch"]

SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("broker", pa.int32(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("id", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC")),
        pa.field("tag", pa.string()),
        pa.field("attribute", pa.string()),
        pa.field("keys", pa.list_(pa.string()), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)


def record_batch(messages: Sequence[Message]) -> pa.RecordBatch:
    """One row per message, in order. timestamp is null for a message a Java broker took."""
    partitions = [message.partition for message in messages]
    attributes = [message.attributes for message in messages]
    columns = (
        [each.topic for each in partitions],
        [each.broker for each in partitions],
        [each.partition for each in partitions],
        [message.offset for message in messages],
        [message.id for message in messages],
        [message.timestamp_ms for message in messages],
        [each.tag for each in attributes],
        [each.attribute for each in attributes],
        [each.keys for each in attributes],
        [message.payload for message in messages],
    )
    arrays = [pa.array(column, type=field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
