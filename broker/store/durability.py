"""Record which data of one partition are appended and which are safe, and decide after each event what the caller must
do for the partition. The code does no I/O, reads no clock and starts no thread.

Data are safe when they are stored on this node as durably as the topic's settings demand. With asynchronous flush, data
are safe when they are appended; with group commit, when they survive a power cut. Readers see all safe data, unless
`PartitionLog.limit_visibility` has set a lower limit for them.

Some methods, for example `appended`, are named after an event: they record the event and return the actions that the
caller must execute, each as one bit of an integer. `Durability.take_answers` returns the callbacks that must be called
after the event. The mode decides what an event means:

    SHOWING   asynchronous flush: readers see data as soon as it is appended, and a sync follows by count or time
    WAITING   group commit: readers see only safe data, and waiters are told when theirs is safe
    LEAVING   asynchronous flush was chosen; data appended before that is shown when it is safe, and then everything
    FAILED    a sync failed: no more data becomes safe or visible, and each waiter has been told why
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import IntEnum

from metaq.protocol.errors import LogReadOnly, MetaqError

from . import tuning
from .topic_config import FlushPolicy

__all__ = [
    "DATA",
    "INDEX",
    "JOURNAL",
    "MARK_DIRTY",
    "SHOW",
    "SYNC",
    "SYNC_SOON",
    "TABLE",
    "TELL",
    "Durability",
    "DurabilityEvent",
    "Mode",
    "SafeCallback",
]

SafeCallback = Callable[[MetaqError | None], None]
"""callback(error): called with None if the data are safe, else with the reason why they will not become safe."""

# the work of a job, as bits; plain integers because a job is requested once per append
DATA = 1
"""The job syncs the partition's data."""
INDEX = 2
"""The job writes the index units to the index file. A job with DATA and INDEX makes a checkpoint: it syncs data and
units, and then writes into the index file the offset up to which both are on the disk.
"""

# actions, as bits for the same reason
SHOW = 1
"""Let readers see all data up to `safe_end`, because more data are safe than before."""
TELL = 2
"""Call the callbacks that `take_answers` returns. If SHOW is set, too, execute SHOW first."""
JOURNAL = 4
"""Write the appended data to the journal."""
SYNC = 8
"""Sync the partition's own files now."""
SYNC_SOON = 16
"""Sync the partition's own files in the background, when other background syncs have ended. No put waits for this sync.
"""
MARK_DIRTY = 32
"""The partition now has data that no checkpoint covers, and had no such data before. From now on, call `due`
regularly.
"""

_NEVER = float("-inf")
_NOWHERE = -1


class Mode(IntEnum):
    """The mode of a partition. The module's docstring explains the modes."""

    SHOWING = 0
    WAITING = 1
    LEAVING = 2
    FAILED = 3


class DurabilityEvent(IntEnum):
    """The events of a partition. The mode decides what the partition does after an event (TABLE)."""

    APPENDED = 0
    PAST_THRESHOLD = 1
    """Data were appended under asynchronous flush, and more records are not synced than the flush policy allows."""
    BEHIND_GAP = 2
    """Data were appended behind bytes that are neither in the journal nor synced. A power cut could destroy these
    bytes, and without them the journal could not restore the data behind them. So the appended data become safe only by
    a sync of the partition's own files.
    """
    SAFE = 3
    """Because of a sync of the partition's files or of the journal, more data survive a power cut than before."""
    ALL_SAFE = 4
    """This event replaces SAFE in the mode LEAVING if all data that were appended under group commit are safe now."""
    GROUP_COMMIT = 5
    """The topic's settings were changed to group commit."""
    ASYNCHRONOUS = 6
    """The topic's settings were changed to asynchronous flush."""
    FAILURE = 7
    """A sync failed. The sync is never repeated, because the kernel has dropped the data that it could not write."""


_M, _E = Mode, DurabilityEvent
_SHOWING, _WAITING, _LEAVING = Mode.SHOWING, Mode.WAITING, Mode.LEAVING  # member look-ups in the class are slow
_APPENDED, _PAST_THRESHOLD = DurabilityEvent.APPENDED, DurabilityEvent.PAST_THRESHOLD

