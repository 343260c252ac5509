"""A whole data directory: partitions, the transaction log, the lock, and what would trouble a Java broker."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..store.directories import LOCK_NAME, scan_data_paths
from ..store.files import REAL_FILES, Files
from ..store.segment import DATA_SUFFIX
from ..transactions.directory import DIRECTORY
from .findings import Finding, Level
from .journal import JournalReport, inspect_journal
from .partitions import PartitionReport, SegmentList, inspect_partition, list_partition
from .redo import RedoReport, inspect_redo

__all__ = [
    "DirectoryReport",
    "Options",
    "data_directories_near",
    "inspect_directory",
    "is_data_directory",
    "is_in_use",
    "stored_topics",
]


@dataclass(frozen=True, slots=True)
class Options:
    """How to look. max_record_bytes: maxTransferSize of the Java brokers; processors: of the Java broker's machine."""

    fast: bool = False
    max_record_bytes: int = 1 << 20
    processors: int = field(default_factory=lambda: os.cpu_count() or 1)


@dataclass(slots=True)
class DirectoryReport:
    """Everything that was found. in_use: a broker of ours holds the lock (None: that cannot be told)."""

    path: str
    in_use: bool | None
    partitions: list[PartitionReport]
    journal: JournalReport
    transactions: RedoReport | None
    findings: list[Finding]

    @property
    def all_findings(self) -> list[Finding]:
        """Worst first."""
        own = [*self.findings, *(each for partition in self.partitions for each in partition.findings)]
        own += self.journal.findings
        if self.transactions is not None:
            own += self.transactions.findings
        return sorted(own, key=lambda found: list(Level).index(found.level))

    @property
    def damaged(self) -> bool:
        """Whether something is lost, or a broker would not start."""
        return any(found.level is Level.DAMAGE for found in self.all_findings)


def inspect_directory(
    path: Path,
    options: Options,
    *,
    log_path: Path | None = None,
    files: Files = REAL_FILES,
    total: Callable[[int], None] = lambda count: None,
    advance: Callable[[int], None] = lambda count: None,
) -> DirectoryReport:
    """Read `path` (a dataPath) and the transaction log below `log_path` (default: the same). Changes nothing.

    total: called once with the bytes to read at most; advance: with those that have been read. Raises OSError if the
    directory itself cannot be listed.
    """
    in_use = is_in_use(path)
    findings: list[Finding] = []
    listed = list(_listed(files, path, findings))
    findings += _java_traps(path, listed, options.processors)
    total(sum(each.size for each in listed))
    partitions = [
        inspect_partition(
            files,
            each,
            fast=options.fast,
            limit=options.max_record_bytes,
            in_use=in_use is True,
            advance=advance,
        )
        for each in listed
    ]
    logs = {each.name: each.segments for each in listed}
    journal = inspect_journal(files, path, logs, in_use=in_use is True)
    directory = (log_path or path) / DIRECTORY
    transactions = inspect_redo(files, directory, logs, in_use=in_use is True) if directory.is_dir() else None
    return DirectoryReport(str(path), in_use, partitions, journal, transactions, findings)


def is_data_directory(path: Path) -> bool:
    """Whether a broker has ever used `path` as its dataPath."""
    return (path / LOCK_NAME).exists() or any(path.glob(f"*-*/*{DATA_SUFFIX}"))


def data_directories_near(path: Path) -> list[Path]:
    """Directories up to two levels below `path` that a broker of ours has used, sorted."""
    return sorted(lock.parent for depth in ("*", "*/*") for lock in path.glob(f"{depth}/{LOCK_NAME}"))


def stored_topics(path: Path) -> dict[str, int]:
    """By topic how many partitions, from 0 on, reach the highest one in `path`. Raises what a broker's start does."""
    return {each.topic: each.partition + 1 for each in scan_data_paths(REAL_FILES, [str(path)])}  # in order


def is_in_use(path: Path) -> bool | None:
    """Whether a broker of ours holds the lock; None if that cannot be told.

    Asked with a shared lock, given back at once: a broker holds an exclusive one. Java brokers hold none.
    """
    try:
        descriptor = os.open(path / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _listed(files: Files, path: Path, findings: list[Finding]) -> Iterator[SegmentList]:
    for name in sorted(files.list_directory(str(path))):
        place = os.path.join(path, name)
        topic, dash, number = name.rpartition("-")
        if not dash or not files.is_directory(place):
            continue
        try:
            int(number)
        except ValueError:
            text = f"{number!r} behind the last '-' is not a number: a Java broker does not start beside it"
            findings.append(Finding(Level.WARNING, place, text))
            continue
        if not topic or not number.isdecimal() or str(int(number)) != number:
            text = f"is not written <topic>-<partition>: ours skips it, a Java broker takes it for {int(number)}"
            findings.append(Finding(Level.WARNING, place, text))
            continue
        try:
            yield list_partition(files, name, place)
        except OSError as error:
            findings.append(Finding(Level.DAMAGE, place, f"cannot be read: {error.strerror}"))


def _java_traps(path: Path, listed: list[SegmentList], processors: int) -> Iterator[Finding]:
    batch = processors + 1
    left = len(listed) % batch
    if left:
        text = (
            f"a Java broker 1.4.6.2 on {processors} processors does not load {left} of the {len(listed)} partitions "
            "until a put opens them (fixed in later builds); nothing is lost"
        )
        yield Finding(Level.NOTE, str(path), text)
    for each in listed:
        if not each.segments:
            yield Finding(Level.NOTE, each.path, "has no segment: a broker makes the first one")
