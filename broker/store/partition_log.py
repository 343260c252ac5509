"""The log of one partition. A PartitionLog contains the partition's segments, appends records to them, and knows which
data are safe. If the topic uses group commit, data are safe when they are synced to the disk; if it uses asynchronous
flush, as soon as they are written.

Four objects do parts of the work. The attributes `segments` and `lookup` read data, and a `Writer` appends data. A
`Durability` decides when data must be synced, up to where readers may see data, and which waiting callbacks must be
called; the PartitionLog carries out these decisions. Each of the four objects has its own invariants. The following
invariants hold as well; tests check all of them after every step (`testing.check_invariants`):
- visible_end == durability.safe_end, or the bound of `limit_visibility` if that is smaller;
- with asynchronous flush safe_end == end_offset; with group commit the data below safe_end are on the disk;
- lookup.count_before(visible_end) == segments.message_count;
- once read_only is set, nothing more is ever written to the data files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from metaq.protocol.errors import DiskFull, LogReadOnly, StoreError
from metaq.protocol.record import Buffer

from . import tuning
from .disk_space import no_room
from .durability import DATA, INDEX, JOURNAL, MARK_DIRTY, SHOW, SYNC, SYNC_SOON, TELL, Durability, SafeCallback
from .files import OpenFiles
from .index import UNIT_BYTES, Index, IndexDamaged
from .journal import Journal
from .lookup import Lookup
from .segment import Segment
from .segments import Segments
from .sync_job import SyncJob
from .topic_config import FlushPolicy, TopicStoreConfig
from .worker_turns import RunInThread, call_safely
from .writer import Writer

if TYPE_CHECKING:
    from .background_syncs import BackgroundSyncs

__all__ = ["AppendListener", "PartitionLog", "StoreServices"]

_log = logging.getLogger(__name__)


AppendListener = Callable[["PartitionLog", int, int, int, Sequence[Buffer], Buffer, int], None]
"""listener(log, base, end, count, data, units, segment).

