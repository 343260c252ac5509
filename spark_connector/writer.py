"""Writing a DataFrame to topics, at least once: a task that Spark runs again sends its rows again.

Columns: value (string or binary, required, not null); optional topic, key, tag (strings; key also binary). Rows with a
key go to the key's partition, the others round robin in batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, DataType, StringType, StructType

from metaq.client.batches import split_batches
from metaq.client.producer import Producer
from metaq.protocol.errors import ClientError, ConfigError

from .options import WriteOptions

__all__ = ["MetaqWriter", "WrittenRows", "check_columns"]

COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    "value": (StringType, BinaryType),
    "topic": (StringType,),
    "key": (StringType, BinaryType),
    "tag": (StringType,),
}


@dataclass(frozen=True, slots=True)
class WrittenRows(WriterCommitMessage):
    """What one task sent and had acknowledged."""

    rows: int


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Raise ConfigError if rows of `schema` cannot be messages."""
    for field in schema.fields:
        allowed = COLUMNS.get(field.name)
        if allowed is None:
            raise ConfigError("column", field.name, f"is not written: select only {', '.join(COLUMNS)}")
        if not isinstance(field.dataType, allowed):
            wanted = " or ".join(kind.typeName() for kind in allowed)
            raise ConfigError("column", field.name, f"has type {field.dataType.simpleString()}: cast it to {wanted}")
    names = schema.fieldNames()
    if "value" not in names:
        raise ConfigError("column", "value", "is missing: give the payload this name, as string or binary")
    if options.topic is None and "topic" not in names:
        raise ConfigError("topic", "", "is missing: set the option, or add a column topic")
    if options.topic is not None and "topic" in names:
        raise ConfigError("topic", options.topic, "is also a column: set the option or keep the column, not both")


class MetaqWriter(DataSourceArrowWriter):
    """Made and checked on the driver; `write` runs in each task with a producer of its own."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema, options)
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenRows:
        """Send all rows and wait for their acknowledgements. Raises ClientError for a null value or topic."""
        rows = 0
        options = self.options
        with Producer(options.zookeeper, root=options.root, protocol=options.protocol) as producer:
            for batch in iterator:
                for topic, part in _by_topic(batch, options.topic):
                    _send(producer, topic, part, options.batch_messages)
                rows += batch.num_rows
        return WrittenRows(rows)


def _by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each topic, in their order."""
    if topic is not None:
        yield topic, batch
        return
    column = batch.column("topic")
    for name in pc.unique(column).to_pylist():
        if name is None:
            raise ClientError("column topic is null in a row: fill it or filter such rows out")
        yield name, batch.filter(pc.equal(column, name))


def _send(producer: Producer, topic: str, batch: pa.RecordBatch, batch_messages: int) -> None:
    values = _bytes_of(batch, "value")
    if values is None or values.null_count:
        raise ClientError("column value is null in a row: a message needs a payload, filter such rows out")
    keys, tags = _texts_of(batch, "key"), _texts_of(batch, "tag")
    if keys is None and tags is None:
        for payloads in split_batches(values.to_pylist(), batch_messages):
            producer.send_batch(topic, payloads)
        return
    nothing: Sequence[str | None] = [None] * len(values)
    futures: list[Future[Any]] = [
        producer.send_async(topic, value, key=key, keys=key.split() if key else (), tag=tag)
        for value, key, tag in zip(values.to_pylist(), keys or nothing, tags or nothing, strict=True)
    ]
    for future in futures:
        future.result()


def _bytes_of(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    return batch.column(name).cast(pa.binary()) if name in batch.schema.names else None


def _texts_of(batch: pa.RecordBatch, name: str) -> list[str | None] | None:
    column = _bytes_of(batch, name)
    if column is None or column.null_count == len(column):
        return None
    try:
        texts: list[str | None] = column.cast(pa.string()).to_pylist()
    except pa.ArrowInvalid as error:
        raise ClientError(f"column {name} is no UTF-8 in a row: a {name} is text") from error
    return texts
