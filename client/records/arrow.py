"""Convert messages to Arrow record batches. This module imports pyarrow, which the extra `spark` installs.

Consumers and the Spark source use this module. `decode_columns` turns all records of a broker's answer into Columns by
numpy and Arrow. Consumers and Spark each make their own tables from Columns. Python code runs for a single record only
if the record has attributes, and equal attributes are decoded only once. `columns_of` makes the same Columns from a
list of messages, one message after the other, which is slower (bench/decoding.py measures both).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from metaq.protocol.compression import decompress, unpacked_bytes
from metaq.protocol.errors import CorruptRecord, PayloadUnreadable
from metaq.protocol.limits import INT64_MAX, MAX_PAYLOAD_BYTES
from metaq.protocol.message_id import store_times_ms
from metaq.protocol.record import (
    ATTRIBUTE_FLAG,
    COMPRESSED_FLAG,
    EXPIRES_FLAG,
    HEADER_BYTES,
    Attributes,
    attribute_of,
    decode_attribute,
    payload_start,
)
from metaq.protocol.where import Where
from metaq.protocol.where.many_records import matching

from .decoding import Good, Records, good_records
from .message import Message
from .results import TopicPartition

__all__ = [
    "EMPTY",
    "MAX_UNPACKED_BYTES",
    "SCHEMA",
    "Columns",
    "DecodedColumns",
    "columns_of",
    "decode_columns",
    "record_batch",
]

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
_NO_ATTRIBUTES = Attributes()

MAX_UNPACKED_BYTES = 2 * MAX_PAYLOAD_BYTES
"""Largest number of bytes of decompressed payloads in one batch. Without the limit, a compressed answer of a few
megabytes could become gigabytes in memory.
"""


class Columns(NamedTuple):
    """The fields of some messages as columns. Item i of every column belongs to message number i.

    attributes: the decoded attributes of each message; it is None if no message has attributes. flags: the flag of each
    message's record.
    """

    topic: pa.Array
    broker: pa.Array
    partition: pa.Array
    offset: pa.Array
    ids: npt.NDArray[np.int64]
    payload: pa.Array
    attributes: list[Attributes] | None
    flags: npt.NDArray[np.int32]

    def timestamp(self, unit: Literal["ms", "us"]) -> pa.Array:
        """Return the time in UTC when each message was stored. The value is null for a message that a Java broker
        stored, because its id has no time.
        """
        mask = self.ids <= 0
        times = store_times_ms(self.ids)
        if unit == "us":
            times *= 1000
        return pa.array(times, mask=mask if mask.any() else None).view(_TIMESTAMPS[unit])

    def of_attributes(self, value: Callable[[Attributes], Any], kind: pa.DataType) -> pa.Array:
        """Apply `value` to each message's attributes, and return the results as a column. Do not pass a new lambda in
        each call: the function object is a key of a cache.
        """
        if self.attributes is None:
            count = len(self.ids)
            return _without_attributes(value, kind, _power_of_two(count)).slice(0, count)
        return pa.array(map(value, self.attributes), kind, size=len(self.attributes))

    def slice(self, start: int, limit: int) -> Columns:
        """Return at most `limit` messages from index `start` on."""
        if not start and limit >= len(self.ids):
            return self
        end = start + limit
        return Columns(
            self.topic.slice(start, limit),
            self.broker.slice(start, limit),
            self.partition.slice(start, limit),
            self.offset.slice(start, limit),
            self.ids[start:end],
            self.payload.slice(start, limit),
            None if self.attributes is None else self.attributes[start:end],
            self.flags[start:end],
        )

    def to_batch(self) -> pa.RecordBatch:
        """Return the messages as an Arrow record batch with the schema SCHEMA."""
        tag, attribute, keys = (self.of_attributes(*each) for each in _OF_ATTRIBUTES)
        place = (self.topic, self.broker, self.partition, self.offset)
        columns = [*place, pa.array(self.ids), self.timestamp("ms"), tag, attribute, keys, self.payload]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


_TIMESTAMPS = {unit: pa.timestamp(unit, tz="UTC") for unit in ("ms", "us")}
_OF_ATTRIBUTES = [(attrgetter(name), SCHEMA.field(name).type) for name in ("tag", "attribute", "keys")]


class DecodedColumns(NamedTuple):
    """The result of decoding records: the fields of decoding.Decoded, but with columns instead of messages.

    expires: for each message, the time when it expires, in milliseconds since 1970, or INT64_MAX if it never expires.
    `expires` itself is None if no message expires. packed: true for each message with a compressed payload. `packed`
    itself is None if no payload is compressed.
    """

    columns: Columns
    end: int
    damage: str
    expires: npt.NDArray[np.int64] | None
    packed: npt.NDArray[np.bool_] | None

    def unpacked(self, partition: TopicPartition, start: int, limit: int) -> DecodedColumns:
        """Return at least one and at most `limit` messages from index `start` on, with decompressed payloads. Return
        fewer than `limit` messages if their decompressed payloads would take more than MAX_UNPACKED_BYTES. The result's
        `end` is this object's `end`, so it does not say where the last returned message ends.

        Raises CorruptRecord, with the end of the record, if the first message cannot be decompressed. If a later
        message cannot be decompressed, the result ends before it.
        """
        columns, expires, packed = self.columns, self.expires, self.packed
        if packed is None:
            return self._replace(columns=columns.slice(start, limit), expires=_slice(expires, start, limit))
        payloads: list[bytes] = []
        room = MAX_UNPACKED_BYTES
        for index in range(start, min(start + limit, len(packed))):
            payload = columns.payload[index].as_py()
            if packed[index]:
                try:
                    room -= unpacked_bytes(payload)
                    if room < 0 and payloads:
                        break
                    payload = decompress(payload)
                except PayloadUnreadable as error:
                    if payloads:
                        break
                    following = self.end if index + 1 == len(packed) else columns.offset[index + 1].as_py()
                    raise CorruptRecord.of(partition, columns.offset[index].as_py(), str(error), following) from None
            payloads.append(payload)
        count = len(payloads)
        chosen = columns.slice(start, count)._replace(payload=pa.array(payloads, pa.binary()))
        return self._replace(columns=chosen, expires=_slice(expires, start, count), packed=None)


def _slice(numbers: npt.NDArray[np.int64] | None, start: int, count: int) -> npt.NDArray[np.int64] | None:
    return None if numbers is None else numbers[start : start + count]


def _expiries(attributes: list[Attributes], flags: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Return, for each message, the time when it expires, in the form of DecodedColumns.expires."""
    expires = np.full(len(attributes), INT64_MAX, np.int64)
    for index in np.flatnonzero(flags & EXPIRES_FLAG).tolist():
        milliseconds = attributes[index].expires_ms
        if milliseconds is not None:
            expires[index] = milliseconds
    return expires


