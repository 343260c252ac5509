"""Serve PULL: read whole records from an offset on. The broker filters these records by tag, by content and with the
consumer group's filter. If there are no records for an answer yet, the request can wait for new records.

The session calls `step` of a `Pull` until the `Pull` has an answer (reading/parkable.py).
"""

from __future__ import annotations

from functools import partial
from sys import getsizeof
from typing import Any, NamedTuple

import numpy as np
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from metaq.protocol.access import Need
from metaq.protocol.errors import OffsetOutOfRange
from metaq.protocol.frames import Frame
from metaq.protocol.limits import MAX_FRAME_BYTES
from metaq.protocol.message_id import UNKNOWN_ID
from metaq.protocol.own_topics import REPLY_TOPIC
from metaq.protocol.pulls import NOT_DAMAGED, TAG_SEPARATOR, PullReply, PullRequest, encode_runs, encode_sizes
from metaq.protocol.record import Buffer, tag_hash
from metaq.protocol.statuses import ResponseCode

from .. import tuning
from ..filters.filter_table import Filter
from ..filters.judge import Judge
from ..reading.answers import Bytes, answer_frame
from ..reading.parkable import Loading, Parkable, Step
from ..reading.reading import Reading
from ..reading.selecting import ByteSpan, Selection, Stretch, reads_of, stretch_of
from ..runtime.account import WAITING_BYTES
from ..store.damage import Damaged, Sound, Soundness
from ..store.files import NotCached
from ..store.index import UnitArray
from ..store.partition_log import PartitionLog
from ..store.segments import Snapshot
from .needs import NEED_OF_INBOX, inbox_of, need_to_consume

__all__ = ["Pull"]

_MOST_BYTES = MAX_FRAME_BYTES * 3 // 4
"""The most bytes of records in one answer, even if the request asks for more. This leaves enough of the frame for the
table of record sizes, even if the answer has very many small records.
"""


