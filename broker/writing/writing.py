"""The one way to store messages: a request becomes `Write`s, which are appended, made safe and then answered.

Decoders: requests/put.py (one put, the puts of one read, and what a synchronous master sends), requests/send.py
(batches for one partition or many) and transactions/commit.py. Encoders of the answers: beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol, TypeVar

from twisted.internet.defer import Deferred

from metaq.protocol.compression import check_packed
from metaq.protocol.errors import (
    CompressionNotAccepted,
    DelayRefused,
    LogReadOnly,
    MetaqError,
    NotEnoughReplicas,
    NotLeader,
    NotSafe,
    PartitionClosed,
)
from metaq.protocol.half_messages import is_half
from metaq.protocol.record import COMPRESSED_FLAG, Buffer, own_body

from ..delays.delays import Delays, Pended
from ..memory.sequence_rows import DELAYED_ROW, HALF_ROW, WAITING_ROW
from ..memory.topics import HALVES_TOPIC
from ..partitions.counters import Metrics
from ..partitions.message_ids import MessageIds
from ..partitions.partitions import ANY, Partitions
from ..store.partition_log import PartitionLog
from ..store.store import Store
from .sequences import NumberedWrite, SendingPeer, Sequences

__all__ = ["Copies", "CopiesDone", "SlaveLink", "Write", "Writing"]

T = TypeVar("T")

CopiesDone = Callable[[Sequence[MetaqError | None]], None]
"""done(errors): for each record None if the slave has it, else why not."""


class SlaveLink(Protocol):
    """A synchronous master's link to its slave (replication/sync_master.py)."""

    def check(self) -> None:
        """Raise SlaveDisconnected if there is no connection."""

    def replicate(self, log: PartitionLog, records: Buffer, done: CopiesDone) -> None:
        """Have the slave store whole records with their ids, in order. Calls `done` once, when all are answered."""


class Copies(Protocol):
    """The other nodes of a broker set (sets/leader.py)."""

    @property
    def refusal(self) -> NotLeader | None:
        """Why nothing may be appended: this node leads no longer; None while it leads."""

    def check(self, log: PartitionLog) -> None:
        """Raise NotLeader or NotEnoughReplicas if a message for this log would not be acknowledged now."""

    def when_copied(self, writes: Sequence[Write], done: Callable[[], None]) -> None:
        """Call `done` once these writes of this turn of the reactor are stored as their topics' `ack` demands, with
        `replicas` set, or have an `error`."""


class Write(NumberedWrite):
    """Whole records for one partition, and the result. It lives until its request is answered."""

    copy_errors: Sequence[MetaqError | None] = ()
    """On a synchronous master: for each record why the slave does not have it, or None; empty without a slave."""

    pended: Pended | None = None
    """The delayed messages of this write, until they are appended."""

    replicas = 0
    """In a broker set: how many nodes, this one included, have the records when they may be acknowledged."""

    @property
    def answered_id(self) -> int:
        """The first id to answer."""
        return self.pending_id or self.first_id

    @property
    def answered_offset(self) -> int:
        """The first byte offset to answer; -1 for delayed messages."""
        return self.base if self.delayed_for is None else -1

    @property
    def partition(self) -> int:
        """The number of the partition that the records are for."""
        return (self.delayed_for or self.log).partition

    @property
    def failure(self) -> MetaqError | None:
        """Why not all records are safe; None if they are."""
        if self.error is not None or not self.copy_errors:
            return self.error
        return next((error for error in self.copy_errors if error is not None), None)


