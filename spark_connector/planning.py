"""Plan a query on the driver: ask the cluster for the partitions and their readable bytes, and decide where to cut them
into ranges for tasks.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from metaq.client.questions.cluster import Cluster
from metaq.client.questions.left_out import LeftOut, why_away, without
from metaq.client.questions.partition_bounds import offset_after, offset_at_time, partition_bounds
from metaq.client.questions.stored_records import read_bytes
from metaq.client.records.results import TopicPartition
from metaq.client.runtime.wall_clock import now_ms
from metaq.client.settings.config import ConnectionConfig
from metaq.client.transport.connection import Connection, Endpoint
from metaq.coordination.records.move_payloads import MoveState
from metaq.coordination.runtime.backoff import Backoff
from metaq.protocol.errors import (
    BrokerUnavailable,
    ConfigError,
    CorruptRecord,
    NoMessageBegins,
    NoPartition,
    NotLeader,
    RequestTimedOut,
)
from metaq.protocol.limits import INT64_MAX

from .offsets import OffsetRange, PartitionState, cut, followed, narrow, parts_of, plan_ranges, shown, time_wanted
from .options import Explicit, RangeEnds, ReadOptions, WriteOptions
from .pushdown import Pushed

__all__ = [
    "FAILOVER_SECONDS",
    "PLANNING_SECONDS",
    "WARNING_SECONDS",
    "check_begins",
    "check_complete",
    "check_published",
    "ending_behind",
    "for_tasks",
    "left_out",
    "look",
    "open_cluster",
    "plan_query",
    "select",
    "selected",
    "split",
    "through_failover",
    "warn_left_out",
]

log = logging.getLogger(__name__)

WARNING_SECONDS = 10.0
"""Seconds between two log lines while a query waits for brokers."""

PLANNING_SECONDS = 10.0
"""Maximum seconds that planning waits in one of three cases: until each broker set with a live node has a leader, which
must serve all topics of the set; for a topic that no live broker has, if perhaps a set is just changing its leader; and
for a partition that is perhaps just moving to another broker.
"""

FAILOVER_SECONDS = 60.0
"""Maximum seconds that the driver waits during planning for brokers that are absent or do not answer. A task waits for
its broker up to the same time. A task that reads waits until the broker is back or another broker serves the partition;
then the task continues after the last message that it has read. A task that writes waits until a broker set without a
leader has its next leader.
"""

_T = TypeVar("_T")


def open_cluster(options: ReadOptions) -> Cluster:
    """Return a Cluster that is connected to the options' ZooKeeper. Raises CoordinationUnavailable."""
    return Cluster(options.zookeeper, root=options.root, config=options.connection, patience_seconds=PLANNING_SECONDS)


def plan_query(options: ReadOptions, pushed: Pushed) -> list[OffsetRange]:
    """Return the byte ranges of a batch query, cut as the options say. If the options set no end, each range ends at
    the current end of its partition.

    Raises CoordinationUnavailable and the errors of plan_ranges. Raises NoPartition for a topic or partition that no
    live broker has. Raises BrokerUnavailable if a broker does not answer, and if a znode names a partition that no live
    broker has. Raises RequestRefused if a Java broker cannot look up a time or a count.
    """
    with open_cluster(options) as cluster:
        seen: set[TopicPartition] = set()

        def plan() -> list[OffsetRange]:
            found, away = select(cluster, options, seen)
            check_complete(cluster, options, away)
            planned = plan_ranges(options, look(cluster, options, found), [each.partition for each in away])
            planned = _between_messages(cluster, options, planned)
            ranges = [_push(cluster, each, pushed) for each in planned if pushed.wants(each.id)]
            ranges = [] if pushed.nothing else [each for each in ranges if each.start < each.end]
            return split(cluster, options, ranges)

        return for_tasks(cluster, options, through_failover(cluster, plan))


def through_failover(cluster: Cluster, work: Callable[[], _T], *, runs: bool = False) -> _T:
    """Return the result of `work`. If `work` fails because a broker is absent, retry it for FAILOVER_SECONDS from the
    first failure on.

    runs: whether the query is already running. A query that is already running has found its topics earlier. So if
    `work` raises NoPartition for such a query, because no live broker has one of the topics now, the function retries
    `work` as for an absent broker. For a query that is not running yet, the function usually raises NoPartition at
    once. But it first retries `work` for PLANNING_SECONDS if the cluster has broker sets (one may be changing its
    leader), or if a move of partitions is handing them over to another broker. Raises BrokerUnavailable when the time
    is over, and the errors of `work`.
    """
    backoff = Backoff(0.1, 0.5)
    begun: float | None = None
    patience = FAILOVER_SECONDS if runs else 0.0
    next_warning = -math.inf
    while True:
        try:
            return work()
        except (BrokerUnavailable, RequestTimedOut, NotLeader, NoPartition) as error:
            now, pause = time.monotonic(), backoff.next()
            if not isinstance(error, NoPartition):
                patience = FAILOVER_SECONDS
            elif begun is None and not runs:
                patience = PLANNING_SECONDS if _may_change(cluster) else 0.0
            begun = now if begun is None else begun
            if now + pause > begun + patience:
                if isinstance(error, NoPartition):
                    raise
                raise BrokerUnavailable(f"the query could not be planned for {patience:g} s: {error}") from error
            if now >= next_warning:
                log.warning("planning begins anew, for %g s at most: %s", begun + patience - now, error)
                next_warning = now + WARNING_SECONDS
            time.sleep(pause)


