"""SEND and SEND_BATCH of the framed protocol: extFields and bodies (docs/protocol.md). SEND_MANY: send_many.py.

The plain forms are `encode_frame` of a SendRequest, and SendReply of a parsed frame. What costs most in a single send
stands beside them: `SendHeaders` writes the same bytes, `parse_sent_reply` reads the same values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt

from .errors import RemoteProtocolError
from .fields import INT64_MIN, ExtFields, Field, PartitionField, TopicField, number
from .frames import PREFIX_BYTES, encode_frame, encode_prefix
from .limits import INT32_MAX, INT32_MIN, INT64_MAX, MAX_BATCH_RECORDS
from .record import HEADER_BYTES
from .statuses import RequestCode
from .topic_partition import TopicPartition
from .transactions import TX_KEY, parse_own_key

__all__ = [
    "SendBatchRequest",
    "SendHeaders",
    "SendReply",
    "SendRequest",
    "SentReply",
    "parse_sent_reply",
    "split_batch",
]

TxKey = Annotated[str | None, Field(TX_KEY, parse_own_key, left_out=True)]
"""The transaction that a message belongs to (docs/transactions.md), None for none."""

AnyPartition = Annotated[int, number("partition", -1, INT32_MAX)]
"""-1: the broker chooses."""


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
class SendBatchRequest(ExtFields):
    """SEND_BATCH: body = count x u32 record sizes (header + body), then the records as stored, with message id 0.

    In a transaction the partition must be named.
    """

    topic: TopicField
    partition: AnyPartition
    records: Annotated[int, number("count", 1, MAX_BATCH_RECORDS)]
    tx_key: TxKey = None


def split_batch(body: memoryview, count: int) -> tuple[npt.NDArray[np.int64], memoryview]:
    """Record sizes and records of a SEND_BATCH body, or of an answer to PULL with `records`.

    Raises RemoteProtocolError if the sizes do not fill the body. Whether they are those that the records have in their
    headers is not looked at.
    """
    table = 4 * count
    if len(body) < table:
        raise RemoteProtocolError(f"batch of {count} records has a body of {len(body)} bytes only")
    sizes = np.frombuffer(body[:table], dtype=">u4").astype(np.int64)
    records = body[table:]
    if int(sizes.min()) < HEADER_BYTES or int(sizes.sum()) != len(records):
        raise RemoteProtocolError(f"batch: record sizes do not add up to {len(records)} bytes")
    return sizes, records


# what the codec writes into a template, so that the two cannot differ
_OPAQUE, _FLAG, _CHECKSUM = 1_900_000_001, 1_900_000_002, 1_900_000_003
_HOLES = ((b'"opaque":%d', _OPAQUE), (b'"flag":"%d"', _FLAG), (b'"checksum":"%d"', _CHECKSUM))


class SendHeaders(dict[TopicPartition, bytes]):
    """SEND headers by partition, written once, with %d for opaque, flag and checksum.

    Encoding the same JSON again would cost more than everything else a blocking send does on the way out.
    """

    def __missing__(self, partition: TopicPartition) -> bytes:
        request = SendRequest(partition.topic, partition.partition, _FLAG, _CHECKSUM)
        json = encode_frame(RequestCode.SEND, _OPAQUE, request.to_ext())[PREFIX_BYTES:].replace(b"%", b"%%")
        for hole, mark in _HOLES:  # a quote inside a topic is escaped, so each is found once
            json = json.replace(hole % mark, hole, 1)
        self[partition] = json
        return json

    def encode(self, opaque: int, partition: TopicPartition, flag: int, checksum: int, body_bytes: int) -> bytes:
        """Prefix and header of a SEND frame, the same as `encode_frame` makes."""
        json = self[partition] % (opaque, flag, checksum)
        return encode_prefix(len(json), body_bytes) + json


class SentReply(NamedTuple):
    """A successful answer to SEND or SEND_BATCH (SendReply), with its opaque."""

    opaque: int
    message_id: int
    partition: int
    offset: int


# exactly what frames.encode_frame writes for it
_SENT = re.compile(
    rb'.{8}\{"code":0,"language":"[A-Z]{1,16}","version":\d{1,9},"opaque":(\d{1,10}),"flag":1,"remark":"",'
    rb'"extFields":\{"msgId":"(\d{1,19})","partition":"(\d{1,9})","offset":"(\d{1,19})"\}\}',
    re.DOTALL,
)
_LONGEST_SENT = 256


def parse_sent_reply(data: bytes, start: int, end: int) -> SentReply | None:
    """The answer to a send if the frame that fills data[start:end] is one in the usual form; else parse_frame."""
    if end - start > _LONGEST_SENT:
        return None
    match = _SENT.fullmatch(data, start, end)
    return None if match is None else SentReply(*map(int, match.groups()))
