"""Taking expired segments out of their logs, and their files off the disk in the background."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from metaq.protocol.errors import MetaqError
from metaq.protocol.message_id import EPOCH_MS

from . import tuning
from .discard import Discarded, discard
from .files import Files
from .index import IndexDamaged
from .partition_log import PartitionLog
from .retention import DeletePolicy, Disposal, SegmentAge, count_excess, count_expired
from .segment import Segment
from .threads import RunInThread, Turns
from .topic_config import TopicStoreConfig

__all__ = ["RemovedSegment", "RetentionRuns"]


_SKEW_MS = 24 * 3600 * 1000
"""A file changed no more than this ahead of our clock was changed just now: clocks of file servers differ."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RemovedSegment:
    """A segment that retention has taken out of a log; its file goes in the background."""

    topic: str
    partition: int
    first_offset: int
    size: int
    action: Disposal


class RetentionRuns:
    """Applies the topics' delete policies. Owning thread; files are removed by `run_in_thread`."""

    def __init__(
        self,
        files: Files,
        config_for: Callable[[str], TopicStoreConfig],
        run_in_thread: RunInThread,
        clock: Callable[[], float],
        on_restored: Callable[[PartitionLog], None],
    ) -> None:
        """clock: wall clock in seconds. on_restored(log): segments that were taken out of it are in it again, because
        their files could not be removed; what was rebuilt meanwhile was not given to them.
        """
        self._on_restored = on_restored
        self._files = files
        self._config_for = config_for
        self._turns = Turns(run_in_thread, tuning.MAX_DISCARDING)
        self._clock = clock
        self._busy: set[PartitionLog] = set()
        """Logs whose files are being removed; further segments wait, so that none is missing in front of them."""
        self._untidy: dict[PartitionLog, None] = {}
        """Logs with files left over."""
        self._undated: set[str] = set()
        """Files of segments that are known to have no possible date."""

    def apply(self, logs: Iterable[PartitionLog], is_due: Callable[[str], bool]) -> list[RemovedSegment]:
        """Take too old segments out of their logs at once and start deleting or archiving their files.

        is_due: whether a topic's turn has come (topics may have schedules of their own).
        Files that cannot be removed are logged, to be tried at the next run. Their segments come back into the log if
        it is their data that stays.
        """
        self._tidy()
        removed: list[RemovedSegment] = []
        for log in logs:
            if len(log.segments) == 1:
                continue  # the one that grows stays: nothing else may cost anything with ten thousand partitions
            policy = self._config_for(log.topic).delete_policy
            if policy is not None and is_due(log.topic):
                count = count_expired(self._ages(log), policy, self._clock())
                removed += self._remove(log, count, policy.action)
        return removed

    def apply_sizes(self, logs: Iterable[PartitionLog]) -> list[RemovedSegment]:
        """The same for the oldest segments of topics that are larger than their policies allow."""
        limited: dict[str, DeletePolicy | None] = {}
        topics: defaultdict[str, list[PartitionLog]] = defaultdict(list)
        for log in logs:
            topic = log.topic
            if topic not in limited:
                policy = self._config_for(topic).delete_policy
                limited[topic] = None if policy is None or policy.max_bytes is None else policy
            if limited[topic] is not None:
                topics[topic].append(log)
        removed: list[RemovedSegment] = []
        for topic, of_topic in topics.items():
            policy = limited[topic]
            if policy is not None and policy.max_bytes is not None:
                excess = sum(log.segments.size_bytes for log in of_topic) - policy.max_bytes
                removed += self._remove_excess(of_topic, excess, policy.action) if excess > 0 else ()
        return removed

    def _remove_excess(self, logs: Sequence[PartitionLog], excess: int, action: Disposal) -> list[RemovedSegment]:
        counts = count_excess([self._ages(log) for log in logs], excess)
        return [each for log, count in zip(logs, counts, strict=True) for each in self._remove(log, count, action)]

    def _remove(self, log: PartitionLog, count: int, action: Disposal) -> list[RemovedSegment]:
        segments = log.segments.remove_first(count)
        self._discard(log, segments, action)
        return [
            RemovedSegment(log.topic, log.partition, segment.first_offset, segment.size, action) for segment in segments
        ]

    def tidy(self, log: PartitionLog) -> None:
        """Have the next run remove files that belong to none of the log's segments any more."""
        self._untidy[log] = None

    def _tidy(self) -> None:
        """Try again to remove what earlier runs have left over."""
        untidy, self._untidy = self._untidy, {}
        for log in untidy:
            if log in self._busy:
                self._untidy[log] = None
            else:
                self._start(log, (), Disposal.DELETE)

    def _ages(self, log: PartitionLog) -> list[SegmentAge]:
        """The closed segments that may go, oldest first."""
        ages: list[SegmentAge] = []
        if log in self._busy:
            return ages
        for segment in log.segments[:-1]:
            # an index may never be made again (a bad sector): waiting for it would keep the log for ever
            if not segment.finished or log.writes_index(segment):
                break
            try:
                modified_ms = self._files.status(segment.path).modified_ms
            except OSError as error:
                _log.error("retention of %s stops at %s: %s", log.directory, segment.path, error)
                break
            changed_ms = self._possible_date(segment, modified_ms)
            ages.append(SegmentAge(segment.first_offset, changed_ms / 1000, segment.size))
        return ages

    def _possible_date(self, segment: Segment, modified_ms: int) -> int:
        """When a segment was changed last (Unix ms): the file's time, or its last message's if that cannot be.

        A date in the future would keep all segments behind it, one from before metaq would have fresh messages deleted.
        """
        now_ms = int(self._clock() * 1000)
        if EPOCH_MS <= modified_ms <= now_ms + _SKEW_MS:
            return modified_ms
        index = segment.index
        try:
            stored_ms = abs(index.unit(len(index) - 1)[2]) if index else modified_ms
        except (OSError, MetaqError, IndexDamaged) as error:
            _log.warning("%s: the store time of the last message is unknown: %s", segment.index_path, error)
            stored_ms = modified_ms
        if EPOCH_MS <= stored_ms <= now_ms + _SKEW_MS:
            return stored_ms
        if segment.path not in self._undated:
            self._undated.add(segment.path)
            _log.warning(
                "retention by age keeps %s: neither the file nor its last message has a possible date. "
                "To have the segment taken away in time, set the file's date with touch",
                segment.path,
            )
        return now_ms

    def _discard(self, log: PartitionLog, segments: Sequence[Segment], action: Disposal) -> None:
        if segments:
            self._start(log, segments, action)

    def _start(self, log: PartitionLog, segments: Sequence[Segment], action: Disposal) -> None:
        self._busy.add(log)
        paths = [segment.path for segment in segments]
        job = partial(discard, self._files, log.directory, paths, action, log.first_offset)
        self._turns.run(log.topic, job, partial(self._discarded, log, segments))

    def _discarded(self, log: PartitionLog, segments: Sequence[Segment], result: Discarded | BaseException) -> None:
        self._busy.discard(log)
        if isinstance(result, BaseException):  # the thread itself has failed: nothing was done
            result = Discarded(error=RuntimeError(repr(result)))
        self._undated.difference_update(segment.path for segment in segments[: result.gone])
        if result.error is not None:
            _log.error(
                "retention of %s stopped after %d of %d segments: %s",
                log.directory,
                result.gone,
                len(segments),
                result.error,
            )
            log.segments.restore_first(segments[result.gone :])
            self._on_restored(log)
        if result.left_over:
            self._untidy[log] = None
            _log.error("left over of segments that are gone, to be removed later: %s", ", ".join(result.left_over))
