"""Reading: partitions are planned on the driver, each task reads one range over a connection of its own."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from metaq.client.config import check_protocol
from metaq.client.connection import Connection, open_connection
from metaq.client.inquiry import Pulled, partition_bounds, pull
from metaq.protocol.errors import OffsetOutOfRange

from .offsets import DataLoss, Lost, OffsetRange
from .planning import plan_query
from .pushdown import Pushed, push
from .read_options import ReadOptions
from .records import RecordBlock

__all__ = ["FilteringReader", "MetaqReader", "read_partition", "read_range"]

log = logging.getLogger(__name__)


class MetaqReader(DataSourceReader):
    """Made on the driver and pickled to the tasks; holds options and what of the filters concerns fetching."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.pushed = Pushed(tags=frozenset(options.tags) or None)

    def partitions(self) -> list[InputPartition]:
        """One input partition per range; decided now, so messages that come later are not part of the query."""
        return [InputPartition(planned) for planned in plan_query(self.options, self.pushed)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one range, in order. Raises BrokerUnavailable (Spark then tries the task again)."""
        return read_partition(self.options, partition, self.pushed.sent_tags)


class FilteringReader(MetaqReader):
    """Fetches less by the filters of the query.

    Not the default: Spark 4.3 keeps the plan of a DataFrame's first query and takes it for later queries of the same
    DataFrame that have no filter to push, which then miss rows.
    """

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802  # Spark's name
        """Spark applies all of them again."""
        self.pushed = push(filters, self.pushed)
        return filters


def read_partition(
    options: ReadOptions, partition: InputPartition, tags: tuple[str, ...] = ()
) -> Iterator[pa.RecordBatch]:
    """What a task does. Raises as read_range, and BrokerUnavailable."""
    planned: OffsetRange | None = partition.value
    if planned is None:  # what Spark makes of a query without ranges
        return
    connection = open_connection(planned.endpoint, options.connection, check_protocol(options.protocol))
    connection.expects_bulk = True
    try:
        yield from read_range(connection, planned, options, tags)
    finally:
        connection.close()


def read_range(
    connection: Connection, planned: OffsetRange, options: ReadOptions, tags: tuple[str, ...] = ()
) -> Iterator[pa.RecordBatch]:
    """Pull block after block until the end of `planned`, each while the one before is worked on; memory is bounded by
    two blocks and a batch.

    Raises DataLoss if retention was faster and failOnDataLoss is true, CorruptRecord for bytes that are no records.
    """
    offset = planned.start
    with ThreadPoolExecutor(1, "metaq-prefetch") as ahead:
        coming = ahead.submit(pull, connection, planned.id, offset, options.fetch_bytes, tags)
        while offset < planned.end:
            try:
                pulled = coming.result()
            except OffsetOutOfRange as error:
                offset = _readable_from(connection, planned, offset, options, error)
                if offset < planned.end:
                    coming = ahead.submit(pull, connection, planned.id, offset, options.fetch_bytes, tags)
                continue
            if pulled.next_offset is not None and offset < pulled.next_offset < planned.end:
                coming = ahead.submit(pull, connection, planned.id, pulled.next_offset, options.fetch_bytes, tags)
            blocks = _blocks(pulled, planned, offset)
            following = pulled.next_offset if pulled.next_offset is not None else blocks[-1].next_offset
            if pulled.next_offset is None and following < planned.end:
                coming = ahead.submit(pull, connection, planned.id, following, options.fetch_bytes, tags)
            for block in blocks:
                yield _only(block.to_arrow(options.headers), options.tags)
            offset = following


def _only(batch: pa.RecordBatch, tags: tuple[str, ...]) -> pa.RecordBatch:
    """The rows with one of `tags` (brokers compare hashes), all if there are none."""
    return batch.filter(pc.is_in(batch.column("tag"), pa.array(tags))) if tags else batch


def _blocks(pulled: Pulled, planned: OffsetRange, offset: int) -> Sequence[RecordBlock]:
    """Raises CorruptRecord if there is nothing where there must be something."""
    if not pulled.runs and (pulled.next_offset is None or pulled.next_offset <= offset):
        return [RecordBlock(memoryview(b""), planned.id, offset, planned.end)]
    return [
        RecordBlock(data, planned.id, start, planned.end, pulled.sizes)
        for start, data in pulled.runs
        if start < planned.end
    ]


def _readable_from(
    connection: Connection, planned: OffsetRange, offset: int, options: ReadOptions, error: OffsetOutOfRange
) -> int:
    """Where to go on when the messages at `offset` are gone. Raises DataLoss."""
    bounds = partition_bounds(connection, planned.id)
    following = min(max(bounds.first, offset), planned.end) if offset < bounds.first else planned.end
    lost = Lost(planned.id, offset, following)
    if options.fail_on_data_loss:
        raise DataLoss([lost], bounds.first, bounds.end) from error
    log.warning("lost while reading: %s (failOnDataLoss=false)", lost)
    return following
