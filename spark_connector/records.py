"""Stored records as Arrow columns: numpy over a whole pulled block.

What runs per record in the interpreter is one step from length to length to find where records begin; headers,
checksums, payloads, ids and times are one call each per block. Rows with attributes are decoded once per distinct text.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from metaq.client.values import TopicPartition
from metaq.protocol.errors import CorruptRecord
from metaq.protocol.message_id import EPOCH_MS
from metaq.protocol.record import (
    ATTRIBUTE_FLAG,
    HEADER_BYTES,
    Attributes,
    attribute_of,
    checksums_match,
    decode_attribute,
    headers_at,
    payload_start,
)

from .schema import ARROW_SCHEMA, ARROW_SCHEMA_WITH_HEADERS

__all__ = ["RecordBlock"]

_LENGTH = Struct(">i")  # the first field of a record
_MILLIS_SHIFT = 22  # message_id.py: the bits behind the milliseconds
_NO_ATTRIBUTES = Attributes()


class RecordBlock:
    """The complete records at the begin of `data`, which was pulled from byte `offset` of `source` on.

    Only records that begin before byte `end` of the partition count. next_offset is the byte after the last of them.
    Brokers send the first record whole, so there is at least one: raises CorruptRecord with the exact position if not,
    and for a wrong checksum (an offset in the middle of a record).
    """

    def __init__(self, data: memoryview, source: TopicPartition, offset: int, end: int) -> None:
        self._data = data
        self._source = source
        self._offset = offset
        self._starts = self._find_starts(end - offset)
        self._headers = headers_at(data, self._starts)
        self._ends = self._starts + HEADER_BYTES + self._headers["length"]
        self._check()

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def next_offset(self) -> int:
        return self._offset + int(self._ends[-1])

    def _find_starts(self, limit: int) -> npt.NDArray[np.int64]:
        """Where complete records begin, as positions below `limit`; the only loop over records."""
        length_at, data, size = _LENGTH.unpack_from, self._data, len(self._data)
        starts: list[int] = []
        position = 0
        while position < limit and position + HEADER_BYTES <= size:
            (length,) = length_at(data, position)
            if length < 0:
                raise self._corrupt(position, f"it claims {length} bytes")
            following = position + HEADER_BYTES + length
            if following > size:
                break
            starts.append(position)
            position = following
        return np.array(starts, dtype=np.int64)

    def _check(self) -> None:
        if not len(self):
            raise self._corrupt(0, f"no complete record in {len(self._data)} bytes")
        expected = self._headers["checksum"]
        bodies = self._starts + HEADER_BYTES
        if checksums_match(self._data, bodies, self._ends, expected):
            return
        for index in range(len(self)):
            one = slice(index, index + 1)
            if not checksums_match(self._data, bodies[one], self._ends[one], expected[one]):
                raise self._corrupt(int(self._starts[index]), "its checksum does not match")

    def _corrupt(self, position: int, reason: str) -> CorruptRecord:
        where = f"topic {self._source.topic}, partition {self._source}"
        return CorruptRecord(where, self._offset + position, f"{reason} (does the offset begin a record?)")

    def to_arrow(self, headers: bool = False) -> pa.RecordBatch:
        """All records as one batch of ARROW_SCHEMA, or of ARROW_SCHEMA_WITH_HEADERS."""
        count = len(self)
        attributes, payloads = self._split_bodies()
        ids = self._headers["id"].astype(np.int64)
        columns = [
            _column("key", attributes, _key, count),
            self._gather(payloads),
            pa.array([self._source.topic], pa.string()).take(pa.array(np.zeros(count, np.int32))),
            pa.array(np.full(count, self._source.partition, np.int32)),
            pa.array(np.full(count, self._source.broker, np.int32)),
            pa.array(self._starts + self._offset),
            pa.array(ids),
            _timestamps(ids),
            _column("tag", attributes, attrgetter("tag"), count),
            _column("attribute", attributes, attrgetter("attribute"), count),
        ]
        if headers:
            columns.append(_column("headers", attributes, _headers, count))
            return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA_WITH_HEADERS)
        return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)

    def _split_bodies(self) -> tuple[list[Attributes], npt.NDArray[np.int64]]:
        """What stands in front of each payload ([] if nothing does, anywhere), and where the payloads begin."""
        payloads = self._starts + HEADER_BYTES
        marked = np.flatnonzero(self._headers["flag"] & ATTRIBUTE_FLAG).tolist()
        attributes = [_NO_ATTRIBUTES] * len(self) if marked else []
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
        return attributes, payloads

    def _gather(self, payloads: npt.NDArray[np.int64]) -> pa.Array:
        """The payloads data[payload:end] as one binary column: one copy, no object per row."""
        slices = map(self._data.__getitem__, map(slice, payloads.tolist(), self._ends.tolist()))
        offsets = np.zeros(len(self) + 1, dtype=np.int32)
        np.cumsum(self._ends - payloads, out=offsets[1:])
        values = pa.py_buffer(b"".join(slices))
        return pa.Array.from_buffers(pa.binary(), len(self), [None, pa.py_buffer(offsets), values])


def _column(name: str, attributes: list[Attributes], value: Callable[[Attributes], Any], count: int) -> pa.Array:
    kind = ARROW_SCHEMA_WITH_HEADERS.field(name).type
    return pa.array(map(value, attributes), kind, size=count) if attributes else pa.nulls(count, kind)


def _key(attributes: Attributes) -> bytes | None:
    return " ".join(attributes.keys).encode("utf-8") if attributes.keys else None


def _headers(attributes: Attributes) -> list[dict[str, str | bytes]] | None:
    return [{"key": name, "value": text.encode("utf-8")} for name, text in attributes.headers.items()] or None


def _timestamps(ids: npt.NDArray[np.int64]) -> pa.Array:
    """Store times as UTC microseconds; null where the id is a Java broker's (not positive)."""
    micros = ((ids >> _MILLIS_SHIFT) + EPOCH_MS) * 1000
    nulls: npt.NDArray[Any] = ids <= 0
    return pa.array(micros, mask=nulls).cast(ARROW_SCHEMA.field("timestamp").type)
