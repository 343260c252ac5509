"""Read topics as a stream. For each micro-batch, the driver chooses the end offset in each partition, within the limits
that the options set. Tasks then read the ranges up to these offsets, as in a batch query.

A stream's position is a byte offset for each partition (offsets.StreamOffsets); Spark keeps it in the query's
checkpoint. Spark calls all methods except `read` on one thread of one Python process on the driver.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from metaq.client.questions.asking import need_frames
from metaq.client.questions.cluster import Cluster
from metaq.client.questions.partition_bounds import bounds_at, offset_after, offset_at_time, partition_bounds
from metaq.client.records.results import TopicPartition
from metaq.client.runtime.wall_clock import now_ms
from metaq.client.transport.connection import Connection
from metaq.coordination.records.move_payloads import Move, MoveState
from metaq.protocol.errors import BrokerUnavailable, NoPartition, RequestRefused, RequestTimedOut
from metaq.protocol.limits import INT64_MAX

from .offsets import (
    DataLoss,
    Lost,
    OffsetRange,
    PartitionState,
    Span,
    StreamOffsets,
    admit,
    check_partitions,
    followed,
    from_json,
    position,
    started_of,
    time_wanted,
    to_json,
)
from .options import BatchLimits, Explicit, ReadOptions
from .planning import (
    check_begins,
    check_complete,
    for_tasks,
    left_out,
    look,
    open_cluster,
    select,
    selected,
    split,
    through_failover,
    warn_left_out,
)
from .reader import read_partition

__all__ = ["MetaqStreamReader"]

log = logging.getLogger(__name__)

_T = TypeVar("_T")

Offsets = dict[TopicPartition, int]
Held = Mapping[TopicPartition, PartitionState]
"""For each partition: its readable bytes, and the address of the broker that serves its reads. This broker may be a
slave.
"""


class MetaqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of a streaming query. Spark creates it on the driver; its method `read` runs in tasks. The reader opens
    one ZooKeeper session when it first needs the cluster, and closes the session in stop().
    """

    def __init__(self, options: ReadOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self.options = options
        self._clock = clock
        self._cluster: Cluster | None = None
        self._target: Offsets | None = None
        self._told_away = False
        self._known_ends: Offsets = {}
        self._committed: Offsets = {}
        self._last_batch = float("-inf")  # as with Kafka, the first micro-batch does not wait for a minimum

    # --- positions --------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # the names are Spark's
        """Return the position where a query without a checkpoint begins, that is, an offset for each partition. Raises
        NoPartition, and the errors of plan_ranges.
        """
        cluster = self._open()
        seen: set[TopicPartition] = set()

        def begin() -> dict[TopicPartition, int]:
            found, away = select(cluster, self.options, seen)
            named = [each.partition for each in away]  # they join when their broker is back
            check_partitions(self.options.starting_option, self.options.starting, found, named)
            states = look(cluster, self.options, found)
            positions = {state.id: position(self.options, state) for state in states}
            if self.options.fail_on_data_loss:
                places = [(state.endpoint, state.id, positions[state.id]) for state in states]
                check_begins(cluster, self.options.starting_option, self.options.starting, places)
            return positions

        return to_json(through_failover(cluster, begin), now_ms())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return ReadAllAvailable if the options set no limit for a micro-batch, otherwise one of Spark's other limit
        objects. The numbers in the returned object do not matter, because latestOffset applies the limits itself.
        """
        limits = self.options.limits
        if limits.max_messages is None and limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        limited = limits.max_messages is not None or limits.min_messages is not None
        return ReadMaxRows(limits.max_messages or INT64_MAX) if limited else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Store the current end of each partition, because a query with Trigger.AvailableNow reads up to these ends and
        then stops. Raises NoPartition and BrokerUnavailable. As in a batch query, BrokerUnavailable is also raised if a
        znode names partitions whose broker is absent. If the query left these partitions out, their messages would be
        read only in the next run of the query, perhaps much later.
        """
        cluster = self._open()
        self._told_away = True
        seen: set[TopicPartition] = set()

        def look_at_all() -> dict[TopicPartition, PartitionState]:
            found, away = select(cluster, self.options, seen)
            check_complete(cluster, self.options, away)
            return self._look(dict.fromkeys(found, 0), only=True)

        held = through_failover(cluster, look_at_all)
        self._target = {each: state.end for each, state in held.items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end position of the next micro-batch, that is, an end offset for each partition. A partition that
        `start` does not contain is added to the returned position (`_joining`), so that later micro-batches read it.

        A partition that has moved to another broker gets its new name and keeps its offset. If no live broker serves a
        partition, its end is its offset in `start`, so the micro-batch reads nothing from it. With
        Trigger.AvailableNow, however, this method raises BrokerUnavailable for such a partition. Raises DataLoss.
        Raises RequestRefused if the options set limits and a partition is on a Java broker, which cannot count
        messages.
        """
        self._commit(start)
        return self._patiently(lambda: self._latest(start, limit))

    def _latest(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        offsets = followed(from_json(start), self._moves())
        held = self._look(offsets)
        if held.keys() - offsets.keys():  # new partitions, or moved ones
            offsets = followed(offsets, self._moves())
            moved = from_json(start).keys() - offsets.keys()
            held = {each: state for each, state in held.items() if each not in moved}
        started_ms, joining = started_of(start), dict[TopicPartition, int]()
        if started_ms is not None:
            new = (held if self._target is None else self._target).keys() & held.keys() - offsets.keys()
            joining = {each: self._joining(held[each], started_ms) for each in sorted(new)}
        waiting = self._waiting(offsets, {each: state for each, state in held.items() if each not in joining})
        limits = BatchLimits() if isinstance(limit, ReadAllAvailable) else self.options.limits
        waited = self._clock() - self._last_batch
        ends = admit(
            limits,
            waiting,
            partial(self._count, held),
            partial(self._after, held),
            may_wait=self._target is None and waited < limits.max_delay_seconds,
        )
        if ends is None:
            return start
        if any(ends[each] > span[0] for each, span in waiting.items()):
            self._last_batch = self._clock()
        return to_json(offsets | ends | joining, started_ms)

    def _joining(self, state: PartitionState, started_ms: int) -> int:
        """Return the offset where a running query begins to read a partition that it has found only now. The query did
        not find the partition when it started, because the partition is new or its broker was down. The options that
        say where the query starts also say which of the partition's messages from before the start of the query are
        read. started_ms: the start of the query (Unix ms).
        """
        starting, each = self.options.starting, state.id
        if starting == "earliest":
            return state.first
        cluster = self._open()
        if starting == "committed":
            (offset,) = cluster.committed_many(self.options.group or "", [each])
            return state.first if offset is None else min(max(offset.offset, state.first), state.end)
        if isinstance(starting, Explicit) and str(each) in (named := starting.offsets.get(each.topic, {})):
            return min(max(named[str(each)], state.first), state.end)
        time_ms = time_wanted(starting, each)
        question = partial(offset_at_time, partition=each, time_ms=started_ms if time_ms is None else time_ms)
        try:
            return cluster.ask_at(state.endpoint, question)
        except RequestRefused as error:  # from a Java broker
            log.warning("%s %s came after the query's start; it is read from its start: %s", each.topic, each, error)
            return state.first

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the last known end of each partition, for Spark's progress reports."""
        return to_json(self._known_ends) if self._known_ends else None

    def commit(self, end: dict[str, Any]) -> None:
        """Spark calls this method when it has processed all messages before the position `end`. If the option `group`
        is set, commit `end` as the offsets of this consumer group.
        """
        self._commit(end)

    def stop(self) -> None:
        """End the ZooKeeper session and all connections."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    # --- reading ----------------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the byte ranges between the two positions, for the tasks. Raises DataLoss, and BrokerUnavailable if a
        partition has no live broker.
        """
        return self._patiently(lambda: self._planned(from_json(start), from_json(end), started_of(end)))

    def _planned(self, before: Offsets, after: Offsets, started_ms: int | None) -> list[InputPartition]:
        moves = self._moves()
        before, after = followed(before, moves), followed(after, moves)
        unknown = 0 if started_ms is None else INT64_MAX  # partitions that join at the end of a batch are empty in it
        wanted = {each: (first, last) for each, last in after.items() if (first := before.get(each, unknown)) < last}
        held = self._look({each: last for each, (_, last) in wanted.items()}, only=True)
        self._report([lost for each, span in wanted.items() if (lost := _lost(each, span, held[each]))], held)
        ranges = [
            OffsetRange(each, held[each].endpoint, max(first, held[each].first), last)
            for each, (first, last) in sorted(wanted.items())
            if max(first, held[each].first) < last <= held[each].end
        ]
        cluster = self._open()
        return [InputPartition(each) for each in for_tasks(cluster, self.options, split(cluster, self.options, ranges))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one range, in order. Raises BrokerUnavailable (Spark then retries the task)."""
        return read_partition(self.options, partition, self.options.tags)

    # --- the cluster ------------------------------------------------------------------------------------------------

    def _patiently(self, work: Callable[[], _T]) -> _T:
        """Return the result of `work`. While brokers are absent, retry `work` for as long as a task would wait for them
        (FAILOVER_SECONDS).
        """
        return through_failover(self._open(), work, runs=True)

    def _open(self) -> Cluster:
        if self._cluster is None:
            self._cluster = open_cluster(self.options)
        return self._cluster

    def _look(self, offsets: Offsets, *, only: bool = False) -> dict[TopicPartition, PartitionState]:
        """Ask the brokers for the readable bytes of the partitions in `offsets` and, unless `only` is set, of all
        partitions that the options select; return the answers.

        If a slave serves a partition and has fewer bytes than the query has already read, the bytes that the slave
        lacks are not lost, because the master has them. So the method treats this partition like one whose broker is
        unavailable. Raises BrokerUnavailable.
        """
        cluster = self._open()
        wanted = sorted({*offsets, *([] if only else self._selected(cluster, offsets))})
        survey = cluster.survey()
        sources = survey.sources(wanted)
        held: dict[TopicPartition, PartitionState] = {}
        for each in wanted:
            try:
                bounds = survey.answer(each, partition_bounds)
                source = sources[each]
                if not source.is_master and bounds.end < offsets.get(each, 0):
                    raise BrokerUnavailable(
                        f"{each.topic} {each} is read up to byte {offsets[each]}, and its slave has {bounds.end} bytes "
                        f"only: start the master of broker {each.broker}"
                    )
            except (BrokerUnavailable, RequestTimedOut) as error:
                if only or self._target is not None or not offsets:
                    raise
                log.warning("%s %s is left out of this batch: %s", each.topic, each, error)
                continue
            held[each] = PartitionState(each, source.endpoint, bounds.first, bounds.end)
        self._known_ends |= {each: known.end for each, known in held.items()}
        return held

    def _selected(self, cluster: Cluster, offsets: Offsets) -> list[TopicPartition]:
        """Return the partitions that the options select (`selected`). Return an empty list if all partitions of a topic
        are just being handed over to another broker. The hand-over takes some seconds, so a later micro-batch finds the
        partitions again.
        """
        try:
            found = selected(cluster, self.options)
        except NoPartition:
            topics = {each.topic for each in offsets}
            if not any(move.topic in topics and move.state is MoveState.HANDING_OVER for move in self._moves()):
                raise
            return []
        if not self._told_away:
            away = left_out(cluster, self.options, cluster.view.brokers(), {*found, *offsets})
            warn_left_out(away, "until its broker is back")
            self._told_away = True
        return found

    def _moves(self) -> list[Move]:
        return self._open().moves()

    def _waiting(self, offsets: Offsets, held: Held) -> dict[TopicPartition, Span]:
        """Return for each partition in `held` the bytes that the query has not read yet and can read now. With
        Trigger.AvailableNow these are only the bytes before the stored end of the partition. Raises DataLoss.
        """
        losses: list[Lost] = []
        waiting: dict[TopicPartition, Span] = {}
        for each, state in held.items():
            end = state.end
            if self._target is not None:
                if each not in self._target:
                    continue  # the partition came after the trigger
                end = min(end, self._target[each])
            start = offsets.get(each, 0)
            if lost := _lost(each, (start, start), state):
                losses.append(lost)
            begin = min(max(start, state.first), state.end)
            waiting[each] = (begin, max(begin, end))
        self._report(losses, held)
        return waiting

    def _report(self, losses: list[Lost], held: Held) -> None:
        """Report every lost range: raise DataLoss or, if failOnDataLoss is false, log a warning for each range."""
        if losses and self.options.fail_on_data_loss:
            one = held[losses[0].id]
            raise DataLoss(losses, one.first, one.end)
        for lost in losses:
            log.warning("lost: %s (failOnDataLoss=false)", lost)

    def _count(self, held: Held, partition: TopicPartition, span: Span) -> int:
        def counted(connection: Connection) -> int:
            need_frames(connection, "cannot count messages", "leave the limits out")
            before, until = (bounds_at(connection, partition, offset)[1] or 0 for offset in span)
            return until - before

        return self._open().ask_at(held[partition].endpoint, counted)

    def _after(
        self,
        held: Held,
        partition: TopicPartition,
        offset: int,
        messages: int,
        size: int,
    ) -> int:
        question = partial(offset_after, partition=partition, offset=offset, messages=messages, max_bytes=size)
        return self._open().ask_at(held[partition].endpoint, question)

    def _commit(self, offsets: StreamOffsets) -> None:
        """Write the consumer group's changed offsets to ZooKeeper, in the form that 1.x uses. Raises
        CoordinationUnavailable.
        """
        if self.options.group is None:
            return
        changed = {each: end for each, end in from_json(offsets).items() if self._committed.get(each) != end}
        if changed:
            cluster = self._open()
            stored = cluster.committed_many(self.options.group, list(changed))
            for (each, end), offset in zip(changed.items(), stored, strict=True):
                if offset is not None and end < offset.offset != self._committed.get(each):
                    log.warning(
                        "group %s stood at byte %d of %s %s, which this query has not read: it is set back to %d. "
                        "Another query or consumer uses the group: give each its own, or leave the option group out",
                        *(self.options.group, offset.offset, each.topic, each, end),
                    )
            cluster.commit(self.options.group, changed)
            self._committed |= changed


def _lost(partition: TopicPartition, span: Span, held: PartitionState) -> Lost | None:
    """Return the part of `span` that the partition no longer has, or None if it has all of `span`. Usually retention
    has deleted the first bytes of `span`; these are then returned. If the partition has the first byte of `span`, but
    ends before the end of `span`, the topic was deleted and created again. Then the whole `span` counts as lost,
    because the partition now has other messages at these offsets.
    """
    start, end = span
    if start < held.first:
        return Lost(partition, start, min(end, held.first) if end > start else held.first)
    if max(start, end) > held.end:
        return Lost(partition, min(start, held.end), max(start, end))
    return None
