"""Apply a filter to stored records, with limits on time and bytes. This module runs in worker threads, because filters
are users' code.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from metaq.protocol.record import HEADER, HEADER_BYTES, checksum

from .filter_table import Filter
from .message import FilteredMessage

__all__ = ["BUDGET_SECONDS", "SCAN_BYTES", "Chosen", "Judge", "Verdict", "choose_records"]

BUDGET_SECONDS = 1.0
"""When the filter has worked for this many seconds for a request, it is not called again for this request. The answer
to the request then has the records that the filter has accepted so far. A single call of the filter is never
interrupted.
"""

SCAN_BYTES = 16 << 20
"""If the filter has rejected this many bytes of records and has accepted no record yet, the broker answers the `get`
without records. The answer gives the offset at which the client should continue.
"""


class Verdict(NamedTuple):
    """The decision about one record. start, end: the record's bytes [start, end) in the buffer. accepted: whether the
    group gets the record.
    """

    start: int
    end: int
    accepted: bool


class Judge:
    """Applies a filter for one request of one group to records of one partition."""

    def __init__(
        self,
        filter_: Filter,
        group: str,
        topic: str,
        partition: int,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """The time limit of BUDGET_SECONDS begins when the first record is judged."""
        self._filter = filter_
        self._group = group
        self._topic = topic
        self._partition = partition
        self._seconds = seconds
        self._deadline: float | None = None
        self._judged = False

    @property
    def out_of_time(self) -> bool:
        """Whether BUDGET_SECONDS have passed since the first record was judged, so that no further record may be
        judged.
        """
        return self._deadline is not None and self._seconds() >= self._deadline

    def verdicts(self, data: memoryview, offset: int) -> Iterator[Verdict]:
        """Yield a verdict for each whole record in `data`, which was read from byte `offset` of the partition.

        The iteration ends early when the time limit BUDGET_SECONDS has passed, but the first record of a request is
        always judged. The iteration also ends before a record whose checksum is wrong. The broker sends such a record
        to the client without asking the filter, and the client detects the damage.
        """
        if self._deadline is None:
            self._deadline = self._seconds() + BUDGET_SECONDS
        accepts, group, topic, partition = self._filter.accepts, self._group, self._topic, self._partition
        unpack, size, end = HEADER.unpack_from, len(data), 0
        while (start := end) + HEADER_BYTES <= size:
            length, crc, message_id, flag = unpack(data, start)
            end = start + HEADER_BYTES + length
            if length < 0 or end > size:
                return
            body = bytes(data[start + HEADER_BYTES : end])
            if checksum(body) != crc or (self._judged and self._seconds() >= self._deadline):
                return
            self._judged = True
            message = FilteredMessage(topic, partition, offset + start, message_id, flag, body)
            yield Verdict(start, end, accepts(group, message))


class Chosen(NamedTuple):
    """The records to send in answer to a `get`. data: the accepted records, joined. next_offset: the offset in the log
    after the last record that is either in `data` or was rejected.

    client_ends: the byte index in `data` where each accepted record ends. stored_ends: where the same record ends in
    the log, as a number of bytes from the offset that the `get` asked for.
    """

    data: bytes
    next_offset: int
    client_ends: npt.NDArray[np.uint32]
    stored_ends: npt.NDArray[np.uint32]

    @property
    def leading(self) -> int:
        """The total size of the accepted records before the first rejected record; these records are at the beginning
        of `data`.
        """
        apart = np.flatnonzero(self.client_ends != self.stored_ends)
        if not len(apart):
            return len(self.data)
        return int(self.client_ends[apart[0] - 1]) if apart[0] else 0


def choose_records(
    judge: Judge, read: Callable[[int, int], bytes], offset: int, size: int, largest: int, gap: int
) -> Chosen:
    """Read records from `offset` on, and return those that the filter accepts, at most `size` bytes. Rejected records
    are left out.

    read(offset, bytes): returns at most this number of stored bytes, all from one segment; b"" at the end of the
    partition. size: the most bytes of returned records, and the size of each read. largest: a first record longer than
    `size` is returned as a whole if it has at most this number of bytes. gap: as soon as about this many rejected bytes
    were left out of an answer that already has records, no further records are added to the answer. If more bytes than
    `gap` are rejected before the first accepted record, no record is returned. In this case next_offset is the offset
    of the first accepted record; but if no record in the first SCAN_BYTES bytes was accepted, next_offset is about
    SCAN_BYTES higher than `offset`. If no whole record begins at `offset`, the bytes from `offset` on are returned as
    they were read, and next_offset is `offset`; the client itself handles the incomplete or damaged record.
    """
    parts: list[memoryview] = []
    client_ends: list[int] = []
    stored_ends: list[int] = []
    taken = 0
    position = offset

    def chosen() -> Chosen:
        ends = (np.array(each, np.uint32) for each in (client_ends, stored_ends))
        return Chosen(b"".join(parts), position, *ends)

    while not judge.out_of_time:
        data = read(position, size)
        if not parts and len(data) == size >= HEADER_BYTES:
            record = HEADER_BYTES + int.from_bytes(data[:4], "big", signed=True)
            if size < record <= largest:
                data = read(position, record)
        view = memoryview(data)
        start, judged = position, 0
        for verdict in judge.verdicts(view, start):
            judged = verdict.end
            if verdict.accepted:
                length = verdict.end - verdict.start
                if taken + length > size if parts else position - offset >= gap:
                    return chosen()
                taken += length
                parts.append(view[verdict.start : verdict.end])
                client_ends.append(taken)
                stored_ends.append(start + verdict.end - offset)
                position = start + verdict.end
            else:
                position = start + verdict.end
                if position - offset - taken >= (gap if parts else SCAN_BYTES):
                    return chosen()
        if not judged:
            if position == offset:
                return Chosen(data, offset, *(np.empty(0, np.uint32),) * 2)
            break
    return chosen()
