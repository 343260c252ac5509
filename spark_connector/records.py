"""Stored records as Arrow columns: numpy and Arrow over a whole pulled block.

Records whose sizes the broker told, and those of one size, as many topics have them, cost no bytecode each; else, after
the first of another size, one step from length to length finds where the rest of the block begin. Headers, checksums,
payloads, ids and times are one call each per block. Rows with attributes are decoded once per distinct text.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from operator import attrgetter
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from metaq.client.values import TopicPartition
from metaq.protocol.errors import CorruptRecord
from metaq.protocol.message_id import store_times_ms
from metaq.protocol.record import (
    ATTRIBUTE_FLAG,
    HEADER_BYTES,
    Attributes,
    attribute_of,
    blank_headers,
    checksums,
    decode_attribute,
    headers_at,
    payload_start,
)

from .schema import ARROW_SCHEMA, ARROW_SCHEMA_WITH_HEADERS

__all__ = ["RecordBlock"]

_LENGTH = Struct(">i")  # the first field of a record
_NO_ATTRIBUTES = Attributes()


class RecordBlock:
    """The complete records at the begin of `data`, which was pulled from byte `offset` of `source` on.

    Only records that begin before byte `end` of the partition count. next_offset is the byte after the last of them.
    Brokers send the first record whole, so there is at least one: raises CorruptRecord if not, and if the first one has
    a size that is not the record's, or a wrong checksum (an offset in the middle of a record), or is zeros. A later
    one of that kind ends the block: `damage` is the error then, else None.
    """

    def __init__(
        self,
        data: memoryview,
        source: TopicPartition,
        offset: int,
        end: int,
        sizes: npt.NDArray[np.int64] | None = None,
        check_crcs: bool = True,
    ) -> None:
        """sizes: of all records of the block, headers included, if the broker told them. check_crcs: also then; without
        sizes checksums are always compared, because they tell whether the offset begins a record.
        """
        self._data = data
        self._wrong_length: int | None = None
        self._source = source
        self._offset = offset
        if sizes is None:
            self._starts = self._find_starts(end - offset)
        else:
            starts = np.cumsum(sizes) - sizes
            self._starts = starts[: np.searchsorted(starts, end - offset)]
        self.damage: CorruptRecord | None = None if self._wrong_length is None else self._has_length(self._wrong_length)
        self._headers = headers_at(data, self._starts)
        if sizes is not None:
            self._check_sizes(sizes[: len(self)])
        self._end_at(blank_headers(self._headers), lambda number: "there are zeros instead of it")
        if not len(self):
            raise self.damage or self._corrupt(0, f"no complete record in {len(self._data)} bytes")
        self._ends = self._starts + HEADER_BYTES + self._headers["length"]
        self._bodies = self._gather(self._starts + HEADER_BYTES)
        if check_crcs or sizes is None:
            self._check()

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def next_offset(self) -> int:
        return self._offset + int(self._ends[-1])

    def _find_starts(self, limit: int) -> npt.NDArray[np.int64]:
        """Where complete records begin, as positions below `limit`."""
        size = len(self._data)
        alike = self._alike(min(limit, size))
        if not len(alike):
            return alike
        position = int(alike[-1]) + HEADER_BYTES + self._length_at(int(alike[-1]))
        starts: list[int] = []
        while position < limit and position + HEADER_BYTES <= size:
            length = self._length_at(position)
            following = position + HEADER_BYTES + length
            if length < 0:
                self._wrong_length = position
            if length < 0 or following > size:
                break
            starts.append(position)
            position = following
        return np.concatenate((alike, np.array(starts, dtype=np.int64))) if starts else alike

    def _alike(self, limit: int) -> npt.NDArray[np.int64]:
        """Where the first record and those of its size behind it begin, up to the first of another size."""
        size = len(self._data)
        if limit <= 0 or size < HEADER_BYTES:
            return np.empty(0, dtype=np.int64)
        length = self._length_at(0)
        if length < 0:
            raise self._has_length(0)
        stride = HEADER_BYTES + length
        count = min(size // stride, -(-limit // stride))
        lengths = np.ndarray(count, ">i4", self._data, strides=(stride,))
        others = np.flatnonzero(lengths != length)
        return np.arange(others[0] if len(others) else count, dtype=np.int64) * stride

    def _length_at(self, position: int) -> int:
        length: int = _LENGTH.unpack_from(self._data, position)[0]
        return length

    def _has_length(self, position: int) -> CorruptRecord:
        return self._corrupt(position, f"it claims {self._length_at(position)} bytes")

    def _check_sizes(self, sizes: npt.NDArray[np.int64]) -> None:
        """End at a record whose header says another length than its index."""
        wrong = self._headers["length"] != sizes - HEADER_BYTES
        self._end_at(wrong, lambda number: f"it claims {self._headers['length'][number]} bytes")

    def _end_at(self, wrong: npt.NDArray[np.bool_], reason: Callable[[int], str]) -> None:
        """Leave out the records from the first wrong one on."""
        if wrong.any():
            first = int(wrong.argmax())
            self.damage = self._corrupt(int(self._starts[first]), reason(first))
            self._starts, self._headers = self._starts[:first], self._headers[:first]

    def _check(self) -> None:
        wrong = checksums(self._bodies.to_pylist()) != self._headers["checksum"]
        self._end_at(wrong, lambda number: "its checksum does not match")
        if self.damage is not None and not len(self):
            raise self.damage
        self._ends, self._bodies = self._ends[: len(self)], self._bodies[: len(self)]

    def _corrupt(self, position: int, reason: str) -> CorruptRecord:
        return CorruptRecord.of(self._source, self._offset + position, f"{reason} (does the offset begin a record?)")

    def to_arrow(self, headers: bool = False) -> pa.RecordBatch:
        """All records as one batch of ARROW_SCHEMA, or of ARROW_SCHEMA_WITH_HEADERS."""
        count = len(self)
        attributes, values = self._split_bodies()
        ids = self._headers["id"].astype(np.int64)
        topic, partition, broker, no_bytes, no_text, no_headers = _constants(self._source, count)
        columns = [
            _column("key", attributes, _key) if attributes else no_bytes,
            values,
            topic,
            partition,
            broker,
            pa.array(self._starts + self._offset),
            pa.array(ids),
            _timestamps(ids),
            _column("tag", attributes, attrgetter("tag")) if attributes else no_text,
            _column("attribute", attributes, attrgetter("attribute")) if attributes else no_text,
        ]
        if headers:
            columns.append(_column("headers", attributes, _headers) if attributes else no_headers)
            return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA_WITH_HEADERS)
        return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)

    def _split_bodies(self) -> tuple[list[Attributes], pa.Array]:
        """What stands in front of each payload ([] if nothing does, anywhere), and the payloads."""
        marked = np.flatnonzero(self._headers["flag"] & ATTRIBUTE_FLAG).tolist()
        if not marked:
            return [], self._bodies
        payloads = self._starts + HEADER_BYTES
        attributes = [_NO_ATTRIBUTES] * len(self)
        known: dict[tuple[bytes | None, int], Attributes] = {}
        for index in marked:
            flag = int(self._headers["flag"][index])
            body = self._data[int(payloads[index]) : int(self._ends[index])]
            raw = attribute_of(body, flag)
            found = known.get((raw, flag))
            if found is None:
                found = known[raw, flag] = decode_attribute(raw, flag)
            attributes[index] = found
            payloads[index] += payload_start(body, flag)
        return attributes, self._gather(payloads)

    def _gather(self, begins: npt.NDArray[np.int64]) -> pa.Array:
        """The bytes of each record from its `begins` to its end as a binary column: one copy, no object per row.

        The block is seen as a column of twice as many values, what comes before `begins` and what comes behind it, of
        which every second is taken.
        """
        count = len(begins)
        offsets = np.empty(2 * count + 1, dtype=np.int32)
        offsets[0:-1:2] = self._starts
        offsets[1::2] = begins
        offsets[-1] = self._ends[-1] if count else 0
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self._data)]
        both = pa.Array.from_buffers(pa.binary(), 2 * count, buffers)
        return both.take(pa.array(np.arange(1, 2 * count, 2, dtype=np.int32)))


def _constants(source: TopicPartition, count: int) -> list[pa.Array]:
    """Topic, partition, broker, and nothing as bytes, text and headers: `count` times each, cut from longer columns."""
    return [column.slice(0, count) for column in _constants_of(source, 1 << count.bit_length())]


@lru_cache(maxsize=16)
def _constants_of(source: TopicPartition, count: int) -> list[pa.Array]:
    return [
        pa.repeat(pa.scalar(source.topic, pa.string()), count),
        pa.repeat(pa.scalar(source.partition, pa.int32()), count),
        pa.repeat(pa.scalar(source.broker, pa.int32()), count),
        pa.nulls(count, pa.binary()),
        pa.nulls(count, pa.string()),
        pa.nulls(count, ARROW_SCHEMA_WITH_HEADERS.field("headers").type),
    ]


def _column(name: str, attributes: list[Attributes], value: Callable[[Attributes], Any]) -> pa.Array:
    return pa.array(map(value, attributes), ARROW_SCHEMA_WITH_HEADERS.field(name).type, size=len(attributes))


def _key(attributes: Attributes) -> bytes | None:
    return " ".join(attributes.keys).encode("utf-8") if attributes.keys else None


def _headers(attributes: Attributes) -> list[dict[str, str | bytes]] | None:
    return [{"key": name, "value": text.encode("utf-8")} for name, text in attributes.headers.items()] or None


def _timestamps(ids: npt.NDArray[np.int64]) -> pa.Array:
    """Store times as UTC microseconds; null where the id is a Java broker's (not positive)."""
    nulls: npt.NDArray[Any] = ids <= 0
    return pa.array(store_times_ms(ids) * 1000, mask=nulls if nulls.any() else None).view(
        ARROW_SCHEMA.field("timestamp").type
    )
