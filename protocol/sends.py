"""The requests SEND, SEND_BATCH and SEND_MANY of the framed protocol: their extFields and bodies (docs/protocol.md).

`encode_frame` can encode each of these requests, and their answers can be decoded from parsed frames. For a SEND and
its answer there are also faster functions: `SendHeaders` writes the same header bytes as `encode_frame`, and
`parse_sent_reply` reads the same values as the decoding of a SendReply.
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
"""The key of the message's transaction (docs/transactions.md); None means that the message is not part of a
transaction.
"""

AnyPartition = Annotated[int, number("partition", -1, INT32_MAX)]
"""The number of a partition; -1 means that the broker chooses the partition."""


MAX_REPLICAS = 255
"""Maximum number of nodes that an answer can report. If more nodes have the message, the answer reports this
maximum.
"""

ProducerId = Annotated[int, number("producerId", 1, INT64_MAX, left_out=True)]
"""The id of a producer that numbers its sends: 63 random bits. 0 means that the send has no producer id: the frame has
no field `producerId`, and the broker stores the send each time it arrives, even if it is a repetition.

A producer's sends to a partition have increasing sequence numbers. If a send has the same number as the last stored
send of this producer to this partition, it is a repetition: the broker does not store it a second time, and sends the
same answer as for the first copy. A send with a lower number is refused. A send with a producer id must name its
partition.
"""

SequenceNumber = Annotated[int, number("sequence", 1, INT64_MAX, left_out=True)]

RepeatAge = Annotated[int, number("repeatMs", 0, INT64_MAX, left_out=True)]
"""For a repeated send, the time since it was first sent, in milliseconds. -1 means that the producer sends it for the
first time; the frame then has no field `repeatMs`.

