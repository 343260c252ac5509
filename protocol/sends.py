"""SEND, SEND_BATCH and SEND_MANY of the framed protocol: extFields and bodies (docs/protocol.md).

The plain way is to pass a SendRequest to `encode_frame`, and to decode SendReply from a parsed frame. For the most
expensive steps of a single send there are faster functions: `SendHeaders` writes the same bytes, and `parse_sent_reply`
reads the same values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self

from .arrays import np
from .errors import RemoteProtocolError
from .fields import INT64_MIN, Ext, ExtFields, Field, PartitionField, TopicField, number
from .frames import PREFIX_BYTES, RESPONSE, Frame, encode_frame, encode_prefix
from .limits import INT32_MAX, INT32_MIN, INT64_MAX, MAX_BATCH_RECORDS, MAX_PARTS
from .record import HEADER_BYTES, Buffer
from .statuses import RequestCode, ResponseCode
from .topic_partition import TopicPartition
from .transactions import TX_KEY, parse_own_key

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "TOPIC_SEPARATOR",
    "CopiedReply",
    "PartRows",
    "Parts",
    "SendBatchRequest",
    "SendHeaders",
    "SendManyReply",
    "SendManyRequest",
    "SendReply",
    "SendRequest",
    "SentReply",
    "announced_parts",
    "announced_topics",
    "decode_replicas",
    "decode_rows",
    "encode_parts",
    "encode_replicas",
    "encode_rows",
    "encode_sent_reply",
    "parse_common_send",
    "parse_sent_reply",
    "send_reply",
    "split_batch",
    "split_many",
]

TxKey = Annotated[str | None, Field(TX_KEY, parse_own_key, left_out=True)]
"""The transaction that a message belongs to (docs/transactions.md); None: no transaction."""

AnyPartition = Annotated[int, number("partition", -1, INT32_MAX)]
"""-1: the broker chooses."""


MAX_REPLICAS = 255
"""An answer reports a larger number of nodes as this number."""

ProducerId = Annotated[int, number("producerId", 1, INT64_MAX, left_out=True)]
"""Identifies the producer that numbers its sends: 63 random bits. 0, which is not written: no producer, and the send is
stored each time it arrives.

A producer's sends to a partition have increasing numbers. A repetition of the last number is stored once, and answered
as the first time; a lower number is refused. The partition must be named.
"""

SequenceNumber = Annotated[int, number("sequence", 1, INT64_MAX, left_out=True)]

RepeatAge = Annotated[int, number("repeatMs", 0, INT64_MAX, left_out=True)]
"""How long ago a repeated send was first sent, milliseconds. -1, which is not written: the send is not repeated.

