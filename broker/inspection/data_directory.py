"""Inspect a whole data directory: partitions, journal, transaction log and lock. Also find what would be a problem for
a Java broker that uses the directory later.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from metaq.protocol.errors import StoreError

from ..assembly.kinds import KINDS
from ..sets.history import NodeFile
from ..store.directories import LOCK_NAME, scan_data_paths, what_others_may
from ..store.files import REAL_FILES, Files
from ..store.internal_logs import is_internal
from ..store.journal_format import JOURNAL_DIRECTORY, JournalData, read_journal
from ..store.replay import Continuation, Gap, continuations
from ..store.segment import DATA_SUFFIX, SegmentFile
from ..transactions.directory import DIRECTORY
from .findings import Finding, Level
from .memories import inspect_kept, kept_logs
from .partition_directory import PartitionReport, SegmentList, inspect_partition, list_partition
from .transaction_log import RedoReport, inspect_redo

__all__ = [
    "DirectoryReport",
    "Options",
    "data_directories_near",
    "inspect_directory",
    "is_data_directory",
    "is_in_use",
    "stored_node",
    "stored_topics",
]


@dataclass(frozen=True, slots=True)
class Options:
    """Options of an inspection. max_record_bytes: the maxTransferSize of the Java brokers. processors: number of
    processors of the machine on which a Java broker will run.
    """

    fast: bool = False
    max_record_bytes: int = 1 << 20
    processors: int = field(default_factory=lambda: os.cpu_count() or 1)


@dataclass(slots=True)
class DirectoryReport:
    """All results of the inspection of a data directory. in_use: whether a metaq broker holds the directory's lock and
    thus uses the directory now; None means that this is unknown.
    """

    path: str
    in_use: bool | None
    partitions: list[PartitionReport]
    journal: JournalReport
    transactions: RedoReport | None
    findings: list[Finding]

    @property
    def all_findings(self) -> list[Finding]:
        """All findings about the directory and its partitions, journal and transactions, worst first."""
        own = [*self.findings, *(each for partition in self.partitions for each in partition.findings)]
        own += self.journal.findings
        if self.transactions is not None:
            own += self.transactions.findings
        return sorted(own, key=lambda found: list(Level).index(found.level))

    @property
    def damaged(self) -> bool:
        """Whether the inspection has found that messages are lost or cannot be read, or that a broker would not
        start.
        """
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
    """Inspect the data directory `path` (a dataPath) and the transaction log below `log_path` (by default also below
    `path`). The function changes no files.

    total: called once with the maximum number of bytes that the inspection reads. advance: called repeatedly with the
    number of bytes that were read since the last call. Raises OSError if the directory itself cannot be listed.
    """
    in_use = is_in_use(path)
    findings: list[Finding] = []
    listed = list(_listed(files, path, findings))
    if (readable := what_others_may(str(path))) is not None:
        findings.append(Finding(Level.WARNING, str(path), readable))
    findings += _java_traps(path, listed, options.processors)
    kept = list(kept_logs(files, str(path)))
    total(sum(each.size for each in listed) + sum(each.size for each in kept))
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
    for log in kept:
        findings += inspect_kept(files, log, fast=options.fast, in_use=in_use is True, advance=advance)
    logs: dict[str, Sequence[SegmentFile]] = {each.name: each.segments for each in listed}
    logs |= {each.name: each.segments for each in kept}
    journal = _inspect_journal(files, path, logs, in_use=in_use is True)
    findings += _inspect_set(files, path)
    directory = (log_path or path) / DIRECTORY
    transactions = inspect_redo(files, directory, logs, in_use=in_use is True) if directory.is_dir() else None
    return DirectoryReport(str(path), in_use, partitions, journal, transactions, findings)


def is_data_directory(path: Path) -> bool:
    """Return whether a broker has used `path` as its dataPath at any time before."""
    return (path / LOCK_NAME).exists() or any(path.glob(f"*-*/*{DATA_SUFFIX}"))


def data_directories_near(path: Path) -> list[Path]:
    """Find the data directories at most two levels below `path` that a metaq broker has used, and return them
    sorted.
    """
    return sorted(lock.parent for depth in ("*", "*/*") for lock in path.glob(f"{depth}/{LOCK_NAME}"))


def stored_topics(path: Path) -> dict[str, int]:
    """Return, for each topic with partitions in the data directory `path`, the highest number of such a partition plus
    one. If the name of a partition's directory would prevent a broker's start, this function raises the error that the
    start would raise.
    """
    return {each.topic: each.partition + 1 for each in scan_data_paths(REAL_FILES, [str(path)])}  # in order


class StoredNode(NamedTuple):
    """What the files in a data directory say about the broker set's node that has used the directory. instance: the
    identifier of the node's data. epoch: the highest epoch that the node has seen. copied: whether the directory is a
    copy of a node's directory. The identifier that the files contain belongs only to the data in the original
    directory; so for a copy, `instance` is a new random identifier.
    """

    instance: str
    epoch: int
    copied: bool


def stored_node(path: Path) -> StoredNode | None:
    """Return what `path` says about the broker set's node that has used it, or None if no such node has used it. Raises
    StoreError for a damaged file.
    """
    file = NodeFile(REAL_FILES, str(path))
    file.read()
    return StoredNode(file.instance, file.epoch, file.copied) if file.history.epochs else None


def is_in_use(path: Path) -> bool | None:
    """Return whether a metaq broker holds the directory's lock, or None if unknown.

    The function takes a shared lock and releases it at once. A metaq broker holds an exclusive lock; Java brokers hold
    no lock.
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


def _inspect_set(files: Files, path: Path) -> Iterator[Finding]:
    """Check the file that has the epochs of a broker set's node, and yield a finding for each problem."""
    file = NodeFile(files, str(path))
    if not os.path.exists(file.path):
        return
    try:
        file.read()
    except StoreError as error:
        yield Finding(Level.DAMAGE, file.path, str(error))
        return
    text = f"a node of a broker set: it has seen epoch {file.epoch}, and has data up to epoch {file.history.last}"
    yield Finding(Level.NOTE, file.path, text)


# --- its journal ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class JournalReport:
    """The result of the inspection of the journal. files: number of the journal's files. returning: for each partition,
    the number of bytes that the next start of a broker will copy from the journal to the end of the partition, because
    the partition lacks them.
    """

    path: str
    files: int = 0
    entries: int = 0
    returning: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def _inspect_journal(
    files: Files, data_path: Path, logs: Mapping[str, Sequence[SegmentFile]], *, in_use: bool
) -> JournalReport:
    """Compare the journal with the files of the partitions. logs: for each partition name, the partition's segments in
    order of their offsets.
    """
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
            directory, segments = os.path.join(data_path, name), logs.get(name, ())
            if is_internal(name):
                topic, _, number = name.rpartition("-")
                directory = KINDS[topic].path(str(data_path), int(number))
            _compare(report, name, continuations(files, directory, segments, found, data))
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
