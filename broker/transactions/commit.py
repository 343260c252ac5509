"""Commit a transaction in three steps: write the commit record, which decides the transaction; append the messages;
answer the client.

1. The commit record is queued for writing. Its attachment states where the transaction's messages will be in each
   partition if nothing else is appended before them.
2. Once the record is written (and synced, if so configured), the transaction is committed, and the messages are
   appended to their partitions. If other messages were appended in the meantime, the attachment of the record is
   corrected.
3. The commit request is answered when consumers can see the messages in every partition, and, if the topic has group
   commit, when the messages are synced.

If the broker crashes between steps 1 and 3, the next start (recovery.py) appends all missing messages, or none if the
commit record was not written. Metaq 1.x appends the messages before it writes the record, so after a crash, partitions
may contain messages of a transaction that was never committed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial

import numpy as np

from metaq.protocol.errors import MetaqError, NotEnoughReplicas, StoreError

from .. import tuning
from ..runtime.reactor import ReactorTime
from ..runtime.slices import SlicedWork
from ..store.batch import packed_units
from ..store.index import UNIT_DTYPE
from ..store.partition_log import PartitionLog
from ..writing.write import Write
from ..writing.writing import Writing
from .commands import Operation, OperationType
from .open_transactions import Block, OpenTransaction
from .redo import Location, attachment_patch, encode_locations, sealed_operation_record
from .writer import RedoWriter

__all__ = ["Committer", "EncodedBlock"]

_MAX_MISSES = 256

Settled = Callable[[str | None, MetaqError | None], None]
"""The type of the callback settled(failure, error). failure: why the writer of the transaction log has failed or was
abandoned. error: the error of the first partition that could not store its messages. Both are None if consumers can see
all messages of the transaction.
"""


class EncodedBlock(Write):
    """The bytes and the index units of one partition's messages. The index units are encoded for `base`, the byte
    offset in the partition where the messages will be appended.
    """

    __slots__ = ("checksum", "size", "store")

    def __init__(self, block: Block, base: int, now_ms: int) -> None:
        """Encode the index units of all messages of the block without interruption. (The method `make` does the same in
        steps.)
        """
        self._begin(block, base)
        for _ in self._add_units(block, now_ms):
            pass

    @classmethod
    def make(cls, block: Block, base: int, now_ms: int) -> Generator[None, None, EncodedBlock]:
        """Encode the index units in steps, and yield between the steps, so that the caller can do other work. Without
        the steps, a block of a million messages would delay all other work.
        """
        made = cls.__new__(cls)
        made._begin(block, base)
        yield from made._add_units(block, now_ms)
        return made

    def _begin(self, block: Block, base: int) -> None:
        super().__init__(block.log, block.data)
        self.base = base
        self.store = block.store
        self.size = block.size
        self.checksum = block.checksum & 0x7FFFFFFF

    def _add_units(self, block: Block, now_ms: int) -> Iterator[None]:
        count, most = len(block.ids), tuning.COMMIT_SLICE_RECORDS
        if count <= most:
            self.units = packed_units(self.base, block.ids, block.sizes, block.tags, now_ms)
            return
        offset, units = self.base, bytearray()
        for start in range(0, count, most):
            if start:
                yield
            sizes = block.sizes[start : start + most]
            columns = block.ids[start : start + most], sizes, block.tags[start : start + most]
            units += packed_units(offset, *columns, now_ms)
            offset += sum(sizes)
        self.units = memoryview(units)

    @property
    def location(self) -> Location:
        return Location(self.store, self.base, self.size, self.checksum)

    def move(self, base: int, now_ms: int) -> None:
        """Rewrite the index units for another `base` and the current time. The store time must be changed, too. If it
        stayed and were earlier than the store time of the log's last record, the log would store the later time, and
        the units in memory would differ from the stored ones.
        """
        units = np.frombuffer(self.units, UNIT_DTYPE)
        if not units.flags.writeable:
            units = units.copy()
        units["offset"] += base - self.base
        units["time_ms"] = now_ms
        self.units = units.view(np.uint8).data
        self.base = base


class _Commit:
    __slots__ = (
        "_settled",
        "appended",
        "blocks",
        "error",
        "file",
        "missing",
        "operation",
        "parts",
        "record_end",
        "transaction",
    )

    def __init__(self, transaction: OpenTransaction, was_prepared: bool, settled: Settled) -> None:
        assert transaction.file is not None
        self.transaction = transaction
        self.file = transaction.file
        kind = OperationType.XA_COMMIT if transaction.is_xa else OperationType.LOCAL_COMMIT
        self.operation = Operation(transaction.key, kind, was_prepared)
        self.blocks = transaction.finish()
        """The messages by partition. It is empty after the commit record is queued."""
        self.parts: list[EncodedBlock] = []
        self.record_end = 0
        """The byte offset in the redo file where the queued commit record ends."""
        self.appended = 0
        """The number of `parts` (each has the messages for one partition) whose append was tried. An append that failed
        counts, too.
        """
        self.error: MetaqError | None = None
        """The error of the first part that could not be appended. It is None if there is no such part."""
        self.missing = 1
        """The number of steps that must be completed before the client is answered. The first step is complete when all
        parts (the messages for one partition each) are appended. The parts are appended in slices; for each slice there
        is one more step, which is complete when the slice's data are safe.
        """
        self._settled: Settled | None = settled

    def settle(self, failure: str | None, error: MetaqError | None) -> None:
        """Call the `settled` callback of the commit, unless it was called before."""
        settled, self._settled = self._settled, None
        if settled is not None:
            settled(failure, error)

    def arrived(self, parts: Sequence[EncodedBlock]) -> None:
        """Subtract one from `missing`, because one of the steps is completed: these parts are safe or have failed, or,
        if the list is empty, all parts were appended.
        """
        self.error = self.error or _failure(parts)
        self.missing -= 1
        if not self.missing:
            self.settle(None, self.error)


class Committer:
    """Runs the commits of one broker. Its methods run on the reactor thread.

    A transaction may have messages for thousands of partitions, so its record is made and its messages are appended in
    slices, with other work between the slices. The commits are processed in order: the record of a commit is made only
    after the record of the commit before it, and its messages are appended only after the messages of the commit before
    it.
    """

    def __init__(
        self,
        writer: RedoWriter,
        writing: Writing,
        reactor: ReactorTime,
        now_ms: Callable[[], int],
        on_settled: Callable[[OpenTransaction], None],
    ) -> None:
        """on_settled(transaction): called when all messages of a committed transaction are on the disk in their
        partitions, so that a replay no longer needs the transaction's records.
        """
        self._writer = writer
        self._writing = writing
        self._now_ms = now_ms
        self._on_settled = on_settled
        self._recording = SlicedWork(reactor)
        self._appending = SlicedWork(reactor)
        self._settling = SlicedWork(reactor)
        self._unrecorded: dict[str, _Commit] = {}  # by key: commits whose record is not queued
        self._decided: dict[_Commit, None] = {}  # record written, messages not all appended
        self._promised: defaultdict[PartitionLog, int] = defaultdict(int)  # bytes that commits will append
        self._unsynced: dict[OpenTransaction, list[tuple[PartitionLog, int]]] = {}
        self._abandoned: StoreError | None = None

    def commit(self, transaction: OpenTransaction, was_prepared: bool, settled: Settled) -> None:
        """Commit a transaction that has messages. was_prepared: whether it was prepared before. `settled` is called
        once, with the result.
        """
        commit = _Commit(transaction, was_prepared, settled)
        self._unrecorded[transaction.key] = commit
        self._recording.add(self._record(commit))

    def _record(self, commit: _Commit) -> Iterator[None]:
        now_ms = self._now_ms()
        locations = []
        for log, block in commit.blocks.items():
            if self._abandoned is not None:
                return
            base = log.end_offset + self._promised[log]
            self._promised[log] += block.size
            part = yield from EncodedBlock.make(block, base, now_ms)
            commit.parts.append(part)
            locations.append(encode_locations([part.location]))
            if len(locations) < len(commit.blocks) and self._recording.is_over:
                yield
        if self._abandoned is not None:
            return
        transaction, file = commit.transaction, commit.file
        counted = transaction.messages, transaction.content
        record = sealed_operation_record(commit.operation, file.size, *counted, b"".join(locations))
        commit.record_end = self._writer.append(file, record)
        commit.blocks = {}
        del self._unrecorded[transaction.key]
        self._writer.when_written(partial(self._written, commit))

    def _written(self, commit: _Commit, failure: str | None) -> None:
        if failure is None and self._abandoned is None:
            self._decided[commit] = None
            self._appending.add(self._append(commit))
            return
        for part in commit.parts:
            self._keep_promise(part)
        commit.settle(failure, self._abandoned if failure is None else None)

    def _append(self, commit: _Commit) -> Iterator[None]:
        parts = commit.parts
        predicted = [part.base for part in parts]
        while commit.appended < len(parts):
            if self._abandoned is not None:
                return
            first = commit.appended
            waiting = self._writing.append(self._placed(commit))
            appended = parts[first : commit.appended]
            commit.error = commit.error or _failure(appended)
            if waiting:
                commit.missing += 1
                self._writing.when_safe(waiting, partial(commit.arrived, appended))  # in the same turn: see Copies
            if commit.appended < len(parts):
                yield
        if [part.base for part in parts] != predicted:
            locations = []
            for part in parts:
                if self._abandoned is not None:
                    return
                locations.append(encode_locations([part.location]))
                if self._appending.is_over:
                    yield
            self._writer.patch(commit.file, *attachment_patch(commit.record_end, b"".join(locations), sealed=True))
            self._writer.flush()
        if self._abandoned is not None:
            return
        del self._decided[commit]
        if commit.error is not None:  # stays unsettled: the next start appends the missing messages
            commit.settle(None, commit.error)
            return
        self._unsynced[commit.transaction] = [(part.log, part.end) for part in parts]
        commit.arrived(())

    def _placed(self, commit: _Commit) -> Iterator[EncodedBlock]:
        """Yield the next parts of a commit (the messages for one partition each) for the caller to append, until the
        time of the slice is over.
        """
        while commit.appended < len(commit.parts):
            part = commit.parts[commit.appended]
            commit.appended += 1
            self._keep_promise(part)
            if part.log.end_offset != part.base:  # something else was appended before it
                part.move(part.log.end_offset, self._now_ms())
            part.log.durability.committed(part.base + part.size)
            yield part
            if commit.appended < len(commit.parts) and self._appending.is_over:
                return

    def _keep_promise(self, part: EncodedBlock) -> None:
        """Subtract the size of a part (the messages for one partition) from the number of bytes that commits will still
        append to this partition. Called just before the part is appended, or when it is certain that the part will
        never be appended.
        """
        self._promised[part.log] -= part.size
        if not self._promised[part.log]:
            del self._promised[part.log]

    def abandon(self, why: str) -> None:
        """Append no more messages, and call the `settled` callbacks of all unfinished commits with the failure `why`.
        After this, the caller must abandon the writer of the log, too, and may not use either object again.
        """
        self._abandoned = StoreError(why)
        for commit in self._decided:
            commit.settle(None, self._abandoned)
        for commit in self._unrecorded.values():
            commit.settle(why, None)

    def is_recording(self, key: str) -> bool:
        """Return whether the transaction with this key is being committed and its commit record is not queued yet.
        Until the commit record is queued, no other record of the transaction may be queued.
        """
        return key in self._unrecorded

    @property
    def is_busy(self) -> bool:
        """Whether the record of some commit is being made, or the messages of a decided commit are being appended."""
        return bool(self._unrecorded or self._decided)

    def promised(self, log: PartitionLog) -> bool:
        """Return whether a commit has messages for this partition that are not appended yet."""
        return log in self._promised or any(log in commit.blocks for commit in self._unrecorded.values())

    def settle(self) -> None:
        """Call `on_settled` for each committed transaction whose messages are all on the disk now, beginning with the
        oldest transaction. The work is done in slices of limited time.
        """
        if not self._settling:
            self._settling.add(self._settle())

    def _settle(self) -> Iterator[None]:
        misses = 0
        for transaction in list(self._unsynced):
            ends = self._unsynced[transaction]
            while ends and ends[-1][0].synced_end >= ends[-1][1]:
                ends.pop()
                if self._settling.is_over:
                    yield
            if self._abandoned is not None:
                return
            if not ends:
                del self._unsynced[transaction]
                self._on_settled(transaction)
            elif (misses := misses + 1) > _MAX_MISSES:
                return
            if self._settling.is_over:
                yield

    def finish_records(self) -> None:
        """Queue the commit records of all commits. Used when the broker shuts down, before the writer finishes."""
        self._recording.finish()

    def finish(self) -> None:
        """Append the messages of all decided commits (those whose commit record is written) before this method returns.
        Then sync the partitions that contain unsynced messages of committed transactions. Used when the broker shuts
        down, after the writer has finished.
        """
        self._appending.finish()
        for log in dict.fromkeys(log for ends in self._unsynced.values() for log, _ in ends):
            log.sync_now()
        self._settling.finish()
        self.settle()
        self._settling.finish()

    def wait_for_disk(self, transaction: OpenTransaction, ends: list[tuple[PartitionLog, int]]) -> None:
        """Call `on_settled` for this transaction when its messages are on the disk. Used for a transaction that was
        committed before the broker's start and was found by the replay. ends: for each partition of the transaction,
        the byte offset where its messages end.
        """
        self._unsynced[transaction] = ends


def _failure(parts: Sequence[EncodedBlock]) -> MetaqError | None:
    """Return the error of the first of these parts (the messages for one partition each) that could not be appended, or
    None if all were appended. NotEnoughReplicas does not count as an error: the messages are stored, and a decided
    commit cannot be undone.
    """
    errors = (part.error for part in parts if not isinstance(part.error, NotEnoughReplicas))
    return next((error for error in errors if error is not None), None)
