"""The journal of a broker of ours (store/journal.py): what of it the partitions' own files do not have yet."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..store.files import Files
from ..store.journal_format import JOURNAL_DIRECTORY, JournalData, read_journal
from ..store.replay import Continuation, Gap, continuations
from ..store.segment import SegmentFile
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


def inspect_journal(
    files: Files, data_path: Path, logs: Mapping[str, Sequence[SegmentFile]], *, in_use: bool
) -> JournalReport:
    """Compare the journal with what the partitions, by name, have themselves. logs: their segments, in order."""
    report = JournalReport(os.path.join(data_path, JOURNAL_DIRECTORY))
    try:
        journal = read_journal(files, str(data_path))
    except OSError as error:
        level = Level.NOTE if in_use and isinstance(error, FileNotFoundError) else Level.DAMAGE
        text = f"cannot be read: {error.strerror}"
        report.findings.append(Finding(level, error.filename or report.path, text))
        return report
    report.files, report.entries = len(journal.paths), sum(map(len, journal.entries.values()))
    if in_use:
        return report
    for gap in journal.gaps:
        size, where = gap.end - gap.start, f"[{gap.start}, {gap.end})"
        if gap.damaged:
            text = f"{size} damaged bytes {where}: puts that no other file has are lost; the next start keeps the file"
            report.findings.append(Finding(Level.DAMAGE, gap.path, text))
        else:
            text = f"the last {size} bytes are no whole block: a write that was never finished, or damage"
            report.findings.append(Finding(Level.WARNING, gap.path, text))
    data = JournalData(files)
    try:
        for name, found in sorted(journal.entries.items()):
            directory = os.path.join(data_path, name)
            _compare(report, name, continuations(files, directory, logs.get(name, ()), found, data))
    except OSError as error:
        text = f"cannot be compared with the partitions: {error.strerror}"
        report.findings.append(Finding(Level.DAMAGE, error.filename or report.path, text))
    finally:
        data.close()
    if journal.paths and not report.returning:
        text = "the broker did not stop cleanly; the partitions' own files have everything that is in the journal"
        report.findings.append(Finding(Level.NOTE, report.path, text))
    return report


def _compare(report: JournalReport, name: str, found: Iterator[Continuation]) -> None:
    returning = 0
    for each in found:
        returning += sum(map(len, each.parts))
        for gap in each.lost:
            report.findings.append(Finding(Level.DAMAGE, report.path, _lost_text(name, gap)))
    if returning:
        report.returning[name] = returning
        text = f"{returning} bytes of {name} are in the journal only: they come back at the next start of ours"
        report.findings.append(Finding(Level.WARNING, report.path, f"{text}; a Java broker would not see them"))


def _lost_text(name: str, gap: Gap) -> str:
    what = f"bytes [{gap.start}, {gap.end}) of {name} were acknowledged and"
    if gap.replaced:
        return f"{what} are lost: other records are in their place, or in front of them"
    return f"{what} are in no file"
