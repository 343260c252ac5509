"""Read topics in a batch query. The driver plans byte ranges, and each task reads one range over a connection of its
own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from operator import attrgetter

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from metaq.client.fetching.tuning import LARGEST_GET_BYTES
from metaq.client.questions.partition_bounds import Bounds, offset_after, partition_bounds
from metaq.client.questions.stored_records import BegunPull, Pulled, located
from metaq.client.records.arrow import DecodedColumns, decode_columns
from metaq.client.records.decoding import Records, in_bytes, joined
from metaq.client.transport.connection import Connection, Endpoint
from metaq.client.transport.redirects import Redirects
from metaq.coordination.runtime.backoff import Backoff
from metaq.protocol.errors import (
    BrokerUnavailable,
    CorruptRecord,
    LeaderMoved,
    MetaqError,
    NoMessageBegins,
    NotLeader,
    OffsetOutOfRange,
    RequestTimedOut,
)

from .offsets import DataLoss, Lost, OffsetRange, followed
from .options import ReadOptions
from .planning import FAILOVER_SECONDS, open_cluster, plan_query
from .pushdown import Pushed, push
from .schema import schema_for, to_batch
from .set_nodes import QUIET_SECONDS, SetNodes
from .workers import spare_modules

__all__ = ["Failover", "FilteringReader", "MetaqReader", "RangeReader", "read_partition"]

log = logging.getLogger(__name__)


class MetaqReader(DataSourceReader):
    """Reads the messages of a batch query for Spark. The driver creates the reader, and each task receives a pickled
    copy. The reader contains the options, and those filters of the query that reduce the amount of fetched data.
    """

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.pushed = Pushed(tags=frozenset(options.tags) or None)

    def partitions(self) -> list[InputPartition]:
        """Return one Spark input partition for each byte range to read. The ranges are fixed by this call, so messages
        that brokers store later are not part of the query.
        """
        return [InputPartition(planned) for planned in plan_query(self.options, self.pushed)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one range, in order. Raises BrokerUnavailable; Spark then runs the task again."""
        return read_partition(self.options, partition, self.pushed.sent_tags)


class FilteringReader(MetaqReader):
    """A reader that uses the query's filters to fetch less data.

    This reader is not the default, because results may lack rows: Spark 4.3 keeps the plan of a DataFrame's first
    query, including the filters of this query. If a later query of the same DataFrame has no filter to push, Spark uses
    the first query's plan, and the result of the later query lacks the rows that the first query's filters exclude.
    """

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802  # Spark's name
        """Store the conditions of the query's filters, so that tasks fetch fewer messages. Return all the filters,
        which tells Spark to apply them itself, too.
        """
        self.pushed = push(filters, self.pushed)
        return filters


