"""Bringing back what an earlier life left: its journal, every partition, and syncing what readers may see."""

from __future__ import annotations

import os
from collections.abc import Sequence

from metaq.protocol.errors import StoreError

from .files import Files
from .journal_format import JournalEntry, read_journal
from .partition_log import PartitionLog
from .segment import Segment

__all__ = ["read_entries", "sync_recovered"]

_SYNCED_ONE_BY_ONE = 64
"""Recovered segments above which the whole file system is synced in one call, with what others wrote to it."""


def read_entries(files: Files, data_path: str) -> tuple[dict[str, list[JournalEntry]], list[str]]:
    """As `read_journal`, for the store: raises StoreError."""
    try:
        return read_journal(files, data_path)
    except OSError as error:
        raise StoreError(f"the journal in {data_path} cannot be read: {error}") from error


def sync_recovered(
    files: Files, data_paths: Sequence[str], all_logs: Sequence[PartitionLog], *, journaled: bool
) -> None:
    """Wait until what was found is on the disk where readers may only see what cannot be lost.

    journaled: there is a journal to be dropped, which may have made any partition's puts safe. Raises StoreError.
    """
    logs = [log for log in all_logs if journaled or log.waits]
    segments = [
        segment
        for log in logs
        for segment in log.segments
        if segment.synced < segment.end or (journaled and segment.index is None)
    ]
    try:
        if len(segments) > _SYNCED_ONE_BY_ONE:
            for path in data_paths:
                files.sync_filesystem(path)
        else:
            _sync_segments(files, segments)
    except OSError as error:
        raise StoreError(f"what was recovered cannot be synced: {error}") from error
    for log in logs:
        log.mark_synced()


def _sync_segments(files: Files, segments: Sequence[Segment]) -> None:
    for segment in segments:
        files.fdatasync(segment.data.use())
    directories = [os.path.dirname(segment.path) for segment in segments]
    for path in dict.fromkeys((*directories, *map(os.path.dirname, directories))):
        files.fsync_directory(path)
