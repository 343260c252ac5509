"""What server.ini says about storing one topic."""

from __future__ import annotations

from dataclasses import dataclass

from .flush import FlushPolicy, flush_policy
from .retention import DeletePolicy

__all__ = ["TopicStoreConfig"]


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
        return flush_policy(self.unflush_threshold, self.unflush_interval_ms)
