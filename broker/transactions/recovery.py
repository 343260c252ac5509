"""Read the transaction log when the broker starts. If messages of committed transactions are missing in their
partitions, append them. Keep prepared transactions.

The messages of a commit are looked up at the offsets that the attachment of its record states. Messages that are not at
these offsets are looked up by message id in the whole partition. Messages that are still missing are appended
(placing.py). Nothing is ever overwritten. Metaq 1.4.6.2, however, writes the messages at the offset in the commit
record, even if other messages have been stored at this offset in the meantime.

Damaged messages are never delivered (following.py determines which messages are proven to be undamaged). The undamaged
records before and after the damage are kept:

- damaged bytes between records are replaced by a filler record, which has no meaning; damaged bytes at the end of the
  file are cut off;
- a commit that has damaged messages and no message in any partition was not decided, so it is rolled back;
- for any other commit, a block (the messages for one partition) that is not proven to be undamaged is looked up in its
  partition; if it is not there, it is lost;
- a prepared transaction with a damaged message is rolled back as if an operator had decided so; its coordinator is told
  of the rollback whenever it asks, until it sends FORGET;
- if the damaged bytes may have contained the commit or rollback record of a transaction, the transaction counts as
  committed if a partition has one of its messages.

Before bytes are cut off or replaced, they are copied to `damaged-redo.<n>-<offset>`, and the damage is reported.

A commit without any message in a partition was not decided, because nothing is appended before the commit record is
synced (commit.py). A power cut may tear the write before this sync, so that the commit record can be read but an
earlier message cannot. In this case no message of the transaction may be delivered, because some of its messages are
lost. A decided commit can look like this undecided one if two faults have happened: a power cut has removed all
messages of the commit from the partitions, and the disk has damaged a message in the log. Therefore a decided commit
with both faults is rolled back, too. A torn write and these two faults cannot be distinguished, because the log does
not record which writes were synced, and no such record could cover the last write.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from metaq.protocol.record import Buffer, checksum
from metaq.protocol.transactions import is_xa

from ..store.file_systems import FileSystems
from ..store.files import Files, naming, read_exactly, write_all
from ..store.partition_log import PartitionLog
from ..store.rewriting import PageCacheSync, secure_file
from .checkpoints import Heuristic
from .commands import Operation, OperationType, StoredPut
from .directory import DAMAGED_PREFIX, REDO_PREFIX, RedoPosition, keep_copy, numbered_files
from .following import Ended, Following, Logged, LoggedBlock
from .open_transactions import Block, OpenTransaction
from .placing import Placed, PlacedBlock, complete, find, find_block, is_at, present
from .redo import MIN_FILLER_BYTES, Location, RedoEntry, encode_filler, encode_locations, sealed_operation_record
from .redo_reader import RedoDamage, RedoReader
from .writer import RedoFile

__all__ = ["Logs", "Replayed", "replay"]

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Replayed:
    """The result of a replay of the transaction log. `transactions` contains the open transactions. The caller must
    keep the prepared transactions and roll back the others.
    """

    files: list[RedoFile] = field(default_factory=list)
    transactions: dict[str, OpenTransaction] = field(default_factory=dict)
    committed: dict[OpenTransaction, list[tuple[PartitionLog, int]]] = field(default_factory=dict)
    """The committed transactions whose messages may not be on the disk yet. For each transaction there is a list of
    pairs: the log of a partition that contains messages of the transaction, and the byte offset where these messages
    end.
    """
    local_commits: dict[str, int] = field(default_factory=dict)
    """The commits of local transactions that the replay has read, in the order of the log: key -> id of the
    transaction's first message.
    """
    first_message_id: int | None = None
    """Id of the first message that the replay has read. It is None if there is no message, or if damaged bytes may have
    contained commit records.
    """
    max_message_id: int = 0
    appended: int = 0
    """Number of messages that the replay had to append to partitions."""
    late: int = 0
    """Number of messages that a Java broker accepted after the preparation of their transaction; a Java broker never
    commits such messages.
    """


class Logs(Protocol):
    """Gives a replay the logs of the partitions."""

    def for_replay(self, topic: str, partition: int) -> PartitionLog:
        """Return the partition's log; create it if it does not exist. Raises InvalidName, StoreError."""

    def stored(self, topic: str, partition: int) -> PartitionLog | None:
        """Return the partition's log, or None if it does not exist."""


Decide = Callable[[Mapping[str, Heuristic]], None]


