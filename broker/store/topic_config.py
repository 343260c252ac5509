"""What server.ini says about storing one topic."""

from __future__ import annotations

from dataclasses import dataclass

from .retention import DeletePolicy

__all__ = ["GROUP_COMMIT", "FlushPolicy", "TopicStoreConfig"]


@dataclass(frozen=True, slots=True)
class FlushPolicy:
    """When data is synced: at the threshold+1-th unsynced record or after the interval (storage.md §3).

    A threshold of 0 is group commit: puts are answered, and readers see data, only after the sync. It begins at once,
    and everything appended while it runs shares the next one.
    """

    threshold_records: int
    interval_ms: float

    @property
    def waits(self) -> bool:
        """Whether puts wait for the disk."""
        return not self.threshold_records

    @property
    def seconds(self) -> float:
        """How long data may wait to be synced."""
        return self.interval_ms / 1000

    def due_after(self, seconds: float) -> bool:
        """Whether data that has waited this long must be synced."""
        return seconds * 1000 >= self.interval_ms


GROUP_COMMIT = FlushPolicy(0, float("inf"))


@dataclass(frozen=True, slots=True)
class TopicStoreConfig:
    """What server.ini says about storing one topic (storage.md §9). unflush_threshold <= 0 means group commit."""

    max_segment_size: int
    unflush_threshold: int
    unflush_interval_ms: int
    delete_policy: DeletePolicy | None = None
    """None keeps everything."""

    @property
    def flush_policy(self) -> FlushPolicy:
        if self.unflush_threshold <= 0:
            return GROUP_COMMIT
        return FlushPolicy(self.unflush_threshold, self.unflush_interval_ms)
