"""Ask the cluster, on the driver, for the partitions and their contents, and decide where to cut them."""

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
"""Seconds between two log lines while a query waits."""

PLANNING_SECONDS = 10.0
"""Maximum seconds that planning waits until each broker set with a node has a leader with all its topics. Planning also
waits so long for a topic that no live broker has, while a set may change its leader, and for a partition that may be
moving to another broker.
"""

FAILOVER_SECONDS = 60.0
"""Maximum seconds that the planning driver waits for silent or absent brokers. A task also waits so long for its broker
to come back or to be replaced: a reading task continues after the last message, a writing task waits for a broker set's
next leader.
"""

_T = TypeVar("_T")


def open_cluster(options: ReadOptions) -> Cluster:
    """Return an open cluster. Raises CoordinationUnavailable."""
    return Cluster(options.zookeeper, root=options.root, config=options.connection, patience_seconds=PLANNING_SECONDS)


def plan_query(options: ReadOptions, pushed: Pushed) -> list[OffsetRange]:
    """Return the ranges of a batch query, cut as the options say; they end at the current ends.

    Raises CoordinationUnavailable and the errors of plan_ranges. Raises NoPartition for a topic or partition that no
    live broker has; BrokerUnavailable, also for partitions that a znode names while their broker is absent; and
    RequestRefused if a Java broker cannot look up a time or a count.
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
    """Return the result of `work`; retry it while brokers leave and come back, for FAILOVER_SECONDS from the first
    failure on.

    runs: whether the query is already running. A running query has found its partitions before, so if no live broker
    has a topic, the topic's broker has gone. Raises BrokerUnavailable when the time is over, and the errors of `work`.
    NoPartition is raised at once, or after PLANNING_SECONDS if a broker set may change its leader, or if partitions are
    just being handed over to another broker.
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
    """Return the same ranges with the data that tasks need: the nodes of broker sets, to find the sets' leaders, and
    one planning time for all ranges, so that tasks agree on expired messages.
    """
    nodes = cluster.set_nodes() if ranges else {}
    planned_ms = 0 if options.include_expired else now_ms()
    return [replace(each, nodes=nodes.get(each.id.broker, ()), planned_ms=planned_ms) for each in ranges]


def select(
    cluster: Cluster, options: ReadOptions, seen: set[TopicPartition]
) -> tuple[list[TopicPartition], list[LeftOut]]:
    """Return the `selected` partitions, and the partitions that no live broker offers, as far as znodes or `seen` name
    these.

    seen: the partitions that earlier calls for the same query found; this call extends it, because the session of an
    absent broker may end meanwhile. Raises BrokerUnavailable, which names the partitions, if a topic has no other
    partitions, or if `assign` names one of them.
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
    """Return `left_out`, plus the partitions of `seen` that are not offered any more."""
    away = left_out(cluster, options, registered, offered)
    known = {*offered, *(each.partition for each in away)}
    if known.issuperset(seen):
        return away
    gone = sorted(followed(dict.fromkeys(seen, 0), cluster.moves()).keys() - known)
    return [*away, *(LeftOut(each, "this query", *why_away(each, None, registered)) for each in gone)]


def left_out(
    cluster: Cluster, options: ReadOptions, registered: Collection[int], offered: Collection[TopicPartition]
) -> list[LeftOut]:
    """Return the partitions that the options select and a znode names, but that are not in `offered`. registered: the
    ids of the brokers that were live before `offered` was read.
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
    """Raise BrokerUnavailable if leaving out the partitions `away` (of `select`) is data loss by the options; otherwise
    log a warning about them."""
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
    """Log a warning about the partitions that a query leaves out. how: what happens to the partitions that surely
    exist.
    """
    for exists, said in ((True, how), (False, "it is starting, or they were deleted there")):
        if found := [each for each in away if each.exists is exists]:
            log.warning("left out: %s (%s)", without(found), said)


def selected(cluster: Cluster, options: ReadOptions) -> list[TopicPartition]:
    """Return the partitions that subscribe, subscribePattern or assign name now. Raises NoPartition,
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
    """Return the state of each partition. Raises BrokerUnavailable, RequestRefused (if a Java broker is asked for a
    time)."""
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
    """Return the ranges with both ends between messages, for offsets given as JSON. Raises the errors of check_begins
    if failOnDataLoss is true. Otherwise an end inside a message moves to the end of the message, and tasks begin with
    the next message.
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
    """Raise ConfigError if JSON offsets of the option are inside messages. Over the text protocol, and so on a Java
    broker, this cannot be checked: there the task fails."""
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
    """Return `offset` if a message begins there, or the partition ends there; otherwise the nearest beginning of a
    message."""
    if not connection.speaks_frames or offset_after(connection, partition, offset, 0) == offset:
        return offset
    try:  # while an index is rebuilt, the answer above proves nothing
        read_bytes(connection, partition, offset, 1)
    except CorruptRecord as error:
        return error.begin if isinstance(error, NoMessageBegins) else offset
    return offset


def ending_behind(connection: Connection, found: OffsetRange, offset: int) -> OffsetRange:
    """Return `found`, cut after the message that contains the byte before `offset`. If the broker does not speak
    frames, it cannot find that message, and the range is not cut inside.
    """
    if found.start < offset < found.end:
        offset = offset_after(connection, found.id, offset - 1, 1) if connection.speaks_frames else found.end
    return narrow(found, None, offset)


def _push(cluster: Cluster, found: OffsetRange, pushed: Pushed) -> OffsetRange:
    """Return `found` without the parts that filters on offset and timestamp exclude."""
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
    """Return a boundary after every `messages` messages of `piece`."""
    found: list[int] = []
    offset = after(piece.start, messages, INT64_MAX)
    while offset < piece.end:
        found.append(offset)
        offset = after(offset, messages, INT64_MAX)
    return found


def check_published(options: WriteOptions) -> None:
    """Raise NoPartition if no live broker accepts messages of the option's topic; CoordinationUnavailable.

    Topics that rows name are not known before the tasks run.
    """
    if options.topic is not None:
        config = ConnectionConfig(protocol=options.protocol)
        with Cluster(options.zookeeper, root=options.root, config=config) as cluster:
            cluster.partitions(options.topic)
