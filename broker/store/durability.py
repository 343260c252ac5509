"""What of one partition is appended and safe, and what has to happen next: no I/O, no clock, no thread.

Safe means what this node has promised: with asynchronous flush what is appended, with group commit what survives a
power cut. Readers see what is safe, unless the log bounds them (`PartitionLog.limit_visibility`).

Every method that names an event takes it in and returns what the log has to do, as bits. `Durability.take_answers`
gives the waiters that are to be called then. The mode decides what an event means:

    SHOWING   asynchronous flush: readers see what is appended at once, and a sync follows by count or time
    WAITING   group commit: readers see, and waiters are told, what is safe
    LEAVING   asynchronous flush was chosen; what was appended before that is shown when it is safe, and then all
    FAILED    a sync failed: nothing is made safe or shown any more, and each waiter has been told why
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
"""callback(None if the data is safe, else why it will not be)."""

# what a job does, as bits; plain integers because requests are made once per append
DATA = 1
"""Sync the data."""
INDEX = 2
"""Write the index units out; together with DATA: sync them too and move the checkpoint."""

# actions, as bits for the same reason
SHOW = 1
"""More is safe: let readers see everything up to `safe_end`."""
TELL = 2
"""Call the waiters of `take_answers`, behind that."""
JOURNAL = 4
"""Hand what was appended to the journal."""
SYNC = 8
"""Sync the partition's own files now."""
SYNC_SOON = 16
"""Sync them when it is their turn: nobody waits for it."""
MARK_DIRTY = 32
"""The first byte behind a checkpoint: `due` is to be asked from now on."""

_NEVER = float("-inf")
_NOWHERE = -1


class Mode(IntEnum):
    """See above."""

    SHOWING = 0
    WAITING = 1
    LEAVING = 2
    FAILED = 3


class DurabilityEvent(IntEnum):
    """What happens to a partition, as far as the mode decides what follows."""

    APPENDED = 0
    PAST_THRESHOLD = 1
    """Appended, and more records are unsynced than asynchronous flush allows."""
    BEHIND_GAP = 2
    """Appended behind bytes that neither the journal has nor a sync has covered: the journal could not replay it."""
    SAFE = 3
    """A sync of the files, or of the journal, covers more than before."""
    ALL_SAFE = 4
    """The same, and in LEAVING nothing is left that was appended under group commit."""
    GROUP_COMMIT = 5
    """The settings say so now."""
    ASYNCHRONOUS = 6
    """The settings say so now."""
    FAILURE = 7
    """A sync failed. It is never repeated: the kernel has forgotten what it could not write."""


_M, _E = Mode, DurabilityEvent
_SHOWING, _WAITING, _LEAVING = Mode.SHOWING, Mode.WAITING, Mode.LEAVING  # looking one up in its class takes long
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
"""(mode, event) -> (next mode, actions). A pair that is missing is a bug and raises KeyError."""


