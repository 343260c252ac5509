"""What the broker stores about numbered writes, which are writes with a producer's sequence number: rows in internal
logs (store/internal_logs.py), one row for each write.

If the answer to a send was lost, the producer repeats the send with the same sequence number. The broker must then know
whether it has already stored the first send (broker/writing/sequences.py). So before the broker appends numbered writes
to partitions, it appends one record with rows to an internal log. There is one internal log for partitions with group
commit, and one for other partitions.

    a record's body    version u16 | topics u16 | topics × (bytes u16 | UTF-8) | rows
    a row              producer u64 | sequence u64 | base i64 | end i64 | first id i64 | records u32 | partition u32 |
                       number of the topic u32                                                       all big-endian

[base, end): the byte offsets in the partition that the records get if their append succeeds. A row is written before
the append. If the partition's message at `base` does not have the row's `first id`, the append did not happen, and the
row is ignored. If `records` is 0, the row cancels earlier rows of the same producer and partition. A row with producer
0 is not about a write. Its `first id` contains a time instead. Rows that were stored before this time may be missing:
the broker forgets old rows if there are too many producers.

The high bits of `records` mark a row about delayed or half messages. In a row about delayed or half messages, `base`
and `end` are byte offsets in an internal log of such messages (delayed_records.py). The `first id` of such a row is the
field `taken` of the record at `base` in this internal log.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from struct import Struct, error
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from metaq.protocol.errors import StoreError
from metaq.protocol.message_id import EPOCH_MS, TIME_SHIFT
from metaq.protocol.record import HEADER, HEADER_BYTES

from ..store.directories import PartitionDirectory
from ..store.files import Files, opened
from ..store.internal_logs import number_of
from ..store.segment import SegmentFile, segment_files
from ..store.segments import Snapshot
from .delayed_records import FRONT_BYTES, taken_at
from .records import read_bodies, read_cut
from .topics import DELAYED_TOPIC, HALVES_TOPIC

__all__ = [
    "DELAYED_ROW",
    "FORGOTTEN",
    "HALF_ROW",
    "ROW_BYTES",
    "WAITING_ROW",
    "RowTable",
    "SequenceRow",
    "check_rows",
    "cut_torn_writes",
    "encode_head",
    "encode_row",
    "first_bytes",
    "first_id_of",
    "pending_log",
    "read_rows",
    "read_tables",
    "row_bits",
]

_log = logging.getLogger(__name__)

_VERSION = 1
_HEAD = Struct(">HH")
_LENGTH = Struct(">H")
_ROW = Struct(">QQqqqIII")
_COLUMNS = np.dtype(
    [
        *((name, ">u8") for name in ("producer", "sequence")),
        *((name, ">i8") for name in ("base", "end", "first_id")),
        *((name, ">u4") for name in ("records", "partition", "topic")),
    ]
)

ROW_BYTES = _ROW.size

FORGOTTEN = 0
"""The producer number of a row that is not about a write but contains a time; the broker may have forgotten rows that
were stored before this time. Older versions of the broker, which do not know such rows, ignore them.
"""

DELAYED_ROW = 1 << 31
"""A bit in the field `records` of a row: the row's messages are delayed or half messages."""

WAITING_ROW = 1 << 30
"""A bit in the field `records` of a row: the row's messages are in the internal log for partitions with group commit.
The bit is used only together with DELAYED_ROW.
"""

HALF_ROW = 1 << 29
"""A bit in the field `records` of a row: the row's messages are half messages, which wait for the outcome of a
transaction. The bit is used only together with DELAYED_ROW.
"""


class SequenceRow(NamedTuple):
    """A row about one numbered write; the module's docstring describes the fields. records: 0 means that the broker has
    forgotten the producer's earlier writes to this partition.
    """

    producer: int
    sequence: int
    base: int
    end: int
    first_id: int
    records: int
    partition: int
    topic: str

    @property
    def time_ms(self) -> int:
        """The time when the row was written, in Unix milliseconds."""
        return (self.first_id >> TIME_SHIFT) + EPOCH_MS


