"""Sync data and indexes of partitions to the disk. One call in a worker thread syncs one partition or many partitions
together.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

from .disk_space import no_room
from .durability import DATA, INDEX
from .files import FailedSync, Files, check_named, opened
from .index import (
    UNIT_BYTES,
    Checkpoint,
    largest_id,
    write_checkpoint,
    write_units,
)
from .segment import Segment

__all__ = ["SyncJob", "run_together"]

_log = logging.getLogger(__name__)


class _Part:
    """What a sync job has to sync of one segment. The object copies the segment's end, index units and checksum when
    the job is created, because the segment may grow while the job runs.
    """

    def __init__(self, segment: Segment, kind: int) -> None:
        self.segment = segment
        self.end = segment.end
        self.unsynced = kind & DATA and segment.synced < segment.end
        self.fd: int | None = None  # the descriptor to sync
        # stays None: an index that is rebuilt meanwhile is not part of this job
        self.index = index = segment.index if kind & INDEX else None
        self.units = b"" if index is None else index.tail()
        self.count = len(self.units) // UNIT_BYTES
        self.stored = 0 if index is None else index.stored
        self.crc = 0 if index is None else index.crc  # includes the units after the worker has written them
        self.max_stored_id = 0 if index is None else index.max_stored_id
        self.vouched = None if index is None else index.vouched
        self.max_id = 0  # of the units; set by the worker


class SyncJob:
    """A sync of one partition. The thread that owns the store creates the job and, after the job has ended, records its
    result; a worker thread runs the job.

    A job syncs the partition's data before the byte offset `end`. `count` is the log's count of its records at the time
    when the job is created. Before the job syncs anything, it writes the index units from memory to the index files.
    After that, `settle_units` can remove these units from memory. The job writes the headers of the index files last,
    because a header states that all data and units before a given offset are on the disk.
    """

    def __init__(
        self,
        files: Files,
        kind: int,
        directory: str,
        segments: Sequence[Segment],
        directories: Sequence[str],
        end: int,
        count: int,
    ) -> None:
        """directory: the partition's directory. directories: directories that the job must sync, because files were
        created in them.
        """
        self.kind = kind
        self.directory = directory
        self.end = end
        self.count = count
        self.directories = directories
        self.syncs_headers = False
        """Whether the job, after it has written the headers of the index files, also syncs them, so that they survive a
        power cut.
        """
        self.error: OSError | None = None
        self.lacked_room = False
        """Whether the job could not write the index units to their files because the disk is full."""
        self.ran = False
        self._files = files
        self._parts = [_Part(segment, kind) for segment in segments]
        self._lock = threading.Lock()
        self._cancelled = False
        self._units_written = not kind & INDEX
        self._units_settled = not kind & INDEX

    def pin(self) -> None:
        """Keep the file descriptors that `run` needs open until `release` is called. A job that `run_together` will run
        needs no `pin`, because `run_together` syncs whole file systems instead of single files. Called on the thread
        that owns the store.
        """
        try:
            for part in self._parts:
                if part.unsynced:
                    part.fd = part.segment.data.pin()
        except OSError as error:  # a file could not be opened: reported like a failed sync
            self.error = error

    def run(self) -> None:
        """Run all steps of this job alone; the function `run_together` runs several jobs together instead. `pin` must
        be called before. Do nothing if the job was cancelled. A failure is stored in `error`. Called in a worker
        thread.
        """
        if self.enter():
            try:
                self.step(self.write_units)
                self.step(self._sync)
            finally:
                self.leave()

    def step(self, action: Callable[[], None]) -> None:
        """Run one action of the job in a worker thread. If the action raises OSError, store the error in this job;
        later calls of `step` then do nothing. Other jobs that run together with this job continue.
        """
        if self.error is None:
            try:
                action()
            except OSError as error:
                self.error = error

    def cancel(self) -> None:
        """Make later calls of `run` do nothing. If `run` is running in a worker thread now, wait until it has ended."""
        with self._lock:
            self._cancelled = True

    def release(self) -> None:
        """Release the file descriptors that `pin` keeps open. Called on the thread that owns the store."""
        for part in self._parts:
            if part.fd is not None:
                part.segment.data.unpin()

    def writes_index(self, segment: Segment) -> bool:
        """Whether this job, while it runs, writes index units or the header to this segment's index file."""
        return any(part.segment is segment and part.index is not None for part in self._parts)

    def settle_units(self) -> bool:
        """Remove the index units from memory if the job has written them to the index files. The files need not be
        synced yet, and `run` may still be running. Return whether the units are in the files. The result is also True
        for a job that writes no units. Called on the thread that owns the store.
        """
        if self._units_written and not self._units_settled:
            self._units_settled = True
            for part in self._parts:
                if part.index is not None:
                    part.index.mark_stored(part.count, part.max_id, part.crc)
        return self._units_written

    def apply(self) -> None:
        """Record in the segment objects up to which offset their data are on the disk now. Called on the thread that
        owns the store after a successful run.
        """
        self.settle_units()
        for part in self._parts:
            segment = part.segment
            if self.kind & DATA:
                segment.synced = max(segment.synced, part.end)
                if part.index is not None and part.index is segment.index and not self.lacked_room:
                    segment.checkpointed = part.end
                    if not part.index.stored and part.end > segment.first_offset:  # only damage so far
                        part.index.vouched = segment.first_offset, part.end

    def _checkpoints(self) -> Iterator[tuple[str, Checkpoint]]:
        """Yield the path of each index file, with the checkpoint that the job writes to the file's header after the
        data and units are synced.
        """
        if self.kind & INDEX and not self.lacked_room:
            for part in self._parts:
                segment = part.segment
                if part.index is not None:
                    units, max_id = part.stored + part.count, max(part.max_stored_id, part.max_id)
                    yield segment.index_path, Checkpoint(segment.first_offset, part.end, units, max_id, part.crc)

    # --- the steps, in a worker thread --------------------------------------------------------------------------------

    def enter(self) -> bool:
        """Begin the job, unless it was cancelled. Return whether it has begun; if so, the caller must call `leave` at
        the end.
        """
        self._lock.acquire()
        self.ran = not self._cancelled
        if not self.ran:
            self._lock.release()
        return self.ran

    def leave(self) -> None:
        """End the job, so that a waiting call of `cancel` can continue."""
        self._lock.release()

    def write_units(self) -> None:
        """Write the index units to their files without a sync. If the disk is full, the units stay in memory. The next
        job then tries to write them to the same positions.
        """
        try:
            for part in self._parts:
                if part.units:
                    part.max_id = largest_id(part.units)
                    part.crc = write_units(
                        self._files, part.segment.index_path, part.stored, part.units, part.crc, part.vouched
                    )
                    part.units = b""
        except OSError as error:
            if not no_room(error):
                raise
            self.lacked_room = True
            _log.warning("%s: the index is written later: %s", self.directory, error)
            return
        self._units_written = True

    def _sync(self) -> None:
        """Sync the data files, the directories with new files, and the index units, one file after the other (not whole
        file systems). Then write the headers of the index files.
        """
        if self.kind & DATA:
            for part in self._parts:
                if part.fd is not None:
                    self._files.fdatasync(part.fd)
            for directory in dict.fromkeys(self.directories):
                self._files.fsync_directory(directory)
            self._check_named()
            self._write_checkpoints(sync=True)

    def move_checkpoints(self) -> None:
        """Write the index headers with the new checkpoints. Called after a sync of whole file systems has put data and
        units on the disk.
        """
        if self.kind & DATA:
            self._check_named()
            self._write_checkpoints(sync=False)

    def _check_named(self) -> None:
        for part in self._parts:
            if part.unsynced:
                try:
                    check_named(self._files, part.segment.path)
                except FailedSync:
                    if not part.segment.removed:  # by retention, meanwhile
                        raise

    def _write_checkpoints(self, *, sync: bool) -> None:
        for path, checkpoint in self._checkpoints():
            write_checkpoint(self._files, path, checkpoint, sync=sync)
            if self.syncs_headers:
                with opened(self._files, path, os.O_RDWR) as fd:
                    self._files.fdatasync(fd)


def run_together(sync: Callable[[Iterable[str]], None], jobs: Sequence[SyncJob]) -> OSError | None:
    """Run the sync jobs of many partitions together in a worker thread. One sync of each file system replaces the two
    syncs (data and index) of each partition.

    Ten thousand syncs of single files would take many seconds, because the file system's own journal does them one
    after the other. The disadvantage of a sync of the file system is that it also waits for data that other programs
    have written. sync: FileSystems.sync. A failure of one job is stored only in that job. If the sync of the file
    systems fails, its error is stored in all jobs and returned.
    """
    entered = [job for job in jobs if job.enter()]
    failure = None
    try:
        for job in entered:
            job.step(job.write_units)
        try:
            if directories := dict.fromkeys(job.directory for job in entered if job.kind & DATA):
                sync(directories)  # do not call it without directories: it would wait for another's sync
        except OSError as error:
            failure = error
            for job in entered:
                job.error = job.error or error
        for job in entered:
            job.step(job.move_checkpoints)
    finally:
        for job in entered:
            job.leave()
    return failure
