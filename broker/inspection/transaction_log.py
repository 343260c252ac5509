"""Inspect the transaction log below a data directory: records, damage, open and prepared transactions, checkpoints."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from metaq.protocol.record import checksum

from ..store.files import Files, opened, read_exactly
from ..store.segment import SegmentFile
from ..transactions.checkpoints import parse_checkpoint, read_state
from ..transactions.directory import CHECKPOINT_PREFIX, DAMAGED_PREFIX, REDO_PREFIX, RedoPosition, numbered_files
from ..transactions.following import Ended, Following, Logged, LoggedBlock
from ..transactions.redo import Location, RedoEntry
from ..transactions.redo_reader import RedoDamage, RedoReader
from .findings import Finding, Level

__all__ = ["PendingTransaction", "RedoReport", "RedoSummary", "inspect_redo"]

SegmentsByLog = Mapping[str, Sequence[SegmentFile]]
"""For the name `<topic>-<partition>` of each partition or internal log, its segments."""


@dataclass(slots=True)
class RedoSummary:
    """A summary of one file redo.<n> of the transaction log. Sizes are in bytes. entries: number of good records.
    tail_bytes: number of bytes after the last good record.
    """

    path: str
    entries: int
    size: int
    tail_bytes: int


@dataclass(slots=True)
class PendingTransaction:
    """A transaction that was neither committed nor rolled back. first: the file number and the byte offset of its first
    record. bytes: the total size of the bodies of its messages.
    """

    key: str
    first: tuple[int, int]
    prepared: bool = False
    messages: int = 0
    bytes: int = 0


@dataclass(slots=True)
class RedoReport:
    """The result of the inspection of a transaction log.

    replay_from: where a broker of this project begins to replay the log, as (file number, byte offset); None means at
    the first record. checkpoint: where a Java broker begins to replay the log, in the same form.
    """

    path: str
    files: list[RedoSummary] = field(default_factory=list)
    pending: dict[str, PendingTransaction] = field(default_factory=dict)
    committed: int = 0
    rolled_back: int = 0
    replay_from: tuple[int, int] | None = None
    checkpoint: tuple[int, int] | None = None
    findings: list[Finding] = field(default_factory=list)

    def add(self, level: Level, place: str, text: str) -> None:
        self.findings.append(Finding(level, place, text))


def inspect_redo(files: Files, directory: Path, logs: SegmentsByLog, *, in_use: bool) -> RedoReport:
    """Read all files redo.<n> of the transaction log. For each part that cannot be read, the report gets a finding."""
    report = RedoReport(str(directory))
    try:
        _Inspection(files, logs, report, in_use=in_use).run()
    except OSError as error:
        level = Level.NOTE if in_use and isinstance(error, FileNotFoundError) else Level.DAMAGE
        report.add(level, error.filename or str(directory), f"cannot be read: {error.strerror}")
    return report


class _Inspection:
    def __init__(self, files: Files, logs: SegmentsByLog, report: RedoReport, *, in_use: bool) -> None:
        self._files = files
        self._logs = logs
        self._report = report
        self._in_use = in_use
        self._following = Following(lambda: int(time.time() * 1000))
        self._paths: dict[int, str] = {}
        self._replayed: Counter[str] = Counter()

    def run(self) -> None:
        self._state()
        self._checkpoint()
        self._paths = numbered_files(self._files, self._report.path, REDO_PREFIX)
        for number in self._paths:
            self._read_file(number)
        self._judge()

    # --- where a replay begins ----------------------------------------------------------------------------------------

    def _state(self) -> None:
        state = read_state(self._files, self._report.path)
        if state.damage is not None:
            text = f"{state.damage}: the start replays the whole log, and keeps the operators' decisions it can read"
            self._report.add(Level.DAMAGE, self._report.path, text)
        if state.replay_from is not None:
            self._report.replay_from = _place(state.replay_from)
        copies = [name for name in self._files.list_directory(self._report.path) if name.startswith(DAMAGED_PREFIX)]
        if copies:
            text = f"copies of what earlier starts found damaged: {', '.join(sorted(copies))}"
            self._report.add(Level.NOTE, self._report.path, text)

    def _checkpoint(self) -> None:
        """Read the checkpoints, and report the newest one that is not empty."""
        for path in numbered_files(self._files, self._report.path, CHECKPOINT_PREFIX).values():
            data = Path(path).read_bytes()
            if not data.strip(b"\0 \r\n"):
                continue
            try:
                self._report.checkpoint = _place(parse_checkpoint(data))
            except ValueError as error:
                text = f"is not a checkpoint ({error}): a Java broker begins at an older one, or at the first record"
                self._report.add(Level.WARNING, path, text)

    def _settled(self, number: int, offset: int) -> bool:
        """Return whether the next start of a metaq broker will begin to replay the log at a later position than this
        one. If so, no later start will read this position either, because the position where a start begins never moves
        back.
        """
        start = self._report.replay_from
        return start is not None and (number, offset) < start and start[0] <= max(self._paths) + 1

    # --- records ------------------------------------------------------------------------------------------------------

    def _read_file(self, number: int) -> None:
        path = self._paths[number]
        reader = RedoReader(self._files, path)
        self._following.begin_file(number)
        entries = 0
        for part in reader.parts():
            if isinstance(part, RedoDamage):
                self._damaged(number, part, reader.size)
                continue
            entries += 1
            ended = self._following.take(part)
            if part.attachment_problem is not None:
                self._attachment(number, part)
            if ended is not None:
                self._ended(number, ended)
        self._report.files.append(RedoSummary(path, entries, reader.size, reader.size - reader.end))

    def _damaged(self, number: int, damage: RedoDamage, size: int) -> None:
        self._following.damaged(damage)
        path, count = self._paths[number], damage.end - damage.start
        if damage.torn or (self._in_use and damage.end == size):
            level = Level.NOTE if self._in_use else Level.WARNING
            text = f"a torn tail of {count} bytes at {damage.start} ({damage.cause}): cut at the start"
        elif self._settled(number, damage.start):
            level = Level.WARNING
            text = f"{count} bytes at byte {damage.start} are damaged ({damage.cause}); no start reads them any more"
        else:
            level = Level.DAMAGE
            text = f"{count} bytes at byte {damage.start} are damaged: {damage.cause}"
        self._report.add(level, path, text)

    def _attachment(self, number: int, entry: RedoEntry) -> None:
        right = entry.locations and all(map(self._is_written, entry.locations))
        level = Level.WARNING if right or self._settled(number, entry.offset) else Level.DAMAGE
        follows = "but right places" if right else "the start looks for the messages by their ids"
        text = f"{entry.attachment_problem} of the commit of {entry.command.tx_key} at byte {entry.offset}: {follows}"
        self._report.add(level, self._paths[number], text)

    def _ended(self, number: int, ended: Ended) -> None:
        if not ended.operation.type.is_commit:
            self._report.rolled_back += 1
            return
        if ended.incomplete and not any(each.location and self._is_written(each.location) for each in ended.blocks):
            self._incomplete(number, ended)
            return
        self._report.committed += 1
        for block in ended.blocks:
            there = block.location is not None and self._is_written(block.location)
            if not block.proven:
                self._unproven(number, ended, block, there=there)
            elif not there and not self._settled(number, ended.entry.offset):
                self._replayed[block.store] += 1

    def _incomplete(self, number: int, ended: Ended) -> None:
        """Add a finding about a commit: its messages are damaged in the transaction log, and the partitions do not have
        them at the offsets that this log names. The finding does not say that the messages are lost, because a broker's
        start also looks for them elsewhere in the partitions.
        """
        key, at = ended.operation.tx_key, ended.entry.offset
        text = f"messages of {key}, committed at byte {at}, are damaged"
        if self._settled(number, at):
            self._report.add(Level.WARNING, self._paths[number], f"{text}; no start reads them any more")
        else:
            where = "none is where the log names it: the start rolls it back unless it finds one elsewhere"
            self._report.add(Level.DAMAGE, self._paths[number], f"{text}; {where}")

    def _unproven(self, number: int, ended: Ended, block: LoggedBlock, *, there: bool) -> None:
        key, at = ended.operation.tx_key, ended.entry.offset
        text = f"the messages of {key} for {block.store}, committed at byte {at}, are damaged"
        if there:
            self._report.add(Level.WARNING, self._paths[number], f"{text}; they are in the partition, and good there")
        elif self._settled(number, at):
            self._report.add(Level.WARNING, self._paths[number], f"{text}; no start reads them any more")
        else:
            where = "they are not where the log names them: they are lost unless they lie elsewhere in the partition"
            self._report.add(Level.DAMAGE, self._paths[number], f"{text}; {where}")

    def _is_written(self, location: Location) -> bool:
        """Return whether the partition has, at this location, the messages that the transaction log names. The result
        is also True for messages that retention has removed.
        """
        segments = self._logs.get(location.store, ())
        if segments and location.offset < segments[0].first_offset:
            return True
        for segment in segments:
            if segment.first_offset <= location.offset and location.offset + location.size <= segment.end:
                with opened(self._files, segment.path) as fd:
                    data = read_exactly(self._files, fd, location.size, location.offset - segment.first_offset)
                return checksum(data) == location.checksum
        return False

    # --- what is left -------------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        for logged in self._following.open.values():
            size = sum(len(put.body) for put in logged.puts)
            first = (logged.file, logged.start)
            pending = PendingTransaction(logged.key, first, logged.prepared, len(logged.puts), size)
            self._report.pending[logged.key] = pending
            if not self._settled(*first):
                self._judge_open(logged)
        if not self._in_use:
            for store, count in sorted(self._replayed.items()):
                text = f"{count} commits to {store} are not where the log names them: the start writes what is missing"
                self._report.add(Level.WARNING, self._report.path, text)

    def _judge_open(self, logged: Logged) -> None:
        report, path = self._report, self._paths[logged.file]
        what = f"{logged.key} with {len(logged.puts)} messages"
        if logged.prepared and logged.damage is not None:
            text = (
                f"{what} is prepared, but damaged ({logged.damage}): the start rolls it back and tells its coordinator"
            )
            report.add(Level.DAMAGE, path, text)
        elif logged.may_have_ended:
            text = f"the end of {what} may be in the damaged bytes: the start looks whether it was committed"
            report.add(Level.DAMAGE, path, text)
        elif not logged.prepared:
            if not self._in_use:
                report.add(Level.WARNING, report.path, f"the open transaction {what} is rolled back at the start")
            return
        if not logged.prepared:
            return
        report.add(Level.NOTE, report.path, f"{what} is prepared and waits for its coordinator")
        if report.checkpoint is not None and (logged.file, logged.start) < report.checkpoint:
            text = f"{what} began before the checkpoint: a Java broker 1.4.6.2 forgets it at its start"
            report.add(Level.WARNING, report.path, text)


def _place(position: RedoPosition) -> tuple[int, int]:
    """Return a position in the transaction log in the form that the report uses: (file number, byte offset)."""
    return position.number, position.offset
