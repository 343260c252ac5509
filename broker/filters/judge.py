"""A filter applied to stored records, within bounds. Runs on a worker thread: filters are users' code."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from metaq.protocol.errors import RemoteProtocolError
from metaq.protocol.record import HEADER_BYTES, checksum, iter_headers

from .message import FilteredMessage
from .table import Filter

__all__ = ["BUDGET_SECONDS", "SCAN_BYTES", "Judge", "LeadingRun", "Verdict", "find_leading_run"]

BUDGET_SECONDS = 1.0
"""A request's filter calls end after this long, with what is decided by then; one call is never interrupted."""

SCAN_BYTES = 16 << 20
"""Rejected bytes that one `get` looks through before it says how far it has come."""


class Verdict(NamedTuple):
    """One record's bytes [start, end) in the buffer it was read from, and whether the group gets it."""

    start: int
    end: int
    accepted: bool


class Judge:
    """One request's filter: of one group, for one partition."""

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

    @property
    def out_of_time(self) -> bool:
        """Whether no further record may be judged."""
        return self._deadline is not None and self._seconds() >= self._deadline

    def verdicts(self, data: memoryview, offset: int) -> Iterator[Verdict]:
        """Judge the whole records in `data`, which is read from `offset`; ends early when the time is over.

        A record that fails its check ends it too: what to do about that is the client's to decide.
        """
        if self._deadline is None:
            self._deadline = self._seconds() + BUDGET_SECONDS
        try:
            for header in iter_headers(data):
                body = bytes(data[header.start + HEADER_BYTES : header.end])
                if checksum(body) != header.checksum or self.out_of_time:
                    return
                message = FilteredMessage(self._topic, self._partition, offset + header.start, header, body)
                yield Verdict(header.start, header.end, self._filter.accepts(self._group, message))
        except RemoteProtocolError:  # a negative length: no record begins here
            return


class LeadingRun(NamedTuple):
    """What a `get` is answered: records that are all accepted, or none and where to go on."""

    data: bytes
    next_offset: int


def find_leading_run(
    judge: Judge, read: Callable[[int, int], bytes], offset: int, size: int, largest: int
) -> LeadingRun:
    """The accepted records that begin at `offset`, or the end of the rejected ones that do (wire.md, get).

    read(offset, bytes): stored bytes of one segment, b"" at the end. size: of each read. largest: of a first record
    that is longer. Bytes that are no whole record are given as they are: the client knows what to do with them.
    """
    position = offset
    while position - offset < SCAN_BYTES and not judge.out_of_time:
        data = read(position, size)
        if len(data) >= HEADER_BYTES:
            record = HEADER_BYTES + int.from_bytes(data[:4], "big", signed=True)
            if len(data) == size < record <= largest:
                data = read(position, record)
        run = skipped = 0
        for verdict in judge.verdicts(memoryview(data), position):
            if verdict.accepted and skipped + position > offset:
                return LeadingRun(b"", position + skipped)
            if verdict.accepted:
                run = verdict.end
            elif run:
                break
            else:
                skipped = verdict.end
        if run:
            return LeadingRun(data[:run], offset + run)
        if not skipped:
            return LeadingRun(data if position == offset else b"", position)
        position += skipped
    return LeadingRun(b"", position)
