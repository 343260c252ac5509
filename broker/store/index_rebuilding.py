"""Rebuild missing indexes of closed segments in the background. One index is rebuilt at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from . import tuning
from .damage import Damaged, walk_segment
from .files import Files, OpenFiles, opened
from .index import Checkpoint, Index, replace_index
from .partition_log import PartitionLog
from .scan import bound_java_times
from .segment import Segment, SegmentFile
from .worker_turns import RunInThread

__all__ = ["IndexRebuilding", "rebuild_index"]

_log = logging.getLogger(__name__)


class _Lost(NamedTuple):
    """A log that has a segment without an index. not_before: the monotonic time, in seconds, before which no rebuild of
    this index begins.
    """

    log: PartitionLog
    not_before: float


class IndexRebuilding:
    """Rebuilds the indexes of closed segments that have none. Only the thread that owns the store may use this object;
    a worker thread (`run_in_thread`) reads the segments.
    """

    def __init__(
        self,
        open_files: OpenFiles,
        run_in_thread: RunInThread,
        on_rebuilt: Callable[[PartitionLog], None] = lambda log: None,
        on_gone: Callable[[PartitionLog], None] = lambda log: None,
    ) -> None:
        """on_rebuilt(log): called when the index of a segment of the log has been rebuilt. on_gone(log): called at the
        end of a rebuild if retention has meanwhile removed the segment from the log. The segment's new index file may
        exist then, and the callee must remove it.
        """
        self._on_rebuilt = on_rebuilt
        self._on_gone = on_gone
        self._open_files = open_files
        self._run_in_thread = run_in_thread
        self._lost: dict[Segment, _Lost] = {}  # in the order in which they are rebuilt
        self._now = 0.0
        self._busy = False
        self._closed = False
        self._held = False

    def __len__(self) -> int:
        """Return the number of segments whose index is still to be rebuilt."""
        return len(self._lost)

    def add(self, log: PartitionLog) -> None:
        """Plan to rebuild the missing indexes of the log. Nothing is rebuilt before the call of `start`. If `start` was
        called before, one of the next calls of `tick` begins the rebuild.
        """
        for segment in log.segments:
            if segment.index is None:
                self._lost.setdefault(segment, _Lost(log, 0.0))

    def start(self) -> None:
        """Begin to rebuild the first index; after each rebuild the next one begins without a further call."""
        self._rebuild_next()

    def tick(self, now: float) -> None:
        """Begin the next planned rebuild, if none is running and one is due at monotonic time `now`, in seconds."""
        self._now = now
        if self._lost:
            self._rebuild_next()

    @property
    def busy(self) -> bool:
        """Whether an index is being rebuilt."""
        return self._busy

    def hold(self, held: bool) -> None:
        """If `held` is True, begin no further rebuild until this method is called again with `held` = False."""
        self._held = held

    def stop(self) -> None:
        """Begin no further rebuild."""
        self._closed = True

    def _rebuild_next(self) -> None:
        if self._busy or self._closed or self._held:
            return
        for segment, lost in list(self._lost.items()):
            if segment not in lost.log.segments:
                del self._lost[segment]
            elif lost.not_before <= self._now and _is_at_rest(lost.log, segment):
                self._busy = True
                rebuild = partial(
                    rebuild_index, self._open_files.files, segment.path, segment.first_offset, segment.size
                )
                self._run_in_thread(rebuild, partial(self._rebuilt, lost.log, segment))
                return

    def _rebuilt(
        self, log: PartitionLog, segment: Segment, result: tuple[Checkpoint, list[Damaged]] | BaseException
    ) -> None:
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
            made, damage = result
            for each in damage:
                log.segments.report_damage(each)
            handle = self._open_files.file(segment.index_path)
            log.segments.adopt_index(segment, Index(handle, made.units, made.max_id, crc=made.crc or 0))
            self._on_rebuilt(log)
        self._rebuild_next()


def rebuild_index(files: Files, path: str, first_offset: int, size: int) -> tuple[Checkpoint, list[Damaged]]:
    """Read a closed, synced segment record by record, and write and sync an index for it. Any thread may call this
    function. The function changes no file but the index file.

    Damaged ranges are skipped and returned; their records are not in the index. Raises OSError.
    """
    file = SegmentFile(path, first_offset, size, files.status(path).modified_ms)
    with opened(files, path) as fd:
        units, damage = walk_segment(files, fd, first_offset, size)
    bound_java_times(units, file.modified_ms)
    return replace_index(files, file.index_path, units, first_offset, file.end)[0], damage


def _is_at_rest(log: PartitionLog, segment: Segment) -> bool:
    """Return whether a new index can be written for the segment: all data of the segment are synced, and no job writes
    to its index file.
    """
    safe = segment.synced == segment.end and segment.end <= log.durability.safe_end
    return safe and not log.writes_index(segment)
