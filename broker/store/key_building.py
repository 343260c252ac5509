"""Writing key files in the background: a block for every 64 MiB of records, and the rest when a segment is closed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import numpy as np

from metaq.protocol.errors import StoreError

from . import tuning
from .files import Files, opened
from .index import Index, IndexDamaged
from .key_index import Covered, KeyBlock, append_block, read_blocks, scan_keys
from .partition_log import PartitionLog
from .segment import Segment
from .threads import RunInThread
from .unit_reader import UnitReader

__all__ = ["KeyBuilding", "Unfinished", "extend_keys"]

_log = logging.getLogger(__name__)


class Unfinished(NamedTuple):
    """A segment whose key file may lack blocks, as it was on the owning thread. `stored`, `crc`: as of its Index."""

    path: str
    index_path: str
    keys_path: str
    first_offset: int
    end: int
    stored: int
    crc: int
    closed: bool
    known: tuple[KeyBlock, ...] | None
    block_bytes: int = tuning.KEY_BLOCK_BYTES


def extend_keys(files: Files, segment: Unfinished, pause: Callable[[float], None] = time.sleep) -> tuple[KeyBlock, ...]:
    """The blocks of the segment after one more was written, if enough for one is there.

    Any thread. Raises OSError, IndexDamaged.
    """
    blocks = segment.known
    if blocks is None:
        paths = segment.keys_path, segment.path
        blocks = read_blocks(files, *paths, segment.first_offset, segment.end, check_entries=True)
    start = blocks[-1].end if blocks else segment.first_offset
    with UnitReader(files, segment.index_path, segment.stored, segment.crc) as reader:
        first = reader.starting_before(start) if blocks else 0
        units = reader.units(first, first + tuning.KEY_BLOCK_RECORDS)
    if not len(units):
        return blocks
    ends = units["offset"] + units["size"]
    fitting = max(1, int(np.searchsorted(ends, start + segment.block_bytes, "right")))
    full = (
        fitting < len(units) or len(units) == tuning.KEY_BLOCK_RECORDS or int(ends[-1]) - start >= segment.block_bytes
    )
    units = units[:fitting]
    at_end = segment.closed and first + len(units) == segment.stored
    if not (full or at_end):
        return blocks
    end = segment.end if at_end else int(units[-1]["offset"]) + int(units[-1]["size"])
    with opened(files, segment.path) as data_fd:
        entries = scan_keys(files, data_fd, units, segment.first_offset, pause)
        position = blocks[-1].next_position if blocks else 0
        covered = Covered(start, end, units)
        block = append_block(files, segment.keys_path, data_fd, covered, entries, segment.first_offset, position)
    return (*blocks, block)


class KeyBuilding:
    """Which logs' key files lack something. Owning thread; the work is done by `run_in_thread`, a block at a time."""

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
        """Logs that are still to be looked at."""
        return len(self._waiting)

    def start(self, logs: Iterable[PartitionLog]) -> None:
        """Look at what an earlier life, or a Java broker, has left; no file is opened before the next tick."""
        for log in logs:
            if len(log.segments) > 1 or log.segments[-1].size > self._block_bytes:
                self._waiting[log] = None

    def stop(self) -> None:
        """Begin nothing any more."""
        self._closed = True
        self._waiting.clear()

    def consider(self, log: PartitionLog) -> None:
        """After a checkpoint: have the log's next block written if there is enough for one. O(1)."""
        segments = log.segments
        if self._lacks(segments[-1], closed=False) or (len(segments) > 1 and self._lacks(segments[-2], closed=True)):
            self._waiting[log] = None

    def revisit(self, log: PartitionLog) -> None:
        """Look at all segments of the log: an index has been rebuilt, or a key file is not what it was."""
        self._waiting[log] = None

    def tick(self, now: float) -> None:
        """Go on, at monotonic time `now` in seconds; a few times a second."""
        if self._last_tick is not None:
            rate = tuning.KEY_BYTES_PER_SECOND
            self._credit = min(rate, self._credit + (now - self._last_tick) * rate)
        self._last_tick = now
        if now >= self._retry_at:
            self._next()

    def _lacks(self, segment: Segment, *, closed: bool) -> bool:
        index = segment.index
        if index is None or not index.stored or segment in self._given_up:
            return False  # being rebuilt, or nothing is safe yet
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
            self._run_in_thread(
                partial(extend_keys, self._files, self._task(log, segment)),
                partial(self._done, log, segment, segment.index),
            )

    def _choose(self, log: PartitionLog) -> Segment | None:
        """The newest segment that lacks something: what came last is asked for most, and still in memory."""
        *closed, active = log.segments
        if self._lacks(active, closed=False):
            return active
        return next((segment for segment in reversed(closed) if self._lacks(segment, closed=True)), None)

    def _task(self, log: PartitionLog, segment: Segment) -> Unfinished:
        assert segment.index is not None
        closed = segment is not log.segments[-1]
        return Unfinished(
            segment.path,
            segment.index_path,
            segment.keys_path,
            segment.first_offset,
            segment.end,
            segment.index.stored,
            segment.index.crc,
            closed,
            segment.keys,
            self._block_bytes,
        )

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
        """`revisit` follows when the segment has an index again; if that cannot be begun, this is tried later."""
        del self._waiting[log]
        try:
            given_up = log.index_damaged(segment, index, damage)
        except StoreError as error:
            _log.error("%s", error)
            given_up = False
        if segment in log.segments:  # other segments may lack something
            self._waiting[log] = None
            if not given_up and segment.index is index:
                self._retry_at = (self._last_tick or 0.0) + tuning.REBUILD_RETRY_SECONDS
                return
        self._next()

    def _failed(self, log: PartitionLog, segment: Segment, error: BaseException) -> None:
        del self._waiting[log]
        if isinstance(error, FileNotFoundError):  # retention was faster, or somebody has deleted the key file
            segment.keys = None
            if segment not in log.segments:
                self._next()
                return
        _log.error("%s cannot be written, searches for keys read the segment instead: %s", segment.keys_path, error)
        self._waiting[log] = None  # behind the others
        self._retry_at = (self._last_tick or 0.0) + tuning.REBUILD_RETRY_SECONDS
