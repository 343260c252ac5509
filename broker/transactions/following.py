"""Process the records of the transaction log in order, and determine which messages are complete and undamaged
according to these records.

A commit record that metaq wrote has the number of the transaction's messages and a checksum of their records (redo.py),
so it can prove that all messages of the transaction are complete and undamaged. The commit record of a Java broker has,
for each partition, the size and checksum of the messages' bytes, so it can prove the same only for the messages of one
partition at a time. A preparation record that metaq wrote also has the number and the checksum, so it proves the same
as a commit record of metaq. A preparation record of a Java broker proves nothing. If a Java broker has written the
preparation record, the transaction counts as damaged only if a fault is visible. There are three such faults: a body
does not match its producer's checksum; a message id is impossible; or damaged bytes before the record may have been one
of the transaction's messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from metaq.protocol.message_id import store_time_ms
from metaq.protocol.record import HEADER_BYTES, checksum
from metaq.protocol.text import NO_CHECKSUM

from ..store.batch import encode_puts
from .commands import Operation, OperationType, StoredPut
from .open_transactions import OpenTransaction, TransactionState
from .redo import Location, RedoEntry, Seal, add_content, block_checksum
from .redo_reader import RedoDamage

__all__ = ["Ended", "Following", "Logged", "LoggedBlock"]

_FUTURE_MS = 10 * 365 * 86_400_000
"""Ten years in milliseconds. No clock is wrong by ten years. So if a message id contains a time that is more than this
value after the present time, the id is damaged.
"""


@dataclass(slots=True)
class Logged:
    """A transaction as the records of the log describe it. `start` and `end` are byte positions in the redo file with
    the number `file`.
    """

    transaction: OpenTransaction
    """The transaction's key, the checksum (`content`) of its messages' records, and whether the transaction is
    prepared.
    """
    file: int
    start: int
    """Position where the transaction's first record begins."""
    end: int
    """Position directly after the transaction's last record, of the records that were read so far."""
    puts: list[StoredPut] = field(default_factory=list)
    damage: str | None = None
    """The reason why a prepared transaction cannot be committed. It is None if the transaction can be committed."""
    suspect: str | None = None
    """What may be wrong with the transaction's messages. It is None if no fault is suspected. A later commit or
    preparation record can prove that they are undamaged nevertheless.
    """
    may_have_ended: bool = False
    """Whether damaged bytes after the transaction's first message may have been its commit, rollback or preparation
    record.
    """

    @property
    def key(self) -> str:
        return self.transaction.key

    @property
    def prepared(self) -> bool:
        return self.transaction.state is TransactionState.PREPARED

    def by_partition(self) -> dict[tuple[str, int], list[StoredPut]]:
        """Return the transaction's messages by topic and partition."""
        found: dict[tuple[str, int], list[StoredPut]] = {}
        for put in self.puts:
            found.setdefault((put.topic, put.partition), []).append(put)
        return found


