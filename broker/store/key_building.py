"""Write key files (key_index.py) in the background: one block for every 64 MiB of records, and a last block for the
rest of a segment when the segment is closed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import numpy as np

from metaq.protocol.errors import StoreError

from . import tuning
from .files import Files, opened
from .index import Index, IndexDamaged, UnitReader
from .key_index import Covered, KeyBlock, append_block, read_blocks, scan_keys
from .partition_log import PartitionLog
from .segment import Segment
from .worker_turns import RunInThread

__all__ = ["KeyBuilding"]

_log = logging.getLogger(__name__)


class _Lacking(NamedTuple):
    """A segment whose key file may lack blocks. The object is made when a job for one block is started; its values
    describe the segment at that time. known: the blocks that were read from the key file. It is None if the file was
    not read yet.
    """

    segment: Segment
    end: int
    closed: bool
    units: UnitReader
    known: tuple[KeyBlock, ...] | None


def _extend_keys(files: Files, lacking: _Lacking, block_bytes: int) -> tuple[KeyBlock, ...]:
    """Append one block to the segment's key file if enough of the segment's records are in no block yet. At least
    `block_bytes` bytes or KEY_BLOCK_RECORDS records are enough; at the end of a closed segment, even one record is
    enough. Return all blocks of the key file.

    Any thread may call this. Raises OSError, IndexDamaged.
    """
    segment, segment_end, closed, reader, known = lacking
    first_offset, path = segment.first_offset, segment.keys_path
    blocks = known
    if blocks is None:
        blocks = read_blocks(files, path, segment.path, first_offset, segment_end, check_entries=True)
    start = blocks[-1].end if blocks else first_offset
    with reader:
        first = reader.starting_before(start) if blocks else 0
        units = reader.units(first, min(reader.stored, first + tuning.KEY_BLOCK_RECORDS))
    if not len(units):
        return blocks
    ends = units["offset"] + units["size"]
    fitting = max(1, int(np.searchsorted(ends, start + block_bytes, "right")))
    full = fitting < len(units) or len(units) == tuning.KEY_BLOCK_RECORDS or int(ends[-1]) - start >= block_bytes
    units = units[:fitting]
    at_end = closed and first + len(units) == reader.stored
    if not (full or at_end):
        return blocks
    covered = Covered(start, segment_end if at_end else int(ends[fitting - 1]), units)
    with opened(files, segment.path) as data_fd:
        entries = scan_keys(files, data_fd, units, first_offset)
        position = blocks[-1].next_position if blocks else 0
        return (*blocks, append_block(files, path, data_fd, covered, entries, first_offset, position))


class KeyBuilding:
    """Finds segments with data that no block of their key file covers, and lets a worker thread write the missing
    blocks. Only the thread that owns the store may use this object. A worker thread (`run_in_thread`) writes one block
    at a time.
    """

    def __init__(self, files: Files, run_in_thread: RunInThread, block_bytes: int = tuning.KEY_BLOCK_BYTES) -> None:
        self._files = files
        self._run_in_thread = run_in_thread
        self._block_bytes = block_bytes
        self._waiting: dict[PartitionLog, None] = {}  # as an ordered set
        self._busy = False
        self._closed = False
        self._credit = 0.0
        self._last_tick: float | None = None
        self._retry_at = float("-inf")
        self._given_up: set[Segment] = set()  # their index has no units for their last, damaged bytes

    def __len__(self) -> int:
        """Return the number of logs whose key files KeyBuilding has planned to check."""
        return len(self._waiting)

    def start(self, logs: Iterable[PartitionLog]) -> None:
        """Plan to check the key files of these logs, because key files of an earlier run can lack blocks, for example
        for records that a Java broker has added. No file is opened before the next call of `tick`.
        """
        for log in logs:
            if len(log.segments) > 1 or log.segments[-1].size > self._block_bytes:
                self._waiting[log] = None

    def stop(self) -> None:
        """Start no more jobs."""
        self._closed = True
        self._waiting.clear()

    def consider(self, log: PartitionLog) -> None:
        """Plan to write the next block of the log's key files if enough of the log's records are in no block yet. The
        caller calls this after each checkpoint of the log. Takes O(1).
        """
        segments = log.segments
        if self._lacks(segments[-1], closed=False) or (len(segments) > 1 and self._lacks(segments[-2], closed=True)):
            self._waiting[log] = None

    def revisit(self, log: PartitionLog) -> None:
        """Plan to check the key files of all segments of the log, because an index was rebuilt or a key file was
        changed.
        """
        self._waiting[log] = None

    def tick(self, now: float) -> None:
        """Begin to write the next planned blocks, as far as the rate limit allows. now: monotonic time in seconds. Call
        this a few times a second.
        """
        if self._last_tick is not None:
            rate = tuning.KEY_BYTES_PER_SECOND
            self._credit = min(rate, self._credit + (now - self._last_tick) * rate)
        self._last_tick = now
        if now >= self._retry_at:
            self._next()

    def _lacks(self, segment: Segment, *, closed: bool) -> bool:
        index = segment.index
        if index is None or not index.stored or segment in self._given_up:
            return False  # being rebuilt, or no data is safe yet
        if closed and not segment.finished:
            return False
        covered = segment.keys[-1].end if segment.keys else segment.first_offset
        if closed:
            return segment.keys is None or covered < segment.end
        if segment.keys is None:
            return segment.size > self._block_bytes
        return segment.checkpointed - covered > self._block_bytes

    def _next(self) -> None:
        for _ in range(tuning.KEY_LOGS_LOOKED_AT):
            if self._busy or self._closed or not self._waiting or self._credit < 0:
                return
            log = next(iter(self._waiting))
            segment = self._choose(log)
            if segment is None:
                del self._waiting[log]
                continue
            self._busy = True
            assert segment.index is not None
            closed = segment is not log.segments[-1]
            lacking = _Lacking(segment, segment.end, closed, segment.index.reader(self._files), segment.keys)
            self._run_in_thread(
                partial(_extend_keys, self._files, lacking, self._block_bytes),
                partial(self._done, log, segment, segment.index),
            )

    def _choose(self, log: PartitionLog) -> Segment | None:
        """Return the newest segment of the log whose key file lacks blocks, or None if there is none. The newest
        segment comes first, because recent data are requested most often and are probably in the page cache.
        """
        *closed, active = log.segments
        if self._lacks(active, closed=False):
            return active
        return next((segment for segment in reversed(closed) if self._lacks(segment, closed=True)), None)

    def _done(
        self,
        log: PartitionLog,
        segment: Segment,
        index: Index | None,
        result: tuple[KeyBlock, ...] | BaseException,
    ) -> None:
        self._busy = False
        if isinstance(result, IndexDamaged) and index is not None:
            self._without_index(log, segment, index, result)
            return
        if isinstance(result, BaseException):
            self._failed(log, segment, result)
            return
        before = segment.keys
        segment.keys = result
        covered = before[-1].end if before else segment.first_offset
        fresh = result[-1].end - covered if result else 0
        self._credit -= max(tuning.KEY_LEAST_COST_BYTES, fresh if before is not None else min(fresh, self._block_bytes))
        if result == before:
            _log.warning("%s has no records behind %d to be found by key", segment.path, covered)
            self._given_up.add(segment)
        self._next()

    def _without_index(self, log: PartitionLog, segment: Segment, index: Index, damage: IndexDamaged) -> None:
        """Drop the segment's damaged index and have it rebuilt. Its key blocks are written after the rebuild, when the
        caller calls `revisit`. If the rebuild cannot begin now, try again later.
        """
        del self._waiting[log]
        try:
            given_up = log.index_damaged(segment, index, damage)
        except StoreError as error:
            _log.error("%s", error)
            given_up = False
        if segment in log.segments:  # other segments may lack blocks
            self._waiting[log] = None
            if not given_up and segment.index is index:
                self._retry_at = (self._last_tick or 0.0) + tuning.REBUILD_RETRY_SECONDS
                return
        self._next()

    def _failed(self, log: PartitionLog, segment: Segment, error: BaseException) -> None:
        del self._waiting[log]
        if isinstance(error, FileNotFoundError):  # retention took it, or somebody has deleted the key file
            segment.keys = None
            if segment not in log.segments:
                self._next()
                return
        _log.error("%s cannot be written, searches for keys read the segment instead: %s", segment.keys_path, error)
        self._waiting[log] = None  # at the end of the queue
        self._retry_at = (self._last_tick or 0.0) + tuning.REBUILD_RETRY_SECONDS