class Durability:
    """The state of one partition. All offsets are byte offsets in it; counts are the log's own count of records.

    Invariants: safe_end <= end; while puts wait, what lies below safe_end survives a power cut; safe_end does not move
    and no job begins after a failure; each waiter is told once, in the order they came; at most one job that syncs is
    under way, and beside it one that only writes index units.
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
        """end, count: what a start has found, all of it readable. synced_end: what of it is on the disk."""
        self.mode = _WAITING if policy.waits else _SHOWING
        self.end = self.safe_end = end
        self.count = self.safe_count = count
        """Records up to `end`, and up to `safe_end`."""
        self.synced_end = synced_end
        """Up to here the partition's own files are on the disk."""
        self.unsynced_records = 0
        self.dirty = False
        """Whether something is not covered by a checkpoint."""
        self.read_only: str | None = None
        """Why nothing may be appended any more."""
        self.failure: LogReadOnly | None = None
        self._policy = policy
        self._journal_end = _NOWHERE  # where the journal's entries of this partition end
        self._committed_end = _NOWHERE  # where the last message of a transaction ends
        self._leaving_from = 0  # what lies below was appended under group commit
        self._dirty_since = self._checkpointed_at = _NEVER
        self._waiters: deque[tuple[int, SafeCallback]] = deque()
        self._wanted = self._running = 0  # kinds of jobs
        self._writing_units = False

    @property
    def waits(self) -> bool:
        """Whether puts are answered, and shown, only when they are safe."""
        return self.mode is _WAITING or self.mode is _LEAVING

    @property
    def relies_on_logs(self) -> bool:
        """Whether the journal alone, or the transaction log, gives something of it back after a power cut.

        The cut may come now, or when the journal's group is safe.
        """
        journaled = max(self.safe_end, self._journal_end) if self.waits else _NOWHERE
        return max(journaled, self._committed_end) > self.synced_end

    def committed(self, end: int) -> None:
        """The transaction log gives back what lies below `end`, appended or about to be, until the files are synced."""
        self._committed_end = max(self._committed_end, end)

    def lacks(self, end: int) -> bool:
        """Whether what lies below `end` is to be made safe: not if that is so already, nor after a failure."""
        return self.safe_end < end and self.failure is None

    # --- events -------------------------------------------------------------------------------------------------------

    def appended(self, end: int, records: int) -> int:
        """The log ends at `end` now, with so many records more. Actions."""
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
        """The log ends at `end` now, with so many records more, and the journal does not get what was appended: only a
        sync makes it safe, or a checkpoint if a start would not find it good."""
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
        """What lies below `end`, the first `count` records, survives a power cut: a sync or the journal has it."""
        if end <= self.safe_end or not self.waits:
            return 0
        if self.mode is _LEAVING and end >= self._leaving_from:
            return self._show(DurabilityEvent.ALL_SAFE, self.end, self.count)
        return self._show(DurabilityEvent.SAFE, end, count)

    def synced(self, end: int, count: int, *, all_covered: bool) -> int:
        """A job has synced the data below `end`. all_covered: checkpoints cover everything, also what came since."""
        self.synced_end = max(self.synced_end, end)
        if all_covered:
            self.dirty = False
            self._checkpointed_at = self._dirty_since = _NEVER
        return self.safe(end, count)

    def failed(self, failure: LogReadOnly) -> int:
        """A sync of the files or of the journal has failed. Ignored the second time."""
        if self.failure is None:
            self.failure = failure
            self.write_failed(failure.cause)
        return self._next(DurabilityEvent.FAILURE)

    def write_failed(self, cause: str) -> None:
        """Nothing can be appended any more; what is there can still be made safe. The first cause stays."""
        if self.read_only is None:
            self.read_only = cause

    def write_again(self, cause: str) -> None:
        """What `write_failed` was told is over, if nothing else keeps the log from being written."""
        if self.read_only == cause:
            self.read_only = None

    def use(self, policy: FlushPolicy) -> int:
        """Go on with other settings."""
        if policy == self._policy:
            return 0
        self._policy = policy
        if policy.waits:
            actions = self._next(DurabilityEvent.GROUP_COMMIT)
            return actions if self.unsynced_records else actions & ~SYNC
        self._leaving_from = self.end
        actions = self._next(DurabilityEvent.ASYNCHRONOUS)
        if self.mode is _LEAVING and self.safe_end >= self.end:
            return self._show(DurabilityEvent.ALL_SAFE, self.end, self.count)
        return actions

    def found_dirty(self) -> None:
        """A start has found what no checkpoint covers."""
        self.dirty = True

    def synced_at_start(self) -> None:
        """Everything that a start has found was synced, before the log is in use."""
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
        """Have `take_answers` give the callback when `end` is safe or a sync fails; False: call it now."""
        if self.safe_end >= end or self.failure is not None:
            return False
        self._waiters.append((end, callback))
        return True

    def answer_for(self, end: int) -> MetaqError | None:
        """What a waiter for `end` is told now, if it need not wait."""
        return None if self.safe_end >= end else self.failure

    def take_answers(self) -> list[tuple[SafeCallback, MetaqError | None]]:
        """Waiters to be called now, in the order they came, each once, and what with."""
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
        """Whether a job that syncs is under way, which may take long."""
        return self._running != 0

    @property
    def may_sync(self) -> bool:
        """Whether a job that syncs the data could begin now."""
        blocked = self._running or self.failure is not None or (self._wanted & INDEX and self._writing_units)
        return not blocked

    def begin(self, kind: int) -> int:
        """A job of this kind is wanted, 0: one that was wanted before. The kind of the job to begin now, 0 for none.

        One that syncs follows those under way, as one for all that asked meanwhile. Units alone are written beside it,
        and not wanted again later.
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
        """The job of this kind is no longer under way."""
        if kind == INDEX:
            self._writing_units = False
        else:
            self._running = 0

    def begin_last(self) -> int:
        """No job is under way any more: the kind of the one that covers everything, 0 after a failure."""
        self._running = self._wanted = 0
        self._writing_units = False
        self.unsynced_records = 0
        return 0 if self.failure is not None else DATA | INDEX

    # --- by the clock -------------------------------------------------------------------------------------------------

    def due(self, now: float) -> int:
        """What a dirty partition should have done at monotonic time `now` (seconds): the kind of a job, or 0."""
        if self.failure is not None:
            return 0
        if self._checkpointed_at == _NEVER:
            self._checkpointed_at = now
        if self._dirty_since == _NEVER:
            self._dirty_since = now
        if now - self._checkpointed_at >= self._checkpoint_seconds:
            self._checkpointed_at = self._dirty_since = now
            return DATA | INDEX
        if self.unsynced_records and not self.waits and now - self._dirty_since >= self._policy.seconds:
            self._dirty_since = now
            return DATA
        return 0

    def next_due(self, now: float) -> float:
        """When `due`, asked at `now`, should be asked again: nothing becomes due before. Monotonic seconds."""
        checkpoint = self._checkpointed_at + self._checkpoint_seconds
        if checkpoint <= now or self.waits:
            return max(now, checkpoint)
        return min(checkpoint, self._dirty_since + self._policy.seconds)

    @property
    def _checkpoint_seconds(self) -> float:
        return tuning.JOURNALED_CHECKPOINT_SECONDS if self.waits else tuning.CHECKPOINT_SECONDS