A broker that has had to forget producers refuses a repeated send from an unknown producer, because it may be stored
already.
"""


def _read_parts(text: str) -> frozenset[int]:
    if text.count(",") >= MAX_PARTS:
        raise RemoteProtocolError(f"extFields.repeats names more than {MAX_PARTS} parts")
    numbers = text.split(",")
    if all(each.isascii() and each.isdigit() and len(each) <= 9 for each in numbers):
        return frozenset(map(int, numbers))
    raise RemoteProtocolError(f"extFields.repeats={text[:40]!r} is no list of numbers with commas")


def _write_parts(parts: frozenset[int]) -> str:
    return ",".join(map(str, sorted(parts)))


@dataclass(slots=True)
class SendRequest(ExtFields):
    """SEND: one message; the frame's body is the record's body. Checksum -1 = do not check.

    In a transaction the partition must be named.
    """

    topic: TopicField
    partition: AnyPartition
    flag: Annotated[int, number("flag", INT32_MIN, INT32_MAX)] = 0
    checksum: Annotated[int, number("checksum", -1, INT32_MAX)] = -1
    tx_key: TxKey = None
    producer: ProducerId = 0
    sequence: SequenceNumber = 0
    repeat_ms: RepeatAge = -1

    @classmethod
    def from_ext(cls, ext: Ext) -> Self:
        """Decode as ExtFields does; `ext` may already hold the decoded values (`parse_common_send`)."""
        return ext.request if type(ext) is _SendExt else super(SendRequest, cls).from_ext(ext)  # type: ignore[return-value]


@dataclass(slots=True)
class SendReply(ExtFields):
    """Answer to SEND and SEND_BATCH: id of the (first) message, its partition, its byte offset.

    A batch's other ids follow from the first (message_id.message_ids_from), its offsets from the record sizes. In a
    transaction the offset is -1: it is known at the commit.
    """

    message_id: Annotated[int, number("msgId", INT64_MIN, INT64_MAX)]
    partition: PartitionField
    offset: Annotated[int, number("offset", -1, INT64_MAX)]


@dataclass(slots=True)
class CopiedReply(SendReply):
    """SendReply of a broker set's leader.

    replicas: the number of nodes that had the message when the leader answered, including the leader: on the disk with
    `ack=disk`, otherwise in memory. In a transaction, and with `ack=leader`, only the leader counts. A broker outside a
    set does not write the field.
    """

    replicas: Annotated[int, number("replicas", 1, MAX_REPLICAS, left_out=True)] = 0


def send_reply(message_id: int, partition: int, offset: int, replicas: int) -> SendReply:
    """Return the reply. replicas: 0 for a broker outside a set."""
    if not replicas:
        return SendReply(message_id, partition, offset)
    return CopiedReply(message_id, partition, offset, min(replicas, MAX_REPLICAS))


@dataclass(slots=True)
class SendBatchRequest(ExtFields):
    """SEND_BATCH: body = count x u32 record sizes (header + body), then the records as stored, with message id 0.

    In a transaction the partition must be named.
    """

    topic: TopicField
    partition: AnyPartition
    records: Annotated[int, number("count", 1, MAX_BATCH_RECORDS)]
    tx_key: TxKey = None
    producer: ProducerId = 0
    sequence: SequenceNumber = 0
    repeat_ms: RepeatAge = -1


def split_batch(body: memoryview, count: int) -> tuple[npt.NDArray[np.int64], memoryview]:
    """Return record sizes and records of a SEND_BATCH body, or of an answer to PULL with `records`.

    Raises RemoteProtocolError if the sizes do not fill the body. They are not compared with the records' headers.
    """
    table = 4 * count
    if len(body) < table:
        raise RemoteProtocolError(f"batch of {count} records has a body of {len(body)} bytes only")
    sizes = np.frombuffer(body[:table], dtype=">u4").astype(np.int64)
    records = body[table:]
    if int(sizes.min()) < HEADER_BYTES or int(sizes.sum()) != len(records):
        raise RemoteProtocolError(f"batch: record sizes do not add up to {len(records)} bytes")
    return sizes, records


# the codec writes these numbers into a template as placeholders, so that codec and template cannot differ
_OPAQUE, _FLAG, _CHECKSUM, _SEQUENCE = 1_900_000_001, 1_900_000_002, 1_900_000_003, 1_900_000_004
_HOLES = (
    (b'"opaque":%d', _OPAQUE),
    (b'"flag":"%d"', _FLAG),
    (b'"checksum":"%d"', _CHECKSUM),
    (b'"sequence":"%d"', _SEQUENCE),
)


class SendHeaders(dict[TopicPartition, bytes]):
    """SEND headers by partition, written once, with %d for opaque, flag, checksum and, if the producer numbers its
    sends, the sequence.

    Encoding the same JSON again would cost more than all other outgoing work of a blocking send.
    """

    def __init__(self, producer: int = 0) -> None:
        """producer: the id of the producer; 0 if its sends are not numbered."""
        super().__init__()
        self._producer = producer

    def __missing__(self, partition: TopicPartition) -> bytes:
        counted = (self._producer, _SEQUENCE) if self._producer else ()
        request = SendRequest(partition.topic, partition.partition, _FLAG, _CHECKSUM, None, *counted)
        json = encode_frame(RequestCode.SEND, _OPAQUE, request.to_ext())[PREFIX_BYTES:].replace(b"%", b"%%")
        for hole, mark in _HOLES:  # a quote inside a topic is escaped, so each is found once
            json = json.replace(hole % mark, hole, 1)
        self[partition] = json
        return json

    def encode(
        self, opaque: int, partition: TopicPartition, flag: int, checksum: int, body_bytes: int, sequence: int = 0
    ) -> bytes:
        """Return prefix and header of a SEND frame, equal to those of `encode_frame`."""
        holes = (opaque, flag, checksum, sequence) if self._producer else (opaque, flag, checksum)
        json = self[partition] % holes
        return encode_prefix(len(json), body_bytes) + json


class _SendExt(Mapping[str, str]):
    """The extFields of a SEND without a transaction, whose values are already decoded."""

    __slots__ = ("request",)

    def __init__(self, request: SendRequest) -> None:
        self.request = request

    def __getitem__(self, name: str) -> str:
        return str(self.request.to_ext()[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.request.to_ext())

    def __len__(self) -> int:
        return len(self.request.to_ext())

    def __contains__(self, name: object) -> bool:
        return name != TX_KEY and name in self.request.to_ext()


# the output of SendHeaders.encode; numbers with more digits, and other forms, are left to parse_frame
_COMMON_SEND = re.compile(
    rb'.{8}\{"code":%d,"language":"[A-Z]{1,16}","version":[1-9]\d{0,8},"opaque":(0|[1-9]\d{0,8}),"flag":0,"remark":"",'
    rb'"extFields":\{"topic":"([!#-\[\]-~]{1,240})","partition":"(\d{1,9})","flag":"(\d{1,9})",'
    rb'"checksum":"(\d{1,10})"(?:,"producerId":"(\d{1,19})","sequence":"(\d{1,18})")?\}\}' % RequestCode.SEND,
    re.DOTALL,
)
_new_tuple = tuple.__new__


def parse_common_send(data: bytes, position: int, length: int) -> Frame | None:
    """As parse_frame, for a SEND in our producers' form: one regular expression instead of JSON and a mapping of texts.
    None for all other forms. Its benchmark is `blocking-1`."""
    match = _COMMON_SEND.match(data, position, position + length)
    if match is None:
        return None
    opaque, topic, partition, flag, checksum, producer, sequence = match.groups()
    crc = int(checksum)
    if producer is None:
        request = SendRequest(topic.decode(), int(partition), int(flag), crc)
    else:
        request = SendRequest(topic.decode(), int(partition), int(flag), crc, None, int(producer), int(sequence))
        if not (0 < request.producer <= INT64_MAX and request.sequence):
            return None
    body = match.end()
    # the header's length determines where the body begins
    if crc > INT32_MAX or body != position + PREFIX_BYTES + int.from_bytes(data[position + 5 : position + 8], "big"):
        return None
    fields = (int(RequestCode.SEND), int(opaque), 0, "", _SendExt(request), memoryview(data)[body : position + length])
    return _new_tuple(Frame, fields)


class SentReply(NamedTuple):
    """A successful answer to SEND or SEND_BATCH (CopiedReply), with its opaque."""

    opaque: int
    message_id: int
    partition: int
    offset: int
    replicas: int = 0


def _sent_template(replicas: int = 0) -> bytes:
    holes = 1_900_000_001, 1_900_000_002, 1_900_000_003, 1_900_000_004  # so that the codec writes the template
    ext = (CopiedReply(*holes[1:], replicas) if replicas else SendReply(*holes[1:])).to_ext()
    json = encode_frame(ResponseCode.SUCCESS, holes[0], ext, flag=RESPONSE)[PREFIX_BYTES:]
    for hole in (*holes, replicas) if replicas else holes:
        json = json.replace(b"%d" % hole, b"%d", 1)
    return json


_SENT_TEMPLATE, _COPIED_TEMPLATE = _sent_template(), _sent_template(1_900_000_005)


def encode_sent_reply(opaque: int, message_id: int, partition: int, offset: int, replicas: int = 0) -> bytes:
    """Return the frame that answers a SEND or SEND_BATCH, equal to `encode_frame` of `send_reply`. Its benchmark is
    `blocking-1`.
    """
    if replicas:
        json = _COPIED_TEMPLATE % (opaque, message_id, partition, offset, min(replicas, MAX_REPLICAS))
    else:
        json = _SENT_TEMPLATE % (opaque, message_id, partition, offset)
    return encode_prefix(len(json), 0) + json


# exactly the output of frames.encode_frame
_SENT = re.compile(
    rb'.{8}\{"code":0,"language":"[A-Z]{1,16}","version":\d{1,9},"opaque":(\d{1,10}),"flag":1,"remark":"",'
    rb'"extFields":\{"msgId":"(\d{1,19})","partition":"(\d{1,9})","offset":"(-1|\d{1,19})"'
    rb'(?:,"replicas":"(\d{1,3})")?\}\}',
    re.DOTALL,
)
_LONGEST_SENT = 256


def parse_sent_reply(data: bytes, start: int, end: int) -> SentReply | None:
    """Return the answer to a send if the frame that fills data[start:end] has the usual form; else None: use
    parse_frame."""
    if end - start > _LONGEST_SENT:
        return None
    match = _SENT.fullmatch(data, start, end)
    return None if match is None else SentReply(*map(int, match.groups(0)))


# --- many partitions in one frame -------------------------------------------------------------------------------------

TOPIC_SEPARATOR = "/"
"""No topic contains this character, because the topic would be a path (limits.check_topic)."""


def _read_topics(text: str) -> tuple[str, ...]:
    if text.count(TOPIC_SEPARATOR) >= MAX_PARTS:  # each part names one topic
        raise RemoteProtocolError(f"extFields.topics names more than {MAX_PARTS} topics")
    return tuple(text.split(TOPIC_SEPARATOR))


@dataclass(slots=True)
class SendManyRequest(ExtFields):
    """SEND_MANY: records of many partitions of one broker in one frame. Each part is stored or refused on its own.

        body           parts × (topic u32 | partition i32 | records u32), with a producer parts × (sequence i64),
                       a u32 size for each record, then the records
        answer's body  parts × (message id i64 | offset i64 | partition i32 | response code i32), of a broker set's
                       leader then parts × (replicas u8), as in CopiedReply                           all big-endian

    The records have their stored form, with message id 0. The records of a part lie together, and the parts are in the
    order of the table. `topic` is an index, from 0, into the names in `topics`. parts: number of rows of the table;
    records: number of records of all parts together. repeats: the row numbers of parts that were sent before, the first
    of them `repeat_ms` ago.
    """

    topics: Annotated[tuple[str, ...], Field("topics", _read_topics, TOPIC_SEPARATOR.join)]
    parts: Annotated[int, number("parts", 1, MAX_PARTS)]
    records: Annotated[int, number("count", 1, MAX_BATCH_RECORDS)]
    producer: ProducerId = 0
    repeat_ms: RepeatAge = -1
    repeats: Annotated[frozenset[int], Field("repeats", _read_parts, _write_parts, left_out=True)] = frozenset()


def announced_parts(ext: Ext) -> int:
    """Return how many parts a request announces; 0 if that is not a valid number."""
    try:
        return SendManyRequest.from_ext(ext).parts
    except RemoteProtocolError:
        return 0


def announced_topics(ext: Ext) -> tuple[str | None, ...]:
    """Return the topics that a request names, each once; (None,) if it names none, or too many to be served."""
    text = ext.get("topics")
    try:
        return (None,) if text is None else tuple(dict.fromkeys(_read_topics(text)))
    except RemoteProtocolError:
        return (None,)


@dataclass(slots=True)
class SendManyReply(ExtFields):
    """parts: number of rows of the answer, as many as the request had. The frame's remark is the remark of the first
    refused part.
    """

    parts: Annotated[int, number("parts", 1, MAX_PARTS)]


class Parts(NamedTuple):
    """A decoded request. counts: records of each part; sizes: of each record, header included; sequences: of each part,
    empty without a producer."""

    topics: list[int]
    partitions: list[int]
    counts: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    records: memoryview
    sequences: Sequence[int] = ()


class PartRows(NamedTuple):
    """The results of the parts, one list per column: first message ids, byte offsets, partitions (the broker may have
    chosen them), response codes.
    """

    ids: list[int]
    offsets: list[int]
    partitions: list[int]
    codes: list[int]


@cache
def _part() -> np.dtype[Any]:
    return np.dtype([("topic", ">u4"), ("partition", ">i4"), ("records", ">u4")])


@cache
def _row() -> np.dtype[Any]:
    return np.dtype([("id", ">i8"), ("offset", ">i8"), ("partition", ">i4"), ("code", ">i4")])


def encode_parts(
    parts: Sequence[tuple[int, int, int]],
    sizes: Sequence[int] | npt.NDArray[np.int64],
    sequences: Sequence[int] = (),
) -> bytes:
    """Return the bytes before the records. parts: for each part (index of the topic, partition or -1, number of
    records).
    """
    numbers = np.array(sequences, ">i8").tobytes() if sequences else b""
    return np.array(parts, ">i4").tobytes() + numbers + np.asarray(sizes, dtype=">u4").tobytes()


def split_many(body: memoryview, request: SendManyRequest) -> Parts:
    """Return the parts of a request's body. Raises RemoteProtocolError if tables, sizes and body do not agree."""
    table_bytes = request.parts * _part().itemsize
    sequences_end = table_bytes + (request.parts * 8 if request.producer else 0)
    if len(body) < sequences_end:
        raise RemoteProtocolError(f"{request.parts} parts have a body of {len(body)} bytes only")
    table = np.frombuffer(body[:table_bytes], _part())
    counts = table["records"].astype(np.int64)
    if not counts.all() or int(counts.sum()) != request.records:
        raise RemoteProtocolError(f"the parts' records do not add up to {request.records}, or a part has none")
    if int(table["topic"].max()) >= len(request.topics):
        raise RemoteProtocolError(f"a part names topic {int(table['topic'].max())} of {len(request.topics)}")
    if int(table["partition"].min()) < -1:
        raise RemoteProtocolError(f"a part has partition {int(table['partition'].min())}")
    sequences = np.frombuffer(body[table_bytes:sequences_end], ">i8")
    if request.producer and int(sequences.min()) < 1:
        raise RemoteProtocolError(f"a part has the sequence {int(sequences.min())}")
    if request.producer and int(table["partition"].min()) < 0:
        raise RemoteProtocolError("a part with a sequence names no partition")
    sizes, records = split_batch(body[sequences_end:], request.records)
    return Parts(table["topic"].tolist(), table["partition"].tolist(), counts, sizes, records, sequences.tolist())