class Pull(Parkable):
    """A PULL request that the broker is serving. Used only on the reactor thread."""

    key: tuple[str, int]

    __slots__ = (
        "_hashes",
        "_id_before",
        "_loads",
        "_need",
        "_offset",
        "_place",
        "_reading",
        "_request",
        "_scans_until",
        "_selection",
        "_stretch",
        "_was_loaded",
        "deadline",
        "held_bytes",
        "key",
        "opaque",
    )

    def __init__(self, reading: Reading, frame: Frame) -> None:
        """Raises RemoteProtocolError for a frame that is not a valid PULL, InvalidWhere for an invalid filter by
        content.
        """
        request = PullRequest.from_ext(frame.ext)
        self._reading = reading
        self._request = request
        self.opaque = frame.opaque
        self._loads = 0
        self._place: Soundness | BaseException | None = None  # what is at the offset, if it was examined
        self._offset = request.offset  # all records before it were looked at
        self._id_before = UNKNOWN_ID
        self._hashes = np.fromiter(map(tag_hash, request.tags), np.uint32) if request.tags else None
        inbox = ""
        if request.topic == REPLY_TOPIC:
            inbox = inbox_of(request.group, TAG_SEPARATOR.join(request.tags), request.where)
        self._need = NEED_OF_INBOX if inbox else need_to_consume(request.topic, request.group)
        request.tags = ()  # they may take a megabyte and are no longer needed
        hashes_bytes = 0 if self._hashes is None else self._hashes.nbytes
        # hashes of inboxes could be guessed, and replies to others be read: compare the inboxes themselves
        where = "TAGS = '{}'".format(inbox.replace("'", "''")) if inbox else request.where
        where_bytes = getsizeof(where) if where else 0
        self.held_bytes = WAITING_BYTES + where_bytes + hashes_bytes
        self._selection = Selection(where, reading.where_time) if where else None
        self._stretch: Stretch | None = None  # the stretch that was read for the next step
        self._was_loaded = False  # it came from the disk, so a slice is judged without a turn
        self._scans_until: float | None = None  # set while there are more records to look at
        self.key = request.topic, request.partition
        self.deadline = reading.seconds() + request.wait_ms / 1000
        reading.metrics.get(request.topic)

    @property
    def follower_place(self) -> tuple[str, int, int] | None:
        """As Parkable.follower_place describes; the byte offset is that of the next record to examine."""
        return (self._request.topic, self._request.partition, self._offset) if self._request.follower else None

    @property
    def need(self) -> Need:
        return self._need

    @property
    def expired(self) -> bool:
        """Whether the time for which the pull may wait is over."""
        return self._reading.seconds() >= (self.deadline if self._scans_until is None else self._scans_until)

    @property
    def max_bytes(self) -> int:
        """The most bytes of records in an answer; but an answer with a single record may have more."""
        return min(self._request.max_bytes, self._reading.max_pull_bytes, _MOST_BYTES)

    def step(self) -> Bytes | Deferred[Bytes] | Step | Loading:
        """Advance the pull as Parkable.step describes. Raises StoreError, FilterUnavailable, and the errors of
        Partitions.find.
        """
        try:
            with self._reading.cold_reads.cached_only:
                return self._step()
        except NotCached as missing:
            self._loads += 1
            if self._loads > tuning.PULL_MAX_LOADS:  # data are dropped from the cache again and again: memory is short
                return self._step()
            return Loading(self._reading.cold_reads.run(self._request.group, missing.load))

    def _step(self) -> Bytes | Deferred[Bytes] | Step | Loading:
        log = self._reading.partitions.find(*self.key)
        if self._selection is not None and self._selection.chosen.runs and not self._may_go_on(log):
            return self._given()
        if log is None:
            return Step.WAIT if self._offset == 0 else self._moved(0, 0, 0, 0)
        if self._request.follower and log.visible_end < self._offset <= log.end_offset:
            return Step.WAIT  # another node has shown messages that are not visible on this node yet
        if self._request.last_id != UNKNOWN_ID and self._offset == self._request.offset:
            self._id_before = log.lookup.other_id_before(self._offset, self._request.last_id)
        if not log.first_offset <= self._offset <= log.visible_end:
            return self._out_of_range(log)
        if self._offset == log.visible_end:
            return Step.WAIT
        if isinstance(self._place, BaseException):
            raise self._place
        damaged = log.segments.damage.at(self._offset) if len(log.segments.damage) else None
        if damaged is None and isinstance(self._place, Damaged) and self._place.start <= self._offset < self._place.end:
            damaged = self._place  # found for this pull but not stored: there are too many ranges
        if damaged is not None:
            return self._damaged(log, damaged)
        if self._request.verify and self._place is None:
            return self._examine(log)
        group = self._request.group
        if len(self._reading.places):
            self._reading.places.forget((*self.key, group))  # this client commits stored offsets
        filter_ = self._reading.filters.find(self._request.topic, group)
        if self._hashes is None and filter_ is None and self._selection is None:
            return self._step_all(log)
        return self._step_filtered(log, filter_)

    def put_aside(self) -> bool:
        """Free the records that were read for the next step, as Parkable.put_aside describes; otherwise many waiting
        pulls could take much memory.
        """
        self._stretch = None
        self._was_loaded = False
        return self._selection is not None and bool(self._selection.chosen.runs)

    def nothing(self) -> Bytes:
        """Return the answer that is sent when the pull's wait ends: the records that a filter by content has chosen so
        far. If there are none, the answer has the offset at which the client's next pull must begin; this pull has
        examined all records before this offset.
        """
        if self._selection is not None and self._selection.chosen.runs:
            return self._given()
        self._reading.metrics.get_missed(self._request.topic)
        log = self._reading.partitions.find(*self.key)
        if log is None:
            return self._reply(ResponseCode.PULL_NOT_FOUND, PullReply(self._offset, 0, 0, 0))
        return self._reply(ResponseCode.PULL_NOT_FOUND, self._progress(log, self._offset))

    # --- answers ------------------------------------------------------------------------------------------------------

    def _reply(self, code: ResponseCode, reply: PullReply, body_bytes: int = 0) -> bytes:
        reply.sequence = self._request.sequence
        reply.id_before = self._id_before
        return answer_frame(self.opaque, reply.to_ext(), code, body=body_bytes)

    @staticmethod
    def _progress(log: PartitionLog, next_offset: int, runs: int = 0) -> PullReply:
        behind = log.lookup.messages_behind(next_offset)
        return PullReply(next_offset, log.first_offset, log.visible_end, behind, runs=runs)

    def _moved(self, next_offset: int, first: int, end: int, behind: int) -> Bytes:
        self._reading.metrics.get_missed(self._request.topic)
        return self._reply(ResponseCode.PULL_OFFSET_MOVED, PullReply(next_offset, first, end, behind))

    def _out_of_range(self, log: PartitionLog) -> Bytes:
        bound = log.first_offset if self._offset < log.first_offset else log.visible_end
        progress = self._progress(log, bound)
        return self._moved(bound, progress.min_offset, progress.max_offset, progress.behind)

    def _moved_to(self, log: PartitionLog, offset: int, damaged_from: int = NOT_DAMAGED) -> Bytes:
        self._reading.metrics.get_missed(self._request.topic)
        progress = self._progress(log, offset)
        progress.damaged_from = damaged_from
        return self._reply(ResponseCode.PULL_OFFSET_MOVED, progress)

    def _damaged(self, log: PartitionLog, damaged: Damaged) -> Bytes:
        """Return an answer that tells the client which bytes are damaged, and that it must continue after them."""
        return self._moved_to(log, damaged.end, damaged.start)

    def _not_a_record(self, log: PartitionLog) -> Bytes | Deferred[Bytes] | Loading:
        """Serve a pull for whose offset the segment's index has no unit. There are three possible reasons: the offset
        is inside a record, it is inside damage, or the record at this offset has no index unit yet.
        """
        place = self._place
        if not isinstance(place, Sound):
            return self._examine(log)
        if place.start != self._offset:
            return self._moved_to(log, place.start)
        span = ByteSpan(place.start, place.start + place.size)
        data = self._reading.cold_reads.run(
            self._request.group, partial(log.segments.snapshot().read, span.start, place.size)
        )
        return data.addCallbacks(partial(self._slice, log, span, b""), self._gone)

    def _examine(self, log: PartitionLog) -> Loading:
        """Let a worker thread find out what is at the pull's offset. After that, the session calls `step` again."""
        question = log.lookup.examination(self._offset)
        found = self._reading.examinations.examine(log, self._request.group, self._offset, question)
        return Loading(found.addCallback(self._examined))

    def _examined(self, place: Soundness | BaseException) -> None:
        self._place = place

    def _units(self, log: PartitionLog, max_bytes: int) -> UnitArray:
        """Return index units of the records from the pull's offset on. The result ends before the first unit whose
        bytes are known to be damaged. It is empty if no index unit has exactly the pull's offset.
        """
        units = log.lookup.units(self._offset, max_bytes, tuning.PULL_SCAN_RECORDS)
        if not len(units) or units[0]["offset"] != self._offset:
            return units[:0]
        return (
            log.segments.damage.in_front(units) if len(log.segments.damage) else units
        )  # an older index has units for damage

    # --- without a filter ---------------------------------------------------------------------------------------------

    def _step_all(self, log: PartitionLog) -> Bytes | Deferred[Bytes] | Loading:
        units = self._units(log, self.max_bytes)
        if not len(units):
            return self._not_a_record(log)
        sizes = units["size"]
        span = ByteSpan(self._offset, self._offset + int(sizes.sum()))
        table = encode_sizes(sizes) if self._request.sizes and len(units) >= tuning.TABLE_RECORDS else b""
        data = self._reading.cold_reads.read(log, self._request.group, span.start, span.end - span.start)
        if isinstance(data, Deferred):
            return data.addCallbacks(partial(self._slice, log, span, table), self._gone)
        return self._slice(log, span, table, data)

    def _slice(self, log: PartitionLog, span: ByteSpan, table: bytes, data: Buffer) -> Bytes:
        progress = self._progress(log, span.end)
        progress.records = len(table) // 4
        return [self._reply(ResponseCode.SUCCESS, progress, len(table) + len(data)) + table, data]

    def _gone(self, failure: Failure) -> Bytes:
        failure.trap(OffsetOutOfRange)  # type: ignore[no-untyped-call]  # retention was faster than the read
        log = self._reading.partitions.for_read(*self.key)
        return self._out_of_range(log)

    # --- with a filter ------------------------------------------------------------------------------------------------

    def _step_filtered(self, log: PartitionLog, filter_: Filter | None) -> Bytes | Deferred[Bytes] | Step | Loading:
        looks_at_all = self._selection is not None and self._hashes is None
        units = self._units(log, tuning.WHERE_STEP_BYTES if looks_at_all else tuning.PULL_SCAN_BYTES)
        if not len(units):
            return self._not_a_record(log)
        found = units if self._hashes is None else units[np.isin(units["tag"], self._hashes)]
        if not len(found):
            return self._passed(log, _end_of(units))
        if self._selection is not None:
            return self._step_where(log, filter_, self._selection, units, found)
        runs, next_offset = _choose_runs(units, found, self.max_bytes)
        if filter_ is not None:
            return self._judged(log, filter_, runs, next_offset)
        parts = _read_cached(log, runs)
        if parts is None:
            cold = self._reading.cold_reads.run(
                self._request.group, partial(_read_blocking, log.segments.snapshot(), runs)
            )
            return cold.addCallbacks(partial(self._runs, log, runs, next_offset), self._gone)
        return self._runs(log, runs, next_offset, parts)

    def _passed(self, log: PartitionLog, offset: int) -> Bytes | Step:
        """Record that all records before `offset` were examined. Return an answer, or a Step that says whether the pull
        must wait for new data or examine more records.
        """
        self._offset = offset
        self._place = None
        if offset == log.visible_end:
            self._scans_until = None
            return Step.WAIT if self._selection is None or not self._selection.chosen.runs else self._given()
        if self._selection is not None and self._scans_until is None:
            self._scans_until = max(self.deadline, self._reading.seconds() + tuning.WHERE_GATHER_SECONDS)
        return Step.AGAIN

    def _judged(
        self, log: PartitionLog, filter_: Filter, runs: list[ByteSpan], next_offset: int
    ) -> Bytes | Deferred[Bytes]:
        judge = Judge(filter_, self._request.group, *self.key)
        accepted = self._reading.in_filter_thread(
            partial(_read_accepted, judge, log.segments.snapshot(), runs, next_offset)
        )
        return accepted.addCallbacks(partial(self._accepted, log), self._gone)

    def _accepted(self, log: PartitionLog, accepted: _Accepted) -> Bytes | Deferred[Bytes]:
        """Answer a pull with the records that the consumer group's filter has accepted. If the filter has accepted no
        record, the answer tells the client the offset where the next pull must begin.
        """
        runs, parts, next_offset, damaged = accepted
        if damaged and not runs:
            found = self._reading.examinations.examine(log, self._request.group, next_offset)
            answer: Deferred[Bytes] = found.addCallback(partial(self._after_filter, log, next_offset))
            answer.addErrback(self._gone)
            return answer
        if not runs:
            return self._reply(ResponseCode.PULL_NOT_FOUND, self._progress(log, next_offset))
        return self._runs(log, runs, next_offset, parts)

    def _after_filter(self, log: PartitionLog, offset: int, place: Soundness | BaseException) -> Bytes:
        """Answer a pull that has stopped at a record with a wrong checksum, when the group's filter was applied to the
        records. place: the result of an examination of this record's offset, or the error that prevented the
        examination.
        """
        if isinstance(place, BaseException):
            raise place
        if isinstance(place, Damaged):
            return self._damaged(log, place)
        # it was read wrongly or is not a record: the next pull looks again
        return self._reply(ResponseCode.PULL_NOT_FOUND, self._progress(log, offset))

    def _runs(self, log: PartitionLog, runs: list[ByteSpan], next_offset: int, parts: list[Buffer]) -> Bytes:
        table = encode_runs([(run.start, run.end - run.start) for run in runs])
        progress = self._progress(log, next_offset, runs=len(runs))
        size = len(table) + sum(map(len, parts))
        return [self._reply(ResponseCode.SUCCESS, progress, size) + table, *parts]

    # --- with a filter by content -------------------------------------------------------------------------------------

    def _may_go_on(self, log: PartitionLog | None) -> bool:
        """Return whether the pull can continue: whether the log has a readable record at the pull's present offset. If
        not, for example because of damage, the caller answers this pull with the records chosen so far, and the
        client's next pull finds out what is at this offset.
        """
        return (
            log is not None
            and log.first_offset <= self._offset < log.visible_end
            and not isinstance(self._place, BaseException)
            and (not len(log.segments.damage) or log.segments.damage.at(self._offset) is None)
            and len(self._units(log, 1)) > 0
        )

    def _step_where(
        self, log: PartitionLog, filter_: Filter | None, selection: Selection, units: UnitArray, found: UnitArray
    ) -> Bytes | Deferred[Bytes] | Step | Loading:
        stretch, self._stretch = self._stretch, None
        if self._was_loaded:
            self._was_loaded = False
        elif selection.chosen.runs and self._reading.where_time.is_over:
            return self._given()
        elif (turn := self._reading.where_time.turn()) is not None:
            return Loading(turn)  # the records are read again then, because waiting pulls hold none
        if stretch is None or int(stretch.units[0]["offset"]) != int(found[0]["offset"]):
            read = self._read_stretch(log, units, found)
            if isinstance(read, Loading):
                return read
            stretch = read
        next_offset = selection.judge(stretch, self.max_bytes)
        if filter_ is not None and selection.chosen.runs:
            return self._judged(log, filter_, selection.chosen.runs, next_offset)
        self._stretch = stretch.behind(next_offset)
        step = self._passed(log, next_offset)
        return self._given() if step is Step.AGAIN and selection.is_worth_an_answer(self.max_bytes) else step

    def _read_stretch(self, log: PartitionLog, units: UnitArray, found: UnitArray) -> Stretch | Loading:
        """Return the records that this step must examine. If they are not in the page cache, let a worker thread read
        them, and return Loading; when `step` is called again, they are in `_stretch`.
        """
        spans, count = reads_of(found)
        next_offset = int(found[count]["offset"]) if count < len(found) else _end_of(units)
        read: Buffer | list[Buffer] | Deferred[Any] | None
        if len(spans) == 1:
            read = self._reading.cold_reads.read(
                log, self._request.group, spans[0].start, spans[0].end - spans[0].start
            )
        else:
            read = _read_parts(log, spans)
            if read is None:
                snapshot = log.segments.snapshot()
                read = self._reading.cold_reads.run(self._request.group, partial(_read_blocking, snapshot, spans))

        def as_stretch(data: Buffer | list[Buffer]) -> Stretch:
            return stretch_of(found[:count], spans, data if isinstance(data, list) else [data], next_offset)

        def failed(failure: Failure) -> None:
            if not isinstance(failure.value, OffsetOutOfRange):  # otherwise the next step finds out the rest
                self._place = failure.value

        def keep(data: Buffer | list[Buffer]) -> None:
            self._stretch = as_stretch(data)
            self._was_loaded = True

        if isinstance(read, Deferred):
            return Loading(read.addCallbacks(keep, failed))
        return as_stretch(read)

    def _given(self) -> Bytes:
        """Return the answer with the records chosen so far."""
        assert self._selection is not None
        chosen, log = self._selection.chosen, self._reading.partitions.for_read(*self.key)
        return self._runs(log, chosen.runs, self._offset, [b"".join(chosen.parts)])


