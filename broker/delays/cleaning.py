"""Keep an internal log of delayed messages short: drop its oldest segment when no message in it waits any more.

When more than half of the log is useless, the messages that wait in the oldest segment are written anew at the log's
end, a few at a time, so that the segment can go. Ids stay, so a message can still be cancelled.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from metaq.protocol.errors import MetaqError
from metaq.protocol.record import Buffer

from .. import tuning
from ..memory.delayed_records import Ids, Pending, decode_pending, encode_pending, place_tag
from ..store.batch import units_of
from ..store.store import Append
from .contents import DelayedLog, read_records
from .table import NOWHERE

if TYPE_CHECKING:
    from .delays import Delays

__all__ = ["Cleaning"]

_log = logging.getLogger(__name__)


class _Job:
    """Writes anew the messages that wait before byte `end`. ids: of the messages that are left to write."""

    def __init__(self, contents: DelayedLog, end: int, ids: Ids) -> None:
        self.contents = contents
        self.end = end
        self.ids = ids
        self.renewals = contents.log.renewals


class Cleaning:
    """Cleans all logs, one at a time. Reactor thread."""

    def __init__(self, delays: Delays) -> None:
        self._delays = delays
        self._job: _Job | None = None
        self._copied_to: dict[DelayedLog, int] = {}  # where the rewritten records end
        self._not_before = 0.0

    def stop(self) -> None:
        """Stop cleaning: another node leads."""
        self._job = None
        self._copied_to.clear()

    def consider(self, contents: DelayedLog) -> None:
        """Drop segments, or begin to write anew the messages that keep the oldest one."""
        log = contents.log
        if self._job is not None or log.read_only is not None:
            return
        if self._drop(contents):
            return
        size = log.end_offset - log.first_offset
        begins = size > max(tuning.DELAYED_LOG_BYTES, 2 * contents.live_bytes) and len(log.segments) > 1
        if begins and self._delays.seconds() >= self._not_before and contents not in self._copied_to:
            oldest = log.segments[0]
            found = [ids for table in contents.tables() for ids, _ in table.lying_before(oldest.end)]
            ids = np.concatenate(found)
            if len(ids):
                self._job = _Job(contents, oldest.end, ids)
                self._step(self._job)

    def _drop(self, contents: DelayedLog) -> bool:
        """Drop the segments that can go. Return whether there were any."""
        log = contents.log
        copied_to = self._copied_to.get(contents)
        if copied_to is not None:
            if log.synced_end < copied_to:
                return False
            del self._copied_to[contents]
        end = log.first_offset
        for segment in log.segments[:-1]:
            if contents.live_in(segment) or segment.end > contents.needed_from:
                break
            end = segment.end
        if end == log.first_offset:
            return False
        self._delays.store.drop_internal_before(log, end)
        return True

    # --- writing anew -------------------------------------------------------------------------------------------------

    def _is_over(self, job: _Job) -> bool:
        return self._job is not job or job.contents.log.renewals != job.renewals

    def _step(self, job: _Job) -> None:
        if self._is_over(job):
            return
        contents = job.contents
        ids, job.ids = job.ids[: tuning.DELAYED_TURN_RECORDS], job.ids[tuning.DELAYED_TURN_RECORDS :]
        offsets = contents.find(ids)
        there = (offsets != NOWHERE) & (offsets < job.end)
        ids, offsets = ids[there], offsets[there]
        if not len(ids):
            self._go_on(job)
            return
        most = tuning.DELAYED_CLEANED_BYTES
        records = read_records(contents.log.segments.read, offsets, most)
        if records is not None:
            self._rewrite(job, ids, records)
            return
        read = partial(read_records, contents.log.segments.snapshot().read, offsets, most)
        found: Deferred[Any] = self._delays.in_thread(read)
        found.addCallback(lambda records: self._rewrite(job, ids, records))
        found.addErrback(partial(self._failed, job))

    def _rewrite(self, job: _Job, ids: Ids, records: list[bytes]) -> None:
        if self._is_over(job):
            return
        contents = job.contents
        job.ids = np.concatenate((ids[len(records) :], job.ids))  # those beyond the size limit were not read
        wanted = ids[: len(records)]
        waits = (contents.find(wanted) != NOWHERE).tolist()
        pendings: list[Pending] = []
        damaged = []
        for expected, record, waiting in zip(wanted.tolist(), records, waits, strict=True):
            if waiting:
                pending = decode_pending(record)
                if pending is None or pending.id != expected:
                    damaged.append(expected)
                else:
                    pendings.append(pending)
        if damaged:
            self._delays.drop_damaged(contents, damaged)
        if pendings:
            error = self._append(contents, pendings)
            if error is not None:
                self._give_up(job, error)
                return
        self._go_on(job)

    def _append(self, contents: DelayedLog, pendings: list[Pending]) -> MetaqError | None:
        log, base = contents.log, contents.log.end_offset
        buffers: list[Buffer] = []
        sizes: list[int] = []
        tags: list[int] = []
        for each in pendings:
            columns = (each.flag,), (each.checksum,), (each.body,), (each.taken,), (each.id,)
            more, size = encode_pending(each.place, *columns, anew=True)
            buffers += more
            sizes += size
            tags.append(place_tag(each.place, anew=True))
        ids, widths = np.array([each.id for each in pendings], np.int64), np.array(sizes, np.int64)
        units = units_of(base, ids, widths, 0, self._delays.now_ms())
        units["tag"] = tags
        append = Append(log, buffers, units.tobytes())
        self._delays.store.append_many((append,))
        if append.error is None:
            contents.appended()
            contents.rewritten(ids, base + widths.cumsum() - widths)
            self._delays.rewritten(contents, pendings)
        return append.error

    def _go_on(self, job: _Job) -> None:
        if len(job.ids):
            self._delays.call_later(tuning.DELAYED_CLEANING_PAUSE_SECONDS, self._step, job)
            return
        self._job = None
        self._copied_to[job.contents] = job.contents.log.end_offset
        job.contents.log.checkpoint()

    def _failed(self, job: _Job, failure: Failure) -> None:
        if not self._is_over(job):  # else another node leads, and the log may have been cut during the read
            self._give_up(job, failure.value)

    def _give_up(self, job: _Job, error: BaseException | None) -> None:
        _log.warning("%s is not made shorter now: %s", job.contents.log.directory, error)
        if self._job is job:
            self._job = None
        self._not_before = self._delays.seconds() + tuning.COMPACTION_PAUSE_SECONDS