class Writing:
    """All that a decoder needs to store messages. Lives on the reactor thread."""

    def __init__(
        self,
        store: Store,
        partitions: Partitions,
        message_ids: MessageIds,
        metrics: Metrics,
        sequences: Sequences[Write],
        delays: Delays,
        halves: Delays | None = None,
    ) -> None:
        """halves: keeps half messages; None: `delays`, which refuses them."""
        self.sequences = sequences
        self.delays = delays
        self.halves = delays if halves is None else halves
        delays.writing = self.halves.writing = self
        self.partitions = partitions
        self.message_ids = message_ids
        self.metrics = metrics
        self.slave: SlaveLink | None = None
        """On a synchronous master: every record also goes there. To be set before the first request."""
        self.copies: Copies | None = None
        """On a broker set's leader: appends also go to the other nodes, and are answered when those have them."""
        self.takes_copies = False
        """Whether this is a synchronous slave. To be set before the first request."""
        self._store = store

    @property
    def has_transactions(self) -> bool:
        """False for both sides of synchronous replication, as in 1.x."""
        return self.slave is None and not self.takes_copies

    @property
    def takes_delays(self) -> bool:
        """Whether this broker takes delayed messages. Not with 1.x's synchronous replication, whose slave would have to
        know of them."""
        return self.slave is None and not self.takes_copies

    @property
    def takes_sequences(self) -> bool:
        """Whether numbered writes are stored once. Not with 1.x's synchronous replication, where a message is stored
        again after its copy has failed."""
        return self.slave is None and not self.takes_copies

    def log(self, topic: str, partition: int, asked: int) -> PartitionLog:
        """Return the log to append to. asked: the partition of the request, ANY if `partition` was chosen for it.

        Raises as Partitions.for_put, and SlaveDisconnected; in a broker set also as Copies.check.
        """
        log = self.partitions.for_put(topic, partition, chosen=asked == ANY)
        if self.slave is not None:
            self.slave.check()
        if self.copies is not None:
            self.copies.check(log)
        return log

    def logs(self, topics: Sequence[str], partitions: Sequence[int]) -> list[PartitionLog] | None:
        """Return `log` of each; the broker has chosen no partition. None if one is refused, with a slave, or if they
        have to be taken one by one."""
        if self.slave is not None:
            return None
        try:
            logs = self.partitions.for_puts(topics, partitions)
            if self.copies is not None and logs is not None:
                for log in set(logs):
                    self.copies.check(log)
        except MetaqError:
            return None
        return logs

    def keeper(self, flag: int, body: Buffer) -> Delays:
        """Return the keeper of a record with DELAYED_FLAG: halves or delays."""
        return self.halves if is_half(flag, body) else self.delays

    def due(self, flag: int, body: Buffer) -> tuple[Delays, int]:
        """Return `keeper`, and when the record is due there, Unix ms, after one look through a long property list.
        Raises RemoteProtocolError."""
        own = own_body(body, flag)
        keeper = self.keeper(flag, own)
        return keeper, keeper.due(flag, own)

    def log_for_delayed(self, topic: str, partition: int, asked: int, keeper: Delays) -> PartitionLog:
        """Return the partition that delayed or half messages are for. Raises as `log` and `Delays.check`, and
        DelayRefused, PartitionClosed."""
        log = self.log(topic, partition, asked)
        if not self.takes_delays:
            raise DelayRefused("a broker in synchronous replication keeps no delayed messages: send without a delay")
        if self.partitions.is_leaving(topic, partition):
            raise PartitionClosed(self.partitions.broker_id, partition)
        keeper.check(log)
        return log

    def pended(self, pended: Pended, target: PartitionLog, first_id: int) -> Write:
        """Return the Write for delayed messages, without units. first_id: the first of their ordinary ids."""
        write = Write(pended.log.log, pended.buffers, b"")
        write.pended, write.delayed_for, write.first_id = pended, target, first_id
        write.pending_id = pended.ids[0]
        return write

    def number(self, write: Write, producer: int, sequence: int, records: int) -> None:
        """Give a write its producer's number."""
        if write.delayed_for is not None:
            records |= DELAYED_ROW | (WAITING_ROW if write.log.has_group_commit else 0)
            if write.log.topic == HALVES_TOPIC:
                records |= HALF_ROW
        write.producer, write.sequence, write.records = producer, sequence, records

    def check_packed(self, topic: str, flag: int, body: Buffer, meant: int = COMPRESSED_FLAG) -> None:
        """Check a record with COMPRESSED_FLAG. meant: the result of `meant_of` for a text put, whose bit may mean
        nothing, because 1.x compresses nothing. Raises CompressionNotAccepted, PayloadUnreadable."""
        if self.partitions.takes_compressed(topic):
            check_packed(body, flag)
        elif meant & COMPRESSED_FLAG:
            raise CompressionNotAccepted(topic)

    def append(self, writes: Iterable[Write]) -> list[Write]:
        """Append in order. A Write is taken from the iterator after those before it are appended; all share one sync of
        the journal.

        A Write that cannot be appended gets an `error`, and so do later ones of its partition. Returns the appended
        ones that are not safe yet, for `when_safe`. Those with a number have to come from `numbered`.
        """
        if self.copies is not None and (refusal := self.copies.refusal) is not None:
            for write in writes:  # they were made while this node led; now another node owns the logs
                write.error = refusal
            return []
        taken = self._store.append_many(writes)
        if self.slave is not None:
            return [write for write in taken if write.error is None]
        copied = self.copies is not None  # then all writes wait
        waiting = []
        failed = []
        for write in taken:
            write.data, write.units = (), b""  # a waiting answer does not need them
            if write.pended is not None:
                pended, write.pended = write.pended, None
                if write.error is None:
                    pended.owner.noted(pended, write.base)
            if write.error is not None and write.sequence:
                failed.append(write)
            if write.log.durability.safe_end < write.end or (copied and write.error is None):
                waiting.append(write)
        if failed:
            self.sequences.not_stored(failed)
        if (rows := self.sequences.take_unsafe()) is not None:
            waiting.append(rows)
        if self.sequences.repeated:
            repeated, self.sequences.repeated = self.sequences.repeated, []
            stored = [write for write in repeated if write.error is None]
            waiting += [write for write in stored if copied or write.log.durability.safe_end < write.end]
        return waiting

    def numbered(self, writes: Iterable[Write], sender: SendingPeer | None) -> Iterator[Write]:
        """Yield the writes to append, each after its row was appended. A repeated write is left out: it has an `error`,
        or the first one's place, and then `append` returns it if that is not safe yet."""
        if not self.numbers:
            yield from writes
            return
        sequences = self.sequences
        for write in writes:
            if not write.sequence or sequences.admit(((write, sum(map(len, write.data))),), sender)[0] is not None:
                yield write

    @property
    def numbers(self) -> bool:
        """Whether numbers are checked now."""
        return self.sequences.enabled and self.takes_sequences

    def stored_before(self, write: Write) -> bool:
        """Whether a refused write with a number repeats a stored one. Then it has the stored one's place, and the next
        `append` returns it if it is not safe yet. Also True if that cannot be told: then it has an `error`."""
        return self.numbers and self.sequences.stored_before(write)

    def when_safe(self, waiting: Sequence[Write], done: Callable[[], None]) -> None:
        """Call `done` once each of these is safe here and has its slave's answers, or has errors."""
        slave = self.slave
        copies = self.copies
        missing = 1 + (copies is not None) + (0 if slave is None else len(waiting))

        def arrived() -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                for write in waiting:
                    if write.sequence and isinstance(write.error, LogReadOnly | NotLeader | NotEnoughReplicas):
                        write.error = NotSafe(write.log.directory, str(write.error))
                done()

        def safe(errors: Sequence[MetaqError | None]) -> None:
            for write, error in zip(waiting, errors, strict=True):
                write.error = write.error or error
            arrived()

        def copied(write: Write, errors: Sequence[MetaqError | None]) -> None:
            write.copy_errors = errors
            arrived()

        if slave is not None:
            for write in waiting:
                data = write.data[0] if len(write.data) == 1 else b"".join(write.data)
                slave.replicate(write.log, data, partial(copied, write))
                write.data, write.units = (), b""
        if copies is not None:
            copies.when_copied(waiting, arrived)
        self._store.when_all_safe([(write.log, write.end) for write in waiting], safe)

    def answer(self, waiting: Sequence[Write], encode: Callable[[], T]) -> T | Deferred[T]:
        """Return the result of `encode` once these are safe; fails as `encode` raises."""
        if not waiting:
            return encode()
        settled: Deferred[None] = Deferred()
        self.when_safe(waiting, partial(settled.callback, None))
        return settled.addCallback(lambda _: encode())

    def refused(self, topic: str, error: MetaqError, count: int = 1) -> None:
        """Count messages that are not stored. A closed partition does not count, as in 1.x."""
        if not isinstance(error, PartitionClosed):
            self.metrics.put_refused(topic, count)
