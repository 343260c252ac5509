"""SEND_MANY: records of many partitions of one broker in one frame; its answer has one row a part (docs/protocol.md).

    request body   parts × (topic u32 | partition i32 | records u32), then a u32 size for each record, then the records
    answer's body  parts × (message id i64 | offset i64 | partition i32 | response code i32)        all big-endian

Records lie as stored, with message id 0, those of a part together, parts in the order of the table. `topic` counts the
names of the ext field `topics` from 0. Each part is stored or refused on its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .errors import RemoteProtocolError
from .fields import Ext, ExtFields, Field, number
from .limits import MAX_BATCH_RECORDS, MAX_PARTS
from .record import Buffer
from .sends import split_batch

__all__ = [
    "TOPIC_SEPARATOR",
    "PartRows",
    "Parts",
    "SendManyReply",
    "SendManyRequest",
    "announced_parts",
    "decode_rows",
    "encode_parts",
    "encode_rows",
    "split_many",
]

TOPIC_SEPARATOR = "/"
"""No topic has one: it would be a path (limits.check_topic)."""

_PART = np.dtype([("topic", ">u4"), ("partition", ">i4"), ("records", ">u4")])
_ROW = np.dtype([("id", ">i8"), ("offset", ">i8"), ("partition", ">i4"), ("code", ">i4")])


def _read_topics(text: str) -> tuple[str, ...]:
    return tuple(text.split(TOPIC_SEPARATOR))


@dataclass(slots=True)
class SendManyRequest(ExtFields):
    """topics: their names; parts: rows of the table; records: of all parts together."""

    topics: Annotated[tuple[str, ...], Field("topics", _read_topics, TOPIC_SEPARATOR.join)]
    parts: Annotated[int, number("parts", 1, MAX_PARTS)]
    records: Annotated[int, number("count", 1, MAX_BATCH_RECORDS)]


def announced_parts(ext: Ext) -> int:
    """How many parts a request says it has; 0 if that is none of the numbers it may say."""
    try:
        return SendManyRequest.from_ext(ext).parts
    except RemoteProtocolError:
        return 0


@dataclass(slots=True)
class SendManyReply(ExtFields):
    """parts: rows of the answer, as many as were sent. The frame's remark is the first refused part's."""

    parts: Annotated[int, number("parts", 1, MAX_PARTS)]


class Parts(NamedTuple):
    """A decoded request. counts: records of each part; sizes: of each record, header included."""

    topics: list[int]
    partitions: list[int]
    counts: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    records: memoryview


class PartRows(NamedTuple):
    """What became of the parts, a list for each column: first message ids, byte offsets, the partitions (where the
    broker chose them), response codes."""

    ids: list[int]
    offsets: list[int]
    partitions: list[int]
    codes: list[int]


def encode_parts(parts: Sequence[tuple[int, int, int]], sizes: Sequence[int] | npt.NDArray[np.int64]) -> bytes:
    """What lies in front of the records. parts: (number of the topic, partition or -1, records) of each."""
    return np.array(parts, ">i4").tobytes() + np.asarray(sizes, dtype=">u4").tobytes()


def split_many(body: memoryview, request: SendManyRequest) -> Parts:
    """The parts of a request's body. Raises RemoteProtocolError if tables, sizes and body do not agree."""
    table_bytes = request.parts * _PART.itemsize
    if len(body) < table_bytes:
        raise RemoteProtocolError(f"{request.parts} parts have a body of {len(body)} bytes only")
    table = np.frombuffer(body[:table_bytes], _PART)
    counts = table["records"].astype(np.int64)
    if not counts.all() or int(counts.sum()) != request.records:
        raise RemoteProtocolError(f"the parts' records do not add up to {request.records}, or a part has none")
    if int(table["topic"].max()) >= len(request.topics):
        raise RemoteProtocolError(f"a part names topic {int(table['topic'].max())} of {len(request.topics)}")
    if int(table["partition"].min()) < -1:
        raise RemoteProtocolError(f"a part has partition {int(table['partition'].min())}")
    sizes, records = split_batch(body[table_bytes:], request.records)
    return Parts(table["topic"].tolist(), table["partition"].tolist(), counts, sizes, records)


def encode_rows(ids: npt.NDArray[np.int64], offsets: list[int], partitions: list[int], codes: list[int]) -> bytes:
    """The answer's body, one row for each part."""
    rows = np.empty(len(offsets), _ROW)
    rows["id"], rows["offset"], rows["partition"], rows["code"] = ids, offsets, partitions, codes
    return rows.tobytes()


def decode_rows(body: Buffer, parts: int) -> PartRows:
    """The columns. Raises RemoteProtocolError if there are not as many as were sent."""
    if len(body) != parts * _ROW.itemsize:
        raise RemoteProtocolError(f"an answer for {parts} parts has {len(body)} bytes")
    rows: npt.NDArray[Any] = np.frombuffer(body, _ROW)
    return PartRows(*(rows[name].tolist() for name in ("id", "offset", "partition", "code")))
