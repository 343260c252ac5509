"""Messages as Arrow record batches. Imports pyarrow, of the extra `spark`.

A batch of fetched records is made by numpy and Arrow over the whole answer. Only records with attributes cost a step of
the interpreter each, and those with the same attributes are decoded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from metaq.protocol.message_id import store_times_ms
from metaq.protocol.record import (
    ATTRIBUTE_FLAG,
    HEADER_BYTES,
    Attributes,
    attribute_of,
    decode_attribute,
    payload_start,
)

from ..message import Message
from ..values import TopicPartition
from .decoding import Good, Records, good_records

__all__ = ["EMPTY", "SCHEMA", "DecodedBatch", "decode_batch", "record_batch"]

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
_TIMESTAMP, _KEYS = SCHEMA.field("timestamp").type, SCHEMA.field("keys").type
_NO_ATTRIBUTES = Attributes()


class DecodedBatch(NamedTuple):
    """As decoding.Decoded, with one row per message."""

    batch: pa.RecordBatch
    end: int
    damage: str


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


EMPTY = record_batch(())
"""No message at all."""


def decode_batch(records: Records, partition: TopicPartition, check: bool = True) -> DecodedBatch:
    """The records, whose sizes must be known, up to the first that is damaged."""
    good = good_records(records, check, bodies=False)
    count, shift = len(good.starts), records.offset - records.start
    ids = good.headers["id"].astype(np.int64)
    attributes, payloads = _attributes_and_payloads(records.data, good)
    columns = [
        *(column.slice(0, count) for column in _constants(partition, _power_of_two(count))),
        pa.array(good.starts + shift),
        pa.array(ids),
        _timestamps(ids),
        *_attribute_columns(attributes, count),
        _gather(records.data, payloads, good.starts + good.sizes),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    return DecodedBatch(batch, good.end(records) + shift, good.damage)


def _gather(data: bytes, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> pa.Array:
    """The slices data[start:end], which lie one behind the other, as a binary column: one copy, no object per row.

    Slices of one size at one distance are one strided copy; others are the even elements of an array that has what
    lies between them too, taken by Arrow.
    """
    count = len(starts)
    sizes, strides = ends - starts, np.diff(starts)
    if count > 1 and (sizes == sizes[0]).all() and (strides == strides[0]).all():
        size = int(sizes[0])
        rows = np.ndarray((count, size), np.uint8, data, int(starts[0]), (int(strides[0]), 1))
        offsets = np.arange(0, (count + 1) * size, size, dtype=np.int32) if size else np.zeros(count + 1, np.int32)
        values = pa.allocate_buffer(count * size)  # Arrow's pool gives back memory that is mapped already
        np.ndarray((count, size), np.uint8, values)[...] = rows
        return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), values])
    bounds = np.empty(2 * count, np.int32)
    bounds[0::2], bounds[1::2] = starts, ends
    whole = pa.Array.from_buffers(pa.binary(), max(0, 2 * count - 1), [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    return whole.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))


def _power_of_two(count: int) -> int:
    return 1 << max(10, count.bit_length())


@lru_cache(maxsize=64)
def _constants(partition: TopicPartition, count: int) -> tuple[pa.Array, pa.Array, pa.Array]:
    """topic, broker and partition, `count` times each."""
    topic, broker, number = partition
    return (
        pa.repeat(pa.scalar(topic, pa.string()), count),
        pa.repeat(pa.scalar(broker, pa.int32()), count),
        pa.repeat(pa.scalar(number, pa.int32()), count),
    )


@lru_cache(maxsize=8)
def _no_attributes(count: int) -> tuple[pa.Array, pa.Array, pa.Array]:
    """tag, attribute and keys of records without any."""
    nothing = pa.nulls(count, pa.string())
    return (
        nothing,
        nothing,
        pa.ListArray.from_arrays(pa.array(np.zeros(count + 1, np.int32)), pa.array([], pa.string())),
    )


def _attribute_columns(attributes: list[Attributes] | None, count: int) -> list[pa.Array]:
    if attributes is None:
        return [column.slice(0, count) for column in _no_attributes(_power_of_two(count))]
    return [
        pa.array([each.tag for each in attributes], pa.string()),
        pa.array([each.attribute for each in attributes], pa.string()),
        pa.array([each.keys for each in attributes], _KEYS),
    ]


def _attributes_and_payloads(data: bytes, good: Good) -> tuple[list[Attributes] | None, npt.NDArray[np.int64]]:
    """What stands in front of each payload, None if nothing does anywhere, and where the payloads begin."""
    payloads = good.starts + HEADER_BYTES
    flags = good.headers["flag"]
    marked = np.flatnonzero(flags & ATTRIBUTE_FLAG).tolist()
    if not marked:
        return None, payloads
    attributes = [_NO_ATTRIBUTES] * len(payloads)
    known: dict[tuple[bytes | None, int], Attributes] = {}
    view = memoryview(data)
    for index in marked:
        flag, start = int(flags[index]), int(payloads[index])
        body = view[start : start + int(good.headers["length"][index])]
        raw = attribute_of(body, flag)
        found = known.get((raw, flag))
        if found is None:
            found = known[raw, flag] = decode_attribute(raw, flag)
        attributes[index] = found
        payloads[index] = start + payload_start(body, flag)
    return attributes, payloads


def _timestamps(ids: npt.NDArray[np.int64]) -> pa.Array:
    """Store times; null where the id is a Java broker's."""
    mask = ids <= 0
    return pa.array(store_times_ms(ids), mask=mask if mask.any() else None).view(_TIMESTAMP)