@lru_cache
def encode_head(topics: tuple[str, ...]) -> bytes:
    """Encode the part of a record's body that precedes the rows, and return it."""
    names = [topic.encode("utf-8") for topic in topics]
    return _HEAD.pack(_VERSION, len(names)) + b"".join([_LENGTH.pack(len(name)) + name for name in names])


encode_row = _ROW.pack
"""encode_row(fields) returns an encoded row. The arguments are the fields of SequenceRow in order; but in place of the
topic's name, the topic's index in the `topics` of `encode_head` is passed.
"""


def row_bits(topic: str, group_commit: bool) -> int:
    """Return the high bits for the field `records` of a row whose messages are in an internal log of delayed or half
    messages. topic: the internal topic; group_commit: whether the internal log is the one for partitions with group
    commit.
    """
    return DELAYED_ROW | WAITING_ROW * group_commit | HALF_ROW * (topic == HALVES_TOPIC)


def pending_log(records: int) -> tuple[str, bool]:
    """Return which internal log has the messages of a row with DELAYED_ROW. The result is the log's internal topic, and
    whether the log is for partitions with group commit. records: the field `records` of the row.
    """
    return HALVES_TOPIC if records & HALF_ROW else DELAYED_TOPIC, bool(records & WAITING_ROW)


def first_bytes(records: int) -> int:
    """A row describes one or more records. Return how many bytes of the first of these records must be read to get its
    id. records: the field `records` of the row.
    """
    return FRONT_BYTES if records & DELAYED_ROW else HEADER_BYTES


def first_id_of(begun: bytes, records: int) -> int | None:
    """Return the id of the first record that a row describes, to compare it with the row's `first_id`, or None if
    `begun` is too short.
    begun: the beginning of this first record. records: the field `records` of the row.
    """
    if records & DELAYED_ROW:
        return taken_at(begun)
    return None if len(begun) < HEADER_BYTES else HEADER.unpack_from(begun)[2]


def read_rows(snapshot: Snapshot, first_offset: int) -> Iterator[SequenceRow]:
    """Yield the rows of an internal log, in order. Raises StoreError."""
    head, topics = b"", [""]  # of the previous record, because most records name the same topic
    for _, body in read_bodies(snapshot, first_offset):
        if not head or not body.startswith(head):
            head, topics = _head(body)
        yield from _rows(body, head, topics)


def check_rows(record: bytes) -> None:
    """Raise StoreError if the rows of a record cannot be read."""
    body = record[HEADER_BYTES:]
    for _ in _rows(body, *_head(body)):
        pass


def _rows(body: bytes, head: bytes, topics: Sequence[str]) -> Iterator[SequenceRow]:
    try:
        for row in _ROW.iter_unpack(body[len(head) :]):
            yield SequenceRow._make((*row[:7], topics[row[7]]))
    except (error, IndexError) as wrong:
        raise StoreError(f"rows of an internal log cannot be read: {wrong}") from wrong


class RowTable(NamedTuple):
    """The rows of many records, in order. end: the byte offset in the internal log where the last record ends. rows: a
    numpy array with the fields of SequenceRow, in which the field `topic` is an index in the list of topics of the
    row's own record. topics: for each row, the index of its topic in `names`. names: the names of all topics of the
    table.
    """

    end: int
    rows: npt.NDArray[Any]
    topics: npt.NDArray[np.int64]
    names: Sequence[str]

    def row(self, number: int) -> SequenceRow:
        """Return the row with this index."""
        return SequenceRow._make((*self.rows[number].tolist()[:7], self.names[self.topics[number]]))


