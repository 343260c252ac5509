"""Apply the filter by content (docs/filters.md) of a pull to records, step by step.

Each step reads a limited number of records, which are called a stretch. Then the step applies the filter to slices of
the stretch, until the stretch is done or the step's time is over. The records that the filter chooses are kept until
there are enough of them for an answer. So if a filter rejects most records, the broker examines many stretches for one
pull, and the client need not send many pulls.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from twisted.internet.defer import Deferred

from metaq.protocol.record import HEADER_BYTES, Buffer, blank_headers, headers_at, matching_checksums
from metaq.protocol.where import Where, parse_where
from metaq.protocol.where.many_records import matching

from .. import tuning
from ..runtime.reactor import ReactorTime
from ..store.index import UnitArray

__all__ = [
    "ByteSpan",
    "ChosenRecords",
    "Selection",
    "Slice",
    "Stretch",
    "TurnTime",
    "reads_of",
    "slice_of",
    "stretch_of",
    "wanted_of",
]


class ByteSpan(NamedTuple):
    """The bytes [start, end) of a partition."""

    start: int
    end: int


class TurnTime:
    """Limits the total time that all readers together spend on filters by content in one iteration of the reactor. Used
    only on the reactor thread.

    When the time is over, readers wait for a later iteration, in which the reader that has waited longest continues
    first. So even with very many readers, an iteration exceeds its time limit by at most one slice, and each reader
    makes progress.
    """

    def __init__(self, reactor: ReactorTime) -> None:
        self._reactor = reactor
        self._left = tuning.WHERE_TURN_SECONDS
        self._is_used = False
        self._waiting: deque[Deferred[None]] = deque()
        self._is_handing_out = False

    @property
    def is_over(self) -> bool:
        """Whether a reader must wait before it applies its filter to records: the time is over, or other readers wait
        already.
        """
        return self._left <= 0 or (bool(self._waiting) and not self._is_handing_out)

    def turn(self) -> Deferred[None] | None:
        """If the caller may judge records now, return None; the caller must then judge at least one slice. If the
        caller must wait, return a Deferred; when it fires, the caller must judge a slice.
        """
        if not self.is_over:
            return None
        waiting: Deferred[None] = Deferred()
        self._waiting.append(waiting)
        return waiting

    def deadline(self) -> float:
        """Return the time until which the caller may judge records, on the clock of `seconds`."""
        if not self._is_used:
            self._is_used = True
            self._reactor.callLater(0, self._next_turn)
        return self._reactor.seconds() + self._left

    def seconds(self) -> float:
        """Return the time of the reactor's clock in seconds."""
        return self._reactor.seconds()

    def used_until(self, deadline: float) -> None:
        """Record that the caller has finished judging now. The time from now to `deadline` is left for other readers in
        this iteration.
        """
        self._left = max(0.0, deadline - self._reactor.seconds())

    def _next_turn(self) -> None:
        self._left = tuning.WHERE_TURN_SECONDS
        self._is_used = False
        end = self._reactor.seconds() + self._left
        self._is_handing_out = True
        try:
            # the other work of the readers also counts
            while self._waiting and self._left > 0 and self._reactor.seconds() < end:
                self._waiting.popleft().callback(None)
        finally:
            self._is_handing_out = False
        if self._waiting and not self._is_used:
            self._is_used = True
            self._reactor.callLater(0, self._next_turn)


class Slice(NamedTuple):
    """The most records and the most bytes that a filter judges at once; a single record may have more bytes."""

    records: int
    size: int


