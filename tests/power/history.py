"""What was promised, from the markers of a trace, and whether a partition keeps it."""

from __future__ import annotations

import json
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from metaq.protocol.record import HEADER_BYTES, RecordHeader, checksum, iter_headers

__all__ = [
    "EMPTY",
    "Broken",
    "History",
    "PartitionHistory",
    "SectorEdges",
    "body_of",
    "empty_records",
    "name_of",
    "named_records",
    "record_bytes",
]

EMPTY = ""
"""The name of an empty message that nobody sent, where a cut may leave one: see SectorEdges."""

_SECTOR = 512
_ZEROED = 8
"""Bytes of a record's length and checksum. With both zero it is a whole record of a message without a body."""


class Broken(AssertionError):
    """A promise that was not kept."""


@dataclass(frozen=True, slots=True)
class SectorEdges(Container[int]):
    """Where a cut that loses single sectors turns a record into an empty message: docs/reliability.md tells of it.

    segments: byte offsets at which the partition's files begin, ascending; none if no cut could lose single sectors.
    """

    segments: Sequence[int] = ()

    def __contains__(self, offset: object) -> bool:
        """Whether a record at this byte offset has its length and checksum, and nothing more, in front of an edge."""
        assert isinstance(offset, int)
        number = bisect_right(self.segments, offset) - 1
        return number >= 0 and (offset - self.segments[number]) % _SECTOR == _SECTOR - _ZEROED


def body_of(name: str, size: int) -> bytes:
    """The message `name`: it says itself what every byte of it must be. A name `i<hex>.…` tells its message id too."""
    head = f"{name}:{size}:".encode()
    if len(head) >= size:
        return head
    filler = zlib.crc32(head).to_bytes(4, "big").hex().encode()
    return (head + filler * (size // len(filler) + 1))[:size]


def name_of(body: bytes) -> str | None:
    """The name in a body; None if it is no whole message of ours."""
    name, _, rest = body.partition(b":")
    size, colon, _ = rest.partition(b":")
    try:
        text = name.decode("ascii")
        return text if colon and body == body_of(text, int(size)) else None
    except ValueError:
        return None


def named_records(
    partition: str, first_offset: int, data: bytes, empty: Container[int] = ()
) -> Iterator[tuple[RecordHeader, str]]:
    """The records in a partition's bytes, which begin at `first_offset`, and their names. Raises Broken for others.

    empty: byte offsets at which a record without a body is EMPTY.
    """
    end = 0
    for header in iter_headers(data, stored=False):
        body = data[header.end - header.length : header.end]
        if header.checksum != checksum(body):
            raise Broken(f"{partition}: the message at {first_offset + header.start} is damaged")
        name = name_of(body)
        if not body and first_offset + header.start in empty:
            name = EMPTY
        if name is None:
            raise Broken(f"{partition}: a false message at {first_offset + header.start}: {body[:60]!r}")
        yield header, name
        end = header.end
    if end != len(data):
        raise Broken(f"{partition}: {len(data) - end} bytes at {first_offset + end} are no message")


def empty_records(first_offset: int, data: bytes) -> list[int]:
    """Byte offsets of the records without a body in a partition's bytes, which begin at `first_offset`."""
    return [first_offset + header.start for header in iter_headers(data, stored=False) if not header.length]


def record_bytes(name: str, size: int) -> int:
    return HEADER_BYTES + len(body_of(name, size))


@dataclass(slots=True)
class PartitionHistory:
    """Of one partition. line: offset -> message, of the puts as they lie now; ever: all messages that were put there.

    kept_end: everything in front of it must be there; removed_to: but what lies in front of this may be gone.
    """

    line: dict[int, str] = field(default_factory=dict)
    ever: dict[int, set[str]] = field(default_factory=dict)
    settled: dict[int, str] = field(default_factory=dict)
    kept_end: int = 0
    removed_to: int = 0

    def put(self, offset: int, messages: Sequence[tuple[str, int]]) -> None:
        for stale in [each for each in self.line if each >= offset]:
            del self.line[stale]
        for name, size in messages:
            self.line[offset] = name
            self.ever.setdefault(offset, set()).add(name)
            offset += record_bytes(name, size)

    def found_empty(self, offset: int) -> None:
        """A start has found an empty message there: whatever was put there is gone, and the log goes on behind it."""
        self.put(offset, [])
        self.line[offset] = EMPTY
        self.ever.setdefault(offset, set()).add(EMPTY)

    def keep(self, end: int, first: int = 0) -> None:
        """Everything in front of byte offset `end` has been promised.

        first: where a start has found it to begin; what nobody had promised by then may be gone.
        """
        for offset in [each for each in self.line if each < first and each not in self.settled]:
            del self.line[offset]
        if end > self.kept_end:
            self.kept_end = end
            offsets = sorted(self.line)
            for offset in offsets[: bisect_left(offsets, end)]:
                self.settled.setdefault(offset, self.line[offset])

    def check(self, partition: str, first_offset: int, data: bytes, edges: SectorEdges = SectorEdges()) -> None:
        """data: everything from `first_offset` on that a reader gets. Raises Broken.

        An empty message that nobody sent is right at one of the edges, in place of one that was never promised, and
        where an earlier start has found it.
        """
        torn = {offset for offset in self.ever if offset >= self.kept_end and offset in edges}
        empty = torn | {offset for offset, names in self.ever.items() if EMPTY in names}
        seen: set[str] = set()
        found: dict[int, str] = {}
        for header, name in named_records(partition, first_offset, data, empty):
            offset = first_offset + header.start
            if name == EMPTY:
                found[offset] = name
                continue
            if name in seen:
                raise Broken(f"{partition}: {name} is there twice, again at {offset}")
            seen.add(name)
            if name not in self.ever.get(offset, ()):
                raise Broken(f"{partition}: {name} at {offset} was never put there")
            if name.startswith("i") and int(name[1:].partition(".")[0], 16) != header.id:
                raise Broken(f"{partition}: {name} at {offset} has the id {header.id:x}")
            found[offset] = name
        begin = min(first_offset, self.removed_to)
        lost = [
            f"{name} at {offset}"
            for offset, name in sorted(self.settled.items())
            if offset >= begin and found.get(offset) != name
        ]
        if lost:
            raise Broken(f"{partition}: {len(lost)} acknowledged messages are lost: {', '.join(lost[:3])}")


class History:
    """Markers up to a moment. kinds: put, empty, keep, removed; others are kept in `others` for who knows them.

    torn: whether a cut since may have kept some sectors of a file and lost others in front of them.
    """

    def __init__(self, marks: Iterable[bytes] = (), *, torn: bool = False) -> None:
        self.torn = torn
        self.partitions: dict[str, PartitionHistory] = {}
        self.others: list[dict[str, object]] = []
        for mark in marks:
            self.add(mark)

    def add(self, mark: bytes) -> None:
        values = json.loads(mark)
        kind = values.pop("kind")
        if kind not in ("put", "empty", "keep", "removed"):
            self.others.append({"kind": kind, **values})
            return
        partition = self.partitions.setdefault(values["partition"], PartitionHistory())
        if kind == "put":
            partition.put(values["offset"], [(name, size) for name, size in values["messages"]])
        elif kind == "empty":
            partition.found_empty(values["offset"])
        elif kind == "keep":
            partition.keep(values["end"], values.get("first", 0))
        else:
            partition.removed_to = max(partition.removed_to, values["end"])
