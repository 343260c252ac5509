"""Writing a group's progress: only what counts as consumed, only what changed, in one pipelined round."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from metaq.coordination.logs import get_log
from metaq.coordination.offset_store import Offset, OffsetStore
from metaq.protocol.errors import MetaqError

from ..timers import Timers
from .partition_state import PartitionState

__all__ = ["OffsetCommitter"]

log = get_log(__name__)


class OffsetCommitter:
    """Commits the positions of partitions. Any thread; one commit at a time.

    Fenced: every write goes out on the ZooKeeper session that holds the partition's owner node, or not at all. A
    partition is clean only after its write succeeded, so a failed commit is made good by the next one.
    """

    def __init__(self, store: OffsetStore, group: str) -> None:
        self._store = store
        self._group = group
        self._lock = threading.Lock()

    def commit(self, states: Iterable[PartitionState]) -> int:
        """Write what changed; return how many partitions that were. Raises CoordinationError, SessionLost, OSError."""
        with self._lock:
            dirty: dict[object, list[tuple[PartitionState, tuple[int, int]]]] = {}
            for state in states:
                consumed = state.consumed
                if state.active and consumed is not None and consumed != state.committed:
                    dirty.setdefault(state.fence, []).append((state, consumed))
            for fence, group in dirty.items():
                self._write(fence, group)
            return sum(map(len, dirty.values()))

    def _write(self, fence: object, group: list[tuple[PartitionState, tuple[int, int]]]) -> None:
        offsets = {
            (state.partition.topic, str(state.partition)): Offset(message_id, offset)
            for state, (offset, message_id) in group
        }
        assert isinstance(fence, int)
        self._store.commit(self._group, offsets, fence)
        for state, consumed in group:
            state.committed = consumed

    def commit_regularly(self, timers: Timers, seconds: float, owned: Iterable[PartitionState]) -> None:
        """Commit every `seconds` on the timer thread, for as long as the timers run. owned: looked at each time."""

        complaint = ""

        def run() -> None:
            nonlocal complaint
            try:
                self.commit(owned)
                complaint = ""
            except (MetaqError, OSError) as error:
                if str(error) != complaint:
                    complaint = str(error)
                    log.warning("offsets of group %s wait to be committed, every %g s: %s", self._group, seconds, error)
            finally:
                timers.call_later(seconds, run)

        timers.call_later(seconds, run)
