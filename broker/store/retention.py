"""Find segments that are too old or too many (storage.md §5), remove them from their logs at once, and delete their
files in a worker thread.

A segment counts as removed as soon as its data file is gone. Its index and key files are removed afterwards. If the
removal of such a file fails, the file stays in the directory until a later run removes it; it is never taken for a
segment. The removal of each data file is synced before the next removal begins, so that a power cut leaves no gap.
"""

from __future__ import annotations

import errno
import heapq
import logging
import os
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from metaq.protocol.errors import MetaqError
from metaq.protocol.message_id import EPOCH_MS

from . import tuning
from .files import Files, may_exist, opened
from .index import FRESH_SUFFIX, IndexDamaged
from .partition_log import PartitionLog
from .segment import DATA_SUFFIX, INDEX_SUFFIX, KEYS_SUFFIX, Segment
from .topic_config import DeletePolicy, Disposal, TopicStoreConfig
from .worker_turns import RunInThread, Turns

__all__ = ["RemovedSegment", "Retention", "SegmentAge", "count_excess", "count_expired"]


_SKEW_MS = 24 * 3600 * 1000
"""How many milliseconds a file's modification time may be ahead of this machine's clock and still be trusted. Such a
file counts as changed just now. Small differences are trusted because the clock of a file server can be ahead of this
machine's clock.
"""

_log = logging.getLogger(__name__)

_DERIVED = (INDEX_SUFFIX, INDEX_SUFFIX + FRESH_SUFFIX, KEYS_SUFFIX)
_UNFINISHED = f"{DATA_SUFFIX}.zip.part"


@dataclass(frozen=True, slots=True)
class RemovedSegment:
    """A segment that retention has removed from a log. A worker thread deletes or archives its file afterwards."""

    topic: str
    partition: int
    first_offset: int
    size: int
    action: Disposal


class SegmentAge(NamedTuple):
    """A closed segment: its first byte offset, the time of its file's last change in Unix seconds, and its size in
    bytes.
    """

    first_offset: int
    modified: float
    size: int = 0


def count_expired(closed: Sequence[SegmentAge], policy: DeletePolicy, now: float) -> int:
    """Return how many of the oldest closed segments are older than the policy allows at `now` (Unix seconds).

    The count stops at the first segment that is too young. Segments behind it are kept even if their files are older,
    because their removal would leave a gap in the log. (metaq 1.x checks each segment alone.)
    """
    for count, segment in enumerate(closed):
        if now - segment.modified <= policy.max_age_s:
            return count
    return len(closed)


def count_excess(closed: Sequence[Sequence[SegmentAge]], excess: int) -> list[int]:
    """Return how many of the oldest closed segments to remove from each of a topic's logs so that the topic loses
    `excess` bytes.

    closed: for each log its closed segments, oldest first. The segments to remove are chosen one by one. Each time, the
    oldest remaining closed segments of all logs are compared, one of each log, and the one whose last change is longest
    ago is chosen. The topic loses more than `excess` bytes if the last chosen segment is larger than needed. It loses
    fewer bytes if all closed segments together have fewer; the last segment of a log is not closed and is never
    removed.
    """
    counts = [0] * len(closed)
    oldest = [(segments[0].modified, log) for log, segments in enumerate(closed) if segments]
    heapq.heapify(oldest)
    while oldest and excess > 0:
        _, log = heapq.heappop(oldest)
        excess -= closed[log][counts[log]].size
        counts[log] += 1
        if counts[log] < len(closed[log]):
            heapq.heappush(oldest, (closed[log][counts[log]].modified, log))
    return counts