A broker refuses a repeated send of a producer that it does not know if it has ever had to forget producers: this
producer may be a forgotten one, so the broker cannot tell whether it has stored the send.
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
    """SEND: store one message. The frame's body is the record's body. checksum: the checksum of this body; -1 means
    that there is none, so the broker checks nothing.

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
        """Decode the extFields like ExtFields.from_ext. If `ext` comes from `parse_common_send`, its values are already
        decoded and are not decoded again.
        """
        return ext.request if type(ext) is _SendExt else super(SendRequest, cls).from_ext(ext)  # type: ignore[return-value]


@dataclass(slots=True)
class SendReply(ExtFields):
    """Answer to SEND and SEND_BATCH: the id of the message, its partition and its byte offset. For a batch these are
    the id and the offset of its first message.

    The client can compute the ids of the other messages of a batch from the first id (message_id.message_ids_from), and
    their offsets from the record sizes. In a transaction the offset is -1, because the messages of a transaction get
    their offsets only at the commit.
    """

    message_id: Annotated[int, number("msgId", INT64_MIN, INT64_MAX)]
    partition: PartitionField
    offset: Annotated[int, number("offset", -1, INT64_MAX)]


@dataclass(slots=True)
class CopiedReply(SendReply):
    """The SendReply that the leader of a broker set sends.

    replicas: the number of nodes that had the message when the leader answered, including the leader. With `ack=disk` a
    node counts if it had the message on the disk. With other values of `ack` a node counts if it had the message in
    memory. In a transaction, and with `ack=leader`, only the leader counts. A broker outside a set leaves the field
    out.
    """

    replicas: Annotated[int, number("replicas", 1, MAX_REPLICAS, left_out=True)] = 0


def send_reply(message_id: int, partition: int, offset: int, replicas: int) -> SendReply:
    """Return the answer to a send. replicas: the number of nodes that have the message; 0 for a broker outside a
    set.
    """
    if not replicas:
        return SendReply(message_id, partition, offset)
    return CopiedReply(message_id, partition, offset, min(replicas, MAX_REPLICAS))


@dataclass(slots=True)
class SendBatchRequest(ExtFields):
    """SEND_BATCH: store a batch of messages in one partition. The frame's body has `count` record sizes (u32, header
    and body together), followed by the records in their stored form, with message id 0.

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
    """Return the record sizes and the records in the body of a SEND_BATCH, or in an answer to PULL with `records`.

    Raises RemoteProtocolError if the sizes do not fill the body. The function does not check that the sizes agree with
    the lengths in the records' headers.
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
    """A cache of the headers of SEND frames, by partition. Each header is a template with %d for the opaque, the flag,
    the checksum and, if the producer numbers its sends, the sequence number.

    The cache saves encoding the same JSON for every send. For a blocking send, the encoding would cost more than all
    other work on the request.
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
        """Return the prefix and the header of a SEND frame. `encode_frame` would return the same bytes."""
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
    """Parse a SEND that has the form that metaq's own producers write, and return it as parse_frame does; return None
    for all other frames. This function is faster than parse_frame, because it uses one regular expression instead of
    parsing JSON. The benchmark `blocking-1` measures the effect.
    """
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
    """The values of a successful answer to SEND or SEND_BATCH (as in CopiedReply), with the opaque of the request."""

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
    """Return the frame that answers a SEND or SEND_BATCH. The frame is equal to the result of `encode_frame` for
    `send_reply`. The benchmark `blocking-1` measures this function.
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
    """Parse the answer to a send if the frame data[start:end] has the usual form. If it has another form, return None;
    the caller then uses parse_frame.
    """
    if end - start > _LONGEST_SENT:
        return None
    match = _SENT.fullmatch(data, start, end)
    return None if match is None else SentReply(*map(int, match.groups(0)))


# --- many partitions in one frame -------------------------------------------------------------------------------------

TOPIC_SEPARATOR = "/"
"""The character between two topic names in the extField `topics`. No name contains this character, because a topic is
the name of a directory (limits.check_topic).
"""


def _read_topics(text: str) -> tuple[str, ...]:
    if text.count(TOPIC_SEPARATOR) >= MAX_PARTS:  # each part names one topic
        raise RemoteProtocolError(f"extFields.topics names more than {MAX_PARTS} topics")
    return tuple(text.split(TOPIC_SEPARATOR))


@dataclass(slots=True)
class SendManyRequest(ExtFields):
    """SEND_MANY: store records in many partitions of one broker by one frame. The records for one partition are called
    a part. The broker stores or refuses each part independently of the other parts.

        body           parts × (topic u32 | partition i32 | records u32), with a producer parts × (sequence i64),
                       a u32 size for each record, then the records
        answer's body  parts × (message id i64 | offset i64 | partition i32 | response code i32), of a broker set's
                       leader then parts × (replicas u8), as in CopiedReply                           all big-endian

    The body begins with a table that has one row for each part. The records have their stored form, but with the
    message id 0. They are in the order of the table: first all records of the first part. In a row, `topic` is an
    index, from 0, into the names in the extField `topics`.
    parts: number of rows of the table. records: number of records of all parts together. repeats: the row numbers of
    the parts that the producer has already sent before this request. repeat_ms: milliseconds since the producer first
    sent the oldest of these parts.
    """

    topics: Annotated[tuple[str, ...], Field("topics", _read_topics, TOPIC_SEPARATOR.join)]
    parts: Annotated[int, number("parts", 1, MAX_PARTS)]
    records: Annotated[int, number("count", 1, MAX_BATCH_RECORDS)]
    producer: ProducerId = 0
    repeat_ms: RepeatAge = -1
    repeats: Annotated[frozenset[int], Field("repeats", _read_parts, _write_parts, left_out=True)] = frozenset()


def announced_parts(ext: Ext) -> int:
    """Return the number of parts that the extFields of a SEND_MANY announce. The number is 0 if the extFields are
    invalid.
    """
    try:
        return SendManyRequest.from_ext(ext).parts
    except RemoteProtocolError:
        return 0


def announced_topics(ext: Ext) -> tuple[str | None, ...]:
    """Return the names of the topics in the extFields of a SEND_MANY, each once. Return (None,) if they name no topic,
    or more topics than are allowed.
    """
    text = ext.get("topics")
    try:
        return (None,) if text is None else tuple(dict.fromkeys(_read_topics(text)))
    except RemoteProtocolError:
        return (None,)


@dataclass(slots=True)
class SendManyReply(ExtFields):
    """Answer to SEND_MANY. parts: number of rows in the answer's body, one for each part of the request. The frame's
    remark is the error text of the first refused part.
    """

    parts: Annotated[int, number("parts", 1, MAX_PARTS)]


class Parts(NamedTuple):
    """The decoded body of a SEND_MANY. counts: the number of records of each part. sizes: the size of each record in
    bytes, header included. sequences: the sequence number of each part; empty if the request has no producer id.
    """

    topics: list[int]
    partitions: list[int]
    counts: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    records: memoryview
    sequences: Sequence[int] = ()


class PartRows(NamedTuple):
    """The results of the parts of a SEND_MANY. Each attribute is a list with one item for each part: the id of the
    part's first message, its byte offset, its partition (the broker may have chosen it) and the response code.
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
    """Return the beginning of a SEND_MANY's body, that is, all bytes before the records. parts: for each part (index of
    the topic, partition or -1, number of records). sizes: the size of each record.
    """
    numbers = np.array(sequences, ">i8").tobytes() if sequences else b""
    return np.array(parts, ">i4").tobytes() + numbers + np.asarray(sizes, dtype=">u4").tobytes()


def split_many(body: memoryview, request: SendManyRequest) -> Parts:
    """Decode the body of a SEND_MANY. Raises RemoteProtocolError if the table, the record sizes and the length of the
    body do not agree.
    """
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
    """Encode the body of the answer to a SEND_MANY, one row for each part."""
    rows = np.empty(len(offsets), _row())
    rows["id"], rows["offset"], rows["partition"], rows["code"] = ids, offsets, partitions, codes
    return rows.tobytes()


def encode_replicas(replicas: Sequence[int]) -> bytes:
    """Encode the bytes that the leader of a broker set adds after the rows of the answer: the number of replicas of
    each part.
    """
    return np.minimum(replicas, MAX_REPLICAS).astype(np.uint8).tobytes()


def decode_replicas(body: Buffer, parts: int) -> Sequence[int]:
    """Return the number of replicas of each part from the answer's body. The numbers are 0 if a broker outside a set
    has answered.
    """
    found = memoryview(body)[parts * _row().itemsize :][:parts]
    return list(found) if len(found) == parts else [0] * parts


def decode_rows(body: Buffer, parts: int) -> PartRows:
    """Decode the rows of the answer to a SEND_MANY. Bytes after the rows are ignored: they are the numbers of replicas,
    and fields that a newer broker may add.

    Raises RemoteProtocolError if rows are missing.
    """
    if len(body) < parts * _row().itemsize:
        raise RemoteProtocolError(f"an answer for {parts} parts has {len(body)} bytes")
    rows: npt.NDArray[Any] = np.frombuffer(body, _row(), parts)
    return PartRows(*(rows[name].tolist() for name in ("id", "offset", "partition", "code")))
