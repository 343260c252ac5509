"""Append messages to logs and wait until they are safe. All requests that store messages use this module. A request is
turned into `Write` objects. The `Write` objects are appended to the logs and made safe on the disk, and then the
request is answered.

taking.py creates the `Write` objects of requests, and transactions/commit.py creates the `Write` objects of a commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from twisted.internet.defer import Deferred

from metaq.protocol.errors import LogReadOnly, MetaqError, NotEnoughReplicas, NotLeader, NotSafe, PartitionClosed
from metaq.protocol.record import Buffer

from ..delays.delays import Delays
from ..partitions.counters import Metrics
from ..partitions.message_ids import MessageIds
from ..partitions.partitions import ANY, Partitions
from ..store.partition_log import PartitionLog
from ..store.store import Store
from .sequences import Sequences
from .write import Write

__all__ = ["Copies", "CopiesDone", "SlaveLink", "Writing"]

T = TypeVar("T")

CopiesDone = Callable[[Sequence[MetaqError | None]], None]
"""The type of a callback done(errors). `errors` has one item for each record: None if the slave has stored the record,
otherwise the reason why it has not.
"""


class SlaveLink(Protocol):
    """A synchronous master's link to its slave (replication/sync_master.py)."""

    def check(self) -> None:
        """Raise SlaveDisconnected if there is no connection to the slave."""

    def replicate(self, log: PartitionLog, records: Buffer, done: CopiesDone) -> None:
        """Send whole records with their ids to the slave, which stores them in order. Call `done` once, when the slave
        has answered for all records.
        """


class Copies(Protocol):
    """The other nodes of a broker set (sets/leader.py)."""

    @property
    def refusal(self) -> NotLeader | None:
        """The error that refuses appends because this node no longer leads the broker set. It is None while it
        leads.
        """

    def check(self, log: PartitionLog) -> None:
        """Raise NotLeader or NotEnoughReplicas if a message for this log would not be acknowledged now."""

    def when_copied(self, writes: Sequence[Write], done: Callable[[], None]) -> None:
        """Call `done` when each of these writes has an `error`, or is stored on as many nodes as its topic's setting
        `ack` requires. Before that, set the `replicas` of the writes. The writes must have been appended in the current
        turn of the reactor.
        """


class Writing:
    """The objects and methods that a request decoder needs to store messages. Used on the reactor thread only."""

    def __init__(
        self,
        store: Store,
        partitions: Partitions,
        message_ids: MessageIds,
        metrics: Metrics,
        sequences: Sequences,
        delays: Delays,
        halves: Delays | None = None,
    ) -> None:
        """halves: the object that keeps half messages. If it is None, half messages are passed to `delays`, which
        refuses them.
        """
        self.sequences = sequences
        self.delays = delays
        self.halves = delays if halves is None else halves
        delays.writing = self.halves.writing = self
        self.partitions = partitions
        self.message_ids = message_ids
        self.metrics = metrics
        self.slave: SlaveLink | None = None
        """The object that sends every record to the slave, if this broker is a synchronous master; otherwise None. This
        attribute must be set before the first request.
        """
        self.copies: Copies | None = None
        """The other nodes of the broker set, if this node leads one; otherwise None. The leader sends each append to
        the other nodes, and answers the request when enough of them have the append (`Copies.when_copied`).
        """
        self.takes_copies = False
        """Whether this broker is a synchronous slave. Set it before the first request."""
        self._store = store

    @property
    def takes_all_kinds(self) -> bool:
        """Whether this broker accepts all kinds of messages. It is False for a synchronous master and a synchronous
        slave (replication of 1.x). As in 1.x, such a broker has no transactions. It ignores sequence numbers, because a
        client must be able to store a message again if the slave has not got a copy of it. It accepts no delayed
        messages, because the slave would not know that they are waiting.
        """
        return self.slave is None and not self.takes_copies

    @property
    def numbers(self) -> bool:
        """Whether the broker checks the sequence numbers of writes now."""
        return self.sequences.enabled and self.takes_all_kinds

    def log(self, topic: str, partition: int, asked: int) -> PartitionLog:
        """Return the log of a partition, for messages that are to be appended. asked: the partition number in the
        request, or ANY if the broker has chosen `partition`.

        Raises the errors of Partitions.for_put, and SlaveDisconnected. In a broker set it also raises the errors of
        Copies.check.
        """
        log = self.partitions.for_put(topic, partition, chosen=asked == ANY)
        if self.slave is not None:
            self.slave.check()
        if self.copies is not None:
            self.copies.check(log)
        return log

    def logs(self, topics: Sequence[str], partitions: Sequence[int]) -> list[PartitionLog] | None:
        """Return the log for each pair of topic and partition. The requests must name the partitions; a partition that
        the broker has chosen is not allowed. Return None if the puts have to be processed one by one, for example
        because a partition is refused or because there is a slave.
        """
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

    def append(self, writes: Iterable[Write]) -> list[Write]:
        """Append writes in order. Each Write is taken from the iterator only after the Write before it is appended. One
        sync of the journal makes all of them safe.

        A Write that cannot be appended gets an `error`, and so do later writes for its partition. Return the writes
        that are not safe yet; the caller passes them to `when_safe`. For writes with sequence numbers,
        `sequences.admit` must have been called before.
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
            if (delayed := write.delayed) is not None and (pended := delayed.pended) is not None:
                delayed.pended = None
                if write.error is None:
                    pended.owner.noted(pended, write.base)
            if write.error is not None and write.number is not None:
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

    def when_safe(self, waiting: Sequence[Write], done: Callable[[], None]) -> None:
        """Call `done` when all these writes are finished. A write is finished if it has an error, or if it is safe on
        this node and acknowledged by the slave or by the other nodes of the broker set.
        """
        slave = self.slave
        copies = self.copies
        missing = 1 + (copies is not None) + (0 if slave is None else len(waiting))

        def arrived() -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                for write in waiting:
                    if write.number and isinstance(write.error, LogReadOnly | NotLeader | NotEnoughReplicas):
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
        """Call `encode` when these writes are finished (see `when_safe`), and return its result. If `waiting` is not
        empty, return a Deferred of the result; it fails with the exception that `encode` raises.
        """
        if not waiting:
            return encode()
        settled: Deferred[None] = Deferred()
        self.when_safe(waiting, partial(settled.callback, None))
        return settled.addCallback(lambda _: encode())

    def refused(self, topic: str, error: MetaqError, count: int = 1) -> None:
        """Count refused messages in the metrics. Messages to a closed partition are not counted, as in 1.x."""
        if not isinstance(error, PartitionClosed):
            self.metrics.put_refused(topic, count)
