"""Keep the internal logs of one kind of message short: append the old records that are still needed to the log's end
again, and then drop the log's old segments.
"""

from __future__ import annotations

import logging
from typing import Any, Protocol, cast

from twisted.internet.defer import CancelledError, Deferred, ensureDeferred
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from metaq.protocol.errors import MetaqError

from .. import tuning
from ..runtime.reactor import ReactorTime
from ..store.partition_log import PartitionLog
from ..store.store import Store

__all__ = ["Compaction", "Kept"]

_log = logging.getLogger(__name__)


class Kept(Protocol):
    """A memory whose logs are compacted: the attributes and methods that Compaction uses."""

    @property
    def topic(self) -> str:
        """The internal topic of the logs."""

    def most_bytes(self, log: PartitionLog) -> int:
        """Return the length in bytes above which the log is compacted."""

    def needed_from(self, log: PartitionLog) -> int:
        """Return the byte offset before which no record in the log is needed. Segments before this offset can be
        dropped at once.
        """

    async def write_anew(self, log: PartitionLog) -> int:
        """Append the needed content of the log's oldest part to its end again, with pauses in which the reactor can do
        other work. Return the byte offset before which no record is needed any more as soon as the appended records are
        on the disk. Raises OSError, MetaqError.
        """


class Compaction:
    """Compacts the logs of one internal topic while this node leads. Used only on the reactor thread.

    Segments without any needed records are dropped. If a log is too long without having such segments, it is rewritten:
    the needed content of its oldest part is appended to its end again. Only one log is rewritten at a time. As soon as
    the rewritten records are on the disk, the segments in which they were before are dropped.
    """

    def __init__(self, store: Store, kept: Kept, reactor: ReactorTime) -> None:
        self._store = store
        self._kept = kept
        self._reactor = reactor
        self._job: Deferred[None] | None = None
        self._written: dict[PartitionLog, tuple[int, int]] = {}
        """The logs that were rewritten and whose new records may not be on the disk yet. For each such log: the byte
        offset that `write_anew` has returned, and the log's end after the rewrite.
        """
        self._not_before = self._slice_ends = 0.0

    def tick(self) -> None:
        """For each log, drop the segments at its beginning that are not needed. If all its segments are needed and the
        log is too long, begin to rewrite it.
        """
        for log in self._store.internal_logs(self._kept.topic):
            if self._job is not None or log.read_only is not None:
                continue
            needed_from, written_to = self._written.get(log, (0, 0))
            if log.synced_end < written_to:
                continue
            self._written.pop(log, None)
            needed_from = max(needed_from, self._kept.needed_from(log))
            if len(log.segments) > 1 and log.segments[0].end <= needed_from:
                self._store.drop_internal_before(log, needed_from)
            elif self._is_due(log):
                self._slice_ends = self._reactor.seconds() + tuning.WORK_SLICE_SECONDS
                self._job = ensureDeferred(self._compact(log))
                self._job.addBoth(self._ended, log)

    def clear(self) -> None:
        """Cancel the present compaction, because another node leads."""
        if self._job is not None:
            self._job.cancel()
        self._written.clear()

    @property
    def is_busy(self) -> bool:
        """Whether a log is being rewritten now."""
        return self._job is not None

    async def pause(self) -> None:
        """To be called by `write_anew` between two records. If the time of the present slice is over, let the reactor
        do other work before this method returns.
        """
        if self._reactor.seconds() >= self._slice_ends:
            await deferLater(cast(Any, self._reactor), 0)
            self._slice_ends = self._reactor.seconds() + tuning.WORK_SLICE_SECONDS

    def _is_due(self, log: PartitionLog) -> bool:
        size = log.end_offset - log.first_offset
        return self._reactor.seconds() >= self._not_before and size > self._kept.most_bytes(log)

    async def _compact(self, log: PartitionLog) -> None:
        before = log.end_offset
        needed_from = await self._kept.write_anew(log)
        if log.end_offset > before and log.read_only is None:
            self._written[log] = needed_from, log.end_offset
            log.checkpoint()

    def _ended(self, result: Any, log: PartitionLog) -> Failure | None:
        self._job = None
        if not isinstance(result, Failure) or isinstance(result.value, CancelledError):
            return None
        self._not_before = self._reactor.seconds() + tuning.COMPACTION_PAUSE_SECONDS
        if not isinstance(result.value, OSError | MetaqError):
            return result
        _log.warning("%s is not made shorter now: %s", log.directory, result.value)
        return None
