"""One partition: a list of segments that is read and written as one log.

Invariants, checked by tests after every step (`testing.check_invariants`):
- segments are contiguous; only the last one grows, and it is the only one that may be empty;
- first_offset <= visible_end <= end_offset = end of the last segment, none of them ever goes back;
- with asynchronous flush visible_end == end_offset; with group commit visible_end is on the disk;
- every indexed segment's units lie back to back and end at the segment's end;
- 0 <= message_count; count_before(visible_end) == message_count;
- once read_only is set nothing is ever written to the data again.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections.abc import Callable, Sequence

import numpy as np

from metaq.protocol.errors import LogReadOnly, OffsetOutOfRange, StoreError
from metaq.protocol.record import Buffer

from .files import Files, OpenFiles, read_exactly, write_all
from .flush import DATA, INDEX, Flusher, FlushPolicy, RunInThread, SyncJob, VisibleCallback, call_safely
from .index import UNIT, UNIT_BYTES, UNIT_DTYPE, Index, UnitArray
from .journal import Journal
from .scan import scan_units
from .segment import Segment, create_segment

__all__ = ["MAX_UNSTORED_UNITS", "PartitionLog"]

_log = logging.getLogger(__name__)

MAX_UNSTORED_UNITS = 1 << 16
"""Index units held in memory (2 MiB) before they are written out ahead of the checkpoint."""

_CHECKPOINT_SECONDS = 5.0


class PartitionLog:
    """All methods belong to the owning thread unless they say otherwise."""

    def __init__(
        self,
        topic: str,
        partition: int,
        directory: str,
        segments: Sequence[Segment],
        *,
        policy: FlushPolicy,
        max_segment_size: int,
        open_files: OpenFiles,
        run_in_thread: RunInThread,
        journal: Journal | None = None,
        unsynced_directories: Sequence[str] = (),
        on_dirty: Callable[[PartitionLog], None] | None = None,
    ) -> None:
        """segments: at least one, contiguous, the last one writable and with an index (recovery.py makes them).

        journal: makes puts safe that wait for the disk; without one the partition's own file is synced.
        """
        self.topic = topic
        self.partition = partition
        self.directory = directory
        self.read_only: str | None = None
        self.on_visible: Callable[[PartitionLog], None] | None = None
        self._policy = policy
        self._waits = policy.waits
        self._async_from: int | None = None  # group commit ends when everything before this offset is synced
        self._journal = journal
        self._journal_end = -1  # where the journal's entries of this partition end
        self._max_segment_size = max_segment_size
        self._open_files = open_files
        self._flusher = Flusher(self, run_in_thread)
        self._segments: list[Segment] = list(segments)
        self._unsynced_directories = list(unsynced_directories)
        self._on_dirty = on_dirty
        self._dirty = False
        self._dirty_since = self._checkpointed_at = float("-inf")
        self._unsynced_records = 0
        self._removed = 0  # records that retention took away: message numbers go on
        self._relist()
        self.end_offset = self._active.end
        self._written = self._visible = self._bases[-1] + self._active.count
        self.visible_end = self.end_offset
        if self._unfinished():
            self._mark_dirty()

    def __repr__(self) -> str:
        return f"<PartitionLog {self.topic}-{self.partition} [{self.first_offset}, {self.visible_end}]>"

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def first_offset(self) -> int:
        """Byte offset of the first byte that is still there."""
        return self._starts[0]

    @property
    def message_count(self) -> int:
        """Readable messages. Those in segments whose index is being rebuilt are not counted until that is done."""
        return self._visible - self._removed

    @property
    def size_bytes(self) -> int:
        """Readable bytes."""
        return self.visible_end - self.first_offset

    @property
    def max_message_id(self) -> int:
        """Largest positive message id known, 0 if there is none."""
        return max(0 if segment.index is None else segment.index.max_id for segment in self._segments)

    @property
    def segments(self) -> Sequence[Segment]:
        """The segments, oldest first; not to be changed."""
        return self._segments

    # --- writing ------------------------------------------------------------------------------------------------------

    def append(self, data: Sequence[Buffer], units: Buffer) -> int:
        """Write whole records behind the last one and return the byte offset of the first.

        data: the records' bytes, in buffers cut anywhere. units: one packed UNIT for each record, with absolute byte
        offsets from `end_offset` on. All or nothing: what a failed write left is cut back, the log turns read-only and
        LogReadOnly is raised. Rolls afterwards if the segment has reached its size. Raises ValueError, with nothing
        written, if data and units do not belong together.
        """
        if self.read_only is not None:
            raise LogReadOnly(self.directory, self.read_only)
        journal = self._journal if self._waits else None
        if journal is not None and journal.failure is not None:
            self.sync_failed(str(journal.failure))
            raise journal.failure
        base = self.end_offset
        size = sum(map(len, data))
        self._check_units(units, base, size)
        if journal is not None and len(data) > 1:
            data = (b"".join(data),)  # it is written twice
        self._write(data)
        active = self._active
        active.size += size
        self._active_index.extend(units)
        self.end_offset = base + size
        count = len(units) // UNIT_BYTES
        self._written += count
        self._unsynced_records += count
        if not self._dirty:
            self._mark_dirty()
        if active.size >= self._max_segment_size:
            self._roll()
        # an entry can be replayed only if everything before it is safe: not so just after asynchronous flush
        if journal is not None and (self._journal_end == base or self.synced_end >= base):
            self._journal_end = self.end_offset
            journal.add(self, base, self.end_offset, self._written, data[0])
        elif self._policy.due_after_append(self._unsynced_records):
            self._flusher.request(DATA)
        if self._active_index.unstored > MAX_UNSTORED_UNITS and not self._flusher.writes_index:
            self._flusher.request(INDEX)
        if not self._waits:
            self._show(self.end_offset, self._written)
        return base

    def use(self, policy: FlushPolicy, max_segment_size: int) -> None:
        """Go on with other settings.

        To group commit: what is not synced yet stays visible and is synced at once. From group commit: puts that wait
        for their sync keep waiting for it; later ones are shown as soon as those are.
        """
        self._max_segment_size = max_segment_size
        if policy == self._policy:
            return
        self._policy = policy
        self._async_from = None
        if policy.waits:
            if not self._waits:
                self._journal_end = -1  # the journal knows nothing of what was written meanwhile
            self._waits = True
            if self._unsynced_records:
                self._flusher.request(DATA)
        elif self._waits:
            self._async_from = self.end_offset
            self._stop_waiting()

    def _stop_waiting(self) -> None:
        if self._async_from is not None and self.visible_end >= self._async_from:
            self._async_from = None
            self._waits = False
            self._show(self.end_offset, self._written)

    def when_visible(self, end: int, callback: VisibleCallback) -> None:
        """Call `callback(None)` exactly once as soon as visible_end >= end: at once, or in order when the flush ends.

        `callback(LogReadOnly)` if the flush fails or has failed. end: a byte offset up to end_offset, of an append.
        """
        if self.visible_end >= end:
            callback(None)
        else:
            self._flusher.when_synced(end, callback)

    def flush(self) -> None:
        """Start a sync of everything appended; `when_visible` or `segments[-1].synced` tell when it is done."""
        self._flusher.request(DATA)

    def checkpoint(self) -> None:
        """Start a sync of the data and its index, so that recovery need not check what is there now."""
        self._flusher.request(DATA | INDEX)

    def close(self) -> None:
        """Sync data and index on this thread, answer everybody who waits, close the files. Nothing may follow."""
        if self._dirty or self._flusher.busy:
            self._flusher.finish()
        if self.read_only is None:
            self.read_only = "the store is closed"
        for segment in self._segments:
            segment.close()

    @staticmethod
    def _check_units(units: Buffer, base: int, size: int) -> None:
        if not size or not units or len(units) % UNIT_BYTES:
            raise ValueError(f"append of {size} bytes with {len(units)} bytes of index units")
        last = UNIT.unpack_from(units, len(units) - UNIT_BYTES)
        if UNIT.unpack_from(units)[0] != base or last[0] + last[3] != base + size:
            raise ValueError(f"index units do not describe [{base}, {base + size})")

    def _write(self, data: Sequence[Buffer]) -> None:
        active = self._active
        fd = None
        try:
            fd = active.data.use()
            write_all(self._files, fd, data, active.size)
        except OSError as error:
            cause = str(error) if fd is None else self._cut_back(fd, active.size, str(error))
            self._turn_read_only(cause)
            raise LogReadOnly(self.directory, cause) from error

    def _cut_back(self, fd: int, size: int, cause: str) -> str:
        try:
            self._files.truncate(fd, size)
        except OSError as error:  # recovery cuts it at the next start
            return f"{cause} (and cutting the file back to {size} bytes failed: {error})"
        return cause

    def _roll(self) -> None:
        try:
            segment = create_segment(self._open_files, self.directory, self.end_offset)
        except OSError as error:  # what was appended is good; only the next append has nowhere to go
            self._turn_read_only(f"no new segment at {self.end_offset}: {error}")
            return
        self._segments = [*self._segments, segment]
        self._unsynced_directories.append(self.directory)
        self._relist()
        self._flusher.request(DATA | INDEX)

    def _turn_read_only(self, cause: str) -> None:
        self.read_only = cause
        _log.error("%s takes no more writes until the broker is restarted: %s", self.directory, cause)

    def _mark_dirty(self) -> None:
        self._dirty = True
        if self._on_dirty is not None:
            self._on_dirty(self)

    def _show(self, end: int, count: int) -> None:
        if end > self.visible_end:
            self.visible_end = end
            self._visible = count
            self._flusher.answer(end)
            if self.on_visible is not None:
                call_safely(self.on_visible, self)

    # --- background jobs (for flush.py and store.py) ------------------------------------------------------------------

    @property
    def flusher(self) -> Flusher:
        """For the store, which bounds how many run at once."""
        return self._flusher

    def due(self, now: float) -> int:
        """What a dirty log should have done at monotonic time `now` (seconds), as job bits; 0 for nothing yet."""
        if self._flusher.failure is not None:
            return 0
        if self._checkpointed_at == float("-inf"):
            self._checkpointed_at = now
        if self._dirty_since == float("-inf"):
            self._dirty_since = now
        if now - self._checkpointed_at >= _CHECKPOINT_SECONDS:
            self._checkpointed_at = self._dirty_since = now
            return DATA | INDEX
        if self._unsynced_records and self._policy.due_after(now - self._dirty_since):
            self._dirty_since = now
            return DATA
        return 0

    @property
    def dirty(self) -> bool:
        """Whether something is not yet covered by a checkpoint."""
        return self._dirty

    def make_job(self, kind: int) -> SyncJob:
        """For the flusher: a job over everything appended so far."""
        if kind & DATA:
            self._unsynced_records = 0
        directories = tuple(self._unsynced_directories) if kind & DATA else ()
        return SyncJob(self._files, kind, self._unfinished(), directories, self.end_offset, self._written)

    def job_succeeded(self, job: SyncJob) -> None:
        """For the flusher: the job's data is safe."""
        if not job.kind & DATA:
            return
        del self._unsynced_directories[: len(job.directories)]
        if self._waits:
            self._show(job.end, job.sequence)
            self._stop_waiting()
        if job.kind & INDEX and not self._unfinished():
            self._dirty = False
            self._checkpointed_at = self._dirty_since = float("-inf")

    def _unfinished(self) -> list[Segment]:
        """The segments that no checkpoint covers yet, oldest first: always the last ones."""
        found = [] if self._active.finished else [self._active]
        for segment in self._segments[-2::-1]:
            if segment.finished:
                break
            found.append(segment)
        return found[::-1]

    def sync_failed(self, cause: str) -> None:
        """For the flusher and the journal: never tried again, the kernel has forgotten what it could not write."""
        if self.read_only is None:
            self._turn_read_only(cause)
        self._flusher.fail(cause)

    @property
    def waits(self) -> bool:
        """Whether puts wait for the disk (group commit)."""
        return self._waits

    def mark_synced(self) -> None:
        """For the store: the whole file system was synced, before the log is in use."""
        for segment in self._segments:
            segment.synced = segment.end
        self._unsynced_directories.clear()

    @property
    def synced_end(self) -> int:
        """Byte offset up to which the partition's own files are on the disk."""
        end = self.end_offset
        for segment in reversed(self._segments):
            if segment.synced == segment.end:
                if segment.size:
                    break
                continue
            end = segment.synced
        return end

    def sync_directly(self, end: int, callback: VisibleCallback) -> None:
        """For the journal: sync the partition's own file, then call back."""
        self._flusher.request(DATA)
        self.when_visible(end, callback)

    def journaled(self, end: int, sequence: int) -> None:
        """For the journal: what lies below `end`, the first `sequence` records of this log's count, is safe."""
        if self._flusher.failure is None:
            self._show(end, sequence)
            self._stop_waiting()

    # --- reading ------------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int) -> bytes | None:
        """At most `max_bytes` stored bytes from `offset` on, of one segment, up to visible_end; b"" there.

        None if they are not all in the page cache: call `read_blocking` in a worker thread. The last record may be cut.
        Raises OffsetOutOfRange(first, visible end), StoreError if the file cannot be read, ValueError for
        max_bytes <= 0.
        """
        segment, length = self._extent(offset, max_bytes)
        if not length:
            return b""
        try:
            return segment.data.read_cached(length, offset - segment.first_offset)
        except OSError as error:
            raise StoreError(f"{segment.path} cannot be read: {error}") from error

    def read_blocking(self, offset: int, max_bytes: int) -> bytes:
        """The same, waiting for the disk. Any thread: uses a descriptor of its own and one snapshot of the segments."""
        segment, length = self._extent(offset, max_bytes)
        if not length:
            return b""
        try:
            fd = self._files.open(segment.path, os.O_RDONLY)
            try:
                return read_exactly(self._files, fd, length, offset - segment.first_offset)
            finally:
                self._files.close(fd)
        except FileNotFoundError:
            if segment in self._segments:
                raise
            raise OffsetOutOfRange(offset, self.first_offset, self.visible_end) from None  # retention was faster
        except OSError as error:
            raise StoreError(f"{segment.path} cannot be read: {error}") from error

    def segment_start(self, offset: int) -> int:
        """Where the segment with this byte starts; visible_end if offset is there or beyond, first_offset if below.

        Source: the 1.x `offset` command (wire.md §4), which asks for a safe place to start from.
        """
        if offset >= self.visible_end:
            return self.visible_end
        return self._starts[max(0, bisect_right(self._starts, offset) - 1)]

    def count_before(self, offset: int) -> int:
        """Messages wholly before this byte offset, counted from first_offset: lag = message_count - count_before."""
        if offset >= self.visible_end:
            return self.message_count
        number = bisect_right(self._starts, offset) - 1
        if number < 0:
            return 0
        index = self._segments[number].index
        return self._bases[number] - self._removed + (0 if index is None else index.ending_by(offset))

    def offset_after(self, offset: int, messages: int, max_bytes: int) -> int:
        """How far at most `messages` whole messages and `max_bytes` bytes lead from where a message begins: byte offset
        of the next one, visible_end at most. A segment whose index is being rebuilt is taken whole.
        """
        number = min(self.count_before(offset) + messages, self.count_before(offset + max_bytes))
        if number >= self.message_count:
            return self.visible_end
        absolute = number + self._removed
        place = bisect_right(self._bases, absolute) - 1
        index = self._segments[place].index
        if index is None:
            return self._starts[place + 1] if place + 1 < len(self._starts) else self.visible_end
        return index.unit(absolute - self._bases[place])[0]

    def offset_at_time(self, time_ms: int) -> int:
        """Byte offset of the first readable record stored at `time_ms` (Unix ms) or later, visible_end if none is.

        Exact for our records; a Java broker's are taken at the latest time they can have been stored. A segment whose
        index is being rebuilt is taken whole.
        """
        for segment in self._segments:
            index = segment.index
            if index is None:
                return segment.first_offset
            count = len(index)
            if count and abs(index.unit(count - 1)[2]) >= time_ms:
                return min(index.unit(index.stored_before(time_ms))[0], self.visible_end)
        return self.visible_end

    def units(self, offset: int, max_bytes: int, max_count: int = 1 << 20) -> UnitArray:
        """Index units (UNIT_DTYPE) of the readable records starting at or after `offset`, ending by offset + max_bytes.

        All of one segment, the one `offset` is in. The first one is given even if it is larger than max_bytes, so that
        a caller can always go on; empty only at visible_end or inside a segment's last record. Raises OffsetOutOfRange
        and StoreError like `read`.
        If the segment's index is being rebuilt the records are walked, so `offset` must be the start of one.
        """
        segment, length = self._extent(offset, max_bytes)
        if not length:
            return np.empty(0, UNIT_DTYPE)
        index = segment.index
        if index is None:
            return self._walked_units(segment, offset, length, max_count)
        start = index.starting_before(offset)
        units = index.units_ending_by(start, offset + length, max_count)
        return units if len(units) else index.units_ending_by(start, self.visible_end, 1)  # larger than max_bytes

    def _walked_units(self, segment: Segment, offset: int, length: int, max_count: int) -> UnitArray:
        fd = segment.data.use()
        start = offset - segment.first_offset
        found = scan_units(self._files, fd, start, start + length, segment.first_offset)
        if not len(found.units) and start + length < segment.size:  # one record larger than max_bytes
            found = scan_units(self._files, fd, start, segment.size, segment.first_offset, max_records=1)
        return found.units[:max_count]

    def _extent(self, offset: int, max_bytes: int) -> tuple[Segment, int]:
        """The segment that has `offset` and how many readable bytes of it may be given."""
        if max_bytes <= 0:
            raise ValueError(f"max_bytes {max_bytes} must be positive")
        visible_end, segments = self.visible_end, self._segments  # in this order: other threads must not see beyond
        last = segments[-1]
        if offset >= last.first_offset:
            segment = last
        else:
            number = bisect_right(segments, offset, key=_first_offset) - 1
            segment = segments[max(0, number)]
        if not segments[0].first_offset <= offset <= visible_end:
            raise OffsetOutOfRange(offset, segments[0].first_offset, visible_end)
        return segment, min(max_bytes, min(segment.first_offset + segment.size, visible_end) - offset)

    # --- changes of the list of segments ------------------------------------------------------------------------------

    def remove_first(self, count: int) -> list[Segment]:
        """Forget the first `count` segments, never the last one, and return them; the caller deletes the files."""
        count = min(count, len(self._segments) - 1)
        removed, self._segments = self._segments[:count], self._segments[count:]
        self._removed += sum(segment.count for segment in removed)
        self._relist()
        for segment in removed:
            segment.close()
        return removed

    def restore_first(self, segments: Sequence[Segment]) -> None:
        """Take back segments that could not be deleted; they end where the log starts now."""
        self._segments = [*segments, *self._segments]
        self._removed -= sum(segment.count for segment in segments)
        self._relist()

    def adopt_index(self, segment: Segment, index: Index) -> None:
        """Give a closed segment the index that was rebuilt for it; ignored if the segment is gone."""
        if segment not in self._segments:
            return
        segment.index = index
        segment.synced = segment.checkpointed = segment.end
        self._written += len(index)
        self._visible += len(index)
        self._relist()

    def _relist(self) -> None:
        self._active = self._segments[-1]
        assert self._active.index is not None
        self._active_index = self._active.index
        self._starts = [segment.first_offset for segment in self._segments]
        base = self._removed
        self._bases = []
        for segment in self._segments:
            self._bases.append(base)
            base += segment.count

    @property
    def _files(self) -> Files:
        return self._open_files.files


def _first_offset(segment: Segment) -> int:
    return segment.first_offset
