"""Rebuilding the missing indexes of closed segments in the background, one after the other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial

from .damage import Damaged
from .files import OpenFiles
from .flush import RunInThread
from .index import Index
from .partition_log import PartitionLog
from .recovery import RebuiltIndex, rebuild_index
from .segment import Segment, SegmentFile

__all__ = ["IndexRebuilding"]

_log = logging.getLogger(__name__)


class IndexRebuilding:
    """The closed segments without an index. Owning thread; they are read by `run_in_thread`."""

    def __init__(
        self,
        open_files: OpenFiles,
        run_in_thread: RunInThread,
        on_rebuilt: Callable[[PartitionLog], None] = lambda log: None,
    ) -> None:
        """on_rebuilt: called when a segment of the log has its index again."""
        self._on_rebuilt = on_rebuilt
        self._open_files = open_files
        self._run_in_thread = run_in_thread
        self._unindexed: list[tuple[PartitionLog, Segment]] = []
        self._closed = False

    def __len__(self) -> int:
        """Segments that are still to be done."""
        return len(self._unindexed)

    def add(self, log: PartitionLog, segments: Iterable[Segment]) -> None:
        """Have these segments of the log indexed after `start`."""
        self._unindexed += [(log, segment) for segment in segments]

    def start(self) -> None:
        """Begin with the first one."""
        self._rebuild_next()

    def stop(self) -> None:
        """Begin with no other one."""
        self._closed = True

    def _rebuild_next(self) -> None:
        if self._unindexed and not self._closed:
            log, segment = self._unindexed[0]
            self._run_in_thread(partial(self._rebuild, segment), partial(self._rebuilt, log, segment))

    def _rebuild(self, segment: Segment) -> RebuiltIndex:
        status = self._open_files.files.status(segment.path)
        file = SegmentFile(segment.path, segment.first_offset, segment.size, status.modified_ms)
        return rebuild_index(self._open_files.files, file)

    def _rebuilt(self, log: PartitionLog, segment: Segment, result: RebuiltIndex | BaseException) -> None:
        del self._unindexed[0]
        if isinstance(result, BaseException):
            _log.error("the index of %s cannot be rebuilt, its messages are not counted: %s", segment.path, result)
        else:
            if segment in log.segments:
                for damage in result.damage:
                    log.report_damage(Damaged(damage.start, damage.end))
            log.adopt_index(segment, Index(self._open_files.file(segment.index_path), result.count, result.max_id))
            self._on_rebuilt(log)
        self._rebuild_next()