def _may_change(cluster: Cluster) -> bool:
    return bool(cluster.view.set_ids()) or any(each.state is MoveState.HANDING_OVER for each in cluster.moves())


def for_tasks(cluster: Cluster, options: ReadOptions, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
    """Return the ranges with two additional values that the tasks need. Each range of a broker set gets the addresses
    of the set's nodes, so that a task can find the set's leader. All ranges get the same planning time, so that all
    tasks agree on which messages have expired. If the query reads expired messages, too, they get 0 instead.
    """
    nodes = cluster.set_nodes() if ranges else {}
    planned_ms = 0 if options.include_expired else now_ms()
    return [replace(each, nodes=nodes.get(each.id.broker, ()), planned_ms=planned_ms) for each in ranges]


def select(
    cluster: Cluster, options: ReadOptions, seen: set[TopicPartition]
) -> tuple[list[TopicPartition], list[LeftOut]]:
    """Return two lists of partitions that the options select: those that a live broker offers (see `selected`), and
    those that no live broker offers. No live broker reports the partitions of the second list. So a partition can be in
    this list only if a znode or `seen` names it.

    seen: the partitions that earlier calls for the same query found. This call adds the offered partitions to `seen`,
    so that the next call knows them if their broker is absent by then. Raises BrokerUnavailable if a topic has only
    partitions that are not offered, or if the option `assign` names a partition that is not offered. The error names
    these partitions.
    """
    registered = cluster.view.brokers().keys()
    try:
        found = selected(cluster, options)
    except NoPartition as error:
        topics = options.topics or sorted({each.topic for each in options.assigned})
        there = [each for topic in topics for each in cluster.readable(topic)]
        away = [each for each in _away(cluster, options, registered, there, seen) if each.exists]
        if away:
            raise BrokerUnavailable(f"not readable now: {without(away)}") from error
        raise
    away = _away(cluster, options, registered, found, seen)
    if not all(each.exists for each in away):  # a move may have ended, or a broker started, between the two reads
        found = selected(cluster, options)
        away = _away(cluster, options, registered, found, seen)
    seen.update(found)
    return found, away


def _away(
    cluster: Cluster,
    options: ReadOptions,
    registered: Collection[int],
    offered: Collection[TopicPartition],
    seen: Collection[TopicPartition],
) -> list[LeftOut]:
    """Return the result of `left_out`, plus the partitions of `seen` that no live broker offers any more."""
    away = left_out(cluster, options, registered, offered)
    known = {*offered, *(each.partition for each in away)}
    if known.issuperset(seen):
        return away
    gone = sorted(followed(dict.fromkeys(seen, 0), cluster.moves()).keys() - known)
    return [*away, *(LeftOut(each, "this query", *why_away(each, None, registered)) for each in gone)]


def left_out(
    cluster: Cluster, options: ReadOptions, registered: Collection[int], offered: Collection[TopicPartition]
) -> list[LeftOut]:
    """Return the partitions that a znode names and the options select, but that are not among `offered`, the partitions
    that live brokers offer. registered: the ids of the brokers that were live before `offered` was read.
    """
    if options.assigned:
        topics = {each.topic for each in options.assigned}
        found = cluster.left_out(topics.__contains__, registered, offered)
        return [each for each in found if each.partition in options.assigned]
    if options.pattern is not None:
        matches = re.compile(options.pattern).fullmatch
        return cluster.left_out(lambda topic: matches(topic) is not None, registered, offered)
    return cluster.left_out(options.topics.__contains__, registered, offered)


def check_complete(cluster: Cluster, options: ReadOptions, away: Sequence[LeftOut]) -> None:
    """Decide whether a query can run without the partitions of `away`. Raise BrokerUnavailable if failOnDataLoss is
    true and some of these partitions surely exist (LeftOut.exists). In all other cases, log a warning that the query
    does not read these partitions. away: the second result of `select`.
    """
    missed = [each for each in away if each.exists]
    if missed and options.fail_on_data_loss:
        said = "start the broker, or set failOnDataLoss=false to read the others without them"
        raise BrokerUnavailable(f"these partitions cannot be read: {without(missed)}: {said}")
    warn_left_out(away, "failOnDataLoss=false")
    absent = cluster.view.absent_brokers(cluster.view.brokers())
    unknown = [each for each in absent if each not in {found.partition.broker for found in away}]
    if unknown and not options.assigned:
        log.warning(
            "broker %s is not registered in ZooKeeper; if it has partitions, they are left out: no znode names any",
            ", ".join(map(str, unknown)),
        )


def warn_left_out(away: Sequence[LeftOut], how: str) -> None:
    """Log a warning about the partitions that a query leaves out. how: a text in the warning about those partitions
    that surely exist; it says why, or until when, the query leaves them out.
    """
    for exists, said in ((True, how), (False, "it is starting, or they were deleted there")):
        if found := [each for each in away if each.exists is exists]:
            log.warning("left out: %s (%s)", without(found), said)


def selected(cluster: Cluster, options: ReadOptions) -> list[TopicPartition]:
    """Return the partitions that the option subscribe, subscribePattern or assign selects now. Raises NoPartition,
    CoordinationUnavailable.

    A pattern that matches no topic is not an error, as in the Kafka source.
    """
    if options.pattern is not None:
        topics = [topic for topic in cluster.view.topics() if re.fullmatch(options.pattern, topic)]
        return [partition for topic in topics for partition in cluster.readable(topic)]
    if options.assigned:
        topics = sorted({each.topic for each in options.assigned})
        there = [partition for topic in topics for partition in _readable(cluster, topic)]
        for each in options.assigned:
            if each not in there:
                raise NoPartition(f"assign: there is no partition {each.topic} {each}: choose from {_listed(there)}")
        return sorted(options.assigned)
    return [partition for topic in options.topics for partition in _readable(cluster, topic)]


def _readable(cluster: Cluster, topic: str) -> list[TopicPartition]:
    found = cluster.readable(topic)
    if not found:
        raise cluster.no_partition(topic)
    return found


def _listed(partitions: Sequence[TopicPartition]) -> str:
    return ", ".join(f"{each.topic} {each}" for each in partitions)


def look(cluster: Cluster, options: ReadOptions, partitions: Sequence[TopicPartition]) -> list[PartitionState]:
    """Return the state of each partition. Raises BrokerUnavailable. Raises RequestRefused if the options give a start
    or an end as a time, and a partition is on a Java broker, which cannot look up the offset for a time.
    """
    survey = cluster.survey()
    group = options.group if options.starting == "committed" else None
    offsets = cluster.committed_many(group, partitions) if group else [None] * len(partitions)
    committed = {each: offset.offset for each, offset in zip(partitions, offsets, strict=True) if offset}
    return [survey.answer(each, partial(_state, options=options, committed=committed)) for each in partitions]


def _state(
    connection: Connection, partition: TopicPartition, *, options: ReadOptions, committed: Mapping[TopicPartition, int]
) -> PartitionState:
    bounds = partition_bounds(connection, partition)
    times = (time_wanted(options.starting, partition), time_wanted(options.ending, partition))
    starting, ending = (None if time is None else offset_at_time(connection, partition, time) for time in times)
    place = (partition, connection.endpoint, bounds.first, bounds.end)
    return PartitionState(*place, committed.get(partition), starting, ending)


def _between_messages(cluster: Cluster, options: ReadOptions, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
    """Check offsets that the user gave as JSON, because such an offset may be inside a message, and return the
    corrected ranges. If failOnDataLoss is true, an offset inside a message raises the errors of check_begins. If it is
    false, an end of a range that is inside a message is replaced by the end of this message. A start inside a message
    is not replaced, because the task that reads the range begins with the next message anyway.
    """
    if options.fail_on_data_loss:
        starts = [(each.endpoint, each.id, each.start) for each in ranges]
        ends = [(each.endpoint, each.id, each.end) for each in ranges]
        check_begins(cluster, options.starting_option, options.starting, starts)
        check_begins(cluster, options.ending_option, options.ending, ends)
    elif isinstance(options.ending, Explicit):
        return [cluster.ask_at(each.endpoint, partial(ending_behind, found=each, offset=each.end)) for each in ranges]
    return list(ranges)


def check_begins(
    cluster: Cluster, option: str, bounds: RangeEnds, places: Iterable[tuple[Endpoint, TopicPartition, int]]
) -> None:
    """Raise ConfigError if offsets that the option gives as JSON are inside messages. Offsets on a Java broker are not
    checked, because the text protocol cannot tell where messages begin. If an offset on a Java broker is inside a
    message, the task that reads the range fails.
    """
    if not isinstance(bounds, Explicit):
        return
    inside = []
    for endpoint, partition, offset in places:
        begin = cluster.ask_at(endpoint, partial(_begin, partition=partition, offset=offset))
        if begin != offset:
            inside.append(f"{partition.topic} {partition} at byte {offset} (one does at {begin})")
    if inside:
        said = f"no message begins in {', '.join(inside)}: give offsets as in the column offset"
        raise ConfigError(option, shown(bounds), f"{said}, or, if the topic was made anew, set failOnDataLoss=false")


def _begin(connection: Connection, partition: TopicPartition, offset: int) -> int:
    """Return `offset` if a message begins there, or if the partition ends there. If neither is true, return the offset
    of a message that begins nearby.
    """
    if not connection.speaks_frames or offset_after(connection, partition, offset, 0) == offset:
        return offset
    try:  # while an index is rebuilt, the answer above proves nothing
        read_bytes(connection, partition, offset, 1)
    except CorruptRecord as error:
        return error.begin if isinstance(error, NoMessageBegins) else offset
    return offset


def ending_behind(connection: Connection, found: OffsetRange, offset: int) -> OffsetRange:
    """Shorten the range `found`, so that it ends with the message that contains byte `offset` - 1, and return it. If
    `offset` is after the range's end, the range does not change. It also does not change if `offset` is in the range
    and the broker does not accept frames, because such a broker cannot look up that message.
    """
    if found.start < offset < found.end:
        offset = offset_after(connection, found.id, offset - 1, 1) if connection.speaks_frames else found.end
    return narrow(found, None, offset)


def _push(cluster: Cluster, found: OffsetRange, pushed: Pushed) -> OffsetRange:
    """Shorten the range `found` at both ends and return it. It then begins with the first and ends with the last
    message that the query's filters on the columns offset and timestamp can select.
    """
    return cluster.ask_at(found.endpoint, partial(_narrowed, found=found, pushed=pushed))


def _narrowed(connection: Connection, found: OffsetRange, pushed: Pushed) -> OffsetRange:
    if connection.speaks_frames:  # a Java broker cannot look up a time, and its messages have none to compare
        for low, high in ((pushed.min_time_ms, None), (None, pushed.max_time_ms)):
            start = None if low is None else offset_at_time(connection, found.id, max(0, low))
            end = None if high is None else offset_at_time(connection, found.id, max(0, high))
            found = narrow(found, start, end)
        if pushed.min_offset is not None and found.start < pushed.min_offset:
            skipped = pushed.min_offset - found.start
            found = narrow(found, offset_after(connection, found.id, found.start, max_bytes=skipped), None)
    return found if pushed.max_offset is None else ending_behind(connection, found, pushed.max_offset)


def split(cluster: Cluster, options: ReadOptions, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
    """Cut `ranges` at message boundaries as minPartitions and maxRecordsPerPartition say.

    Raises RequestRefused if a range to cut is on a Java broker, which has no index by count.
    """
    parts: list[OffsetRange] = []
    for whole, count in zip(ranges, parts_of(ranges, options.min_partitions), strict=True):
        boundaries: set[int] = set()
        after = _boundary(cluster, whole)
        size = whole.end - whole.start
        boundaries.update(after(whole.start, INT64_MAX, size * number // count) for number in range(1, count))
        if options.max_records is not None:
            for piece in cut(whole, boundaries):
                boundaries.update(_every(piece, options.max_records, after))
        parts += cut(whole, boundaries)
    return parts


def _boundary(cluster: Cluster, whole: OffsetRange) -> Callable[[int, int, int], int]:
    def after(offset: int, messages: int, max_bytes: int) -> int:
        question = partial(offset_after, partition=whole.id, offset=offset, messages=messages, max_bytes=max_bytes)
        return cluster.ask_at(whole.endpoint, question)

    return after


def _every(piece: OffsetRange, messages: int, after: Callable[[int, int, int], int]) -> list[int]:
    """Return the byte offset after every `messages` messages of the range `piece`."""
    found: list[int] = []
    offset = after(piece.start, messages, INT64_MAX)
    while offset < piece.end:
        found.append(offset)
        offset = after(offset, messages, INT64_MAX)
    return found


def check_published(options: WriteOptions) -> None:
    """Raise NoPartition if the option `topic` is set and no live broker accepts messages of that topic. Raises
    CoordinationUnavailable.

    If each row names its own topic, the topics are not known before the tasks run, and nothing is checked.
    """
    if options.topic is not None:
        config = ConnectionConfig(protocol=options.protocol)
        with Cluster(options.zookeeper, root=options.root, config=config) as cluster:
            cluster.partitions(options.topic)
