"""PULL of the framed protocol: extFields and bodies (docs/protocol.md)."""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Annotated

from .arrays import np
from .errors import RemoteProtocolError
from .fields import INT64_MIN, ExtFields, Field, LabelField, PartitionField, TopicField, flag, number
from .limits import INT32_MAX, INT64_MAX, MAX_BATCH_RECORDS, MAX_PULLED_TAGS
from .message_id import UNKNOWN_ID
from .record import HEADER_BYTES
from .sends import split_batch

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "FOLLOWER",
    "MAX_WAIT_MS",
    "NOT_DAMAGED",
    "TAG_EXPRESSION",
    "TAG_SEPARATOR",
    "PullReply",
    "PullRequest",
    "decode_runs",
    "encode_runs",
    "encode_sizes",
    "is_tag_expression",
]

MAX_WAIT_MS = 60_000
"""Longest time a pull may be parked, in milliseconds."""

TAG_SEPARATOR = "||"

TAG_EXPRESSION = "tags are compared as they are, so * and || match nothing: leave it out to get all messages, or write"
"""Error text for RocketMQ's way of naming tags; advice for our way follows."""

FOLLOWER = "follower"
"""Name of the extField that is 1 in a request about stored messages if an in-sync follower of a broker set may answer
the request.
"""

NOT_DAMAGED = -1


def is_tag_expression(tag: str) -> bool:
    """Return whether a tag to filter by is meant as RocketMQ's `*` or `A || B`, which no message would match."""
    return tag == "*" or TAG_SEPARATOR in tag


def _read_tags(text: str) -> tuple[str, ...]:
    if text.count(TAG_SEPARATOR) >= MAX_PULLED_TAGS:
        raise RemoteProtocolError(f"extFields.tags names more than {MAX_PULLED_TAGS} tags")
    return tuple(text.split(TAG_SEPARATOR)) if text else ()


TagsField = Annotated[tuple[str, ...], Field("tags", _read_tags, TAG_SEPARATOR.join, left_out=True)]


@dataclass(slots=True)
class PullRequest(ExtFields):
    """PULL: ask for records from a byte offset on, at most `max_bytes` bytes (the first record is whole even if it is
    larger).

    tags: only records with one of these tags (compared by hash; the client checks again), empty = all. wait_ms: how
    long the broker may park the request when there is nothing to return, 0 … MAX_WAIT_MS. sequence: a number of the
    client's own, which the answer repeats. sizes: whether the answer may begin with a table of record sizes
    (PullReply.records). verify: whether the broker is to verify the checksum of the record at `offset` before it
    returns it: set by a client that has received a record with a wrong checksum. where: only records that match this
    filter by content (docs/filters.md; the client checks again), "" = all. follower: whether an in-sync follower of a
    broker set may answer. If the offset is not readable at the follower yet, the pull waits, because the client has
    read up to it at another node. last_id: the id of the message right before `offset`, as the client has read it;
    UNKNOWN_ID: do not check.
    """

    topic: TopicField
    partition: PartitionField
    offset: Annotated[int, number("offset", INT64_MIN, INT64_MAX)]
    max_bytes: Annotated[int, number("maxBytes", 1, INT32_MAX)]
    group: LabelField = ""
    tags: TagsField = ()
    wait_ms: Annotated[int, number("waitMs", 0, MAX_WAIT_MS)] = 0
    sequence: Annotated[int, number("sequence", 0, INT64_MAX)] = 0
    sizes: Annotated[bool, flag("sizes", left_out=True)] = False
    verify: Annotated[bool, flag("verify", left_out=True)] = False
    follower: Annotated[bool, flag(FOLLOWER, left_out=True)] = False
    where: Annotated[str, Field("where", left_out=True)] = ""
    last_id: Annotated[int, number("lastId", INT64_MIN, INT64_MAX, left_out=True)] = UNKNOWN_ID


