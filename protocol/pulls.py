"""The request PULL of the framed protocol: its extFields and bodies (docs/protocol.md)."""

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
    "READER_GROUP",
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
"""Maximum number of milliseconds that a pull may wait at the broker for new data before the broker answers."""

TAG_SEPARATOR = "||"

TAG_EXPRESSION = "tags are compared as they are, so * and || match nothing: leave it out to get all messages, or write"
"""Beginning of the error text for a tag in RocketMQ's form `*` or `A || B`. The caller that raises the error appends
how tags are written in its own interface.
"""

FOLLOWER = "follower"
"""Name of an extField in requests that read stored messages. The value 1 means that an in-sync follower of a broker set
may answer the request; without this field, only the leader answers it.
"""

NOT_DAMAGED = -1


def is_tag_expression(tag: str) -> bool:
    """Return whether a tag for filtering has RocketMQ's form `*` or `A || B`. metaq compares tags as they are, so a
    filter on such a text would match no message.
    """
    return tag == "*" or TAG_SEPARATOR in tag


def _read_tags(text: str) -> tuple[str, ...]:
    if text.count(TAG_SEPARATOR) >= MAX_PULLED_TAGS:
        raise RemoteProtocolError(f"extFields.tags names more than {MAX_PULLED_TAGS} tags")
    return tuple(text.split(TAG_SEPARATOR)) if text else ()


READER_GROUP = "Just_for_Browser"
"""A reader without a group puts this group name into its requests, because they must name a group. TopicBrowser of 1.x
does the same. Neither brokers nor ZooKeeper store anything under this name.
"""

TagsField = Annotated[tuple[str, ...], Field("tags", _read_tags, TAG_SEPARATOR.join, left_out=True)]


@dataclass(slots=True)
class PullRequest(ExtFields):
    """PULL: ask for records from a byte offset on, at most `max_bytes` bytes (the first record is returned whole even
    if it is larger than `max_bytes`).

    tags: return only records with one of these tags, or all records if `tags` is empty; the broker compares only
    hashes, so the client checks the tags again. wait_ms: how long the broker may park the request while there is no
    record to return, 0 … MAX_WAIT_MS. sequence: a number that the client chooses; the answer contains the same number.
    sizes: whether the client accepts an answer that begins with a table of record sizes (PullReply.records). verify:
    whether the broker must verify the checksum of the record at `offset` before it returns the record; a client sets
    this after it has received a record with a wrong checksum.
    where: return only records that match this filter by content (docs/filters.md), or all records if it is ""; the
    client checks the filter again. follower: whether an in-sync follower of a broker set may answer. If a follower does
    not have the data before `offset` yet, the client has read these data from another node. So the follower does not
    report `offset` as wrong, but lets the pull wait until the data have arrived.
    last_id: the id of the message that the client has read right before `offset`. The broker compares this id with the
    id of the message that it has right before `offset`; UNKNOWN_ID means that it does not compare.
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
    """Answer to PULL, with the response code SUCCESS, PULL_NOT_FOUND (no record arrived before the wait ended) or
    PULL_OFFSET_MOVED.

    next_offset: where to continue (for PULL_OFFSET_MOVED: where readable data begins or ends). min_offset, max_offset:
    bounds of the readable bytes. behind: number of messages between next_offset and max_offset. runs: 0 means that the
    body is one contiguous part of the log, from the requested offset on; n means that the records were filtered, and
    that the body begins with a table of n runs (`encode_runs`). records: n means that the body begins with a table of
    the sizes of its n records (`encode_sizes`, `split_batch`); 0 means that it has no such table, even if the request
    asked for it. damaged_from: in a PULL_OFFSET_MOVED answer, the beginning of damaged bytes that end at next_offset;
    NOT_DAMAGED if the broker sends PULL_OFFSET_MOVED for another reason.
    id_before: the id of the message right before the requested offset, if the request had a last_id and this id is
    different. The field is UNKNOWN_ID if the two ids are equal, if the broker has no message right before the offset,
    for example because retention has deleted it, or if the broker does not know this message's id now.
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
        """Split the body of the answer to a pull from `offset`. Return two items. The first is a list of the runs of
        adjacent records, each with its offset. The second is an array with the sizes of all records, headers included;
        it is None if there is more than one run, or if the broker has not sent sizes. Raises RemoteProtocolError.
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
    """Encode the table of record sizes that precedes consecutive records: the size of each record, header included, as
    u32.
    """
    return sizes.astype(">u4").tobytes()


def encode_runs(runs: list[tuple[int, int]]) -> bytes:
    """Encode the table that precedes the records of a filtered answer. Each run of adjacent records has a row `offset
    u64 | bytes u32`.
    """
    return b"".join(_RUN.pack(offset, length) for offset, length in runs)


def decode_runs(body: memoryview, count: int) -> list[tuple[int, memoryview]]:
    """Decode the body of a filtered answer: return (offset in the partition, records) for each run. Raises
    RemoteProtocolError if the body is incomplete, or if a run is shorter than a record. The length of the runs is
    checked because a body could otherwise contain a million empty runs.
    """
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