TABLE: dict[Mode, dict[DurabilityEvent, tuple[Mode, int]]] = {
    _M.SHOWING: {
        _E.APPENDED: (_M.SHOWING, SHOW),
        _E.PAST_THRESHOLD: (_M.SHOWING, SHOW | SYNC_SOON),
        _E.GROUP_COMMIT: (_M.WAITING, SYNC),
        _E.ASYNCHRONOUS: (_M.SHOWING, 0),
        _E.FAILURE: (_M.FAILED, TELL),
    },
    _M.WAITING: {
        _E.APPENDED: (_M.WAITING, JOURNAL),
        _E.BEHIND_GAP: (_M.WAITING, SYNC),
        _E.SAFE: (_M.WAITING, SHOW),
        _E.ASYNCHRONOUS: (_M.LEAVING, 0),
        _E.FAILURE: (_M.FAILED, TELL),
    },
    _M.LEAVING: {
        _E.APPENDED: (_M.LEAVING, JOURNAL),
        _E.BEHIND_GAP: (_M.LEAVING, SYNC),
        _E.SAFE: (_M.LEAVING, SHOW),
        _E.ALL_SAFE: (_M.SHOWING, SHOW),
        _E.GROUP_COMMIT: (_M.WAITING, SYNC),
        _E.ASYNCHRONOUS: (_M.LEAVING, 0),
        _E.FAILURE: (_M.FAILED, TELL),
    },
    _M.FAILED: {
        _E.GROUP_COMMIT: (_M.FAILED, 0),
        _E.ASYNCHRONOUS: (_M.FAILED, 0),
        _E.FAILURE: (_M.FAILED, 0),
    },
}
"""Maps (mode, event) to (next mode, actions). A missing pair is a bug and raises KeyError."""