def slice_of(where: Where) -> Slice:
    """Return the Slice for a filter. The slower a filter is for each record or each byte, the smaller its slice; so a
    slice takes about the same time for all filters.
    """
    conditions = max(1, where.conditions)
    return Slice(
        max(tuning.WHERE_LEAST_SLICE, tuning.WHERE_SLICE_RECORDS // conditions),
        min(tuning.WHERE_STEP_BYTES // conditions, tuning.WHERE_SLICE_STEPS // max(1, where.searched)),
    )


class Stretch(NamedTuple):
    """The records that one step judges. data: the bytes of the records, joined. starts: the index in `data` where each
    record begins. next_offset: the byte offset in the partition where the pull continues. It lies after the records of
    this stretch. Records that follow the stretch but have none of the tags that the pull asks for are skipped, too.
    """

    units: UnitArray
    data: Buffer
    starts: npt.NDArray[np.int64]
    next_offset: int

    def behind(self, offset: int) -> Stretch | None:
        """Return the part of the stretch from the record at `offset` on, or None if there is none."""
        number = int(np.searchsorted(self.units["offset"], offset))
        if number == len(self.units):
            return None
        return Stretch(self.units[number:], self.data, self.starts[number:], self.next_offset)


def reads_of(found: UnitArray) -> tuple[list[ByteSpan], int]:
    """Choose as many of the first records of `found` as one step may read. Return the spans of bytes that contain these
    records, and the number of these records. If there are only few other bytes between two records, one span covers
    both records.
    """
    starts, sizes = found["offset"].astype(np.int64), found["size"].astype(np.int64)
    ends = starts + sizes
    count = max(1, int(np.searchsorted(np.cumsum(sizes), tuning.WHERE_STEP_BYTES, "right")))
    apart = np.flatnonzero(starts[1:count] - ends[: count - 1] > tuning.WHERE_GAP_BYTES) + 1
    if len(apart) >= tuning.WHERE_STEP_READS:
        count = int(apart[tuning.WHERE_STEP_READS - 1])
        apart = apart[: tuning.WHERE_STEP_READS - 1]
    firsts, lasts = [0, *apart.tolist()], [*(apart - 1).tolist(), count - 1]
    return [ByteSpan(int(starts[first]), int(ends[last])) for first, last in zip(firsts, lasts, strict=True)], count


def stretch_of(units: UnitArray, spans: list[ByteSpan], parts: list[Buffer], next_offset: int) -> Stretch:
    """Make a Stretch from records that were read. units: the index units of these records. parts: the bytes of each
    span in `spans`.
    """
    offsets = units["offset"].astype(np.int64)
    if len(parts) == 1:
        return Stretch(units, parts[0], offsets - spans[0].start, next_offset)
    span_starts = np.array([each.start for each in spans], np.int64)
    lengths = np.array([len(each) for each in parts], np.int64)
    shifts = np.cumsum(lengths) - lengths - span_starts
    starts = offsets + shifts[np.searchsorted(span_starts, offsets, "right") - 1]
    return Stretch(units, b"".join(parts), starts, next_offset)


class ChosenRecords:
    """The records that were chosen for the answer to a pull. runs: the spans of adjacent records in the partition.
    parts: the bytes of the records.
    """

    def __init__(self) -> None:
        self.runs: list[ByteSpan] = []
        self.parts: list[Buffer] = []
        self.size = 0

    def add(self, offset: int, records: Buffer) -> None:
        """Add records that are adjacent to each other. They must come after all previously added records."""
        end = offset + len(records)
        if self.runs and self.runs[-1].end == offset:
            self.runs[-1] = ByteSpan(self.runs[-1].start, end)
        else:
            self.runs.append(ByteSpan(offset, end))
        self.parts.append(records)
        self.size += len(records)


class Selection:
    """The filter by content of one pull, and the records that this filter has chosen. Used only on the reactor
    thread.
    """

    def __init__(self, where: str, time: TurnTime) -> None:
        """where: the text of the filter. Raises InvalidWhere if it is invalid."""
        self.chosen = ChosenRecords()
        self._text = where
        self._time = time
        self._slice = slice_of(parse_where(where))
        self._give_by: float | None = None

    def judge(self, stretch: Stretch, max_bytes: int) -> int:
        """Apply the filter to the records of a stretch, slice by slice, until this turn's time is over or `max_bytes`
        of records are chosen; at least one slice is judged. Return the offset of the first record that was not judged,
        at which the next call must continue.
        """
        units, data, starts, next_offset = stretch
        sizes = units["size"].astype(np.int64)
        ends = np.cumsum(sizes)
        deadline = self._time.deadline()
        where = parse_where(self._text)
        begin = 0
        try:
            while begin < len(starts):
                passed = int(ends[begin - 1]) if begin else 0
                most = int(np.searchsorted(ends, passed + self._slice.size, "right"))
                end = min(begin + self._slice.records, max(begin + 1, most))
                wanted = begin + np.flatnonzero(wanted_of(where, data, starts[begin:end], sizes[begin:end]))
                taken = self._choose(stretch, wanted, sizes, max_bytes)
                if taken < len(wanted):
                    return int(units[wanted[taken]]["offset"])
                begin = end
                if self._time.seconds() >= deadline:
                    break
        finally:
            self._time.used_until(deadline)
        return int(units[begin]["offset"]) if begin < len(starts) else next_offset

    def _choose(
        self, stretch: Stretch, wanted: npt.NDArray[np.intp], sizes: npt.NDArray[np.int64], max_bytes: int
    ) -> int:
        """Keep as many of the wanted records as fit into the answer, and return their number. The first record of an
        answer always fits.
        """
        if not len(wanted):
            return 0
        chosen, room = self.chosen, max_bytes - self.chosen.size
        offsets, starts, sizes = stretch.units["offset"][wanted], stretch.starts[wanted], sizes[wanted]
        count = int(np.searchsorted(np.cumsum(sizes), room, "right"))
        if not chosen.runs:
            count = max(1, count)
        ends = starts + sizes
        apart = np.flatnonzero(offsets[1:count] != offsets[: count - 1] + sizes[: count - 1]) + 1
        most = tuning.PULL_MAX_RUNS - len(chosen.runs)
        firsts = [0, *apart.tolist()] if count else []
        if len(firsts) > most:
            count, firsts = firsts[most], firsts[:most]
        for first, behind in zip(firsts, [*firsts[1:], count], strict=True):
            # copied, because the stretch is much larger than the kept part
            chosen.add(int(offsets[first]), bytes(stretch.data[int(starts[first]) : int(ends[behind - 1])]))
        if chosen.runs and self._give_by is None:
            self._give_by = self._time.seconds() + tuning.WHERE_GATHER_SECONDS
        return count

    def is_worth_an_answer(self, max_bytes: int) -> bool:
        """Return whether the pull should be answered now with the records chosen so far. This is so if there are many
        of them, or if the first of them was chosen some time ago.
        """
        if self._give_by is None:
            return False
        full = self.chosen.size >= max_bytes // 2 or len(self.chosen.runs) >= tuning.PULL_MAX_RUNS
        return full or self._time.seconds() >= self._give_by


def wanted_of(
    where: Where, data: Buffer, starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Return which records to choose: the records that match the filter, the records that would take too long to judge,
    and damaged records. Damaged records are sent to the reader because only the reader checks and reports damage.
    Without the damaged records, the reader would not notice that it misses messages.
    """
    wanted = matching(where, data, starts, sizes, most_steps=tuning.WHERE_SLICE_STEPS)
    rest = np.flatnonzero(~wanted)
    if len(rest):
        starts, sizes = starts[rest], sizes[rest]
        headers = headers_at(data, starts)
        good = (headers["length"] == sizes - HEADER_BYTES) & ~blank_headers(headers)
        good &= matching_checksums(memoryview(data), starts + HEADER_BYTES, starts + sizes, headers["checksum"])
        wanted[rest[~good]] = True
    return wanted