def read_partition(
    options: ReadOptions, partition: InputPartition, tags: tuple[str, ...] = ()
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of one range; called in a task. The function reads from the planned broker. If the planned
    broker becomes unavailable during the read, the function continues with the broker that serves the partition by
    then.

    Raises the errors of RangeReader.batches, and BrokerUnavailable when no broker has served the partition for
    FAILOVER_SECONDS.
    """
    planned: OffsetRange | None = partition.value
    if planned is None:  # the partition that Spark makes for a query without ranges
        return
    spare_modules()
    nodes = SetNodes(planned.id, planned.nodes, options.connection)
    reader, search = RangeReader(planned, options, tags, nodes), Failover(planned, options)
    endpoint = nodes.first(planned.endpoint)
    while True:
        try:
            connection = nodes.connect(endpoint)
            connection.expects_bulk = True
            try:
                yield from reader.batches(connection)
            finally:
                connection.close()
            return
        except (BrokerUnavailable, RequestTimedOut, NotLeader) as error:
            leader = None if isinstance(error, NotLeader) else nodes.leader(endpoint)
            endpoint = search.next(reader.position, error, leader)
            reader.place = search.place


class RangeReader:
    """Reads the messages of one range in a task. position: byte offset of the next message to return. place: the
    partition that contains the range now. If the partition has moved to another broker after the planning, `place`
    names it by its new name. The rows that this reader returns always name the planned partition, so that a repeated
    task returns the same rows.
    """

    def __init__(self, planned: OffsetRange, options: ReadOptions, tags: tuple[str, ...], nodes: SetNodes) -> None:
        self.position = planned.start
        self.place = planned.id
        self._asked_bytes = 0
        self._nodes = nodes
        self._planned = planned
        self._options = options
        self._tags = tags

    def batches(self, connection: Connection) -> Iterator[pa.RecordBatch]:
        """Yield record batches from `position` to the end of the range. The method pulls each block from the broker
        while the previous block is processed. So at most two blocks and one batch are in memory.

        Bytes of the range can be lost, because retention has deleted unread messages or because the topic was deleted
        and created again; bytes can also be damaged. If failOnDataLoss is true, the method raises DataLoss for lost
        bytes and CorruptRecord for damaged bytes. If failOnDataLoss is false, it logs these bytes and skips them.
        Also raises BrokerUnavailable if a slave has not copied the whole range yet.
        """
        end = self._planned.end
        coming = self._ask(connection, self.position)
        while self.position < end:
            try:
                pulled = self._answer(connection, coming)
            except OffsetOutOfRange as error:
                self.position = self._readable_from(connection, error)
                if self.position < end:
                    coming = self._ask(connection, self.position)
                continue
            except CorruptRecord as error:
                self.position = self._behind(connection, error)
                if self.position < end:
                    coming = self._ask(connection, self.position)
                continue
            ahead = pulled.next_offset is not None and self.position < pulled.next_offset < end
            if ahead and pulled.next_offset is not None:
                coming = self._ask(connection, pulled.next_offset)
            try:
                blocks, damage = self._blocks(pulled)
            except _CutOff:
                coming = self._ask(connection, self.position, LARGEST_GET_BYTES)
                continue
            if blocks and blocks[-1].end > end:
                self._lose(Lost(self._planned.id, self._planned.start, end), partition_bounds(connection, self.place))
            following = pulled.next_offset
            if following is None:
                following = blocks[-1].end if blocks else self.position
                if damage is None and following < end:
                    coming = self._ask(connection, following)
            for block in blocks:
                self.position = block.end  # while the caller has the block, it counts as returned
                for part in self._unpacked(block):
                    yield _chosen(part, self._options, self._planned.planned_ms)
            if damage is not None:
                if ahead:
                    self._drop(coming)
                following = self._behind(connection, damage)
                if following < end:
                    coming = self._ask(connection, following)
            self.position = following

    def _ask(self, connection: Connection, offset: int, most_bytes: int | None = None) -> BegunPull:
        """Send the next pull, from `offset` on. Do not wait for the answer: it arrives while this thread and Spark
        process the previous block. So the reader needs no second thread that waits for the answer. Such a thread would
        compete with this thread for the interpreter's lock. most_bytes: maximum size of the answer; None means the size
        that the options set.
        """
        options = self._options
        self._asked_bytes = most_bytes or options.fetch_bytes
        return BegunPull(connection, self.place, offset, self._asked_bytes, self._tags, options.where)

    def _answer(self, connection: Connection, coming: BegunPull) -> Pulled:
        """Return the answer to a pull. Raises LeaderMoved and the errors of BegunPull.result. Also raises
        OffsetOutOfRange if the partition has no more messages although the range is not completely read.
        """
        if self._nodes:
            self._wait(connection, coming)
        pulled = coming.result()
        if not pulled.runs and (pulled.next_offset is None or pulled.next_offset <= self.position):
            bounds = partition_bounds(connection, self.place)
            raise OffsetOutOfRange(self.position, bounds.first, bounds.end)
        return pulled

    def _wait(self, connection: Connection, coming: BegunPull) -> None:
        """Wait until the answer of a node of a broker set arrives. If it takes long, the node may be frozen and never
        answer, so ask the other nodes meanwhile which node leads. Raises LeaderMoved if another node leads.
        """
        give_up = time.monotonic() + self._options.connection.request_timeout_seconds
        while not coming.wait(QUIET_SECONDS) and time.monotonic() < give_up:
            leader = self._nodes.leader(connection.endpoint)
            if leader is not None:
                raise LeaderMoved(f"{connection.endpoint} does not answer, and {leader} leads its broker set")

    @staticmethod
    def _drop(coming: BegunPull) -> None:
        """Wait for the answer to the pull and drop it, because the connection cannot be used for other requests before
        the answer has arrived.
        """
        with suppress(OffsetOutOfRange, CorruptRecord):
            coming.result()

    def _behind(self, connection: Connection, damage: CorruptRecord) -> int:
        """Return the offset after damaged bytes, where reading can continue. Raises CorruptRecord, with the range of
        the damaged bytes, if failOnDataLoss is true or if the end of the damage is unknown.
        """
        end = self._planned.end
        if damage.position >= end:
            return end
        if isinstance(damage, NoMessageBegins):
            return self._made_anew(connection, damage)
        damage = located(connection, self.place, damage)
        if damage.end is None:
            raise damage
        if self._options.fail_on_data_loss:
            reason = f"{damage.reason}; set failOnDataLoss=false to go on behind it"
            raise CorruptRecord.of(self.place, damage.position, reason, damage.end)
        log.warning("lost while reading: %s (failOnDataLoss=false)", damage)
        return min(damage.end, end)

    def _made_anew(self, connection: Connection, inside: NoMessageBegins) -> int:
        """Return the offset of the next message after the reading position, which is inside a message. This happens if
        the topic was deleted and created again, and the new partition has already grown beyond the reading position.
        Raises DataLoss if failOnDataLoss is true.
        """
        offset, end = inside.position, self._planned.end
        following = min(offset_after(connection, self.place, offset, 1), end)
        self._lose(Lost(self._planned.id, offset, following), partition_bounds(connection, self.place), inside)
        return following

    def _lose(self, lost: Lost, bounds: Bounds, error: MetaqError | None = None) -> None:
        """Log the loss of a range, or raise DataLoss if failOnDataLoss is true."""
        if self._options.fail_on_data_loss:
            raise DataLoss([lost], bounds.first, bounds.end) from error
        log.warning("lost while reading: %s (failOnDataLoss=false)", lost)

    def _blocks(self, pulled: Pulled) -> tuple[list[DecodedColumns], CorruptRecord | None]:
        """Decode the records in the answer to a pull. Return the records before the first damaged one, and the error
        for the damaged record, or None if no record is damaged. Raises _CutOff.
        """
        planned = self._planned
        runs = pulled.runs
        apart = len(runs) > 1  # the broker did not send records between the runs
        # Without a table of sizes only the checksums tell whether a record begins at the offset.
        check = self._options.check_crcs or pulled.sizes is None
        blocks: list[DecodedColumns] = []
        together = joined(runs) if apart else None
        if together is not None:  # a batch per run would have few rows if the filter is strict
            runs = [(together.offset, memoryview(together.data)[together.start : together.end])]
        for start, data in runs:
            if start >= planned.end:
                break
            records = together or Records(*in_bytes(data), start, pulled.sizes)
            block = decode_columns(records, planned.id, check, planned.end, self._options.where)
            if block.end > start:
                blocks.append(block)
            damage = block.damage
            if not damage and block.end == start:
                if self._asked_bytes < LARGEST_GET_BYTES:
                    raise _CutOff
                damage = f"no complete record in {len(data)} bytes, as many as its broker's maxTransferSize allows"
            if damage:
                reason = f"{damage} (does the offset begin a record?)"
                return blocks, CorruptRecord.of(planned.id, block.end, reason)
        return blocks, None

    def _unpacked(self, block: DecodedColumns) -> Iterator[DecodedColumns]:
        """Yield the block unchanged if it has no compressed payloads, or if the query does not read payloads. In all
        other cases, decompress the payloads, and yield the block in parts, so that only a limited amount of
        decompressed data is in memory at a time. If a payload cannot be decompressed and failOnDataLoss is true, raises
        CorruptRecord. If failOnDataLoss is false, a warning is logged and the message is skipped.
        """
        if block.packed is None or (self._options.columns is not None and "value" not in self._options.columns.names):
            yield block
            return
        start, count = 0, len(block.packed)
        while start < count:
            try:
                part = block.unpacked(self._planned.id, start, count)
            except CorruptRecord as damage:
                if self._options.fail_on_data_loss:
                    raise
                log.warning("lost while reading: %s (failOnDataLoss=false)", damage)
                start += 1
                continue
            start += len(part.columns.ids)
            yield part

    def _readable_from(self, connection: Connection, error: OffsetOutOfRange) -> int:
        """Return the offset where reading can continue, after the broker has refused the reading position with
        OffsetOutOfRange. Raises DataLoss if failOnDataLoss is true, and BrokerUnavailable if a slave has not copied the
        messages yet.
        """
        offset, end = self.position, self._planned.end
        bounds = partition_bounds(connection, self.place)
        self._check_copied(connection, bounds)
        following = min(max(bounds.first, offset), end) if offset < bounds.first else end
        self._lose(Lost(self._planned.id, offset, following), bounds, error)
        return following

    def _check_copied(self, connection: Connection, bounds: Bounds) -> None:
        """Raise BrokerUnavailable if this broker is a slave that has not copied the whole range yet. At planning time
        the planned broker had the whole range. So if another broker has only a part of the range, that broker must be a
        slave that has not copied the rest.
        """
        planned = self._planned
        if connection.endpoint != planned.endpoint and bounds.end < planned.end:
            raise BrokerUnavailable(
                f"{connection.endpoint}, where {planned.id.topic} {planned.id} is read now, has {bounds.end} bytes of "
                f"the {planned.end} that the query reads: start the master of broker {planned.id.broker}"
            )


class _CutOff(Exception):
    """An answer in the text protocol has only the first part of its first message, because this message is larger than
    the requested size of the answer.
    """


class Failover:
    """Searches for the broker that serves a partition after the partition's former broker has gone away during a task.
    The broker that serves the partition by then can be the former broker after a restart, a slave of the former broker,
    or another node of its broker set. If the partition has moved to another broker, where it has the same offsets, the
    search finds that broker. place: the partition's name at the found broker.
    """

    def __init__(
        self,
        planned: OffsetRange,
        options: ReadOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.place = planned.id
        self._planned = planned
        self._options = options
        self._clock = clock
        self._sleep = sleep
        self._position = -1
        self._backoff = Backoff(0.05, 2.0)
        self._redirects = Redirects(follows=options.connection.listener is None)
        self._deadline = 0.0

    def next(self, position: int, error: MetaqError, leader: Endpoint | None = None) -> Endpoint:
        """Wait before the next attempt, then return the address of the broker that serves the partition by then. If the
        node that the task asked last has named the leader of its broker set, return without waiting.

        leader: the leader that other nodes of the set have named. Raises BrokerUnavailable if no broker has served the
        partition for FAILOVER_SECONDS. Raises CoordinationUnavailable.
        """
        if position != self._position:
            self._position = position
            self._backoff.reset()
            self._deadline = self._clock() + FAILOVER_SECONDS
        led = self._redirects.learn(error, self._clock()) if isinstance(error, NotLeader) else None
        while True:
            pause = self._backoff.next() if led is None else led
            if self._clock() + pause > self._deadline:
                broker = self._planned.id.broker
                raise BrokerUnavailable(
                    f"{self._planned.id.topic} {self._planned.id} was not readable from byte {position} on for "
                    f"{FAILOVER_SECONDS:g} s ({error}): start broker {broker}, or its slave, then the query"
                ) from error
            self._sleep(pause)
            led = None
            if isinstance(error, NotLeader):
                leader = self._redirects.leader(error)
            if leader is not None:
                return leader
            with open_cluster(self._options) as cluster:
                (self.place,) = followed({self.place: position}, cluster.moves())
                source = cluster.sources([self.place]).get(self.place)
            if source is not None:
                log.warning(
                    "%s %s: %s; going on at %s", self._planned.id.topic, self._planned.id, error, source.endpoint
                )
                return source.endpoint


def _chosen(block: DecodedColumns, options: ReadOptions, planned_ms: int) -> pa.RecordBatch:
    """Return the columns that `options` select, for the wanted rows of the block. The wanted rows are the messages that
    had not expired at `planned_ms` and, if the options name tags, have one of these tags. The tags are checked here
    because brokers compare only the tags' hashes.
    """
    columns = block.columns
    schema = options.columns or to_arrow_schema(schema_for(options.headers, options.include_priority), timezone="UTC")
    batch = to_batch(columns, schema, typed=options.typed_headers)
    chosen = None if block.expires is None else pa.array(block.expires > planned_ms)
    if options.tags:
        tagged = pc.is_in(columns.of_attributes(attrgetter("tag"), pa.string()), pa.array(options.tags))
        chosen = tagged if chosen is None else pc.and_(chosen, tagged)
    return batch if chosen is None else batch.filter(chosen)
