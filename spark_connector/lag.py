"""Measure the lag of streaming queries, that is, how many stored messages they have not read yet. A listener receives
Spark's progress events and asks the brokers for the ends of the partitions.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import NamedTuple, Self

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from metaq.client.questions.asking import Asked
from metaq.client.questions.cluster import Cluster
from metaq.client.questions.stored_records import waiting_from
from metaq.client.records.results import TopicPartition
from metaq.client.settings.config import ConnectionConfig, Protocol
from metaq.protocol.errors import CoordinationError, MetaqError

from .offsets import from_json

__all__ = ["LagListener", "LagReport", "PartitionLag", "partition_lag", "positions_of"]

log = logging.getLogger(__name__)

PartitionOffsets = dict[TopicPartition, int]


class PartitionLag(NamedTuple):
    """The backlog of a query in one partition, that is, the messages that it has not read yet.

    position, end: byte offsets of the query's position and of the partition's end. bytes: size of the stored messages
    between the two offsets. messages: number of these messages, or None if the broker is a Java broker, which cannot
    count them. seconds: time since the broker stored the oldest of these messages. It is 0.0 if there are no such
    messages, and None if a Java broker has stored the oldest one, because the id of such a message contains no time.
    """

    partition: TopicPartition
    position: int
    end: int
    bytes: int
    messages: int | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class LagReport:
    """The lag of one query after the micro-batch `batch`. failures: for each partition whose lag could not be measured,
    the reason; these partitions are not in `partitions`.
    """

    query_id: str
    name: str | None
    batch: int
    partitions: tuple[PartitionLag, ...]
    failures: Mapping[TopicPartition, str] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """The backlog in bytes, summed over all partitions."""
        return sum(each.bytes for each in self.partitions)

    @property
    def messages(self) -> int | None:
        """The number of waiting messages, summed over all partitions. It is None if a broker cannot count the messages
        of a partition.
        """
        counts = [each.messages for each in self.partitions]
        return None if None in counts else sum(each for each in counts if each is not None)

    @property
    def seconds(self) -> float | None:
        """The age of the oldest waiting message in seconds, the maximum over all partitions. It is None if a Java
        broker has stored the oldest waiting message of a partition, because the id of such a message contains no time.
        """
        ages = [each.seconds for each in self.partitions]
        return None if None in ages else max((each for each in ages if each is not None), default=0.0)


class _Progress(NamedTuple):
    name: str | None
    batch: int
    positions: PartitionOffsets


class LagListener(StreamingQueryListener):
    """Reports the lag of each query after each micro-batch, and while the query is idle. Register it with
    `spark.streams.addListener(LagListener(zookeeper))`.

    The event handlers only store a query's position. A thread of this object asks the brokers and makes the reports, so
    a broker that does not answer blocks neither a query nor another listener. If micro-batches end faster than the
    thread can measure their lag, some micro-batches get no report. Remove the listener from Spark before calling
    close().
    """

    def __init__(
        self,
        zookeeper: str,
        on_lag: Callable[[LagReport], None] | None = None,
        *,
        root: str = "/meta",
        protocol: Protocol = "auto",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """on_lag: called with each report, on this object's thread. clock: returns seconds since 1970. It must agree
        with the brokers' clocks: the age of a message is the time of `clock` minus the time at which a broker stored
        the message.
        """
        self._zookeeper, self._root, self._protocol = zookeeper, root, protocol
        self._on_lag = on_lag
        self._clock = clock
        self._cluster: Cluster | None = None
        self._known: dict[str, _Progress] = {}
        self._due: set[str] = set()
        self._reports: dict[str, LagReport] = {}
        self._thread = ThreadPoolExecutor(1, "metaq-lag")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the thread, the ZooKeeper session and all connections. If the thread is making a report, the call first
        waits until the report is made.
        """
        self._thread.shutdown(wait=True, cancel_futures=True)
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def report(self, query: StreamingQuery | str) -> LagReport | None:
        """Return the last report of a query, which the caller gives as an object or by its id (not runId). Return None
        if there is no report for this query yet. Any thread may call this.
        """
        return self._reports.get(query if isinstance(query, str) else str(query.id))

    # --- Spark's events, on a thread of Spark -----------------------------------------------------------------------

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  # the names are Spark's
        """Do nothing, because the position of a query that has just started is not known yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress = event.progress
        positions = positions_of(source.endOffset for source in progress.sources)
        if positions:
            self._known[str(progress.id)] = _Progress(progress.name, progress.batchId, positions)
            self._schedule(str(progress.id))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Measure the query's lag now, although no micro-batch has ended. An idle query can have unread messages
        because it waits for minOffsetsPerTrigger, or because a broker is absent.
        """
        if str(event.id) in self._known:
            self._schedule(str(event.id))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Forget the query's position, so that its lag is no longer measured. `report` still returns the query's last
        report.
        """
        self._known.pop(str(event.id), None)

    # --- on its own thread ------------------------------------------------------------------------------------------

    def _schedule(self, query_id: str) -> None:
        if query_id not in self._due:
            self._due.add(query_id)
            self._thread.submit(self._measure, query_id)

    def _measure(self, query_id: str) -> None:
        self._due.discard(query_id)
        known = self._known.get(query_id)
        if known is None:
            return
        try:
            report = self._ask(query_id, known)
        except MetaqError as error:
            log.warning("the lag of query %s is not known: %s", query_id, error)
            return
        self._reports[query_id] = report
        if self._on_lag is not None:
            try:
                self._on_lag(report)
            except Exception:
                log.exception("on_lag failed for query %s", query_id)

    def _ask(self, query_id: str, known: _Progress) -> LagReport:
        if self._cluster is None:
            self._cluster = Cluster(self._zookeeper, root=self._root, config=ConnectionConfig(protocol=self._protocol))
        survey = self._cluster.survey()
        found: list[PartitionLag] = []
        failures: dict[TopicPartition, str] = {}
        for partition, position in sorted(known.positions.items()):
            question = partial(partition_lag, position=position, now=self._clock())
            try:
                found.append(survey.answer(partition, question))
            except CoordinationError:
                raise
            except MetaqError as error:
                failures[partition] = str(error)
        return LagReport(query_id, known.name, known.batch, tuple(found), failures)


def positions_of(offsets: Iterable[str | None]) -> PartitionOffsets:
    """Return the byte offset that a query has reached in each partition of its metaq sources. offsets: the offset of
    each source of the query, from Spark's progress report. Offsets of sources other than metaq are ignored.

    Spark does not report the kind of a source that is written in Python, only its offset. So metaq's sources are
    recognized by the form of the offset, `{"trades":{"0-1":4096}}`.
    """
    positions: PartitionOffsets = {}
    for text in offsets:
        try:
            named = json.loads(text or "{}")
            if isinstance(named, dict) and all(isinstance(each, dict) for each in named.values()):
                positions |= {each: at for each, at in from_json(named).items() if type(at) is int}
        except ValueError:
            continue
    return positions


def partition_lag(connection: Asked, partition: TopicPartition, position: int, now: float) -> PartitionLag:
    """Return the backlog after byte `position` of a partition. now: seconds since 1970. Raises the errors of
    `waiting_from`.
    """
    waiting = waiting_from(connection, partition, position, now)
    end = waiting.bounds.end
    return PartitionLag(partition, position, end, waiting.bytes, waiting.messages, waiting.seconds)
