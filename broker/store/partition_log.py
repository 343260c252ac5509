"""One partition: a list of segments that is read and written as one log.

Invariants, checked by tests after every step (`testing.check_invariants`):
- segments are contiguous; only the last one grows, and it is the only one that may be empty;
- first_offset <= visible_end <= end_offset = end of the last segment, none of them ever goes back;
- with asynchronous flush visible_end == end_offset; with group commit visible_end is on the disk;
- every indexed segment's units lie back to back and end at the segment's end;
- within a segment store times (of bounds: without their sign) never decrease, whatever the clock does;
- 0 <= message_count; count_before(visible_end) == message_count;
- once read_only is set nothing is ever written to the data again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn

from metaq.protocol.errors import DiskFull, LogReadOnly, MetaqError, StoreError
from metaq.protocol.record import Buffer

from .disk_space import no_room
from .files import OpenFiles
from .flush import DATA, INDEX, FlushPolicy, RunInThread
from .index import UNIT, UNIT_BYTES, Index, IndexDamaged, UnitLimit
from .journal import Journal
from .log_syncing import LogSyncing
from .segment import Segment, create_segment
from .times import ordered_units

__all__ = ["MAX_UNSTORED_UNITS", "PartitionLog"]

_log = logging.getLogger(__name__)

MAX_UNSTORED_UNITS = 1 << 16
"""Index units held in memory (2 MiB) before they are written out ahead of the checkpoint."""

WRITEBACK_BYTES = 4 << 20
"""Appended bytes of a partition after which the kernel is told to begin writing them."""


class PartitionLog(LogSyncing):
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
        request_sync: Callable[[PartitionLog, int], None] | None = None,
        unit_limit: UnitLimit | None = None,
        on_index_lost: Callable[[PartitionLog, Segment], None] | None = None,
    ) -> None:
        """segments: at least one, contiguous, the last one writable and with an index (recovery.py makes them).

        journal: makes puts safe that wait for the disk; without one the partition's own file is synced.
        request_sync(log, kind): start a job soon that nobody waits for; without it is started at once. unit_limit: of
        index units in memory, if it is less than MAX_UNSTORED_UNITS. on_index_lost(log, segment): called when the index
        of a closed segment was found to be damaged; it has none until `adopt_index`.
        """
        self.topic = topic
        self.journal_name = f"{topic}-{partition}".encode()
        self.partition = partition
        self._max_segment_size = max_segment_size
        self._run_in_thread = run_in_thread
        self._unit_limit = unit_limit or UnitLimit()
        self._writing_back = False
        self._stored_ms: int | None = None
        self._on_index_lost = on_index_lost
        super().__init__(
            directory,
            segments,
            policy=policy,
            open_files=open_files,
            run_in_thread=run_in_thread,
            journal=journal,
            unsynced_directories=unsynced_directories,
            on_dirty=on_dirty,
            request_sync=request_sync,
        )
        self._written_back = self.end_offset

    def __repr__(self) -> str:
        return f"<PartitionLog {self.topic}-{self.partition} [{self.first_offset}, {self.visible_end}]>"

    def append(self, data: Sequence[Buffer], units: Buffer) -> int:
        """Write whole records behind the last one and return the byte offset of the first.

        data: the records' bytes, in buffers cut anywhere; they must not change before they are visible. units: one
        packed UNIT for each record, with absolute byte offsets from `end_offset` on, and store times in order: those
        behind the log's last time (the clock stepped back) are raised to it. All or nothing: what a failed write left
        is cut back, the log turns read-only and LogReadOnly is raised; DiskFull, and the log stays writable, where
        there only was no room. Rolls afterwards if the segment has reached its size. Raises ValueError, with nothing
        written, if data and units do not belong together.
        """
        if self.read_only is not None:
            raise LogReadOnly(self.directory, self.read_only)
        journal = self._journal if self._waits else None
        if journal is not None and journal.failure is not None:
            self.sync_failed(str(journal.failure))
            raise journal.failure
        base = self.end_offset
        size = len(data[0]) if len(data) == 1 else sum(map(len, data))
        first_ms, last_ms = self._check_units(units, base, size)
        stored_ms = self._last_stored_ms() if self._stored_ms is None else self._stored_ms
        if first_ms < stored_ms:
            units, last_ms = ordered_units(units, stored_ms), max(last_ms, stored_ms)
        active = self._active
        try:
            active.data.write(data, size, active.size)
        except OSError as error:
            self._refuse(error)
        active.size += size
        self._stored_ms = last_ms
        unstored = self._active_index.extend(units)
        self.end_offset = end = base + size
        count = len(units) // UNIT_BYTES
        self._written += count
        self._unsynced_records += count
        if not self._dirty:
            self._mark_dirty()
        if end - self._written_back >= WRITEBACK_BYTES:
            self._write_back(active, end)
        if active.size >= self._max_segment_size:
            self._roll()
        # an entry can be replayed only if everything before it is safe: not so just after asynchronous flush
        if journal is not None and (self._journal_end == base or self.synced_end >= base):
            self._journal_end = end
            journal.add(self, base, end, self._written, data)
        elif self._waits:
            self._flusher.request(DATA)
        elif self._unsynced_records > self._policy.threshold_records:
            self._sync_soon(DATA)
        if unstored > self._unit_limit.units or unstored > MAX_UNSTORED_UNITS:
            self._relieve_memory(journaled=journal is not None)
        if not self._waits:
            self._show(end, self._written)
        return base

    def _last_stored_ms(self) -> int:
        """Store time of the active segment's last record (Unix ms), 0 if it has none. Read once for a log."""
        index = self._active_index
        if not len(index):
            return 0
        try:
            return abs(index.unit(len(index) - 1)[2])
        except (OSError, MetaqError, IndexDamaged) as error:  # costs searches by time some order, but refuses no put
            _log.warning("%s: the store time of the last message is unknown: %s", self.directory, error)
            return 0

    def _relieve_memory(self, *, journaled: bool) -> None:
        """Have index units written out that are too many to wait for the next checkpoint."""
        limit = min(self._unit_limit.units, MAX_UNSTORED_UNITS)
        if self._flusher.settle_units() and self._active_index.unstored > limit:
            # a busy partition of few is worth a checkpoint of its own, unless one runs: the next start has less to do
            worth = journaled and limit == MAX_UNSTORED_UNITS and not self._flusher.syncing
            self._sync_soon(DATA | INDEX if worth else INDEX)

    def _write_back(self, segment: Segment, end: int) -> None:
        """Have the kernel begin to write what was appended, in a worker thread, which may have to wait for the device.

        Else it comes all at once with the next sync, which then takes long.
        """
        if not self._writing_back:
            self._writing_back = True
            start, self._written_back = max(self._written_back, segment.first_offset), end
            fd = segment.data.pin()
            position = start - segment.first_offset
            write_back = partial(self._files.start_writeback, fd, position, end - start)
            self._run_in_thread(write_back, partial(self._wrote_back, segment))

    def _wrote_back(self, segment: Segment, result: object) -> None:
        self._writing_back = False
        segment.data.unpin()

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

    @staticmethod
    def _check_units(units: Buffer, base: int, size: int) -> tuple[int, int]:
        """The first and the last record's store time, without the sign of a bound."""
        if not size or not units or len(units) % UNIT_BYTES:
            raise ValueError(f"append of {size} bytes with {len(units)} bytes of index units")
        first, _, first_ms, length, _ = UNIT.unpack_from(units)
        last, last_ms = first, first_ms
        if len(units) > UNIT_BYTES:
            last, _, last_ms, length, _ = UNIT.unpack_from(units, len(units) - UNIT_BYTES)
        if first != base or last + length != base + size:
            raise ValueError(f"index units do not describe [{base}, {base + size})")
        return abs(first_ms), abs(last_ms)

    def _refuse(self, error: OSError) -> NoReturn:
        """The append failed to write."""
        cause = str(error)
        if (left := self._cut_back(self._active)) is not None:
            cause = f"{cause} (and {left})"
        elif no_room(error):  # nothing of it was shown, journaled or synced, and nothing is left of it
            raise DiskFull(self.directory, f"{cause}; nothing of the put was kept") from error
        self._turn_read_only(cause)
        raise LogReadOnly(self.directory, cause) from error

    def _cut_back(self, segment: Segment) -> str | None:
        """Why it failed; None if it did not."""
        try:
            self._files.truncate(segment.data.use(), segment.size)
        except OSError as error:  # recovery cuts it at the next start
            return f"cutting the file back to {segment.size} bytes failed: {error}"
        return None

    def index_damaged(self, segment: Segment, index: Index, damage: IndexDamaged) -> bool:
        if segment.index is not index or segment not in self._segments or segment.first_offset >= self.visible_end:
            return False
        if segment is self._active:  # which needs an index: another segment goes on
            self._roll_past(damage)
        _log.error("%s; its segment is read without an index until one is made again", damage)
        self._drop_index(segment)
        if self._on_index_lost is not None:
            self._on_index_lost(self, segment)
        return True

    def _roll_past(self, damage: IndexDamaged) -> None:
        if self.read_only is not None:
            raise StoreError(f"{damage}; it cannot be made again before a restart: {self.read_only}")
        try:
            self._start_segment()
        except OSError as error:
            raise StoreError(f"{damage}; it cannot be made again without a new segment: {error}") from error

    def _roll(self) -> None:
        try:
            self._start_segment()
        except OSError as error:  # what was appended is good; only the next append has nowhere to go
            if no_room(error):
                _log.warning("%s goes on with a segment above its size: %s", self.directory, error)
                return  # the next append tries again
            self._turn_read_only(f"no new segment at {self.end_offset}: {error}")

    def _start_segment(self) -> None:
        """Begin the next segment. Raises OSError."""
        segment = create_segment(self._open_files, self.directory, self.end_offset)
        self._segments = [*self._segments, segment]
        self._unsynced_directories.append(self.directory)
        self._relist()
        self._sync_soon(DATA | INDEX)