The listener is called after the bytes `data` were appended at [base, end). count: the log's own count of records up to
`end`. units: the index units as they were stored. segment: the byte offset where the segment with these bytes begins.
"""


@dataclass(slots=True)
class StoreServices:
    """Services that all logs of a store share.

    on_index_lost: called when the index of a closed segment is found to be damaged. The segment then has no index until
    it gets a rebuilt one (`Segments.adopt_index`). on_append: see `Store.on_append`.
    """

    open_files: OpenFiles
    run_in_thread: RunInThread
    journal: Journal
    syncs: BackgroundSyncs
    on_index_lost: Callable[[PartitionLog], None]
    on_append: AppendListener | None = None


class PartitionLog:
    """The log of one partition. Only the thread that owns the store may use this object. Other threads may use
    snapshots from `segments.snapshot()` and the jobs that `begin` returns.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        directory: str,
        segments: Sequence[Segment],
        config: TopicStoreConfig,
        shared: StoreServices,
        unsynced_directories: Sequence[str] = (),
    ) -> None:
        """segments: see Segments. unsynced_directories: the directories that must be synced because they contain new
        names of segment files, which may not be on the disk yet.
        """
        self.topic = topic
        self.partition = partition
        self.directory = directory
        self.journal_name = f"{topic}-{partition}".encode()
        self.on_visible: Callable[[PartitionLog], None] | None = None
        """Called with this log each time readers can see more data. Before this call, the callbacks that were passed to
        `when_safe` for these data are called.
        """
        self.renewals = 0
        """How many times since the start of the broker the log's segments were replaced because the log's end was cut
        off (`renew`).
        """
        self.segments = Segments(segments, shared.open_files.files)
        self.lookup = Lookup(self.segments, self.index_damaged)
        self._shared = shared
        self.bound: tuple[int, int] | None = None
        """The limit for readers that `limit_visibility` has set: the byte offset behind which they see nothing, and the
        log's own count of records up to this offset. It is None if readers see all safe data.
        """
        self.told_end = 0
        """The highest end offset that was passed to `raise_bound`, or the log's end if the log was later cut before
        that offset. All data before `told_end` are stored on other nodes of the broker set, too.
        """
        self._damaged_end = -1  # end of copied damage that no synced header covers yet
        self._jobs: list[SyncJob] = []  # running
        self._roll_owed = False  # the last segment has reached its size, and `go_on` begins the next one
        self._begin(config, unsynced_directories)

    def _begin(self, config: TopicStoreConfig, unsynced_directories: Sequence[str]) -> None:
        """Create the Writer and the Durability for the present segments, when the log is created or after a cut."""
        shared, segments = self._shared, self.segments
        self._writer = Writer(
            self.directory,
            segments,
            shared.open_files,
            shared.run_in_thread,
            config.max_segment_size,
            unsynced_directories,
        )
        self.durability = Durability(
            config.flush_policy, segments.end_offset, segments.counted_to_end, segments.synced_end
        )
        if segments.unfinished():
            self.durability.found_dirty()
            shared.syncs.mark_dirty(self)

    def __repr__(self) -> str:
        return f"<PartitionLog {self.topic}-{self.partition} [{self.first_offset}, {self.visible_end}]>"

    @property
    def first_offset(self) -> int:
        """The byte offset of the first byte that still exists."""
        return self.segments.first_offset

    @property
    def visible_end(self) -> int:
        """The end of the readable data: readers see the partition's data before this byte offset."""
        return self.segments.visible_end

    @property
    def end_offset(self) -> int:
        """The byte offset where the next record will begin."""
        return self.segments.end_offset

    @property
    def synced_end(self) -> int:
        """All data before this byte offset are on the disk in the partition's own files."""
        return self.durability.synced_end

    @property
    def read_only(self) -> str | None:
        """Why the partition accepts no more writes. It is None if it accepts them."""
        return self.durability.read_only

    @property
    def has_group_commit(self) -> bool:
        """Whether puts are answered only after their data are on the disk (group commit)."""
        return self.durability.has_group_commit

    # --- appending ----------------------------------------------------------------------------------------------------

    def append(
        self, data: Sequence[Buffer], units: Buffer, segment: int | None = None, *, journaled: bool = True
    ) -> int:
        """Write whole records behind the last one and return the byte offset of the first.

        data: the records' bytes, divided into buffers at any positions. The buffers must not change before the records
        are visible to readers. units: one packed UNIT for each record, with absolute byte offsets from `end_offset` on,
        and store times in order. If a store time is lower than the log's last store time (because the clock was set
        back), it is raised to the last store time. Either all records are appended or none: after a failed write the
        file is cut back to its former size. If the write failed only because the disk is full, DiskFull is raised and
        the log stays writable. After any other failed write, LogReadOnly is raised and the log accepts no more appends.
        If the append makes the segment reach its maximum size, a new segment begins afterwards. If the units do not
        describe the data, ValueError is raised and nothing is written.

        segment: given only for a log that is copied from another node: the byte offset where the segment of these
        records begins on that node, as `Store.on_append` reported it there. The records are written into that segment,
        which is created if it begins at `end_offset`. If `segment` is given, no new segment begins because of the
        maximum size. Raises ValueError if the given segment is not the last one and cannot become the last one. Raises
        StoreError if the segment's index must be rebuilt first. journaled: whether group commit also writes the data to
        the journal. Pass False to copy a large amount of data from another node, when nobody waits until each append is
        safe. With group commit, the data are then safe only after the next sync of this log's own files, which the
        caller has to request. If `journaled` is False, the data's pages are also dropped from the page cache.
        """
        durability, shared = self.durability, self._shared
        if durability.read_only is not None:
            raise LogReadOnly(self.directory, durability.read_only)
        if shared.journal.failure is not None and durability.has_group_commit:
            self.sync_failed(str(shared.journal.failure))
            raise shared.journal.failure
        segments, writer = self.segments, self._writer
        if segment is not None and segment != segments.active.first_offset:
            self._go_on_in(segment)
        base = segments.end_offset
        try:
            unstored, units = writer.append(data, units, copied=not journaled)
        except LogReadOnly as error:
            self._turn_read_only(error.cause)
            raise
        end = segments.end_offset
        records = len(units) // UNIT_BYTES
        if journaled:
            actions = durability.appended(end, records)
        else:
            actions = durability.appended_unreplayable(end, records) & ~SYNC
        if actions & MARK_DIRTY:
            shared.syncs.mark_dirty(self)
        if shared.on_append is not None:
            call_safely(shared.on_append, self, base, end, durability.count, data, units, segments.active.first_offset)
        if segments.active.size >= writer.max_segment_size and segment is None and not self._roll_owed:
            self._roll()
        if actions & JOURNAL:
            shared.journal.add(self, base, end, durability.count, data)
        if unstored > shared.syncs.unit_limit:
            self._relieve_memory()
        if actions != JOURNAL:
            self._act(actions)
        return base

    def append_damaged(self, data: Sequence[Buffer], segment: int) -> int:
        """Append bytes that are damaged on the node from which this log is copied, so that both logs have the same
        bytes. Damaged bytes have no index units. The parameter `segment`, the result and the errors are as in `append`.

        Readers skip these bytes. The bytes, and data behind them, are safe only after a checkpoint, which this method
        starts. The reason: a start of the broker checks all data behind the last checkpoint. If these bytes were still
        behind the last checkpoint, the start would take them for new damage on this node and cut the log there, even
        after a mere kill -9.
        """
        durability, shared = self.durability, self._shared
        if durability.read_only is not None:
            raise LogReadOnly(self.directory, durability.read_only)
        if segment != self.segments.active.first_offset:
            self._go_on_in(segment)
        base = self.end_offset
        try:
            self._writer.append_damaged(data)
        except LogReadOnly as error:
            self._turn_read_only(error.cause)
            raise
        self._damaged_end = self.end_offset
        actions = durability.appended_unreplayable(self.end_offset)
        if actions & MARK_DIRTY:
            shared.syncs.mark_dirty(self)
        if shared.on_append is not None:
            call_safely(shared.on_append, self, base, self.end_offset, durability.count, data, b"", segment)
        self._act(actions & ~SYNC)
        self.request(DATA | INDEX)
        return base

    def _relieve_memory(self) -> None:
        """If more index units than allowed are only in memory, request that they are written to the index file before
        the next regular checkpoint: by a job that only writes units, or by an early checkpoint.
        """
        syncs, limit = self._shared.syncs, self._shared.syncs.unit_limit
        if self._settle_units() and self.segments.active_index.unstored > limit:
            # if only a few partitions are busy, make a checkpoint unless one runs: then the next start has less to do
            worth = self.has_group_commit and limit == tuning.MAX_UNSTORED_UNITS and not self.durability.syncing
            syncs.request(self, DATA | INDEX if worth else INDEX)

    def _roll(self) -> None:
        """Begin the next segment. If the names of the earlier segments' files must be synced first, only request that
        sync; when it has ended, `go_on` begins the segment.
        """
        self._roll_owed = self._owes_names
        if self._roll_owed:
            self._shared.syncs.request(self, DATA | INDEX)
            return
        try:
            self._start_segment()
        except OSError as error:  # the appended data is good; only the next append has no segment
            if no_room(error):
                _log.warning("%s continues a segment beyond its size limit: %s", self.directory, error)
                return  # the next append tries again
            self._turn_read_only(f"no new segment at {self.end_offset}: {error}")

    def _go_on_in(self, first_offset: int) -> None:
        """Make the segment that begins at byte offset `first_offset` the one that receives the next records. Usually
        this is a new segment, which begins at the log's end. But if the last segment is empty and the segment before it
        begins at `first_offset`, remove the empty segment, so that appends continue in the segment before it.

        The removal is necessary if the leader, which sends this log's data, appends to the earlier segment after this
        log has begun a new one. This happens, for example, after a change of the leader.
        """
        segments = self.segments
        again = not segments.active.size and len(segments) > 1 and first_offset == segments[-2].first_offset
        if not again and first_offset != self.end_offset:
            raise ValueError(
                f"{self.directory}: no segment can begin at {first_offset} where the last one begins at "
                f"{segments.active.first_offset} and ends at {self.end_offset}"
            )
        try:
            if again:
                self._take_up_again()
            else:
                self._start_segment()
        except OSError as error:
            if not again and no_room(error):
                raise DiskFull(self.directory, f"{error}; nothing was appended") from error
            self._turn_read_only(f"it cannot go on in its segment at {first_offset}: {error}")
            raise LogReadOnly(self.directory, str(self.read_only)) from error

    def _take_up_again(self) -> None:
        """Remove the empty last segment, so that appends continue in the segment before it. The call makes its thread
        wait for the disk; this is acceptable because the call is rarely necessary.

        The removal of the empty segment's file is synced before anything is appended to the earlier segment. Otherwise,
        after a power cut, a start of the broker could find both files, and their segments would overlap.
        """
        segments = self.segments
        before = segments[-2]
        if before.index is None:
            raise StoreError(f"{before.path} cannot be continued before its index is rebuilt")
        segments.files.unlink(segments.active.path)
        segments.files.fsync_directory(self.directory)
        segments.remove_empty_last()

    def roll(self) -> None:
        """Begin a new segment now, unless the last one is empty. Raises OSError, LogReadOnly."""
        if self.durability.read_only is not None:
            raise LogReadOnly(self.directory, self.durability.read_only)
        if self.segments.active.size:
            self._start_segment()

    def _start_segment(self) -> None:
        """Begin a new segment at the log's end, and request a sync job, which also syncs the new file names. Raises
        OSError, LogReadOnly.
        """
        self._roll_owed = False
        if self._owes_names:
            self._sync_names()
        self._writer.roll()
        self._shared.syncs.request(self, DATA | INDEX)

    @property
    def _owes_names(self) -> bool:
        """Whether the segments' file names must be synced before a new segment begins. It is True if two conditions
        hold: some file name may not be on the disk yet, and a power cut now would leave some of the log's data only in
        the journal or the transaction log.

        Without this sync, the name of a newer segment's file could reach the disk before the name of an older one, so
        that only the newer segment exists after a power cut. A start of the broker would then assume that retention has
        removed the older segment, and would not restore its data from the journal or transaction log.
        """
        return bool(self._writer.unsynced_directories) and self.durability.relies_on_logs

    def _sync_names(self) -> None:
        """Sync the names of the segments' files on this thread. This blocks the thread, so the method is called only
        when a new segment must begin at once and cannot wait for a sync job.

        If the sync fails, the log becomes read-only and LogReadOnly is raised: a failed sync is never repeated, not
        even a sync of file names.
        """
        try:
            for directory in dict.fromkeys(self._writer.unsynced_directories):
                self.segments.files.fsync_directory(directory)
        except OSError as error:
            self.sync_failed(f"the names of its segments cannot be synced: {error}")
            raise LogReadOnly(self.directory, str(self.read_only)) from error

    def _turn_read_only(self, cause: str) -> None:
        self.durability.write_failed(cause)
        _log.error("%s takes no more writes until the broker is restarted: %s", self.directory, cause)

    @property
    def at_rest(self) -> bool:
        """Whether all data and index units are synced, and no sync job is running."""
        return not self._jobs and not self.durability.dirty

    def renew(self, segments: Sequence[Segment], config: TopicStoreConfig) -> None:
        """Replace the log's segments by the given ones, after the log's end was cut off. The store calls this when no
        callback waits for this log and no job of it is running.

        Record counts that `Store.on_append` has reported for this log become invalid. If the bound of
        `limit_visibility` is behind the log's new end, it is lowered to the new end.
        """
        most = self.visible_end if self.bound is None else min(self.bound[0], self.visible_end)
        self.renewals += 1
        self.segments.replace(segments, most)
        self.lookup.forget()
        if self.bound is not None:
            self.bound = self.segments.visible_end, self.segments.counted
        self._begin(config, ())
        self.told_end = min(self.told_end, self.end_offset)
        if self.bound is None:
            self._act(SHOW)

    def use(self, config: TopicStoreConfig) -> None:
        """Switch to other settings for the topic.

        If the new settings turn group commit on, data that are visible but not synced stay visible and are synced at
        once. If the new settings turn group commit off, puts that wait for a sync still wait for it. Later puts need no
        sync, but their data become visible only when the data of those earlier puts are visible.
        """
        self._writer.max_segment_size = config.max_segment_size
        self.use_policy(config.flush_policy)

    def use_policy(self, policy: FlushPolicy) -> None:
        """Change only the flush policy, with the same effect as `use` when only the flush policy differs."""
        self._act(self.durability.use(policy))

    # --- safety -------------------------------------------------------------------------------------------------------

    def when_safe(self, end: int, callback: SafeCallback) -> None:
        """Call `callback(None)` exactly once when durability.safe_end >= end. If the data before `end` are safe
        already, call it at once. Otherwise call it when the sync that makes them safe has ended. Waiting callbacks are
        called in the order in which they were passed to this method.

        If the sync fails or has failed before, the callback is called with a LogReadOnly error instead of None. end:
        the end offset of an append, at most end_offset.
        """
        if not self.durability.wait(end, callback):
            callback(self.durability.answer_for(end))

    def flush(self) -> None:
        """Start a sync of all appended data. The method does not wait; `when_safe` and `segments[-1].synced` show when
        the data are synced.
        """
        self.request(DATA)

    def checkpoint(self) -> None:
        """Start a checkpoint: a sync of the data and the index, after which a start of the broker need not check the
        data that the log has now.
        """
        self.request(DATA | INDEX)

    def safe(self, end: int, count: int) -> None:
        """Record that the journal contains all data below byte offset `end`. count: this log's own count of records up
        to `end`. Called by the journal.
        """
        self._act(self.durability.safe(end, count))

    def sync_failed(self, cause: str) -> None:
        """Called when a sync of this log's own files or the journal has failed: record that no more data of this log
        can become safe, and call all waiting callbacks with the error. Until a restart of the broker, the log accepts
        no appends, and its unsynced data stay unsafe.
        """
        if self.read_only is None:
            self._turn_read_only(cause)
        self._act(self.durability.failed(LogReadOnly(self.directory, cause)))

    def mark_synced(self) -> None:
        """Record that all segments and `unsynced_directories` were synced. Called by the store before the log is
        used.
        """
        for segment in self.segments:
            segment.synced = segment.end
        self._writer.unsynced_directories.clear()
        self.durability.synced_at_start()

    @property
    def unsynced_directories(self) -> Sequence[str]:
        """The directories that contain files of this partition and need a sync, because the files' names may not be on
        the disk.
        """
        return self._writer.unsynced_directories

    def close(self) -> None:
        """Sync data and index on this thread, call all waiting callbacks, and close the files. Call no other method
        after `close`.
        """
        if self.durability.dirty or self._jobs:
            self.sync_now()
        self.durability.write_failed("the store is closed")
        self.segments.close()

    def _act(self, actions: int) -> None:
        if actions & SYNC:
            self.request(DATA)
        elif actions & SYNC_SOON:
            self._shared.syncs.request(self, DATA)
        if actions & SHOW:
            if self.bound is None:
                self.segments.show(self.durability.safe_end, self.durability.safe_count)
            elif not self._show_within(self.bound):
                actions &= ~SHOW
        if actions & TELL:
            for callback, error in self.durability.take_answers():
                call_safely(callback, error)
        if actions & SHOW and self.on_visible is not None:
            call_safely(self.on_visible, self)

    # --- what readers see ---------------------------------------------------------------------------------------------

    def limit_visibility(self) -> None:
        """Set a bound for readers: from now on, new data become visible only when they are safe and `raise_bound` has
        moved the bound behind them. Data that readers see now stay visible. Do nothing if a bound is already set.
        """
        if self.bound is None:
            self.bound = self.segments.visible_end, self.segments.counted

    def raise_bound(self, end: int, count: int) -> None:
        """Move the bound of `limit_visibility` up to byte offset `end`: readers then see the data below it as soon as
        the data are safe. `end` may be higher than the log's present end, for data that will be appended.

        end, count: the values that `Store.on_append` of this node reported for an append to this log. Values of another
        node cannot be used: each node counts on from the number of records that it had at its own start, so another
        node's `count` is another number. If the log has no bound, or if its bound is at `end` or higher, nothing
        changes for readers.
        """
        if end > self.told_end:
            self.told_end = end
        if self.bound is not None and end > self.bound[0]:
            self.bound = end, count
            if self._show_within(self.bound) and self.on_visible is not None:
                call_safely(self.on_visible, self)

    def unlimited(self) -> None:
        """Remove the bound: readers see all safe data, as before `limit_visibility`."""
        self.bound = None
        if self.segments.visible_end < self.durability.safe_end:
            self._act(SHOW)

    @contextmanager
    def all_visible(self) -> Iterator[None]:
        """Make all safe data readable within this `with` block, without calling `on_visible`. Use this context manager
        only on the thread that owns the store. The code in the block must not return to the event loop before the block
        ends (no `await` or callback). If it did, other code would see these data, too.
        """
        bound, on_visible = self.bound, self.on_visible
        self.bound = self.on_visible = None
        self.segments.show(self.durability.safe_end, self.durability.safe_count)
        try:
            yield
        finally:
            self.bound, self.on_visible = bound, on_visible
            if bound is not None:
                self._show_within(bound)

    def _show_within(self, bound: tuple[int, int]) -> bool:
        """Let readers see the safe data before the bound's byte offset. Return whether readers see more data than
        before the call.
        """
        before = self.segments.visible_end
        safe = self.durability.safe_end, self.durability.safe_count
        self.segments.show(*min(safe, bound))
        return self.segments.visible_end > before

    # --- jobs, for those who run them (background_syncs.py, journal.py) ---------------------------------------------

    def request(self, kind: int) -> None:
        """Start a sync job that covers all data appended so far. kind: what the job does, as the bits DATA and INDEX
        (durability.py). Do nothing if an earlier sync has failed.
        """
        job = self.begin(kind)
        if job is not None:
            job.pin()
            self._shared.run_in_thread(job.run, partial(self._ended, job))

    def _ended(self, job: SyncJob, result: object) -> None:
        self.end(job, result)
        self.go_on()

    def begin(self, kind: int) -> SyncJob | None:
        """Create a sync job like that of `request`, but return the job instead of running it. The caller calls
        `job.pin()`, runs the job in a worker thread, alone or together with jobs of other logs, and afterwards calls
        `end` and `go_on`.

        Return None if an earlier sync has failed, or if no job can begin now because other jobs are running. If other
        jobs are running, a request for a sync (DATA) is kept, and `go_on` begins the sync when these jobs have ended. A
        request for a job that only writes index units (INDEX) is not kept, so the caller must repeat it later.
        """
        if kind == INDEX and not self._settle_units():
            return None
        kind = self.durability.begin(kind)
        if not kind:
            return None
        job = self._make_job(kind)
        self._jobs.append(job)
        return job

    def end(self, job: SyncJob, result: object) -> None:
        """Record that a job which `begin` returned has ended, and apply its results. result: the exception if the
        worker thread failed, else any other value.
        """
        if job not in self._jobs:
            return  # sync_now() has settled the job
        self._jobs.remove(job)
        self.durability.ended(job.kind)
        if isinstance(result, BaseException) and job.error is None:
            job.error = OSError(f"worker thread failed: {result!r}")
        self.end_last(job)
        if job.kind & DATA or self.durability.failure is not None:
            self._shared.syncs.sync_ended(self)

    def go_on(self) -> None:
        """Continue the work that had to wait until a job ended: begin a new segment if one must begin, and begin the
        sync jobs that were requested while the job was running. Called after `end`.
        """
        if self._roll_owed and not self._owes_names and self.read_only is None:
            self._roll()
        self.request(0)

    def sync_now(self) -> None:
        """Sync all data on this thread and call all waiting callbacks. Blocks. Used only at start and shutdown."""
        job = self.begin_last()
        if job is not None:
            job.pin()
            job.run()
            self.end_last(job)

    def begin_last(self) -> SyncJob | None:
        """Create and return the final sync job before the log is closed; it covers all data. The caller runs the job
        and passes it to `end_last`. Return None if an earlier sync has failed.

        This method waits until running jobs have ended, and cancels jobs that have not begun.
        """
        under_way, self._jobs = self._jobs, []
        for job in under_way:
            job.cancel()
            self.end_last(job)
        kind = self.durability.begin_last()
        return self._make_job(kind) if kind else None

    def end_last(self, job: SyncJob) -> None:
        """Apply the results of the job that `begin_last` returned, and call the callbacks that wait for its data."""
        job.release()
        if job.error is not None:
            self.sync_failed(str(job.error))
        elif job.ran:
            job.apply()
            if job.syncs_headers and not job.lacked_room and job.end >= self._damaged_end:
                self._damaged_end = -1
            if job.kind & DATA:
                del self._writer.unsynced_directories[: len(job.directories)]
                covered = job.kind & INDEX != 0 and not self.segments.unfinished()
                self._act(self.durability.synced(job.end, job.count, all_covered=covered))

    def writes_index(self, segment: Segment) -> bool:
        """Return whether a running job may write the index file of this segment."""
        return any(job.writes_index(segment) for job in self._jobs)

    def _make_job(self, kind: int) -> SyncJob:
        job = SyncJob(
            self.segments.files,
            kind,
            self.directory,
            self.segments.unfinished(),
            tuple(self._writer.unsynced_directories) if kind & DATA else (),
            self.end_offset,
            self.durability.count,
        )
        job.syncs_headers = kind & INDEX != 0 and self._damaged_end >= 0
        return job

    def _settle_units(self) -> bool:
        """Remove from memory the index units that running jobs have already written to the index file. Return whether
        further units may be written to the file now.
        """
        return all(job.kind != INDEX and job.settle_units() for job in self._jobs)

    # --- damaged indexes ----------------------------------------------------------------------------------------------

    def index_damaged(self, segment: Segment, index: Index, damage: IndexDamaged) -> bool:
        """Stop using this damaged index of the segment, and have it rebuilt. Parameters and result are those of
        lookup.GiveUp.
        """
        segments = self.segments
        if segment.index is not index or segment not in segments or segment.first_offset >= segments.visible_end:
            return False
        if segment is segments.active:  # the active segment needs an index: another segment takes over
            self._roll_past(damage)
        _log.error("%s; its segment is read without an index until one is made again", damage)
        segments.drop_index(segment)
        self._shared.on_index_lost(self)
        return True

    def _roll_past(self, damage: IndexDamaged) -> None:
        if self.read_only is not None:
            raise StoreError(f"{damage}; it cannot be made again before a restart: {self.read_only}")
        try:
            self._start_segment()
        except OSError as error:
            raise StoreError(f"{damage}; it cannot be made again without a new segment: {error}") from error
