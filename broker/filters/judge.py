"""Applies a filter to stored records, within bounds. Worker thread, because filters are users' code."""

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
"""A request's filter calls end after this time; earlier decisions count. A single call is never interrupted."""

SCAN_BYTES = 16 << 20
"""How many rejected bytes one `get` looks through for an accepted record before it reports its progress."""


class Verdict(NamedTuple):
    """One record's bytes [start, end) in its buffer, and whether the group gets it."""

    start: int
    end: int
    accepted: bool


class Judge:
    """The filter of one request: of one group, for one partition."""

    def __init__(
        self,
        filter_: Filter,
        group: str,
        topic: str,
        partition: int,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """The request's time begins with the first record."""
        self._filter = filter_
        self._group = group
        self._topic = topic
        self._partition = partition
        self._seconds = seconds
        self._deadline: float | None = None
        self._judged = False

    @property
    def out_of_time(self) -> bool:
        """Whether no further record may be judged."""
        return self._deadline is not None and self._seconds() >= self._deadline

    def verdicts(self, data: memoryview, offset: int) -> Iterator[Verdict]:
        """Judge the whole records in `data`, which was read from `offset`. Ends early when the time is over.

        A request's first record is always judged. A record that fails its check also ends it: the client finds it.
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
    """The answer to a `get`: the accepted records of a stretch, and the stored offset after all judged records.

    client_ends: where each record ends in `data`; stored_ends: where it ends in the log, counted from the start.
    """

    data: bytes
    next_offset: int
    client_ends: npt.NDArray[np.uint32]
    stored_ends: npt.NDArray[np.uint32]

    @property
    def leading(self) -> int:
        """The bytes of the records before which none was rejected."""
        apart = np.flatnonzero(self.client_ends != self.stored_ends)
        if not len(apart):
            return len(self.data)
        return int(self.client_ends[apart[0] - 1]) if apart[0] else 0


def choose_records(
    judge: Judge, read: Callable[[int, int], bytes], offset: int, size: int, largest: int, gap: int
) -> Chosen:
    """Return the accepted records from `offset` on, at most `size` bytes, without the rejected ones between them.

    read(offset, bytes): stored bytes of one segment, b"" at the end. size: also of each read. largest: the limit of a
    longer first record. gap: how many rejected bytes may be left out. With more of them before the first accepted
    record no record is given, and next_offset is where that record begins, or SCAN_BYTES away. If no whole record
    begins at `offset`, the bytes there are given as they are, and next_offset is `offset`: the client can handle them.
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