@dataclass(slots=True)
class LoggedBlock:
    """The messages of one commit for one partition. proven: whether the log's records prove that no message of the
    commit is missing here and that none is damaged.
    """

    topic: str
    partition: int
    puts: list[StoredPut]
    proven: bool
    location: Location | None
    """Where the messages are in the partition, as the commit record says. It is None if the record does not say it."""

    @property
    def store(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(slots=True)
class Ended:
    """A transaction that a commit or rollback record has ended. transaction: None if no earlier record of it was
    found.
    """

    entry: RedoEntry
    transaction: Logged | None
    blocks: list[LoggedBlock] = field(default_factory=list)
    """The messages by partition. The list is empty for a rollback."""
    incomplete: bool = False
    """Whether a commit that metaq wrote has messages that cannot be read."""

    @property
    def operation(self) -> Operation:
        assert isinstance(self.entry.command, Operation)
        return self.entry.command


class Following:
    """Processes the records of all redo files in order, and keeps the state of each transaction. `open`: the
    transactions that no record has ended so far, by key.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.open: dict[str, Logged] = {}
        self.late = 0
        """Number of messages that a Java broker accepted after the preparation of their transaction; a Java broker
        never commits such messages.
        """
        self.max_message_id = 0
        """Largest message id in the undamaged messages. It is 0 if there are none. The broker chooses new ids above
        it.
        """
        self._now_ms = now_ms
        self._file = 0
        self._damaged = False  # whether damage was found in this file

    def begin_file(self, number: int) -> None:
        """Remember that the next records come from the redo file `number`."""
        self._file = number
        self._damaged = False

    def damaged(self, damage: RedoDamage) -> None:
        """Process a range of damaged bytes, which may have been records. A torn tail (an incomplete record at the end
        of the file) cannot have ended a transaction, because this record was never completely written.
        """
        if damage.torn:
            return
        self._damaged = True
        for each in self.open.values():
            if each.file == self._file:
                each.may_have_ended = True

    def take(self, entry: RedoEntry) -> Ended | None:
        """Process the next record. Return the transaction that this record ends, or None if it ends no transaction."""
        command = entry.command
        if isinstance(command, StoredPut):
            self._put(entry, command)
            return None
        transaction = self.open.get(command.tx_key)
        if command.type is OperationType.XA_PREPARE:
            self._prepare(entry, transaction)
            return None
        if transaction is not None:
            del self.open[command.tx_key]
            transaction.end = entry.end
        whole = entry.seal is not None and transaction is not None and _is_whole(transaction, entry.seal)
        blocks = _blocks(entry, transaction, whole=whole) if command.type.is_commit else []
        if transaction is not None and all(block.proven for block in blocks):
            self._believe(transaction.puts)
        incomplete = command.type.is_commit and entry.seal is not None and not whole
        return Ended(entry, transaction, blocks, incomplete)

    def _put(self, entry: RedoEntry, put: StoredPut) -> None:
        transaction = self.open.get(put.tx_key)
        if transaction is None:
            transaction = self._begin(entry)
        if transaction.prepared:
            self.late += 1
            return
        transaction.puts.append(put)
        transaction.transaction.content = add_content(transaction.transaction.content, entry.crc)
        transaction.end = entry.end
        if entry.seal is not None:
            self.max_message_id = max(self.max_message_id, put.message_id)
        elif (doubt := self._doubt(put)) is not None:
            transaction.suspect = f"{doubt} at byte {entry.offset}"

    def _doubt(self, put: StoredPut) -> str | None:
        """Check a message whose record has no seal (the checksums that metaq adds to a record). Return what is visibly
        wrong with the message, or None if no fault is visible.
        """
        if put.checksum not in (NO_CHECKSUM, checksum(put.body)):
            return "a body with a wrong checksum"
        if (store_time_ms(put.message_id) or 0) > self._now_ms() + _FUTURE_MS:
            return f"the impossible message id {put.message_id}"
        return None

    def _prepare(self, entry: RedoEntry, transaction: Logged | None) -> None:
        if transaction is None:
            transaction = self._begin(entry)
            transaction.suspect = "no message of it"
        transaction.transaction.state = TransactionState.PREPARED
        transaction.may_have_ended = False
        transaction.end = entry.end
        if entry.seal is not None:
            transaction.damage = None if _is_whole(transaction, entry.seal) else _missing(transaction, entry.seal)
        elif transaction.suspect is None and self._damaged:
            transaction.damage = "damage before its preparation, which may have been one of its messages"
        else:
            transaction.damage = transaction.suspect
        if transaction.damage is None:
            self._believe(transaction.puts)

    def _begin(self, entry: RedoEntry) -> Logged:
        begun = OpenTransaction(entry.command.tx_key)
        logged = self.open[begun.key] = Logged(begun, self._file, entry.offset, entry.end)
        return logged

    def _believe(self, puts: Sequence[StoredPut]) -> None:
        self.max_message_id = max([self.max_message_id, *(put.message_id for put in puts)])


def _is_whole(transaction: Logged, seal: Seal) -> bool:
    return (len(transaction.puts), transaction.transaction.content) == (seal.messages, seal.content)


def _missing(transaction: Logged, seal: Seal) -> str:
    found = len(transaction.puts)
    if found != seal.messages:
        return f"{found} of its {seal.messages} messages"
    return f"{found} messages other than those that were prepared"


def _blocks(entry: RedoEntry, transaction: Logged | None, *, whole: bool) -> list[LoggedBlock]:
    """Return the commit's blocks, one for each partition. First come the blocks whose messages were read, then the
    blocks that only the attachment names. whole: whether all messages of the commit were read.
    """
    puts = {} if transaction is None else transaction.by_partition()
    places = {each.store: each for each in entry.locations}
    blocks = []
    for (topic, partition), of_store in puts.items():
        place = places.pop(f"{topic}-{partition}", None)
        proven = whole or (place is not None and _makes(of_store, place))
        blocks.append(LoggedBlock(topic, partition, of_store, proven, place))
    if whole:
        return blocks  # if the attachment names other partitions, it is damaged
    for place in places.values():
        topic, _, number = place.store.rpartition("-")
        if number.isascii() and number.isdecimal():
            blocks.append(LoggedBlock(topic, int(number), [], proven=False, location=place))
    return blocks


def _makes(puts: Sequence[StoredPut], location: Location) -> bool:
    """Return whether these messages, once encoded, have the size and checksum that `location` (from the commit record's
    attachment) states.
    """
    if sum(HEADER_BYTES + len(put.body) for put in puts) != location.size:
        return False
    records = [(put.flag, checksum(put.body), put.body) for put in puts]
    data, _ = encode_puts(records, 0, [put.message_id for put in puts], 0)
    return block_checksum(data) == location.checksum
