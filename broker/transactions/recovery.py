"""Reading the transaction log at the start: what was committed is in the partitions, what was prepared is kept.

A commit's messages are looked for where its attachment says, by CRC; then, because the broker may have died before it
put the attachment right, behind that place by message id; if they are not there either they are appended again. Nothing
is ever overwritten: 1.4.6.2 writes at the place it remembers, whatever lies there by then.

A record that is not complete, or is none, ends its file: the rest is copied to `damaged-redo.<n>-<offset>` and cut.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from metaq.protocol.errors import OffsetOutOfRange
from metaq.protocol.record import checksum

from ..store.files import Files, read_exactly, replace_file
from ..store.partition_log import PartitionLog
from .commands import OperationType, StoredPut
from .commit import EncodedBlock
from .redo import REDO_PREFIX, Location, RedoEntry, RedoReader, encode_locations, numbered_files
from .redo_file import RedoFile, RedoPosition
from .transaction import Block, State, Transaction

__all__ = ["Replayed", "replay"]

_log = logging.getLogger(__name__)

_SEARCH_BYTES = 64 << 20


@dataclass(slots=True)
class Replayed:
    """What the log says. `transactions` are open: those that are prepared are to be kept, the others rolled back."""

    files: list[RedoFile] = field(default_factory=list)
    transactions: dict[str, Transaction] = field(default_factory=dict)
    committed: dict[Transaction, list[tuple[PartitionLog, int]]] = field(default_factory=dict)
    """Where the messages of those committed transactions end that may not be on the disk yet."""
    max_message_id: int = 0
    appended: int = 0
    """Transactions of which at least one partition had to be completed."""
    cut_bytes: int = 0
    late: int = 0
    """Messages that a Java broker took after the preparation; it never commits them."""


LogFor = Callable[[str, int], PartitionLog]


def replay(
    files: Files, directory: str, start: RedoPosition | None, log_for: LogFor, now_ms: Callable[[], int]
) -> Replayed:
    """Read all redo files from `start` on and repair the partitions. Before anything else uses them; blocks.

    log_for(topic, partition): the log, made if there is none. Raises OSError, StoreError.
    """
    run = _Replay(files, directory, log_for, now_ms)
    for number, path in numbered_files(files, directory, REDO_PREFIX).items():
        if start is None or number >= start.number:
            run.read_file(number, path, start.offset if start is not None and number == start.number else 0)
        else:  # everything in it is settled; the broker stopped before it was deleted
            run.result.files.append(RedoFile(number, path, files.status(path).size, exists=True))
    return run.result


class _Replay:
    def __init__(self, files: Files, directory: str, log_for: LogFor, now_ms: Callable[[], int]) -> None:
        self.result = Replayed()
        self._files = files
        self._directory = directory
        self._log_for = log_for
        self._now_ms = now_ms
        self._puts: dict[Transaction, list[StoredPut]] = {}  # of transactions whose end has not been read

    def read_file(self, number: int, path: str, start: int) -> None:
        file = RedoFile(number, path, exists=True)
        reader = RedoReader(self._files, path, start)
        for entry in reader:
            self._apply(file, entry)
            file.size = reader.end
        if start and reader.end == start != reader.size:
            _log.warning("%s: no record begins at byte %d: replayed from its beginning", path, start)
            self.read_file(number, path, 0)
            return
        file.size = reader.end
        if reader.problem is not None:
            self._cut(path, reader)
        if not file.unsettled:
            file.busy_from = file.size
        self.result.files.append(file)
        for transaction in [each for each in self._puts if each.file is file and each.state is State.PREPARED]:
            self._load(transaction)

    # --- records ------------------------------------------------------------------------------------------------------

    def _apply(self, file: RedoFile, entry: RedoEntry) -> None:
        command = entry.command
        if isinstance(command, StoredPut):
            self._put(file, entry, command)
            return
        transaction = self.result.transactions.get(command.tx_key)
        if transaction is None:
            return  # it began before the place where the replay did: settled
        if command.type is OperationType.XA_PREPARE:
            transaction.state = State.PREPARED
            return
        del self.result.transactions[command.tx_key]
        puts = self._puts.pop(transaction)
        if command.type.is_commit:
            self._commit(file, entry, transaction, puts)
        else:
            file.unsettled.pop(transaction)

    def _put(self, file: RedoFile, entry: RedoEntry, put: StoredPut) -> None:
        self.result.max_message_id = max(self.result.max_message_id, put.message_id)
        transaction = self.result.transactions.get(put.tx_key)
        if transaction is None:
            transaction = self.result.transactions[put.tx_key] = Transaction(put.tx_key)
            transaction.file = file
            file.size = entry.offset
            file.hold(transaction)
            self._puts[transaction] = []
        if transaction.state is State.PREPARED:
            self.result.late += 1
            return
        self._puts[transaction].append(put)

    def _load(self, transaction: Transaction) -> None:
        """Give a prepared transaction its messages."""
        for put in self._puts.pop(transaction):
            log = self._log_for(put.topic, put.partition)
            transaction.add(log, put.message_id, put.flag, checksum(put.body), put.body)

    # --- commits ------------------------------------------------------------------------------------------------------

    def _commit(self, file: RedoFile, entry: RedoEntry, transaction: Transaction, puts: list[StoredPut]) -> None:
        self._puts[transaction] = puts
        self._load(transaction)
        known = {location.store: location for location in entry.locations}
        found = {block.store: self._complete(block, known.get(block.store)) for block in transaction.finish()}
        ends = [(log, location.offset + location.size) for log, location in found.values()]
        if all(log.synced_end >= end for log, end in ends):
            file.unsettled.pop(transaction)
        else:
            self.result.committed[transaction] = ends
        right = tuple(found[each.store][1] if each.store in found else each for each in entry.locations)
        if right != entry.locations:
            file.patches.append((entry.attachment_offset, encode_locations(right)))

    def _complete(self, block: Block, location: Location | None) -> tuple[PartitionLog, Location]:
        """Where a block lies, appended if it lies nowhere."""
        log = block.log
        encoded = EncodedBlock(block, log.end_offset, self._now_ms())
        if location is not None and location.offset + location.size <= log.first_offset:
            return log, location  # retention has removed it
        if location is not None and _is_at(encoded, location.offset):
            return log, encoded.location._replace(offset=location.offset)
        for offset in _places(log, block.ids[0], log.end_offset if location is None else location.offset):
            if _is_at(encoded, offset):
                return log, encoded.location._replace(offset=offset)
        log.append(encoded.data, encoded.units)
        self.result.appended += 1
        _log.warning(
            "%s: %d committed messages (%d bytes) were not there: appended at %d",
            log.directory,
            len(block.ids),
            encoded.size,
            encoded.base,
        )
        return log, encoded.location

    # --- damage -------------------------------------------------------------------------------------------------------

    def _cut(self, path: str, reader: RedoReader) -> None:
        cut = reader.size - reader.end
        self.result.cut_bytes += cut
        copy = os.path.join(self._directory, f"damaged-{os.path.basename(path)}-{reader.end}")
        _log.error("%s: %d bytes cut at byte %d: %s; they are kept in %s", path, cut, reader.end, reader.problem, copy)
        fd = self._files.open(path, os.O_RDWR)
        try:
            replace_file(self._files, copy, read_exactly(self._files, fd, cut, reader.end))
            self._files.truncate(fd, reader.end)
            self._files.fdatasync(fd)
        finally:
            self._files.close(fd)


def _is_at(block: EncodedBlock, offset: int) -> bool:
    """Whether exactly this block lies there."""
    log = block.log
    if not log.first_offset <= offset <= log.visible_end - block.size:
        return False
    try:
        return checksum(log.read_blocking(offset, block.size)) == block.checksum
    except OffsetOutOfRange:
        return False


def _places(log: PartitionLog, message_id: int, after: int) -> Iterator[int]:
    """Byte offsets of the records with this id, from the segment on that has the byte `after`."""
    position = log.segment_start(min(max(after, log.first_offset), max(log.first_offset, log.visible_end - 1)))
    while position < log.visible_end:
        units = log.units(position, _SEARCH_BYTES)
        if not len(units):
            return
        yield from units["offset"][np.flatnonzero(units["id"] == message_id)].tolist()
        position = int(units["offset"][-1]) + int(units["size"][-1])
