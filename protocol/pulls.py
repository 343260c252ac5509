"""PULL of the framed protocol: extFields and bodies (docs/protocol.md)."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from .errors import RemoteProtocolError
from .fields import INT64_MIN, Ext, int_field, text_field
from .limits import INT32_MAX, INT64_MAX, MAX_BATCH_RECORDS
from .sends import split_batch

__all__ = [
    "MAX_WAIT_MS",
    "NOT_DAMAGED",
    "TAG_SEPARATOR",
    "PullReply",
    "PullRequest",
    "decode_runs",
    "encode_runs",
    "encode_sizes",
]

MAX_WAIT_MS = 60_000
"""Longest time a pull may be parked, in milliseconds."""

TAG_SEPARATOR = "||"

NOT_DAMAGED = -1


class PullRequest(NamedTuple):
    """PULL: records from a byte offset on, at most `max_bytes` of them (the first one whole, whatever its size).

    tags: only records with one of these tags (compared by hash; the client checks again), empty = all.
    wait_ms: how long the broker may park the request when there is nothing to return, 0 … MAX_WAIT_MS.
    sequence: the client's own number, echoed.
    sizes: whether the answer may begin with a table of record sizes (PullReply.records).
    verify: whether the broker shall compare the checksum of the record at `offset` before it gives it: asked by who got
    a record with a wrong one.
    """

    topic: str
    partition: int
    offset: int
    max_bytes: int
    group: str = ""
    tags: tuple[str, ...] = ()
    wait_ms: int = 0
    sequence: int = 0
    sizes: bool = False
    verify: bool = False

    def to_ext(self) -> dict[str, str | int]:
        ext: dict[str, str | int] = {
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "maxBytes": self.max_bytes,
            "group": self.group,
            "waitMs": self.wait_ms,
            "sequence": self.sequence,
        }
        if self.tags:
            ext["tags"] = TAG_SEPARATOR.join(self.tags)
        if self.sizes:
            ext["sizes"] = 1
        if self.verify:
            ext["verify"] = 1
        return ext

    @classmethod
    def from_ext(cls, ext: Ext) -> Self:
        tags = text_field(ext, "tags", "")
        return cls(
            text_field(ext, "topic"),
            int_field(ext, "partition", 0, INT32_MAX),
            int_field(ext, "offset", INT64_MIN, INT64_MAX),
            int_field(ext, "maxBytes", 1, INT32_MAX),
            text_field(ext, "group", ""),
            tuple(tags.split(TAG_SEPARATOR)) if tags else (),
            int_field(ext, "waitMs", 0, MAX_WAIT_MS, 0),
            int_field(ext, "sequence", 0, INT64_MAX, 0),
            int_field(ext, "sizes", 0, 1, 0) == 1,
            int_field(ext, "verify", 0, 1, 0) == 1,
        )


class PullReply(NamedTuple):
    """Answer to PULL, code SUCCESS, PULL_NOT_FOUND (nothing before the wait ended) or PULL_OFFSET_MOVED.

    next_offset: where to go on (for PULL_OFFSET_MOVED: where readable data begins or ends). min/max_offset: bounds of
    the readable bytes. behind: messages between next_offset and max_offset. runs: 0 = the body is one slice of the log
    from the asked offset on; n = a filtered reply, the body begins with n runs (`encode_runs`). records: n = the body
    begins with the sizes of its n records (`encode_sizes`, `split_batch`); 0 = it does not, though they were asked for.
    damaged_from: of a PULL_OFFSET_MOVED answer, where damaged bytes begin that end at next_offset; NOT_DAMAGED if the
    offset is moved for another reason.
    """

    next_offset: int
    min_offset: int
    max_offset: int
    behind: int
    sequence: int = 0
    runs: int = 0
    records: int = 0
    damaged_from: int = NOT_DAMAGED

    def to_ext(self) -> dict[str, str | int]:
        ext: dict[str, str | int] = {
            "nextOffset": self.next_offset,
            "minOffset": self.min_offset,
            "maxOffset": self.max_offset,
            "behind": self.behind,
            "sequence": self.sequence,
            "runs": self.runs,
        }
        if self.records:
            ext["records"] = self.records
        if self.damaged_from != NOT_DAMAGED:
            ext["damagedFrom"] = self.damaged_from
        return ext

    def records_in(
        self, body: memoryview, offset: int
    ) -> tuple[list[tuple[int, memoryview]], npt.NDArray[np.int64] | None]:
        """Runs of adjacent records in the body of an answer to a pull from `offset` on, each with its offset; and the
        sizes of the records, headers included, if there is one run and the broker told them.

        Raises RemoteProtocolError.
        """
        if self.records:
            sizes, records = split_batch(body, self.records)
            return [(offset, records)], sizes
        if self.runs:
            return decode_runs(body, self.runs), None
        return [(offset, body)] if body else [], None

    @classmethod
    def from_ext(cls, ext: Ext) -> Self:
        return cls(
            int_field(ext, "nextOffset", 0, INT64_MAX),
            int_field(ext, "minOffset", 0, INT64_MAX),
            int_field(ext, "maxOffset", 0, INT64_MAX),
            int_field(ext, "behind", 0, INT64_MAX),
            int_field(ext, "sequence", 0, INT64_MAX, 0),
            int_field(ext, "runs", 0, INT32_MAX, 0),
            int_field(ext, "records", 0, MAX_BATCH_RECORDS, 0),
            int_field(ext, "damagedFrom", NOT_DAMAGED, INT64_MAX, NOT_DAMAGED),
        )


_RUN = Struct(">QI")
RUN_BYTES = _RUN.size


def encode_sizes(sizes: npt.NDArray[np.int32]) -> bytes:
    """The table in front of records back to back: the size of each with its header, u32."""
    return sizes.astype(">u4").tobytes()


def encode_runs(runs: list[tuple[int, int]]) -> bytes:
    """The table in front of a filtered reply's records: per run of adjacent records `offset u64 | bytes u32`."""
    return b"".join(_RUN.pack(offset, length) for offset, length in runs)


def decode_runs(body: memoryview, count: int) -> list[tuple[int, memoryview]]:
    """(offset in the partition, records) of each run of a filtered reply. Raises RemoteProtocolError if cut."""
    position = count * RUN_BYTES
    if len(body) < position:
        raise RemoteProtocolError(f"filtered reply with {count} runs has a body of {len(body)} bytes only")
    runs: list[tuple[int, memoryview]] = []
    for offset, length in _RUN.iter_unpack(body[:position]):
        runs.append((offset, body[position : position + length]))
        position += length
    if position != len(body):
        raise RemoteProtocolError(f"filtered reply: runs end at byte {position} of {len(body)}")
    return runs