def replay(
    files: Files,
    directory: str,
    start: RedoPosition | None,
    logs: Logs,
    now_ms: Callable[[], int],
    decide: Decide,
) -> Replayed:
    """Read all redo files from the position `start` on (None means from the beginning), and append the committed
    messages that are missing in their partitions. Call this before anything else uses the partitions. Blocks.

    decide(decisions): called with the decisions on prepared transactions that cannot be committed, before the records
    of these transactions are removed from the log. The function `decide` must write the decisions to the disk. Raises
    OSError, StoreError.
    """
    return _Replay(files, directory, logs, now_ms).run(start, decide)


class _OldFile:
    """What the replay has found in one redo file. lost: the byte ranges that must be copied to other files before this
    file is repaired.
    """

    def __init__(self, file: RedoFile) -> None:
        self.file = file
        self.size = 0
        self.gaps: list[RedoDamage] = []
        self.tail: RedoDamage | None = None
        self.lost: list[tuple[int, int]] = []
        self.ends: list[Buffer] = []
        """Encoded commit or rollback records that must be written after the file's last good record."""
        self.rolled_back: list[tuple[int, list[Buffer]]] = []
        """For each commit that was not decided, the position of its commit record and the new records that replace it.
        The new records together have as many bytes as the old record.
        """

    def damaged(self, damage: RedoDamage, size: int) -> None:
        """Record a damaged byte range of the file. size: the size of the file in bytes."""
        if damage.end == size:
            self.tail = damage
        else:
            self.gaps.append(damage)
        self.lost.append((damage.start, damage.end))


