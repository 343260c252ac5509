"""The journal of a broker of ours (store/journal.py): what of it the partitions' own files do not have yet."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from metaq.broker.store.files import Files
from metaq.broker.store.journal_format import JOURNAL_DIRECTORY, read_journal

from .findings import Finding, Level

__all__ = ["JournalReport", "inspect_journal"]


@dataclass(slots=True)
class JournalReport:
    """files: in the journal. returning: bytes by partition that the next start puts behind its last good record."""

    path: str
    files: int = 0
    entries: int = 0
    returning: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def inspect_journal(files: Files, data_path: Path, good_ends: Mapping[str, int], *, in_use: bool) -> JournalReport:
    """Compare the journal with where the good records of each partition end (byte offsets)."""
    report = JournalReport(os.path.join(data_path, JOURNAL_DIRECTORY))
    try:
        entries, paths = read_journal(files, str(data_path))
    except OSError as error:
        level = Level.NOTE if in_use and isinstance(error, FileNotFoundError) else Level.DAMAGE
        text = f"cannot be read: {error.strerror}"
        report.findings.append(Finding(level, error.filename or report.path, text))
        return report
    report.files, report.entries = len(paths), sum(map(len, entries.values()))
    if in_use:
        return report
    for name, found in sorted(entries.items()):
        missing = found[-1].end - good_ends.get(name, 0)
        if missing > 0:
            report.returning[name] = missing
            text = f"{missing} bytes of {name} are in the journal only: they come back at the next start of ours"
            report.findings.append(Finding(Level.WARNING, report.path, f"{text}; a Java broker would not see them"))
    if paths and not report.returning:
        text = "the broker did not stop cleanly; the partitions' own files have everything that is in the journal"
        report.findings.append(Finding(Level.NOTE, report.path, text))
    return report