def read_tables(snapshot: Snapshot, first_offset: int, most_bytes: int | None = None) -> Iterator[RowTable]:
    """Like read_rows, but yield tables of rows, which is three times as fast. To be used by callers that handle the
    rows of a table with numpy and not one by one. Stops after about `most_bytes` bytes, at the end of a record.
    """
    heads: dict[bytes, tuple[int, int]] = {}  # by head: where its names begin in `names`, and their number
    names: list[str] = []
    for base, data, bodies in read_cut(snapshot, first_offset, most_bytes):
        head = b""
        pieces: list[bytes] = []
        places: list[tuple[int, int]] = []
        for start, end in bodies:
            if not head or not data.startswith(head, start, end):
                head, topics = _head(data[start:end])
                if head not in heads:
                    heads[head] = len(names), len(topics)
                    names += topics
                place = heads[head]
            pieces.append(data[start + len(head) : end])
            places.append(place)
        yield _table(base + end, pieces, places, names)


def _table(end: int, pieces: list[bytes], places: list[tuple[int, int]], names: Sequence[str]) -> RowTable:
    counts, over = np.divmod(np.array([len(piece) for piece in pieces]), ROW_BYTES)
    rows = np.frombuffer(b"".join(pieces), np.uint8)
    if over.any():
        raise StoreError("rows of an internal log cannot be read: a record has a part of a row")
    found = rows.view(_COLUMNS)
    firsts, most = np.repeat(np.array(places), counts, axis=0).T
    if (found["topic"] >= most).any():
        raise StoreError("rows of an internal log cannot be read: a row names no topic of its record")
    return RowTable(end, found, firsts + found["topic"], names)


def cut_torn_writes(
    files: Files, snapshot: Snapshot, first_offset: int, directories: Mapping[str, PartitionDirectory]
) -> None:
    """If the broker process died during a numbered write, the end of a partition may have only a part of this write.
    Cut this part off.

    No message is lost: the incomplete write was never acknowledged, and its producer will repeat all of it. (If a
    process is killed during a large write, the kernel may have written only some pages of it.) directories: the
    directories of all partitions, by `<topic>-<partition>`, before their recovery. Raises StoreError.
    """
    last: dict[tuple[str, int], SegmentFile | None] = {}
    try:
        for row in read_rows(snapshot, first_offset):
            key = row.topic, row.partition
            if row.records & DELAYED_ROW:
                topic, waits = pending_log(row.records)
                key = topic, number_of(waits)
            if key not in last:
                entry = directories.get(f"{key[0]}-{key[1]}")
                found = segment_files(files, entry.path) if entry is not None else []
                last[key] = found[-1] if found else None
            file = last[key]
            if file is None or not file.first_offset <= row.base < file.end < row.end:
                continue
            if _cut(files, file, row):
                last[key] = file._replace(size=row.base - file.first_offset)
    except OSError as error:
        raise StoreError(f"cannot find out what producers have sent last: {error}") from error


def _cut(files: Files, file: SegmentFile, row: SequenceRow) -> bool:
    position = row.base - file.first_offset
    with opened(files, file.path, os.O_RDWR) as fd:
        found = first_id_of(files.pread(fd, first_bytes(row.records), position), row.records)
        if found is not None and found != row.first_id:
            return False
        files.truncate(fd, position)
    size = file.end - row.base
    _log.warning("%s: %d bytes of an incomplete send of %d bytes were cut", file.path, size, row.end - row.base)
    return True


def _head(body: bytes) -> tuple[bytes, list[str]]:
    """Return the part of a record's body that precedes the rows, and the topics that it names."""
    try:
        version, count = _HEAD.unpack_from(body)
        if version != _VERSION:
            raise StoreError(f"rows of version {version}: a newer broker has written them")
        place = _HEAD.size
        topics = []
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(body, place)
            place += _LENGTH.size + length
            topics.append(body[place - length : place].decode("utf-8"))
        if place > len(body):
            raise StoreError("rows of an internal log cannot be read: a record ends within the names of topics")
    except (error, UnicodeDecodeError) as wrong:
        raise StoreError(f"rows of an internal log cannot be read: {wrong}") from wrong
    return body[:place], topics
