"""Append records to a partition's last segment, and create the next segment."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from functools import partial

from metaq.protocol.errors import DiskFull, LogReadOnly, MetaqError
from metaq.protocol.record import Buffer

from . import tuning
from .disk_space import no_room
from .files import Files, OpenFiles
from .index import UNIT, UNIT_BYTES, IndexDamaged, ordered_units
from .segment import Segment, create_segment
from .segments import Segments
from .worker_turns import RunInThread

__all__ = ["Writer"]

_log = logging.getLogger(__name__)


class Writer:
    """Writes the records and segments of one partition. Only the thread that owns the store may use this object. A
    Writer does not know which data are synced or which data readers may see; other classes do.

    Invariants: every byte of a segment belongs to a record that has an index unit, except damaged bytes that were
    copied. The store times of a segment's records never decrease, even if the clock is set back. If only an upper bound
    of a store time is known, the bound is stored with a minus sign; for the order of the times, its absolute value
    counts.
    """

    def __init__(
        self,
        directory: str,
        segments: Segments,
        open_files: OpenFiles,
        run_in_thread: RunInThread,
        max_segment_size: int,
        unsynced_directories: Sequence[str] = (),
    ) -> None:
        """unsynced_directories: directories that must be synced, because their entries for the partition's files may
        not be on the disk yet.
        """
        self.max_segment_size = max_segment_size
        """A size in bytes. When a segment has reached this size, the caller should call `roll`."""
        self.unsynced_directories = list(unsynced_directories)
        self._directory = directory
        self._segments = segments
        self._open_files = open_files
        self._run_in_thread = run_in_thread
        self._stored_ms: int | None = None
        self._written_back = segments.end_offset
        self._writing_back = False
        self._copied = self._dropped = -1  # where the running copy ends, and what the page cache need not keep

    def append_damaged(self, data: Sequence[Buffer]) -> None:
        """Write damaged bytes behind the last record, for example when a partition with damaged bytes is copied. The
        bytes get no index units. Raises the errors that `append` raises.
        """
        segments = self._segments
        active = segments.active
        try:
            active.data.write(data, active.size)
        except OSError as error:
            raise self._cut_back(active, error) from error
        segments.grown(sum(map(len, data)), b"")

    def append(self, data: Sequence[Buffer], units: Buffer, *, copied: bool = False) -> tuple[int, Buffer]:
        """Write whole records behind the last record of the partition. copied: whether the records belong to a large
        copy (for example from another node). The page cache need not keep such records.

        Return two values. The first is the number of this segment's index units that are in memory but not in the index
        file. The second is `units` as they were stored: if a unit's store time was earlier than that of the record
        before it, the earlier time was replaced by the later one.

        The append is all or nothing: after a failed write the file is cut back to its former size. Raises DiskFull if
        the write failed because the disk is full. Raises LogReadOnly for any other failure; then nothing more may be
        appended. Raises ValueError, with nothing written, if the units do not describe the data.
        """
        segments = self._segments
        base = segments.end_offset
        size = len(data[0]) if len(data) == 1 else sum(map(len, data))
        first_ms, last_ms = _check_units(units, base, size)
        stored_ms = self._last_stored_ms() if self._stored_ms is None else self._stored_ms
        if first_ms < stored_ms:
            units, last_ms = ordered_units(units, stored_ms), max(last_ms, stored_ms)
        active = segments.active
        try:
            active.data.write(data, active.size)
        except OSError as error:
            raise self._cut_back(active, error) from error
        self._stored_ms = last_ms
        unstored = segments.grown(size, units)
        if copied:
            self._dropped = self._dropped if base == self._copied else base
            self._copied = base + size
        if base + size - self._written_back >= tuning.WRITEBACK_BYTES:
            self._write_back(active, base + size)
        return unstored, units

    def roll(self) -> None:
        """Create the next segment. Raises OSError if that fails; then records can still be appended to the present last
        segment.
        """
        self._segments.add(create_segment(self._open_files, self._directory, self._segments.end_offset))
        self.unsynced_directories.append(self._directory)

    def _last_stored_ms(self) -> int:
        """Return the store time of the last segment's last record (Unix ms), or 0 if the segment has no record. The
        index is read for this only before the first append; after that, the Writer itself remembers the time.
        """
        index = self._segments.active_index
        if not len(index):
            return 0
        try:
            return abs(index.unit(len(index) - 1)[2])
        except (OSError, MetaqError, IndexDamaged) as error:  # searches by time lose some order, but no put is refused
            _log.warning("%s: the store time of the last message is unknown: %s", self._directory, error)
            return 0

    def _cut_back(self, segment: Segment, failure: OSError) -> DiskFull | LogReadOnly:
        """Cut the file back to its size before a failed write. Return the error to raise."""
        cause = str(failure)
        try:
            self._open_files.files.truncate(segment.data.use(), segment.size)
        except OSError as error:  # recovery cuts it at the next start
            left = f"cutting the file back to {segment.size} bytes failed: {error}"
            return LogReadOnly(self._directory, f"{cause} (and {left})")
        if no_room(failure):  # no part of it was shown, journaled or synced, and nothing is left of it
            return DiskFull(self._directory, f"{cause}; nothing of the put was kept")
        return LogReadOnly(self._directory, cause)

    def _write_back(self, segment: Segment, end: int) -> None:
        """Tell the kernel to begin to write appended data to the disk. A worker thread makes this system call, because
        the call may have to wait for the device. During a large copy, the pages of the copy that were written earlier
        are dropped from the page cache, because they should be on the disk by now. The next pages of the copy can use
        the same memory. So the copy does not push other data out of the page cache, and needs no memory that has been
        unused for a long time, which is expensive to get in a virtual machine.
        """
        if not self._writing_back:
            self._writing_back = True
            first = segment.first_offset
            start, self._written_back = max(self._written_back, first), end
            written: range | None = None
            if self._copied == end:
                written = range(max(self._dropped, first) - first, start - tuning.KEPT_COPY_BYTES - first)
                self._dropped = max(self._dropped, first + written.stop)
            position = range(start - first, end - first)
            write_back = partial(_written_back, self._open_files.files, segment.data.pin(), position, written)
            self._run_in_thread(write_back, partial(self._wrote_back, segment))

    def _wrote_back(self, segment: Segment, result: object) -> None:
        self._writing_back = False
        segment.data.unpin()


def _written_back(files: Files, fd: int, dirty: range, written: range | None) -> None:
    """Tell the kernel to start writing the byte range `dirty` of the file, and drop the range `written` from the page
    cache. Bytes of `written` that are not on the disk yet stay in the page cache.
    """
    files.start_writeback(fd, dirty.start, len(dirty))
    if written:
        files.advise(fd, written.start, len(written), os.POSIX_FADV_DONTNEED)


def _check_units(units: Buffer, base: int, size: int) -> tuple[int, int]:
    """Check that the units describe the appended bytes. Return the absolute values of the store times of the first and
    the last record (a negative store time is an upper bound).
    """
    if not size or not units or len(units) % UNIT_BYTES:
        raise ValueError(f"append of {size} bytes with {len(units)} bytes of index units")
    first, _, first_ms, length, _ = UNIT.unpack_from(units)
    last, last_ms = first, first_ms
    if len(units) > UNIT_BYTES:
        last, _, last_ms, length, _ = UNIT.unpack_from(units, len(units) - UNIT_BYTES)
    if first != base or last + length != base + size:
        raise ValueError(f"index units do not describe [{base}, {base + size})")
    return abs(first_ms), abs(last_ms)