class _Accepted(NamedTuple):
    """The result of a filter: the spans of the accepted records in the partition, the bytes of these records, and the
    offset at which the pull must continue. damaged: whether the record at this offset has a wrong checksum.
    """

    runs: list[ByteSpan]
    parts: list[Buffer]
    next_offset: int
    damaged: bool = False


def _read_accepted(judge: Judge, log: Snapshot, runs: list[ByteSpan], next_offset: int) -> _Accepted:
    """Read the records of `runs`, which are spans of adjacent records, and return the records that the filter accepts.
    Stop at a damaged record, or when the judge's time limit has passed. Runs in a worker thread.
    """
    accepted: list[ByteSpan] = []
    parts: list[Buffer] = []
    for run, data in zip(runs, _read_blocking(log, runs), strict=True):
        judged = 0
        for verdict in judge.verdicts(memoryview(data), run.start):
            judged = verdict.end
            if verdict.accepted:
                _extend(accepted, parts, run.start + verdict.start, data[verdict.start : verdict.end])
        if judged < len(data):  # the time is over, or a record is damaged
            return _Accepted(accepted, parts, run.start + judged, damaged=not judge.out_of_time)
    return _Accepted(accepted, parts, next_offset)


def _extend(runs: list[ByteSpan], parts: list[Buffer], start: int, data: Buffer) -> None:
    """Add a record's bytes to `parts` and its span to `runs`. If the record is adjacent to the last run, extend that
    run; otherwise begin a new run.
    """
    parts.append(data)
    if runs and runs[-1].end == start:
        runs[-1] = ByteSpan(runs[-1].start, start + len(data))
    else:
        runs.append(ByteSpan(start, start + len(data)))


