"""A commit: first the record that decides it, then the messages, then the answer.

1. The commit record is queued with the places where the messages will lie if nothing else comes in between.
2. Once it is written (and synced, if that is the setting) the transaction is committed: the messages are appended to
   their partitions. If something did come in between, the attachment of the record is put right.
3. It is answered when the messages are visible in every partition: synced where the topic's setting says so.

A crash between 1 and 3 is repaired at the next start (recovery.py): all messages, or none. 1.x appends first and
records then, so that a crash leaves messages of a transaction that nobody committed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from metaq.protocol.errors import MetaqError, NotEnoughReplicas

from ..store.batch import packed_units
from ..store.index import UNIT_DTYPE
from ..store.partition_log import PartitionLog
from ..writing import Write, Writing
from .commands import Operation, OperationType
from .open_transactions import Block, OpenTransaction
from .redo import Location, attachment_patch, encode_locations, sealed_operation_record
from .writer import RedoWriter

__all__ = ["Committer", "EncodedBlock"]

_MAX_MISSES = 256

Settled = Callable[[str | None, MetaqError | None], None]
"""settled(writer failure, first partition's failure); both None: the messages are there for everybody."""


class EncodedBlock(Write):
    """A block's bytes and index units, made for the place `base` (byte offset in the partition)."""

    def __init__(self, block: Block, base: int, now_ms: int) -> None:
        super().__init__(block.log, block.data, packed_units(base, block.ids, block.sizes, block.tags, now_ms))
        self.base = base
        self.store = block.store
        self.size = block.size
        self.checksum = block.checksum & 0x7FFFFFFF

    @property
    def location(self) -> Location:
        return Location(self.store, self.base, self.size, self.checksum)

    def move(self, base: int) -> None:
        """Make the index units fit another place."""
        units = np.frombuffer(self.units, UNIT_DTYPE).copy()
        units["offset"] += base - self.base
        self.units = units.tobytes()
        self.base = base


class Committer:
    """Runs the commits of one broker. Lives on the reactor thread."""

    def __init__(
        self,
        writer: RedoWriter,
        writing: Writing,
        now_ms: Callable[[], int],
        on_settled: Callable[[OpenTransaction], None],
    ) -> None:
        """on_settled: called when all messages of a committed transaction are on the disk of their partitions."""
        self._writer = writer
        self._writing = writing
        self._now_ms = now_ms
        self._on_settled = on_settled
        self._promised: defaultdict[PartitionLog, int] = defaultdict(int)  # bytes of commits not yet appended
        self._unsynced: dict[OpenTransaction, list[tuple[PartitionLog, int]]] = {}

    def commit(self, transaction: OpenTransaction, was_prepared: bool, settled: Settled) -> None:
        """Commit a transaction with messages; `settled` is called once."""
        file = transaction.file
        assert file is not None
        parts = []
        now_ms = self._now_ms()
        for block in transaction.finish():
            parts.append(EncodedBlock(block, block.log.end_offset + self._promised[block.log], now_ms))
            self._promised[block.log] += block.size
        kind = OperationType.XA_COMMIT if transaction.is_xa else OperationType.LOCAL_COMMIT
        attachment = encode_locations([part.location for part in parts])
        operation = Operation(transaction.key, kind, was_prepared)
        record = sealed_operation_record(operation, file.size, transaction.messages, transaction.content, attachment)
        record_end = self._writer.append(file, record)
        self._writer.when_written(partial(self._decided, transaction, parts, record_end, settled))

    def _decided(
        self,
        transaction: OpenTransaction,
        parts: list[EncodedBlock],
        record_end: int,
        settled: Settled,
        failure: str | None,
    ) -> None:
        for part in parts:
            self._promised[part.log] -= part.size
            if not self._promised[part.log]:
                del self._promised[part.log]
        if failure is not None:
            settled(failure, None)
            return
        predicted = [part.base for part in parts]
        waiting = self._writing.append(_placed(parts))
        if [part.base for part in parts] != predicted:
            assert transaction.file is not None
            attachment = encode_locations([part.location for part in parts])
            self._writer.patch(transaction.file, *attachment_patch(record_end, attachment, sealed=True))
            self._writer.flush()
        if (error := _failure(parts)) is not None:  # stays unsettled: the next start appends what is missing
            settled(None, error)
            return
        self._unsynced[transaction] = [(part.log, part.end) for part in parts]
        self._writing.when_safe(waiting, lambda: settled(None, _failure(parts)))

    def promised(self, log: PartitionLog) -> bool:
        """Whether a commit that is decided, or about to be, has messages for this partition that are not appended."""
        return log in self._promised

    def settle(self) -> None:
        """Find out which committed transactions are on the disk by now; the oldest ones first, not all at once."""
        done, misses = [], 0
        for transaction, ends in self._unsynced.items():
            if all(log.synced_end >= end for log, end in ends):
                done.append(transaction)
            elif (misses := misses + 1) > _MAX_MISSES:
                break
        for transaction in done:
            del self._unsynced[transaction]
            self._on_settled(transaction)

    def finish(self) -> None:
        """Sync the partitions that committed transactions wait for, on this thread. For shutdown."""
        for log in dict.fromkeys(log for ends in self._unsynced.values() for log, _ in ends):
            log.sync_now()
        self.settle()

    def wait_for_disk(self, transaction: OpenTransaction, ends: list[tuple[PartitionLog, int]]) -> None:
        """Have a transaction that was committed before the start settled like the others."""
        self._unsynced[transaction] = ends


def _placed(parts: list[EncodedBlock]) -> Iterator[EncodedBlock]:
    for part in parts:
        if part.log.end_offset != part.base:  # something came in between
            part.move(part.log.end_offset)
        part.log.durability.committed(part.base + part.size)
        yield part


def _failure(parts: list[EncodedBlock]) -> MetaqError | None:
    """That too few nodes of a set are in sync by now is none: a decided commit cannot be taken back, and is whole."""
    errors = (part.error for part in parts if not isinstance(part.error, NotEnoughReplicas))
    return next((error for error in errors if error is not None), None)
