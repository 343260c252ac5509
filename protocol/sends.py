"""SEND and SEND_BATCH of the framed protocol: extFields and bodies (docs/protocol.md). SEND_MANY: send_many.py."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from .errors import RemoteProtocolError
from .fields import INT64_MIN, Ext, int_field, text_field
from .limits import INT32_MAX, INT32_MIN, INT64_MAX, MAX_BATCH_RECORDS
from .record import HEADER_BYTES
from .transactions import NULL_KEY, parse_key

__all__ = ["TX_KEY", "SendBatchRequest", "SendReply", "SendRequest", "split_batch"]

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