def _choose_runs(units: UnitArray, found: UnitArray, max_bytes: int) -> tuple[list[ByteSpan], int]:
    """Choose the first records in `found` that have at most max_bytes in total, and return them as runs of adjacent
    records. Also return the offset at which the pull must continue. The first record is always returned, even if it has
    more than max_bytes.

    units: the index units of all records that were examined, without gaps between them.
    """
    starts = found["offset"]
    ends = starts + found["size"]
    count = max(1, int(np.searchsorted(np.cumsum(found["size"], dtype=np.int64), max_bytes, "right")))
    breaks = np.flatnonzero(starts[1:count] != ends[: count - 1]) + 1
    if len(breaks) >= tuning.PULL_MAX_RUNS:
        count = int(breaks[tuning.PULL_MAX_RUNS - 1])
        breaks = breaks[: tuning.PULL_MAX_RUNS - 1]
    firsts = [0, *breaks.tolist()]
    lasts = [*(breaks - 1).tolist(), count - 1]
    runs = [ByteSpan(int(starts[first]), int(ends[last])) for first, last in zip(firsts, lasts, strict=True)]
    return runs, int(starts[count]) if count < len(found) else _end_of(units)


def _end_of(units: UnitArray) -> int:
    return int(units[-1]["offset"]) + int(units[-1]["size"])


def _read_cached(log: PartitionLog, runs: list[ByteSpan]) -> list[Buffer] | None:
    """Return the bytes of the runs; return None if some of them are not in the page cache."""
    start, end = runs[0].start, runs[-1].end
    if end - start <= tuning.SPAN_BYTES:
        data = log.segments.read(start, end - start)
        if data is None:
            return None
        view = memoryview(data)
        return [view[run.start - start : run.end - start] for run in runs]
    return _read_parts(log, runs)


def _read_parts(log: PartitionLog, runs: list[ByteSpan]) -> list[Buffer] | None:
    parts: list[Buffer] = []
    for run in runs:
        part = log.segments.read(run.start, run.end - run.start)
        if part is None:
            return None
        parts.append(part)
    return parts


def _read_blocking(log: Snapshot, runs: list[ByteSpan]) -> list[Buffer]:
    return [log.read(run.start, run.end - run.start) for run in runs]