def encode_rows(ids: list[int], offsets: list[int], partitions: list[int], codes: list[int]) -> bytes:
    """Return the answer's body, one row for each part."""
    rows = np.empty(len(offsets), _row())
    rows["id"], rows["offset"], rows["partition"], rows["code"] = ids, offsets, partitions, codes
    return rows.tobytes()


def encode_replicas(replicas: Sequence[int]) -> bytes:
    """Return the bytes after the rows in the answer of a broker set's leader."""
    return np.minimum(replicas, MAX_REPLICAS).astype(np.uint8).tobytes()


def decode_replicas(body: Buffer, parts: int) -> Sequence[int]:
    """Return the replicas of each part; 0 from a broker outside a set."""
    found = memoryview(body)[parts * _row().itemsize :][:parts]
    return list(found) if len(found) == parts else [0] * parts


def decode_rows(body: Buffer, parts: int) -> PartRows:
    """Return the columns of the answer's rows. After the rows follow the replicas, and any fields of a newer broker.

    Raises RemoteProtocolError if rows are missing.
    """
    if len(body) < parts * _row().itemsize:
        raise RemoteProtocolError(f"an answer for {parts} parts has {len(body)} bytes")
    rows: npt.NDArray[Any] = np.frombuffer(body, _row(), parts)
    return PartRows(*(rows[name].tolist() for name in ("id", "offset", "partition", "code")))
