"""The transaction log below a data directory: records, open and prepared transactions, torn tails, checkpoints."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from metaq.broker.store.files import Files, read_exactly
from metaq.broker.store.segment import SegmentFile
from metaq.broker.transactions.commands import OperationType, StoredPut
from metaq.broker.transactions.redo import (
    CHECKPOINT_PREFIX,
    REDO_PREFIX,
    Location,
    RedoEntry,
    RedoReader,
    numbered_files,
)
from metaq.protocol.record import checksum

from .findings import Finding, Level

__all__ = ["PendingTransaction", "RedoFile", "RedoReport", "inspect_redo"]

Logs = Mapping[str, Sequence[SegmentFile]]
"""Segments by `<topic>-<partition>`."""


@dataclass(slots=True)
class RedoFile:
    """One redo.<n>. Sizes in bytes; tail_bytes follow the last good record."""

    path: str
    entries: int
    size: int
    tail_bytes: int


@dataclass(slots=True)
class PendingTransaction:
    """One without an end. first: number of the file and byte of its first record."""

    key: str
    first: tuple[int, int]
    prepared: bool = False
    messages: int = 0
    bytes: int = 0


@dataclass(slots=True)
class RedoReport:
    """What is in the transaction log. checkpoint: where a replay begins, (number of the file, byte)."""

    path: str
    files: list[RedoFile] = field(default_factory=list)
    pending: dict[str, PendingTransaction] = field(default_factory=dict)
    committed: int = 0
    rolled_back: int = 0
    checkpoint: tuple[int, int] | None = None
    findings: list[Finding] = field(default_factory=list)


def inspect_redo(files: Files, directory: Path, logs: Logs, *, in_use: bool) -> RedoReport:
    """Read all redo files. What cannot be read becomes a finding."""
    report = RedoReport(str(directory))
    replayed: Counter[str] = Counter()
    try:
        report.checkpoint = _checkpoint(files, report)
        for number, path in numbered_files(files, str(directory), REDO_PREFIX).items():
            for entry in _read_file(files, path, report, in_use):
                _count(report, number, entry)
                if not _before((number, entry.offset), report.checkpoint):
                    replayed.update(each.store for each in entry.locations if not _is_written(files, logs, each))
    except OSError as error:
        level = Level.NOTE if in_use and isinstance(error, FileNotFoundError) else Level.DAMAGE
        report.findings.append(Finding(level, error.filename or str(directory), f"cannot be read: {error.strerror}"))
    _judge(report, replayed, in_use)
    return report


def _read_file(files: Files, path: str, report: RedoReport, in_use: bool) -> list[RedoEntry]:
    reader = RedoReader(files, path)
    entries = list(reader)
    tail = reader.size - reader.end
    report.files.append(RedoFile(path, len(entries), reader.size, tail))
    if reader.problem:
        level = Level.NOTE if in_use else Level.WARNING
        text = f"a torn tail of {tail} bytes at {reader.end} ({reader.problem}): cut at the start"
        report.findings.append(Finding(level, path, text))
    return entries


def _count(report: RedoReport, number: int, entry: RedoEntry) -> None:
    command = entry.command
    key = command.tx_key
    pending = report.pending.get(key) or PendingTransaction(key, (number, entry.offset))
    if isinstance(command, StoredPut):
        pending.messages += 1
        pending.bytes += len(command.body)
    elif command.type is OperationType.XA_PREPARE:
        pending.prepared = True
    else:
        report.pending.pop(key, None)
        report.committed += command.type.is_commit
        report.rolled_back += not command.type.is_commit
        return
    report.pending[key] = pending


def _is_written(files: Files, logs: Logs, location: Location) -> bool:
    """Whether a commit's messages are in the partition. What retention has taken counts as written."""
    segments = logs.get(location.store, ())
    if segments and location.offset < segments[0].first_offset:
        return True
    for segment in segments:
        if segment.first_offset <= location.offset and location.offset + location.size <= segment.end:
            fd = files.open(segment.path, os.O_RDONLY)
            try:
                data = read_exactly(files, fd, location.size, location.offset - segment.first_offset)
            finally:
                files.close(fd)
            return checksum(data) == location.checksum
    return False


def _checkpoint(files: Files, report: RedoReport) -> tuple[int, int] | None:
    """The newest that is not empty."""
    found = None
    for path in numbered_files(files, report.path, CHECKPOINT_PREFIX).values():
        text = Path(path).read_bytes()
        if not text.strip(b"\0 \r\n"):
            continue
        try:
            value = json.loads(text)
            found = int(value["number"]), int(value["offset"])
        except (ValueError, KeyError, TypeError):
            text_ = "is no checkpoint: the replay begins at an older one, or at the first record"
            report.findings.append(Finding(Level.WARNING, path, text_))
    return found


def _before(place: tuple[int, int], checkpoint: tuple[int, int] | None) -> bool:
    return checkpoint is not None and place < checkpoint


def _judge(report: RedoReport, replayed: Counter[str], in_use: bool) -> None:
    for pending in report.pending.values():
        what = f"{pending.key} with {pending.messages} messages"
        if not pending.prepared:
            if not in_use:
                text = f"the open transaction {what} is rolled back at the start"
                report.findings.append(Finding(Level.WARNING, report.path, text))
            continue
        report.findings.append(Finding(Level.NOTE, report.path, f"{what} is prepared and waits for its coordinator"))
        if _before(pending.first, report.checkpoint):
            text = f"{what} began before the checkpoint: a Java broker 1.4.6.2 forgets it at its start"
            report.findings.append(Finding(Level.WARNING, report.path, text))
    if not in_use:
        for store, count in sorted(replayed.items()):
            text = f"{count} commits to {store} are not in its log: the start writes their messages again"
            report.findings.append(Finding(Level.WARNING, report.path, text))
