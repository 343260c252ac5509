"""Write a DataFrame to topics. The module has the code that runs on the driver and the code that runs in tasks.
columns.py turns rows into messages.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from metaq.client.producer import Producer
from metaq.client.producer.packing import Packer
from metaq.client.records.batches import split_batches
from metaq.client.settings.config import ConnectionConfig, ProducerConfig
from metaq.client.transport.zookeeper import zk_session
from metaq.coordination.offsets.decided_batches import DecidedBatches
from metaq.coordination.session.zk_session import ZkSession
from metaq.protocol.errors import ClientError

from .columns import Rows, by_partition, check_columns, rows_by_topic, size_of
from .exactly_once import BatchWrite, Coordinator, TaskTransactions, qualifier
from .options import WriteOptions
from .workers import spare_modules

__all__ = ["MetaqStreamWriter", "MetaqWriter", "WrittenRows"]

_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""The names of two local properties of a task, in which Spark stores the id of the task's query and the id of its
micro-batch (Spark's constants StreamExecution.QUERY_ID_KEY and MicroBatchExecution.BATCH_ID_KEY).
"""


@dataclass(frozen=True, slots=True)
class WrittenRows(WriterCommitMessage):
    """A task's report to the driver: the number of messages that the task sent and that were acknowledged. With
    exactlyOnce, the report also contains the names of the transactions that the task has prepared.
    """

    rows: int
    write: BatchWrite | None = None
    prepared: tuple[str, ...] = ()
    topic: str = ""


class MetaqWriter(DataSourceArrowWriter):
    """Writes the rows of a batch query to topics. Spark creates this object on the driver. The options are checked
    before that, and the columns by the constructor. Each task calls `write`, which opens a producer of its own.
    """

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema, options)
        self.options = options
        self.batch_write = BatchWrite(str(uuid.uuid4()), 0)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenRows:
        """Send all rows and wait for their acknowledgements. Raises ClientError for a row that is not a message."""
        return _write(self.options, iterator, self.batch_write)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """With exactlyOnce, commit the tasks' transactions, so that consumers see all rows. Without it, do nothing.
        Raises the errors of Coordinator.
        """
        self._end(messages, abort=False)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """With exactlyOnce, roll back the tasks' prepared transactions. Without it, do nothing. If `commit` has already
        recorded the decision to commit the batch, commit the remaining transactions instead.
        """
        self._end(messages, abort=True)

    def _end(self, messages: Sequence[WriterCommitMessage | None], *, abort: bool) -> None:
        if _end_batch(self.options, messages, 0, abort=abort):  # the batch is complete, so its record may be removed
            with _session(self.options) as session:
                DecidedBatches(session).remove(self.batch_write.query_id)


class MetaqStreamWriter(DataSourceStreamArrowWriter):
    """Writes the rows of a streaming query to topics. For each micro-batch Spark creates one writer for the tasks, and
    another one for `commit` or `abort` at the end.
    """

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema, options)
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenRows:
        """Send all rows of a task, like MetaqWriter.write."""
        return _write(self.options, iterator, None)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        """Make all rows of the batch visible, like MetaqWriter.commit."""
        _end_batch(self.options, messages, batch_id)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        """Roll back the batch's transactions, like MetaqWriter.abort."""
        _end_batch(self.options, messages, batch_id, abort=True)


# --- in a task --------------------------------------------------------------------------------------------------------


def _write(options: WriteOptions, batches: Iterator[pa.RecordBatch], write: BatchWrite | None) -> WrittenRows:
    spare_modules()
    packer = Packer.of(_config(options))
    with _producer(options) as producer:
        if not options.exactly_once:
            return WrittenRows(sum(_send(options, producer, batch, packer) for batch in batches))
        return _prepare(options, producer, batches, write or _micro_batch(), packer)


def _send(options: WriteOptions, producer: Producer, batch: pa.RecordBatch, packer: Packer | None) -> int:
    for rows in rows_by_topic(batch, options.topic, typed=options.typed_headers, packer=packer):
        _send_rows(producer, rows, options.batch_messages)
    return int(batch.num_rows)


def _send_rows(producer: Producer, rows: Rows, batch_messages: int) -> None:
    """Send rows of one topic and wait until all are acknowledged.

    Rows with a key are sent in batches to the partition that the key determines, in their order. Rows without a key are
    sent in batches to the partitions in turn. Raises the errors of Producer.send_batch.
    """
    plain, keyed = by_partition(rows, producer.partitions(rows.topic))
    for batch in split_batches(plain, batch_messages, size_of=size_of):
        producer.send_batch(rows.topic, batch)
    for key, items in keyed.values():
        for batch in split_batches(items, batch_messages, size_of=size_of):
            # if the brokers change meanwhile, all rows of the batch move together
            producer.send_batch(rows.topic, batch, key=key)


def _prepare(
    options: WriteOptions,
    producer: Producer,
    batches: Iterator[pa.RecordBatch],
    write: BatchWrite,
    packer: Packer | None,
) -> WrittenRows:
    task = _task()
    transactions = TaskTransactions(
        producer,
        write,
        task.partitionId(),
        task.attemptNumber(),
        messages=options.batch_messages,
        max_bytes=options.transaction_bytes,
    )
    count = 0
    try:
        for batch in batches:
            for rows in rows_by_topic(batch, options.topic, typed=options.typed_headers, packer=packer):
                transactions.add(rows)
            count += batch.num_rows
        transactions.finish()
    except BaseException:
        transactions.roll_back()
        raise
    return WrittenRows(count, write, tuple(transactions.prepared), transactions.topic)


def _micro_batch() -> BatchWrite:
    task = _task()
    query_id, batch = task.getLocalProperty(_QUERY_ID), task.getLocalProperty(_BATCH_ID)
    if query_id is None or batch is None:
        raise ClientError("exactlyOnce needs micro-batches: choose another trigger than continuous")
    return BatchWrite(query_id, int(batch))


def _task() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise ClientError("rows are written by tasks of Spark only")
    return context


# --- on the driver ----------------------------------------------------------------------------------------------------


def _end_batch(
    options: WriteOptions, messages: Sequence[WriterCommitMessage | None], batch: int, *, abort: bool = False
) -> bool:
    """Commit the tasks' prepared transactions, or roll them back if `abort` is set. Return whether transactions were
    committed or rolled back. Return False if there is nothing to do, because the query does not use exactlyOnce or has
    never written a row.
    """
    written = [each for each in messages if isinstance(each, WrittenRows) and each.write is not None]
    query_ids = {each.write.query_id for each in written if each.write}
    topic = next((each.topic for each in written if each.topic), options.topic)
    if not query_ids:
        return False
    (query_id,) = query_ids
    with _session(options) as session, _producer(options) as producer:
        store = DecidedBatches(session)
        if topic is None:  # no row named a topic; an earlier run of this batch may have had rows that did
            found = store.load(query_id).decided
            if found is None or not found.topic:
                return False
            topic = found.topic
        coordinator = Coordinator(store, producer.xa([topic], qualifier=qualifier(query_id)), query_id)
        if abort:
            coordinator.abort(batch)
        else:
            coordinator.commit(batch, [name for each in written for name in each.prepared], topic)
    return True


def _config(options: WriteOptions) -> ProducerConfig:
    connection = ConnectionConfig(protocol=options.protocol)
    return ProducerConfig(compression="zstd" if options.compression == "zstd" else None, connection=connection)


def _producer(options: WriteOptions) -> Producer:
    return Producer(options.zookeeper, root=options.root, config=_config(options))


def _session(options: WriteOptions) -> ZkSession:
    return zk_session(options.zookeeper, options.root)
