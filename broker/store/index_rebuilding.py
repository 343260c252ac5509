"""Making the missing indexes of closed segments again in the background, one after the other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from . import tuning
from .damage import Damaged
from .files import OpenFiles
from .index import Index
from .partition_log import PartitionLog
from .recovery import RebuiltIndex, rebuild_index
from .segment import Segment, SegmentFile
from .threads import RunInThread

__all__ = ["IndexRebuilding"]

_log = logging.getLogger(__name__)


class _Lost(NamedTuple):
    """A segment without an index, not to be tried before this monotonic time in seconds."""

    log: PartitionLog
    not_before: float


class IndexRebuilding:
    """The closed segments without an index. Owning thread; they are read by `run_in_thread`."""

    def __init__(
        self,
        open_files: OpenFiles,
        run_in_thread: RunInThread,
        on_rebuilt: Callable[[PartitionLog], None] = lambda log: None,
        on_gone: Callable[[PartitionLog], None] = lambda log: None,
    ) -> None:
        """on_rebuilt: called when a segment of the log has its index again. on_gone: when retention has taken a segment
        of the log meanwhile, of which the new index may be left.
        """
        self._on_rebuilt = on_rebuilt
        self._on_gone = on_gone
        self._open_files = open_files
        self._run_in_thread = run_in_thread
        self._lost: dict[Segment, _Lost] = {}  # in the order of their turns
        self._now = 0.0
        self._busy = False
        self._closed = False

    def __len__(self) -> int:
        """Segments that are still to be done."""
        return len(self._lost)

    def add(self, log: PartitionLog, segments: Iterable[Segment]) -> None:
        """Have these segments of the log indexed after `start`, or the next `tick`."""
        for segment in segments:
            self._lost[segment] = _Lost(log, 0.0)

    def start(self) -> None:
        """Begin with the first one."""
        self._rebuild_next()

    def tick(self, now: float) -> None:
        """Go on with what can be done at monotonic time `now`, in seconds."""
        self._now = now
        if self._lost:
            self._rebuild_next()

    def stop(self) -> None:
        """Begin with no other one."""
        self._closed = True

    def _rebuild_next(self) -> None:
        if self._busy or self._closed:
            return
        for segment, lost in list(self._lost.items()):
            if segment not in lost.log.segments:
                del self._lost[segment]
            elif lost.not_before <= self._now and _is_at_rest(lost.log, segment):
                self._busy = True
                self._run_in_thread(partial(self._rebuild, segment), partial(self._rebuilt, lost.log, segment))
                return

    def _rebuild(self, segment: Segment) -> RebuiltIndex:
        status = self._open_files.files.status(segment.path)
        file = SegmentFile(segment.path, segment.first_offset, segment.size, status.modified_ms)
        return rebuild_index(self._open_files.files, file)

    def _rebuilt(self, log: PartitionLog, segment: Segment, result: RebuiltIndex | BaseException) -> None:
        self._busy = False
        del self._lost[segment]
        if segment not in log.segments:
            self._on_gone(log)
        elif isinstance(result, BaseException):
            _log.error(
                "the index of %s cannot be rebuilt, its messages are not counted; the next try is in %.0f s: %s",
                segment.path,
                tuning.REBUILD_RETRY_SECONDS,
                result,
            )
            self._lost[segment] = _Lost(log, self._now + tuning.REBUILD_RETRY_SECONDS)
        else:
            for damage in result.damage:
                log.segments.report_damage(Damaged(damage.start, damage.end))
            handle = self._open_files.file(segment.index_path)
            log.segments.adopt_index(segment, Index(handle, result.count, result.max_id, crc=result.crc))
            self._on_rebuilt(log)
        self._rebuild_next()


def _is_at_rest(log: PartitionLog, segment: Segment) -> bool:
    """Whether the new index can vouch for all of the segment, and nothing else writes to its file."""
    safe = segment.synced == segment.end and segment.end <= log.visible_end
    return safe and not log.writes_index(segment)
