"""Bringing back what an earlier life left: its journal, every partition, and syncing what readers may see."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable

from metaq.protocol.errors import StoreError

from . import tuning
from .file_systems import FileSystems
from .files import Files, naming, unused_name
from .journal_format import DAMAGED_SUFFIX, JournalContents, read_journal
from .partition_log import PartitionLog
from .replay import Gap

__all__ = ["drop_journal", "read_entries", "report_gaps", "report_lost", "sync_recovered"]

_log = logging.getLogger(__name__)


def read_entries(files: Files, data_path: str) -> JournalContents:
    """As `read_journal`, for the store: raises StoreError."""
    try:
        return read_journal(files, data_path)
    except OSError as error:
        raise StoreError(f"the journal in {data_path} cannot be read: {error}") from error


def report_gaps(journal: JournalContents) -> None:
    """Say which parts of the journal could not be read."""
    for gap in journal.gaps:
        if gap.damaged:
            _log.error(
                "%s is damaged in [%d, %d): puts that only it had are lost; the file is kept", gap.path, *gap[1:3]
            )
        else:
            _log.warning(
                "%s: the last %d bytes are no whole block: a write that was never finished, or damage",
                gap.path,
                gap.end - gap.start,
            )


def report_lost(directory: str, lost: Iterable[Gap]) -> None:
    """Say which acknowledged bytes of a partition the journal could not put back."""
    for gap in lost:
        if gap.replaced:
            why = (
                "other records are in their place, or in front of them: after a power cut another broker, which does "
                "not read the journal, must not be the first to start"
            )
        else:
            why = "and what the journal has behind them cannot be put back"
        _log.error("%s: acknowledged bytes [%d, %d) are lost, %s", directory, gap.start, gap.end, why)


def drop_journal(files: Files, journal: JournalContents) -> None:
    """Remove files that the partitions cover now, but keep those that are damaged under another name."""
    damaged = journal.damaged_paths
    for path in journal.paths:
        try:
            if path in damaged:
                kept = unused_name(files, path + DAMAGED_SUFFIX)
                files.rename(path, kept)
                _log.error("%s is kept as %s: delete it when nobody needs it", path, kept)
            else:
                files.unlink(path)
        except OSError as error:  # replayed once more it changes nothing
            _log.error("%s is of no more use but could not be removed: %s: remove it by hand", path, error)


def sync_recovered(
    files: Files, file_systems: FileSystems, all_logs: Iterable[PartitionLog], *, journaled: bool
) -> None:
    """Wait until what was found is on the disk where readers may only see what cannot be lost.

    journaled: there is a journal to be dropped, which may have made any partition's puts safe. Raises StoreError.
    """
    logs = [log for log in all_logs if journaled or log.waits]
    segments = [
        segment for log in logs for segment in log.segments if segment.synced < segment.end or segment.index is None
    ]
    directories = dict.fromkeys(path for log in logs for path in log.unsynced_directories)
    try:
        if len(segments) + len(directories) > tuning.SYNCED_ONE_BY_ONE:
            file_systems.sync([*dict.fromkeys(os.path.dirname(segment.path) for segment in segments), *directories])
        else:
            for segment in segments:
                with naming(segment.path):
                    files.fdatasync(segment.data.use())
            for path in directories:
                with naming(path):
                    files.fsync_directory(path)
    except OSError as error:
        raise StoreError(f"what was recovered cannot be synced: {error}") from error
    for log in logs:
        log.mark_synced()