def columns_of(messages: Sequence[Message]) -> Columns:
    """Return these messages as columns, one for each field. Each column has one value for each message, in the order of
    the messages.
    """
    partitions = [message.partition for message in messages]
    return Columns(
        pa.array([each.topic for each in partitions], pa.string()),
        pa.array([each.broker for each in partitions], pa.int32()),
        pa.array([each.partition for each in partitions], pa.int32()),
        pa.array([message.offset for message in messages], pa.int64()),
        np.array([message.id for message in messages], np.int64),
        pa.array([message.payload for message in messages], pa.binary()),
        [message.attributes for message in messages],
        np.array([message.flag for message in messages], np.int32),
    )


def record_batch(messages: Sequence[Message]) -> pa.RecordBatch:
    """Return an Arrow record batch with one row per message, in order."""
    return columns_of(messages).to_batch()


EMPTY = record_batch(())
"""The record batch without messages."""


def decode_columns(
    records: Records,
    partition: TopicPartition,
    check: bool = True,
    limit: int | None = None,
    where: Where | None = None,
) -> DecodedColumns:
    """Decode the records that begin before the offset `limit` of the partition, in order, and stop before the first
    damaged record. If `limit` is None, decode all records. where: keep only records that match this filter.
    """
    data = records.data
    good = good_records(records, limit)
    payload: pa.Array | None = None
    if check:
        payload = _gather(data, good.starts + HEADER_BYTES, good.sizes - HEADER_BYTES)
        good = good.checked(payload.to_pylist())
        payload = payload.slice(0, len(good.starts))
    end = good.end_offset(records)
    if where is not None and not (wanted := matching(where, data, good.starts, good.sizes)).all():
        good = good.only(wanted)
        payload = None
    bits = int(np.bitwise_or.reduce(good.headers["flag"]))  # one step for all flags: in most answers no flag bit is set
    attributes, begins = _attributes(data, good, bits)
    if payload is None or attributes is not None:
        payload = _gather(data, begins, good.starts + good.sizes - begins)
    count = len(good.starts)
    topic, broker, number = (column.slice(0, count) for column in _constants(partition, _power_of_two(count)))
    flags = good.headers["flag"]
    columns = Columns(
        topic,
        broker,
        number,
        pa.array(records.offsets(good.starts)),
        good.headers["id"].astype(np.int64),
        payload,
        attributes,
        flags,
    )
    expires = _expiries(attributes, flags) if attributes is not None and bits & EXPIRES_FLAG else None
    packed = flags & COMPRESSED_FLAG != 0 if bits & COMPRESSED_FLAG else None
    return DecodedColumns(columns, end, good.damage, expires, packed)


