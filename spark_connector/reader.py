"""Reading: partitions are planned on the driver, each task reads one range over a connection of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from metaq.client.config import ConnectionConfig, check_protocol
from metaq.client.connection import Connection, Endpoint, open_connection
from metaq.client.inquiry import read_bytes

from .offsets import OffsetRange
from .options import ReadOptions
from .planning import plan_query
from .records import RecordBlock

__all__ = ["MetaqReader", "read_range"]


class MetaqReader(DataSourceReader):
    """Made on the driver and pickled to the tasks; holds options only."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        """One input partition per range; decided now, so messages that come later are not part of the query."""
        return [InputPartition(planned) for planned in plan_query(self.options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one range, in order. Raises BrokerUnavailable (Spark then tries the task again)."""
        if partition.value is None:  # what Spark makes of a query without ranges
            return
        planned: OffsetRange = partition.value
        endpoint = Endpoint(planned.host, planned.port)
        connection = open_connection(endpoint, ConnectionConfig(), check_protocol(self.options.protocol))
        try:
            yield from read_range(connection, planned, self.options.fetch_bytes)
        finally:
            connection.close()


def read_range(connection: Connection, planned: OffsetRange, fetch_bytes: int) -> Iterator[pa.RecordBatch]:
    """Pull block after block until the end of `planned`; memory is bounded by one block and its batch.

    Raises OffsetOutOfRange if retention was faster, CorruptRecord for bytes that are no records.
    """
    offset = planned.start
    while offset < planned.end:
        data = read_bytes(connection, planned.id, offset, fetch_bytes)
        block = RecordBlock(data, planned.id, offset, planned.end)
        yield block.to_arrow()
        offset = block.next_offset
