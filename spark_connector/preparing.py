"""Exactly once: what a task does with its rows. It leaves prepared transactions behind, which the driver decides on."""

from __future__ import annotations

import logging
import secrets
from collections import defaultdict
from collections.abc import Sequence

from metaq.client.batches import split_batches
from metaq.client.producer import Producer
from metaq.client.producer.xa import XaResource
from metaq.client.values import TopicPartition
from metaq.protocol.errors import MetaqError, NoPartition
from metaq.protocol.transactions import XaVote

from .columns import PreparedItem, Rows, by_partition, size_of
from .decisions import BatchWrite, branch_name, qualifier, xid_of

__all__ = ["TaskTransactions"]

log = logging.getLogger(__name__)


class TaskTransactions:
    """The transactions of one attempt of one task. One thread.

    Rows are gathered up to `transaction_bytes`, then go in one transaction per broker, which is begun and prepared at
    once: slow rows from Spark do not meet the brokers' time limit for transactions.
    """

    def __init__(
        self, producer: Producer, write: BatchWrite, partition: int, attempt: int, *, messages: int, max_bytes: int
    ) -> None:
        """partition, attempt: Spark's numbers of the task. messages: of one request, at most."""
        self.prepared: list[str] = []
        """Names of what is prepared."""
        self.topic = ""
        """One of those that were written."""
        self._producer = producer
        self._write = write
        self._partition = partition
        self._attempt = attempt
        self._messages = messages
        self._max_bytes = max_bytes
        self._waiting: dict[TopicPartition, list[PreparedItem]] = defaultdict(list)
        self._bytes = 0
        self._turn = partition
        self._token = secrets.token_hex(4)
        self._number = 0
        self._xa: XaResource | None = None

    def add(self, rows: Rows) -> None:
        """Take rows of one topic, and prepare what has come together. Raises NoPartition, XaError."""
        partitions = self._producer.partitions(rows.topic)
        if not partitions:
            raise NoPartition(f"topic {rows.topic!r} is published by no registered broker: start one that does")
        self.topic = rows.topic
        plain, keyed = by_partition(rows, partitions)
        for batch in split_batches(plain, self._messages, size_of=size_of):
            self._wait(partitions[self._turn % len(partitions)], batch)
            self._turn += 1
        for partition, (_, items) in keyed.items():
            assert partition is not None  # there are some
            for batch in split_batches(items, self._messages, size_of=size_of):
                self._wait(partition, batch)

    def finish(self) -> None:
        """Prepare the rest."""
        waiting, self._waiting, self._bytes = self._waiting, defaultdict(list), 0
        for broker in sorted({partition.broker for partition in waiting}):
            mine = {partition: items for partition, items in waiting.items() if partition.broker == broker}
            self._prepare(broker, mine)

    def roll_back(self) -> None:
        """Drop everything, as far as brokers answer: what they keep is rolled back with the next batch."""
        for name in self.prepared:
            self._try_to_roll_back(name)

    def _wait(self, partition: TopicPartition, items: Sequence[PreparedItem]) -> None:
        self._waiting[partition] += items
        self._bytes += sum(map(size_of, items))
        if self._bytes >= self._max_bytes:
            self.finish()

    def _prepare(self, broker: int, waiting: dict[TopicPartition, list[PreparedItem]]) -> None:
        name = branch_name(broker, self._partition, self._attempt, self._number, self._token)
        self._number += 1
        xa, xid = self._resource(), xid_of(self._write, name)
        try:
            with xa.start(xid, broker=broker) as branch:
                for partition, items in waiting.items():
                    for batch in split_batches(items, self._messages, size_of=size_of):
                        branch.send_batch(partition.topic, batch, partition=partition)
            if xa.prepare(xid) is XaVote.OK:
                self.prepared.append(name)
        except MetaqError:
            self._try_to_roll_back(name)
            raise

    def _resource(self) -> XaResource:
        if self._xa is None:
            self._xa = self._producer.xa([self.topic], qualifier=qualifier(self._write.query_id))
        return self._xa

    def _try_to_roll_back(self, name: str) -> None:
        try:
            self._resource().rollback(xid_of(self._write, name))
        except MetaqError as error:
            batch = self._write.batch
            log.warning("transaction %s of batch %d is left to be rolled back later: %s", name, batch, error)