def _gather(data: bytes, starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> pa.Array:
    """Copy the slices data[start : start + size], which are in ascending order, into a binary column. No Python object
    is made for a slice.

    If all slices have the same size and the same distance from each other, numpy copies them in one strided copy.
    Otherwise the function describes `data` to Arrow as an array: the first slice, the bytes between it and the second
    slice, the second slice, and so on. Arrow then copies every second element of this array: the slices without the
    bytes between them.
    """
    count = len(starts)
    if count > 1 and (sizes == sizes[0]).all() and ((strides := np.diff(starts)) == strides[0]).all():
        size = int(sizes[0])
        rows = np.ndarray((count, size), np.uint8, data, int(starts[0]), (int(strides[0]), 1))
        offsets = np.arange(0, (count + 1) * size, size, dtype=np.int32) if size else np.zeros(count + 1, np.int32)
        values = pa.allocate_buffer(count * size)  # Arrow's pool reuses memory that is already mapped
        np.ndarray((count, size), np.uint8, values)[...] = rows
        return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), values])
    bounds = np.empty(2 * count, np.int32)
    bounds[0::2] = starts
    np.add(starts, sizes, out=bounds[1::2], casting="same_kind")
    whole = pa.Array.from_buffers(pa.binary(), max(0, 2 * count - 1), [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    return whole.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))


def _power_of_two(count: int) -> int:
    return 1 << max(10, count.bit_length())


@lru_cache(maxsize=64)
def _constants(partition: TopicPartition, count: int) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return three columns: the topic, the broker and the number of the partition. Each column contains its value
    `count` times.
    """
    topic, broker, number = partition
    return (
        pa.repeat(pa.scalar(topic, pa.string()), count),
        pa.repeat(pa.scalar(broker, pa.int32()), count),
        pa.repeat(pa.scalar(number, pa.int32()), count),
    )


@lru_cache(maxsize=64)
def _without_attributes(value: Callable[[Attributes], Any], kind: pa.DataType, count: int) -> pa.Array:
    """Return a column with `count` rows. Each row is the result of `value` for a message without attributes."""
    return pa.repeat(pa.scalar(value(_NO_ATTRIBUTES), kind), count)


def _attributes(data: bytes, good: Good, bits: int) -> tuple[list[Attributes] | None, npt.NDArray[np.int64]]:
    """Return the decoded attributes of each record (None if no record has attributes), and the positions where the
    payloads begin. bits: the bits that are set in the flag of at least one record.
    """
    payloads = good.starts + HEADER_BYTES
    flags = good.headers["flag"]
    if not bits & ATTRIBUTE_FLAG:
        return None, payloads
    attributes = [_NO_ATTRIBUTES] * len(payloads)
    known: dict[tuple[bytes | None, int], Attributes] = {}
    view = memoryview(data)
    for index in np.flatnonzero(flags & ATTRIBUTE_FLAG).tolist():
        flag, start = int(flags[index]), int(payloads[index])
        body = view[start : start + int(good.headers["length"][index])]
        raw = attribute_of(body, flag)
        found = known.get((raw, flag))
        if found is None:
            found = known[raw, flag] = decode_attribute(raw, flag)
        attributes[index] = found
        payloads[index] = start + payload_start(body, flag)
    return attributes, payloads
