"""SEND and SEND_BATCH of the framed protocol: extFields and bodies (docs/protocol.md). SEND_MANY: send_many.py.

The plain forms are `encode_frame` of a SendRequest, and SendReply of a parsed frame. What costs most in a single send
stands beside them: `SendHeaders` writes the same bytes, `parse_sent_reply` reads the same values.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from .errors import RemoteProtocolError
from .fields import INT64_MIN, Ext, int_field, text_field
from .frames import PREFIX_BYTES, encode_frame, encode_prefix
from .limits import INT32_MAX, INT32_MIN, INT64_MAX, MAX_BATCH_RECORDS
from .record import HEADER_BYTES
from .statuses import RequestCode
from .topic_partition import TopicPartition
from .transactions import NULL_KEY, parse_key

__all__ = [
    "TX_KEY",
    "SendBatchRequest",
    "SendHeaders",
    "SendReply",
    "SendRequest",
    "SentReply",
    "parse_sent_reply",
    "split_batch",
]

TX_KEY = "txKey"
"""The ext field that puts a message into a transaction."""


def _tx_key(ext: Ext) -> str | None:
    """The transaction a message belongs to, None for none. `null` stays a key, one that nobody can have begun."""
    text = ext.get(TX_KEY)
    return None if text is None else parse_key(text) or NULL_KEY


def _in_transaction(ext: dict[str, str | int], tx_key: str | None) -> dict[str, str | int]:
    return ext if tx_key is None else {**ext, TX_KEY: tx_key}


class SendRequest(NamedTuple):
    """SEND: one message; the frame's body is the record's body. Checksum -1 = do not check; partition -1 = any.

    tx_key: the transaction it belongs to (docs/transactions.md), None for none; then the partition must be named.
    """

    topic: str
    partition: int
    flag: int
    checksum: int
    tx_key: str | None = None

    def to_ext(self) -> dict[str, str | int]:
        ext: dict[str, str | int] = {
            "topic": self.topic,
            "partition": self.partition,
            "flag": self.flag,
            "checksum": self.checksum,
        }
        return _in_transaction(ext, self.tx_key)

    @classmethod
    def from_ext(cls, ext: Ext) -> Self:
        return cls(
            text_field(ext, "topic"),
            int_field(ext, "partition", -1, INT32_MAX),
            int_field(ext, "flag", INT32_MIN, INT32_MAX, 0),
            int_field(ext, "checksum", -1, INT32_MAX, -1),
            _tx_key(ext),
        )


class SendReply(NamedTuple):
    """Answer to SEND and SEND_BATCH: id of the (first) message, its partition, its byte offset.

    A batch's other ids follow from the first (message_id.message_ids_from), its offsets from the record sizes. In a
    transaction the offset is -1: it is known at the commit.
    """

    message_id: int
    partition: int
    offset: int

    def to_ext(self) -> dict[str, str | int]:
        return {"msgId": self.message_id, "partition": self.partition, "offset": self.offset}

    @classmethod
    def from_ext(cls, ext: Ext) -> Self:
        return cls(
            int_field(ext, "msgId", INT64_MIN, INT64_MAX),
            int_field(ext, "partition", 0, INT32_MAX),
            int_field(ext, "offset", -1, INT64_MAX),
        )


class SendBatchRequest(NamedTuple):
    """SEND_BATCH: body = count x u32 record sizes (header + body), then the records as stored, with message id 0.

    tx_key: as for SEND.
    """

    topic: str
    partition: int
    records: int
    tx_key: str | None = None

    def to_ext(self) -> dict[str, str | int]:
        ext: dict[str, str | int] = {"topic": self.topic, "partition": self.partition, "count": self.records}
        return _in_transaction(ext, self.tx_key)

    @classmethod
    def from_ext(cls, ext: Ext) -> Self:
        return cls(
            text_field(ext, "topic"),
            int_field(ext, "partition", -1, INT32_MAX),
            int_field(ext, "count", 1, MAX_BATCH_RECORDS),
            _tx_key(ext),
        )


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