class Retention:
    """Applies the topics' delete policies. Only the thread that owns the store may use this object. Worker threads
    (`run_in_thread`) remove the files.
    """

    def __init__(
        self,
        files: Files,
        config_for: Callable[[str], TopicStoreConfig],
        run_in_thread: RunInThread,
        clock: Callable[[], float],
        on_restored: Callable[[PartitionLog], None],
    ) -> None:
        """clock: wall clock in seconds. on_restored(log): called when removed segments belong to the log again because
        their files could not be removed. The index of such a segment may have been rebuilt while the segment did not
        belong to the log; this rebuilt index is not used. So the callee must plan the rebuild of missing indexes again.
        """
        self.enabled = True
        """Whether `apply` and `apply_sizes` remove segments. False while this node copies its logs from another node;
        meanwhile only `drop_before` removes segments, after the other node has removed them.
        """
        self._on_restored = on_restored
        self._files = files
        self._config_for = config_for
        self._turns = Turns(run_in_thread, tuning.MAX_DISCARDING)
        self._clock = clock
        self._busy: set[PartitionLog] = set()
        """Logs whose files are being removed. Until the removal has ended, no further segments of these logs are
        removed, because the log would have a gap if the first removal failed and a later one succeeded.
        """
        self._untidy: dict[PartitionLog, None] = {}
        """Logs with files that should have been removed but still exist. The next call of `apply` tries to remove them
        again.
        """
        self._undated: set[str] = set()
        """Paths of data files for which a warning was logged because neither the file nor its last message has a
        plausible date. The set prevents a second warning.
        """

    def apply(self, logs: Iterable[PartitionLog], is_due: Callable[[str], bool]) -> list[RemovedSegment]:
        """Remove the segments that are too old: they leave their logs at once, and the deletion or archiving of their
        files begins.

        is_due: returns whether retention is due for the named topic now. Each topic may have its own schedule. If a
        file cannot be removed, the error is logged, and the next call of `apply` tries again. In the meantime, if the
        file is a data file, its segment belongs to the log again.
        """
        self._tidy()
        removed: list[RemovedSegment] = []
        for log in logs if self.enabled else ():
            if len(log.segments) == 1:
                continue  # the active segment stays; skip it quickly, as there may be ten thousand partitions
            policy = self._config_for(log.topic).delete_policy
            if policy is not None and is_due(log.topic):
                count = count_expired(self._ages(log), policy, self._clock())
                removed += self._remove(log, count, policy.action)
        return removed

    def apply_sizes(self, logs: Iterable[PartitionLog]) -> list[RemovedSegment]:
        """Remove the oldest segments of each topic that is larger than its policy allows. Everything else is as in
        `apply`.
        """
        limited: dict[str, DeletePolicy | None] = {}
        topics: defaultdict[str, list[PartitionLog]] = defaultdict(list)
        for log in logs if self.enabled else ():
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
        if segments:
            self._start(log, segments, action)
        return [
            RemovedSegment(log.topic, log.partition, segment.first_offset, segment.size, action) for segment in segments
        ]

    def drop_before(self, log: PartitionLog, first_offset: int) -> list[RemovedSegment]:
        """Remove the first segments of a log that end at or before byte offset `first_offset`, even if `enabled` is
        False. The removal stops at the first segment that must stay: the last segment, a segment that readers do not
        see completely, or one that still needs a sync job. Nothing is removed while `is_busy(log)` is True. The topic's
        policy says whether the files of the removed segments are deleted or archived; without a policy they are
        deleted.
        """
        going = 0
        if log.segments[0].end <= first_offset and log not in self._busy:
            for segment in log.segments[:-1]:
                if segment.end > min(first_offset, log.visible_end) or not segment.finished:
                    break
                if log.writes_index(segment):
                    break
                going += 1
        policy = self._config_for(log.topic).delete_policy
        return self._remove(log, going, Disposal.DELETE if policy is None else policy.action) if going else []

    def is_busy(self, log: PartitionLog) -> bool:
        """Whether files of the log are being removed."""
        return log in self._busy

    def discard(self, log: PartitionLog, count: int) -> None:
        """Delete a log's first `count` segments, whatever the policies say."""
        self._remove(log, count, Disposal.DELETE)

    def tidy(self, log: PartitionLog) -> None:
        """Make the next call of `apply` remove files in the log's directory that belong to no segment, such as index
        files of removed segments.
        """
        self._untidy[log] = None

    def _tidy(self) -> None:
        """Try again to remove files that earlier runs have left over."""
        untidy, self._untidy = self._untidy, {}
        for log in untidy:
            if log in self._busy:
                self._untidy[log] = None
            else:
                self._start(log, (), Disposal.DELETE)

    def _ages(self, log: PartitionLog) -> list[SegmentAge]:
        """Return the closed segments of a log that retention is allowed to remove, oldest first. The list ends before
        the first segment that must stay: one that still needs a sync job, that readers do not see completely, or whose
        file's time cannot be read.
        """
        ages: list[SegmentAge] = []
        if log in self._busy:
            return ages
        for segment in log.segments[:-1]:
            # an index may never be rebuilt (a bad sector): waiting for it would keep the log for ever
            if not segment.finished or log.writes_index(segment) or segment.end > log.visible_end:
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
        """Return when a segment was last changed (Unix ms). The result is `modified_ms`, the file's modification time,
        if it is plausible; otherwise it is the store time of the segment's last message. If neither is plausible, log a
        warning once and return the present time, so that the segment is kept.

        A modification time in the future is not plausible; with it, the segment and all later ones would be kept for
        too long. A time before metaq existed is not plausible either; with it, new messages would be deleted at once.
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

    def _start(self, log: PartitionLog, segments: Sequence[Segment], action: Disposal) -> None:
        self._busy.add(log)
        paths = [segment.path for segment in segments]
        job = partial(_discard, self._files, log.directory, paths, action, log.first_offset)
        self._turns.run(log.topic, job, partial(self._discarded, log, segments))

    def _discarded(self, log: PartitionLog, segments: Sequence[Segment], result: _Discarded | BaseException) -> None:
        self._busy.discard(log)
        if isinstance(result, BaseException):  # the thread itself has failed: nothing was done
            result = _Discarded(error=RuntimeError(repr(result)))
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


# --- in a worker thread ----------------------------------------------------------------------------------------------


class _Unreadable(Exception):
    """Raised if the bytes of a segment that is to be compressed cannot be read from the disk."""


@dataclass(slots=True)
class _Discarded:
    """What happened when a worker thread removed the files of a partition's segments."""

    gone: int = 0
    """How many of the segments, counted from the oldest, no longer have a data file."""
    error: Exception | None = None
    """The error that stopped the removal of segments, or None if there was no error. The files of the segments that
    were not removed are unchanged.
    """
    left_over: list[str] = field(default_factory=list)
    """Files that no longer belong to a segment and could not be removed, each with its reason."""