class Durability:
    """Records which data of one partition are appended, safe and synced, and decides what to do (see the module's
    docstring). All offsets are byte offsets in the partition. Counts are numbers of records. Each node counts the
    records of its own log, so another node of a broker set may have another count for the same offset.

    Invariants: safe_end <= end. In the modes WAITING and LEAVING, data below safe_end survive a power cut. After a
    failure, safe_end does not change and no job begins. Each waiting callback is called once, in the order of arrival.
    At most one syncing job runs at a time. At most one job that only writes index units can run at the same time.
    """

    __slots__ = (
        "_checkpointed_at",
        "_committed_end",
        "_dirty_since",
        "_journal_end",
        "_leaving_from",
        "_policy",
        "_running",
        "_waiters",
        "_wanted",
        "_writing_units",
        "count",
        "dirty",
        "end",
        "failure",
        "mode",
        "read_only",
        "safe_count",
        "safe_end",
        "synced_end",
        "unsynced_records",
    )

    def __init__(self, policy: FlushPolicy, end: int, count: int, synced_end: int) -> None:
        """end: the end offset of the data that the broker found when it started. count: the number of records in these
        data. synced_end: all data before this byte offset are on the disk.
        """
        self.mode = _WAITING if policy.has_group_commit else _SHOWING
        self.end = self.safe_end = end
        self.count = self.safe_count = count
        """count: the number of records up to `end`. safe_count: the number of records up to `safe_end`."""
        self.synced_end = synced_end
        """All data before this byte offset are on the disk in the partition's own files."""
        self.unsynced_records = 0
        self.dirty = False
        """Whether the partition has data that no checkpoint covers."""
        self.read_only: str | None = None
        """The reason why appends are refused. It is None while they are allowed."""
        self.failure: LogReadOnly | None = None
        self._policy = policy
        self._journal_end = _NOWHERE  # end of this partition's entries in the journal
        self._committed_end = _NOWHERE  # end of the last message of a transaction
        self._leaving_from = 0  # data below this was appended under group commit
        self._dirty_since = self._checkpointed_at = _NEVER
        self._waiters: deque[tuple[int, SafeCallback]] = deque()
        self._wanted = self._running = 0  # kinds of jobs
        self._writing_units = False

    @property
    def has_group_commit(self) -> bool:
        """Whether puts wait for the disk, that is, whether they are acknowledged and visible to readers only when they
        are safe. True in the modes WAITING and LEAVING.
        """
        return self.mode is _WAITING or self.mode is _LEAVING

    @property
    def relies_on_logs(self) -> bool:
        """Whether the partition has data that a power cut would remove from the partition's own files, so that they
        would have to be restored from the journal or the transaction log. Data also count while they are still being
        written to the journal.
        """
        journaled = max(self.safe_end, self._journal_end) if self.has_group_commit else _NOWHERE
        return max(journaled, self._committed_end) > self.synced_end

    def committed(self, end: int) -> None:
        """Record that the data below byte offset `end` are also in the transaction log, which can restore them until
        the partition's files are synced. The caller has appended the data below `end`, or appends them immediately
        after this call.
        """
        self._committed_end = max(self._committed_end, end)

    def lacks(self, end: int) -> bool:
        """Return whether some data below `end` are not safe yet but can become safe. Return False if all are safe, or
        if a sync has failed.
        """
        return self.safe_end < end and self.failure is None

    # --- events -------------------------------------------------------------------------------------------------------

    def appended(self, end: int, records: int) -> int:
        """Record that `records` records were appended, so that the data now end at byte offset `end`. Return the
        actions that the caller must execute.
        """
        base, self.end = self.end, end
        self.count = count = self.count + records
        self.unsynced_records = unsynced = self.unsynced_records + records
        row = TABLE[self.mode]
        if self.mode is _SHOWING:
            self.mode, actions = row[_PAST_THRESHOLD if unsynced > self._policy.threshold_records else _APPENDED]
            self.safe_end, self.safe_count = end, count
        elif self._journal_end == base or self.synced_end >= base:
            self._journal_end = end
            self.mode, actions = row[_APPENDED]
        else:
            self.mode, actions = row[DurabilityEvent.BEHIND_GAP]
        if not self.dirty:
            self.dirty = True
            actions |= MARK_DIRTY
        return actions

    def appended_unreplayable(self, end: int, records: int = 0) -> int:
        """Record that `records` records were appended up to `end` without being written to the journal. Return the
        actions.

        With group commit, the appended data become safe by a sync of the partition's own files; with asynchronous flush
        they are safe at once. But if the data contain damaged bytes, only a checkpoint makes the data safe: a start of
        the broker would cut off damaged bytes that no checkpoint covers.
        """
        self.end = end
        self.count += records
        self._journal_end = _NOWHERE
        if self.mode is _SHOWING:
            self.safe_end, self.safe_count, actions = end, self.count, self._next(_APPENDED)
        else:
            actions = self._next(DurabilityEvent.BEHIND_GAP)
        if not self.dirty:
            self.dirty = True
            actions |= MARK_DIRTY
        return actions

    def safe(self, end: int, count: int) -> int:
        """Record that the data below `end` (the first `count` records) now survive a power cut, because of a sync or
        the journal. Return the actions.
        """
        if end <= self.safe_end or not self.has_group_commit:
            return 0
        if self.mode is _LEAVING and end >= self._leaving_from:
            return self._show(DurabilityEvent.ALL_SAFE, self.end, self.count)
        return self._show(DurabilityEvent.SAFE, end, count)

    def synced(self, end: int, count: int, *, all_covered: bool) -> int:
        """Record that a job has synced the data below `end` (the first `count` records). Return the actions.
        all_covered: whether checkpoints now cover all data of the partition, so that it is no longer dirty. It is
        False, for example, if data were appended during the job.
        """
        self.synced_end = max(self.synced_end, end)
        if all_covered:
            self.dirty = False
            self._checkpointed_at = self._dirty_since = _NEVER
        return self.safe(end, count)

    def failed(self, failure: LogReadOnly) -> int:
        """Record that a sync of the partition's files or of the journal failed. Return the actions. Only the first
        failure is kept.
        """
        if self.failure is None:
            self.failure = failure
            self.write_failed(failure.cause)
        return self._next(DurabilityEvent.FAILURE)

    def write_failed(self, cause: str) -> None:
        """Allow no more appends, for the reason `cause`. Data that were appended before can still become safe. If
        `read_only` has a reason already, it is not changed.
        """
        if self.read_only is None:
            self.read_only = cause

    def write_again(self, cause: str) -> None:
        """Allow appends again if `write_failed` was called with this `cause` and has forbidden them. If they are
        forbidden for another reason, change nothing.
        """
        if self.read_only == cause:
            self.read_only = None

    def use(self, policy: FlushPolicy) -> int:
        """Switch to another flush policy. Return the actions."""
        if policy == self._policy:
            return 0
        self._policy = policy
        if policy.has_group_commit:
            actions = self._next(DurabilityEvent.GROUP_COMMIT)
            return actions if self.unsynced_records else actions & ~SYNC
        self._leaving_from = self.end
        actions = self._next(DurabilityEvent.ASYNCHRONOUS)
        if self.mode is _LEAVING and self.safe_end >= self.end:
            return self._show(DurabilityEvent.ALL_SAFE, self.end, self.count)
        return actions

    def found_dirty(self) -> None:
        """Record that the broker, when it started, found data that no checkpoint covers."""
        self.dirty = True

    def synced_at_start(self) -> None:
        """Record that all data that the broker found when it started are synced. Called before the first use of the
        log.
        """
        self.synced_end = self.end

    def _next(self, event: DurabilityEvent) -> int:
        self.mode, actions = TABLE[self.mode][event]
        return actions

    def _show(self, event: DurabilityEvent, end: int, count: int) -> int:
        actions = self._next(event)
        self.safe_end, self.safe_count = end, count
        return actions | TELL if self._waiters else actions

    # --- who waits ----------------------------------------------------------------------------------------------------

    def wait(self, end: int, callback: SafeCallback) -> bool:
        """Keep the callback until the data below `end` are safe or a sync fails, and return True. After that event,
        `take_answers` returns the callback. If the data are safe already, or a sync has failed already, do not keep the
        callback and return False. The caller must then call the callback with the result of `answer_for`.
        """
        if self.safe_end >= end or self.failure is not None:
            return False
        self._waiters.append((end, callback))
        return True

    def answer_for(self, end: int) -> MetaqError | None:
        """Return the argument for a callback that `wait` has not kept: None if the data below `end` are safe, else the
        failure.
        """
        return None if self.safe_end >= end else self.failure

    def take_answers(self) -> list[tuple[SafeCallback, MetaqError | None]]:
        """Remove and return the callbacks to call now, each with its argument, in the order in which `wait` has kept
        them.
        """
        waiters = self._waiters
        answers: list[tuple[SafeCallback, MetaqError | None]] = []
        while waiters and waiters[0][0] <= self.safe_end:
            answers.append((waiters.popleft()[1], None))
        if self.failure is not None:
            answers += [(callback, self.answer_for(end)) for end, callback in waiters]
            waiters.clear()
        return answers

    # --- jobs ---------------------------------------------------------------------------------------------------------

    @property
    def syncing(self) -> bool:
        """Whether a job that syncs the partition's data is running. Such a job can take long."""
        return self._running != 0

    @property
    def may_sync(self) -> bool:
        """Whether a job that syncs the data could begin now."""
        blocked = self._running or self.failure is not None or (self._wanted & INDEX and self._writing_units)
        return not blocked

    def begin(self, kind: int) -> int:
        """Request a job of this kind (the bits DATA and INDEX); with `kind` 0, request nothing new. Return the kind of
        the job that the caller must begin now, or 0 if no job is to begin now. The returned kind includes the work that
        earlier calls have requested and that no job has done yet.

        While a syncing job is running, requests of further syncing jobs are kept, and the next job serves all of them.
        A job that only writes index units can run at the same time as a syncing job. If such a job cannot begin now,
        its request is not kept.
        """
        if kind == INDEX:
            if self.failure is not None or self._writing_units:
                return 0
            self._writing_units = True
            return INDEX
        self._wanted |= kind
        if not self._wanted or not self.may_sync:
            return 0
        self._running, self._wanted = self._wanted, 0
        self.unsynced_records = 0
        return self._running

    def ended(self, kind: int) -> None:
        """Record that the running job of this kind (the bits DATA and INDEX) has ended."""
        if kind == INDEX:
            self._writing_units = False
        else:
            self._running = 0

    def begin_last(self) -> int:
        """Return the kind (the bits DATA and INDEX) of the last job before the store is closed, which makes a
        checkpoint of all data. Return 0 after a failure. To be called when no job is running any more.
        """
        self._running = self._wanted = 0
        self._writing_units = False
        self.unsynced_records = 0
        return 0 if self.failure is not None else DATA | INDEX

    # --- by the clock -------------------------------------------------------------------------------------------------

    def due(self, now: float) -> int:
        """Return the kind (the bits DATA and INDEX) of the sync or checkpoint that must be started at monotonic time
        `now` (seconds), because its interval has passed. Return 0 if none must be started. Called while `dirty` is
        True.
        """
        if self.failure is not None:
            return 0
        if self._checkpointed_at == _NEVER:
            self._checkpointed_at = now
        if self._dirty_since == _NEVER:
            self._dirty_since = now
        if now - self._checkpointed_at >= self._checkpoint_seconds:
            self._checkpointed_at = self._dirty_since = now
            return DATA | INDEX
        if now - self._dirty_since >= self._policy.seconds:
            self._dirty_since = now  # also if there is nothing to sync: `next_due` must not be in the past
            if self.unsynced_records and not self.has_group_commit:
                return DATA
        return 0

    def next_due(self, now: float) -> float:
        """Return the monotonic time, in seconds, at which `due` must be called next if it was called at `now`. Before
        this time `due` would return 0.
        """
        checkpoint = self._checkpointed_at + self._checkpoint_seconds
        if checkpoint <= now or self.has_group_commit:
            return max(now, checkpoint)
        return min(checkpoint, self._dirty_since + self._policy.seconds)

    @property
    def _checkpoint_seconds(self) -> float:
        return tuning.JOURNALED_CHECKPOINT_SECONDS if self.has_group_commit else tuning.CHECKPOINT_SECONDS