class _Replay:
    def __init__(self, files: Files, directory: str, logs: Logs, now_ms: Callable[[], int]) -> None:
        self.result = Replayed()
        self._files = files
        self._directory = directory
        self._logs = logs
        self._now_ms = now_ms
        self._following = Following(now_ms)
        self._old: dict[int, _OldFile] = {}
        self._appended_to: dict[PartitionLog, None] = {}
        self._decisions: dict[str, Heuristic] = {}
        self._late: list[tuple[_OldFile, Ended, dict[str, PlacedBlock]]] = []
        """The commits that have a block (the messages for one partition) that is missing in its partition. An entry has
        three values: the redo file, the commit, and a dict with the commit's blocks that were found, by store
        (`<topic>-<partition>`).
        """
        self._damaged = False

    def run(self, start: RedoPosition | None, decide: Decide) -> Replayed:
        paths = numbered_files(self._files, self._directory, REDO_PREFIX)
        if start is not None and paths and start.number > max(paths) + 1:
            _log.error("%s: there is no file %d to begin the replay in: reading all", self._directory, start.number)
            start = None
        self._secure([path for number, path in paths.items() if start is None or number >= start.number])
        for number, path in paths.items():
            if start is None or number >= start.number:
                self._read_file(number, path, start.offset if start is not None and number == start.number else 0)
            else:  # all transactions in it are settled; the broker stopped before it deleted the file
                size = self._files.status(path).size
                self.result.files.append(RedoFile(number, path, size, exists=True))
        self._judge_open()
        for late in self._late:
            self._commit(*late)
        if self._decisions:
            decide(self._decisions)
        for old in self._old.values():
            self._repair(old)
        for log in self._appended_to:
            log.sync_now()  # so that no consumer gets a part of a block before the rest
        if self._damaged:
            self.result.first_message_id = None
        self.result.max_message_id = self._following.max_message_id
        self.result.late = self._following.late
        return self.result

    def _secure(self, paths: Sequence[str]) -> None:
        """Make sure that everything that a read of these files returns is also on the disk. After a failed sync, a read
        may return data that are only in the page cache.
        """
        file_systems = FileSystems(self._files)
        try:
            sync = PageCacheSync(file_systems, [self._directory])
            for path in paths:
                if written := secure_file(self._files, path, sync):
                    _log.warning("%s: wrote %d bytes again that had not reached the disk", path, written)
        finally:
            file_systems.close()

    def _read_file(self, number: int, path: str, start: int) -> None:
        file = RedoFile(number, path, exists=True)
        old = _OldFile(file)
        self._following.begin_file(number)
        reader = RedoReader(self._files, path, start)
        for part in reader.parts():
            if isinstance(part, RedoEntry):
                self._take(old, part)
                file.size = part.end
            elif start and part.start == start:
                break
            else:
                old.damaged(part, reader.size)
                self._damaged |= not part.torn
                self._following.damaged(part)
        if start and reader.end == start != reader.size:
            _log.warning("%s: no record begins at byte %d: replaying from the beginning", path, start)
            self._read_file(number, path, 0)
            return
        file.size, old.size = reader.end, reader.size
        if not file.unsettled:
            file.busy_from = file.size
        self._old[number] = old
        self.result.files.append(file)

    # --- records ------------------------------------------------------------------------------------------------------

    def _take(self, old: _OldFile, entry: RedoEntry) -> None:
        command = entry.command
        if isinstance(command, StoredPut) and self.result.first_message_id is None:
            self.result.first_message_id = command.message_id
        ended = self._following.take(entry)
        if ended is None:
            transaction = self._following.open[entry.command.tx_key].transaction
            if transaction.file is None:
                transaction.file = old.file
                old.file.size = entry.offset
                old.file.hold(transaction)
        elif ended.incomplete and not self._is_there(ended):
            self._roll_back(old, ended)
        elif ended.operation.type.is_commit:
            there = self._found(ended)
            if len(there) < len(ended.blocks):
                self._late.append((old, ended, there))
            else:
                self._commit(old, ended, there)
            if not ended.operation.type.is_xa and ended.transaction is not None and ended.transaction.puts:
                self.result.local_commits[ended.operation.tx_key] = ended.transaction.puts[0].message_id
        elif ended.transaction is not None:
            self._settle(ended.transaction.transaction, ())

    # --- commits ------------------------------------------------------------------------------------------------------

    def _found(self, ended: Ended) -> dict[str, PlacedBlock]:
        """Return the blocks (the messages for one partition) of a commit that are found in their partitions, by store
        (`<topic>-<partition>`). Blocks of which no message is found are appended later, after all redo files are read.

        A power cut may have left only a part of a block, at the end of its partition. The missing messages of such a
        block are appended at once. If they were appended only after all files are read, a block of another commit might
        be appended first and separate the two parts of this block. This can happen because redo files are read one
        after the other, and commits in different files may have appended their messages in another order.
        """
        believed, there = ended.entry.attachment_problem is None, {}
        for block in ended.blocks:
            if block.proven:
                log = self._logs.for_replay(block.topic, block.partition)
                found = find(_block(log, block.puts), block.location, self._now_ms(), believed=believed)
                if isinstance(found, PlacedBlock):
                    there[block.store] = found
                elif found.places:
                    there[block.store] = self._append_missing(found)
        return there

    def _commit(self, old: _OldFile, ended: Ended, there: Mapping[str, PlacedBlock]) -> None:
        entry = ended.entry
        found = {each.store: there.get(each.store) or self._place(old, ended, each) for each in ended.blocks}
        placed = {store: each for store, each in found.items() if each is not None}
        if ended.transaction is not None:
            self._settle(ended.transaction.transaction, placed.values())
        right = tuple(placed[each.store].location if each.store in placed else each for each in entry.locations)
        if entry.attachment_problem is not None:
            right = self._whole_attachment(old, ended, right, [each.location for each in placed.values()])
        if right != entry.locations or entry.attachment_problem is not None:
            old.file.patches.append(entry.patch(right))

    def _whole_attachment(
        self, old: _OldFile, ended: Ended, right: tuple[Location, ...], placed: list[Location]
    ) -> tuple[Location, ...]:
        """Called if the attachment of a commit record is damaged. Log the damage, and return the locations for a new
        attachment.
        """
        entry, path = ended.entry, old.file.path
        if right == entry.locations and len(placed) == len(right):
            _log.warning("%s: %s at byte %d, but right places", path, entry.attachment_problem, entry.offset)
            return right
        _log.error(
            "%s: %s at byte %d: the messages of %s were looked for by their ids",
            path,
            entry.attachment_problem,
            entry.offset,
            ended.operation.tx_key,
        )
        old.lost.append((entry.offset, entry.end))
        fits = len(encode_locations(placed)) == ended.operation.attachment_bytes
        return tuple(placed) if fits else right

    def _is_there(self, ended: Ended) -> bool:
        """Return whether any message of a commit is in its partition, or was there until retention removed it."""
        believed = ended.entry.attachment_problem is None
        for block in ended.blocks:
            log = self._logs.stored(block.topic, block.partition)
            if log is not None and (
                self._find_damaged(log, block, believed=believed) is not None
                or (block.puts and present(_block(log, block.puts), self._now_ms()))
            ):
                return True
        return False

    def _roll_back(self, old: _OldFile, ended: Ended) -> None:
        """Turn an undecided commit into a rollback.

        The commit record in the log is replaced by a rollback record. If the commit record stayed, a later replay would
        examine the commit again. By then, retention may have removed all messages around the offset that the commit
        record states, and the replay would wrongly assume that the commit was decided and its messages were removed. A
        rollback record is shorter than a commit record, which has an attachment; a filler record after it takes the
        remaining bytes.
        """
        entry, operation, logged = ended.entry, ended.operation, ended.transaction
        assert entry.seal is not None
        kind = OperationType.XA_ROLLBACK if operation.type.is_xa else OperationType.LOCAL_ROLLBACK
        rollback = Operation(operation.tx_key, kind, operation.was_prepared)
        record = sealed_operation_record(rollback, entry.offset, entry.seal.messages, entry.seal.content)
        old.rolled_back.append((entry.offset, [*record, encode_filler(entry.size - sum(map(len, record)))]))
        start = entry.offset
        if logged is not None:
            start = logged.start
            self._settle(logged.transaction, ())
            if logged.prepared:
                self._decisions[logged.key] = "rollback"
        old.lost.append((start, entry.end))
        _log.error(
            "%s: the commit of %s at byte %d is rolled back: %d messages belong to it, %d can be read, and none "
            "is in a partition, so it was not decided",
            old.file.path,
            operation.tx_key,
            entry.offset,
            entry.seal.messages,
            0 if logged is None else len(logged.puts),
        )

    def _settle(self, transaction: OpenTransaction, placed: Iterable[PlacedBlock]) -> None:
        ends = [(each.log, each.end) for each in placed]
        if all(log.synced_end >= end for log, end in ends):
            assert transaction.file is not None
            transaction.file.unsettled.pop(transaction)
        else:
            self.result.committed[transaction] = ends
            for log, end in ends:
                log.durability.committed(end)

    def _place(self, old: _OldFile, ended: Ended, block: LoggedBlock) -> PlacedBlock | None:
        """Find a commit's messages in one partition, or append them if they are missing. Return their location. If they
        are lost, log this and return None.
        """
        believed = ended.entry.attachment_problem is None
        if block.proven:
            log = self._logs.for_replay(block.topic, block.partition)
            return self._complete(_block(log, block.puts), block.location, believed=believed)
        stored = self._logs.stored(block.topic, block.partition)
        location = None if stored is None else self._find_damaged(stored, block, believed=believed)
        if stored is not None and location is not None:
            _log.warning(
                "%s: the messages of %s for %s are damaged; the partition has them undamaged at byte %d",
                old.file.path,
                ended.operation.tx_key,
                block.store,
                location.offset,
            )
            return PlacedBlock(stored, location, location.offset + location.size)
        start = ended.entry.offset if ended.transaction is None else ended.transaction.start
        old.lost.append((start, ended.entry.end))
        _log.error(
            "%s: messages of the committed transaction %s are lost: those for %s are damaged between byte %d and %d "
            "(%d of them can be read), and they are not in the partition",
            old.file.path,
            ended.operation.tx_key,
            block.store,
            start,
            ended.entry.end,
            len(block.puts),
        )
        return None

    def _find_damaged(self, log: PartitionLog, block: LoggedBlock, *, believed: bool) -> Location | None:
        location = block.location
        if location is None:
            return None
        if (believed and location.offset < log.first_offset) or is_at(log, location):
            return location
        return find_block(_block(log, block.puts), location, self._now_ms()) if block.puts else None

    def _complete(self, block: Block, location: Location | None, *, believed: bool) -> PlacedBlock:
        found = find(block, location, self._now_ms(), believed=believed)
        return self._append_missing(found) if isinstance(found, Placed) else found

    def _append_missing(self, found: Placed) -> PlacedBlock:
        placed, appended = complete(found, self._now_ms())
        if appended:
            self.result.appended += appended
            self._appended_to[found.log] = None
        return placed

    # --- transactions without an end ----------------------------------------------------------------------------------

    def _judge_open(self) -> None:
        """Called after all records are read, for the transactions of which no commit or rollback record was read.
        Complete the commits whose records were damaged. Load the messages of the prepared transactions, and decide what
        happens to those that cannot be committed.
        """
        for logged in self._following.open.values():
            old = self._old[logged.file]
            there = self._present(logged) if logged.may_have_ended else 0
            if there and logged.damage is None and logged.suspect is None:
                self._complete_commit(old, logged)
                continue
            self.result.transactions[logged.key] = logged.transaction
            if logged.prepared and logged.damage is None:
                self._load(logged)
                self._decisions.pop(logged.key, None)  # that decision was for an earlier transaction with this key
            elif logged.prepared:
                self._decisions[logged.key] = "complete" if there else "rollback"
                self._report(old, logged, f"prepared, but damaged ({logged.damage}); it is rolled back", there)
            elif logged.may_have_ended:
                self._report(old, logged, "rolled back: damage would hide it if it was prepared or committed", there)

    def _present(self, logged: Logged) -> int:
        return sum(
            present(_block(log, puts), self._now_ms())
            for (topic, partition), puts in logged.by_partition().items()
            if (log := self._logs.stored(topic, partition)) is not None
        )

    def _complete_commit(self, old: _OldFile, logged: Logged) -> None:
        """Complete a commit whose record was damaged. The transaction must have been committed, because a partition has
        messages of it, and messages are appended to partitions only after the commit record is written.
        """
        placed = []
        for (topic, partition), puts in logged.by_partition().items():
            log = self._logs.for_replay(topic, partition)
            placed.append(self._complete(_block(log, puts), None, believed=False))
        kind = OperationType.XA_COMMIT if is_xa(logged.key) else OperationType.LOCAL_COMMIT
        attachment = encode_locations([each.location for each in placed])
        operation = Operation(logged.key, kind, logged.prepared)
        record = sealed_operation_record(
            operation, old.file.size, len(logged.puts), logged.transaction.content, attachment
        )
        old.ends += record
        old.file.size += sum(map(len, record))
        self._settle(logged.transaction, placed)
        _log.error(
            "%s: the end of %s is damaged; partitions have messages of it, so it was committed: it is complete now",
            old.file.path,
            logged.key,
        )

    def _load(self, logged: Logged) -> None:
        for put in logged.puts:
            log = self._logs.for_replay(put.topic, put.partition)
            logged.transaction.add(log, put.message_id, put.flag, checksum(put.body), put.body)

    def _report(self, old: _OldFile, logged: Logged, text: str, there: int) -> None:
        old.lost.append((logged.start, logged.end))
        _log.error(
            "%s: transaction %s between byte %d and %d (%d messages can be read, %d of them are in the partitions): %s",
            old.file.path,
            logged.key,
            logged.start,
            logged.end,
            len(logged.puts),
            there,
            text,
        )

    # --- damage -------------------------------------------------------------------------------------------------------

    def _repair(self, old: _OldFile) -> None:
        """Copy the damaged bytes of the file to other files, and change the file so that it can be read to its end,
        also by Java brokers.
        """
        if not old.lost and not old.ends:
            return
        path = old.file.path
        fd = self._files.open(path, os.O_RDWR)
        try:
            with naming(path):
                self._repair_open(old, fd)
        finally:
            self._files.close(fd)

    def _repair_open(self, old: _OldFile, fd: int) -> None:
        if old.lost:
            start = min(each for each, _ in old.lost)
            data = read_exactly(self._files, fd, max(end for _, end in old.lost) - start, start)
            name = f"{DAMAGED_PREFIX}{os.path.basename(old.file.path)}-{start}"
            self._report_damage(old, keep_copy(self._files, self._directory, name, data))
        for position, record in old.rolled_back:
            write_all(self._files, fd, record, position)
        if old.ends:
            write_all(self._files, fd, old.ends, old.file.size - sum(map(len, old.ends)))
        if old.size > old.file.size:
            self._files.truncate(fd, old.file.size)
        for gap in old.gaps:
            if gap.end - gap.start >= MIN_FILLER_BYTES:
                write_all(self._files, fd, [encode_filler(gap.end - gap.start)], gap.start)
        self._files.fdatasync(fd)

    def _report_damage(self, old: _OldFile, copy: str) -> None:
        path = old.file.path
        for gap in old.gaps:
            size = gap.end - gap.start
            _log.error("%s: %d bytes at byte %d are damaged: %s; they are kept in %s", path, size, *gap[::2], copy)
        if old.tail is not None:
            start, end, cause, _ = old.tail
            _log.error("%s: %d bytes cut at byte %d: %s; they are kept in %s", path, end - start, start, cause, copy)
        if not old.gaps and old.tail is None:
            _log.error("%s: a copy of the damaged bytes is kept in %s", path, copy)


def _block(log: PartitionLog, puts: Sequence[StoredPut]) -> Block:
    block = Block(log)
    for put in puts:
        block.add(put.message_id, put.flag, checksum(put.body), put.body)
    return block
