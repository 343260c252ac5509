"""Taking expired segments out of their logs, and their files off the disk in the background."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from .discard import discard
from .files import Files
from .flush import RunInThread
from .partition_log import PartitionLog
from .retention import Action, DeletePolicy, SegmentAge, count_expired
from .segment import Segment
from .topic_config import TopicStoreConfig

__all__ = ["RemovedSegment", "RetentionRuns"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RemovedSegment:
    """A segment that retention has taken out of a log; its file goes in the background."""

    topic: str
    partition: int
    first_offset: int
    size: int
    action: Action


class RetentionRuns:
    """Applies the topics' delete policies. Owning thread; files are removed by `run_in_thread`."""

    def __init__(
        self,
        files: Files,
        config_for: Callable[[str], TopicStoreConfig],
        run_in_thread: RunInThread,
        clock: Callable[[], float],
    ) -> None:
        """clock: wall clock in seconds."""
        self._files = files
        self._config_for = config_for
        self._run_in_thread = run_in_thread
        self._clock = clock

    def apply(self, logs: Iterable[PartitionLog], is_due: Callable[[str], bool]) -> list[RemovedSegment]:
        """Take too old segments out of their logs at once and start deleting or archiving their files.

        is_due: whether a topic's turn has come (topics may have schedules of their own).
        Files that cannot be removed are logged and come back into the log, to be tried at the next run.
        """
        removed: list[RemovedSegment] = []
        for log in logs:
            policy = self._config_for(log.topic).delete_policy
            if policy is not None and is_due(log.topic):
                segments = log.remove_first(self._count_expired(log, policy))
                removed += [
                    RemovedSegment(log.topic, log.partition, segment.first_offset, segment.size, policy.action)
                    for segment in segments
                ]
                self._discard(log, segments, policy.action)
        return removed

    def _count_expired(self, log: PartitionLog, policy: DeletePolicy) -> int:
        ages = []
        for segment in log.segments[:-1]:
            if not segment.removable:
                break
            try:
                modified_ms = self._files.status(segment.path).modified_ms
            except OSError as error:
                _log.error("retention of %s stops at %s: %s", log.directory, segment.path, error)
                break
            ages.append(SegmentAge(segment.first_offset, modified_ms / 1000))
        return count_expired(ages, policy, self._clock())

    def _discard(self, log: PartitionLog, segments: Sequence[Segment], action: Action) -> None:
        if segments:
            paths = [segment.path for segment in segments]
            done = partial(self._discarded, log, segments)
            self._run_in_thread(partial(discard, self._files, log.directory, paths, action), done)

    def _discarded(
        self, log: PartitionLog, segments: Sequence[Segment], result: tuple[int, OSError | None] | BaseException
    ) -> None:
        if isinstance(result, BaseException):
            _log.error("retention of %s failed: %r", log.directory, result)
            return
        count, error = result
        if error is not None:
            _log.error(
                "retention of %s stopped after %d of %d segments: %s", log.directory, count, len(segments), error
            )
            log.restore_first(segments[count:])