def _discard(files: Files, directory: str, paths: Sequence[str], action: Disposal, first_kept: int) -> _Discarded:
    """Delete or archive segment files, oldest first. Stop at the first data file that cannot be removed, because the
    removal of later ones would leave a gap in the log.

    Also remove the segments' index and key files, and old index and key files that earlier runs have left over. Any
    thread may call this function, but only one thread at a time per partition. first_kept: the byte offset where the
    partition begins afterwards. The function never raises an exception.
    """
    result = _Discarded()
    try:
        for path in paths:
            _take_away(files, directory, path, action)
            result.gone += 1
    except Exception as error:  # even a bug of ours must not let the log forget existing segments
        result.error = error
        result.gone += sum(not may_exist(files, path) for path in paths[result.gone : result.gone + 1])
    try:
        _sweep(files, directory, first_kept, result)
    except OSError as error:
        result.left_over.append(f"{directory} ({error})")
    return result


def _take_away(files: Files, directory: str, path: str, action: Disposal) -> None:
    try:
        if action is Disposal.ARCHIVE:
            files.rename(path, f"{path}.arc")
        else:
            if action is Disposal.COMPRESS:
                _zip(files, path)
                files.fsync_directory(directory)
            files.unlink(path)
    except _Unreadable as error:  # later reads would fail, too: the log must not keep the segment, but its file is kept
        _log.error("%s cannot be compressed, it is archived as it is: %s", path, error)
        files.rename(path, f"{path}.arc")
    except FileNotFoundError:
        if may_exist(files, path):
            raise
        _log.warning("%s was gone already", path)
    files.fsync_directory(directory)


def _sweep(files: Files, directory: str, first_kept: int, result: _Discarded) -> None:
    """Remove files in a partition directory that belong to no segment: index and key files of segments before
    `first_kept` whose data file is gone, and unfinished archives. Files that cannot be removed are added to
    `result.left_over`.
    """
    names = set(files.list_directory(directory))
    for name in sorted(names):
        stem, dot, suffix = name.partition(".")
        derived = (
            dot + suffix in _DERIVED
            and stem.isascii()
            and stem.isdecimal()
            and int(stem) < first_kept
            and f"{stem}{DATA_SUFFIX}" not in names
        )
        if derived or name.endswith(_UNFINISHED):
            path = os.path.join(directory, name)
            try:
                with suppress(FileNotFoundError):
                    files.unlink(path)
            except OSError as error:
                result.left_over.append(f"{path} ({error.strerror})")


def _zip(files: Files, path: str) -> None:
    """Compress a segment file to `<path>.zip`. Either the archive is written completely, or there is no file with that
    name. Raises OSError, _Unreadable.
    """
    unfinished = path.removesuffix(DATA_SUFFIX) + _UNFINISHED
    with opened(files, unfinished, os.O_RDWR | os.O_CREAT):
        """Create the file with the same permissions as all files of this broker, so that no other user can read it."""
    with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED, allowZip64=True) as archive:
        try:
            archive.write(path, os.path.basename(path))
        except OSError as error:
            if error.errno == errno.EIO:
                raise _Unreadable(str(error)) from error
            raise
    with opened(files, unfinished, os.O_RDWR) as fd:
        files.fdatasync(fd)
    files.rename(unfinished, f"{path}.zip")