@dataclass(slots=True)
class PullReply(ExtFields):
    """Answer to PULL, code SUCCESS, PULL_NOT_FOUND (nothing before the wait ended) or PULL_OFFSET_MOVED.

    next_offset: where to continue (for PULL_OFFSET_MOVED: where readable data begins or ends). min/max_offset: bounds
    of the readable bytes. behind: messages between next_offset and max_offset. runs: 0 = the body is one slice of the
    log from the requested offset on; n = a filtered reply, the body begins with n runs (`encode_runs`). records: n =
    the body begins with the sizes of its n records (`encode_sizes`, `split_batch`); 0 = it does not, even if they were
    requested. damaged_from: in a PULL_OFFSET_MOVED answer, the beginning of damaged bytes that end at next_offset;
    NOT_DAMAGED if the offset moved for another reason. id_before: the id of the message right before the offset, if the
    request had a last_id and this is another message. UNKNOWN_ID if it is the same message, if there is none (any
    more), or if its id is unknown now.
    """

    next_offset: Annotated[int, number("nextOffset", 0, INT64_MAX)]
    min_offset: Annotated[int, number("minOffset", 0, INT64_MAX)]
    max_offset: Annotated[int, number("maxOffset", 0, INT64_MAX)]
    behind: Annotated[int, number("behind", 0, INT64_MAX)]
    sequence: Annotated[int, number("sequence", 0, INT64_MAX)] = 0
    runs: Annotated[int, number("runs", 0, MAX_BATCH_RECORDS)] = 0
    records: Annotated[int, number("records", 0, MAX_BATCH_RECORDS, left_out=True)] = 0
    damaged_from: Annotated[int, number("damagedFrom", NOT_DAMAGED, INT64_MAX, left_out=True)] = NOT_DAMAGED
    id_before: Annotated[int, number("idBefore", INT64_MIN, INT64_MAX, left_out=True)] = UNKNOWN_ID

    def records_in(
        self, body: memoryview, offset: int
    ) -> tuple[list[tuple[int, memoryview]], npt.NDArray[np.int64] | None]:
        """Return the runs of adjacent records in the answer to a pull from `offset`, each with its offset, and the
        record sizes.

        The sizes include headers; they are None unless there is one run and the broker sent them. Raises
        RemoteProtocolError.
        """
        if self.records:
            sizes, records = split_batch(body, self.records)
            return [(offset, records)], sizes
        if self.runs:
            return decode_runs(body, self.runs), None
        return [(offset, body)] if body else [], None


_RUN = Struct(">QI")
RUN_BYTES = _RUN.size


def encode_sizes(sizes: npt.NDArray[np.int32]) -> bytes:
    """Return the table in front of back-to-back records: the size of each with its header, u32."""
    return sizes.astype(">u4").tobytes()


def encode_runs(runs: list[tuple[int, int]]) -> bytes:
    """Return the table in front of a filtered reply's records: per run of adjacent records `offset u64 | bytes u32`."""
    return b"".join(_RUN.pack(offset, length) for offset, length in runs)


def decode_runs(body: memoryview, count: int) -> list[tuple[int, memoryview]]:
    """Return (offset in the partition, records) of each run of a filtered reply. Raises RemoteProtocolError if it is
    cut, or if a run is shorter than a record: a body could name a million of these."""
    position = count * RUN_BYTES
    if len(body) < position:
        raise RemoteProtocolError(f"filtered reply with {count} runs has a body of {len(body)} bytes only")
    runs: list[tuple[int, memoryview]] = []
    for offset, length in _RUN.iter_unpack(body[:position]):
        if length < HEADER_BYTES:
            raise RemoteProtocolError(f"filtered reply: a run of {length} bytes at {offset} holds no record")
        runs.append((offset, body[position : position + length]))
        position += length
    if position != len(body):
        raise RemoteProtocolError(f"filtered reply: runs end at byte {position} of {len(body)}")
    return runs
