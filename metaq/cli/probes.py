"""The checks of `metaq monitor`, and the conditions under which they raise an alarm."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import NamedTuple

from metaq import Producer, ProducerConfig
from metaq.client.admin.group_admin import check_groups
from metaq.client.admin.group_lag import GroupPartition, group_partitions
from metaq.client.admin.known import own_topics_groups, shared_partitions
from metaq.client.browsing.dead_letters import count_dead_letters
from metaq.client.questions.admin import prepared_transactions
from metaq.client.questions.cluster import Cluster
from metaq.client.questions.partition_bounds import max_offset, read_stats
from metaq.client.questions.shared import SharedPartition, shared_status
from metaq.client.questions.sources import Survey
from metaq.client.questions.stored_records import read_bytes
from metaq.client.questions.waiting_halves import list_halves
from metaq.client.records.results import TopicPartition
from metaq.client.transport.connection import Connection
from metaq.coordination.records.zookeeper_versions import MIN_VERSION, is_unsafe
from metaq.protocol.access import AccessMode
from metaq.protocol.errors import (
    CoordinationUnavailable,
    MetaqError,
    OffsetOutOfRange,
    RequestRefused,
)
from metaq.protocol.half_messages import HalfState
from metaq.protocol.own_topics import DEAD_PREFIX, dead_topic, is_own_topic

from .access_reports import ITEM, parse_report
from .cluster_access import open_cluster, zk_timeout
from .output import byte_size, counted
from .set_look import SetLook, look_at_sets, told_differences
from .stats import named_figures

__all__ = ["Monitor", "ProbeLevel", "ProbeLimits", "Seen", "users_by_address"]

PROBE_SECONDS = 10.0
"""After a probe message was sent, it must be readable within this number of seconds; otherwise the check raises an
alarm. The number is large because a Java broker with asynchronous flush makes a message readable only after its
unflushInterval.
"""
_PROBE_READ_BYTES = 4096


CERTIFICATE_SECONDS = 30 * 24 * 3600.0
"""A certificate that expires within this many seconds gets a warning."""


USER_SECONDS = 30 * 24 * 3600.0
"""A user by address who expires within this many seconds gets a warning."""


class ProbeLevel(StrEnum):
    """The levels that the result of a check can have, the worst level first. UNKNOWN: the check was not possible;
    another result of the same round gives the reason.
    """

    ALARM = "alarm"
    WARNING = "warning"
    UNKNOWN = "unknown"
    OK = "ok"


class Seen(NamedTuple):
    """The result of one check: its level, the thing that was checked, and a text."""

    level: ProbeLevel
    what: str
    text: str


@dataclass(frozen=True, slots=True)
class ProbeLimits:
    """The limits of `metaq monitor`, which raises an alarm if a value is larger than its limit, or if the available
    memory is less than min_memory. max_lag is in bytes; max_disk and min_memory are in percent.
    """

    max_lag: int = 100_000_000
    max_put_failed: int = 0
    max_connections: int = 10_000
    max_prepared: int = 0
    max_parked: int = 0
    max_disk: int = 90
    min_memory: int = 5


class Monitor:
    """Runs the checks, and remembers the committed offsets of groups until the next round of checks. Two rounds must be
    compared to see whether a group makes progress, so the first round cannot report this. This object may be used by
    one thread only.
    """

    def __init__(
        self,
        zk: str,
        limits: ProbeLimits,
        probe_topic: str | None = None,
        groups: Sequence[str] = (),
        data_dirs: Sequence[str] = (),
        ignored_groups: Sequence[str] = (),
        ignored_brokers: Sequence[int] = (),
    ) -> None:
        self._zk = zk
        self._limits = limits
        self._probe_topic = probe_topic
        self._groups = groups
        self._ignored = ignored_groups
        self._ignored_brokers = ignored_brokers
        self._data_dirs = data_dirs
        self._checked = False
        self._put_failed: dict[int, int] = {}
        self._waited: dict[tuple[str, TopicPartition], int] = {}
        """For each group and each partition in which messages waited for the group at the last check: the offset that
        the group had committed there.
        """
        self._dead: dict[str, tuple[dict[TopicPartition, int], int]] = {}
        """For each group whose dead letters were counted: the end offset of each partition of its dead-letter topic at
        the time of the last count, and the number of dead letters.
        """

    def look(self) -> list[Seen]:
        """Run every check once, and return the results, the worst first. If a request to a broker fails, this is
        reported as a result and not raised.

        The first call raises ClientError for a group that never existed, and NoPartition for a probe topic that never
        existed.
        """
        found = [*self._machine()]
        try:
            with open_cluster(self._zk) as cluster:
                self._check_names(cluster)
                found += _servers(cluster)
                found += _guarded("cluster", self._cluster(cluster))
        except CoordinationUnavailable as error:
            found.append(Seen(ProbeLevel.ALARM, "zookeeper", str(error)))
        return sorted(found, key=lambda each: list(ProbeLevel).index(each.level))

    def _check_names(self, cluster: Cluster) -> None:
        if self._checked:
            return
        known = cluster.view.groups()
        others = [each for each in (*self._groups, *self._ignored) if each not in known]
        shared, silent = shared_partitions(cluster) if others else ([], {})
        there = own_topics_groups(cluster, DEAD_PREFIX).union(each.group for each in shared)
        missing = [each for each in others if each not in there]
        if missing and silent:
            return  # a silent broker may have it as a shared group: the group's data is unknown
        check_groups(cluster, missing)
        if self._probe_topic is not None and self._probe_topic not in cluster.view.topics():
            cluster.choose_partitions(self._probe_topic)
        self._checked = True

    def _cluster(self, cluster: Cluster) -> Iterator[Seen]:
        survey = cluster.survey()
        brokers = {each: nodes for each, nodes in cluster.view.brokers().items() if each not in self._ignored_brokers}
        if not brokers:
            yield Seen(ProbeLevel.ALARM, "brokers", "no broker is registered")
        leaderless: set[int] = set()
        yield from _guarded("broker sets", self._sets(cluster, leaderless))
        for broker_id in leaderless:
            survey.leave_out(broker_id, "has no leader")
        for broker_id, nodes in brokers.items():
            if broker_id in leaderless:
                continue
            if nodes.master is None:
                yield Seen(ProbeLevel.ALARM, f"broker {broker_id}", "has no master, only slaves: it takes no messages")
            else:
                yield from _guarded(f"broker {broker_id}", self._broker(survey, broker_id))
        if self._probe_topic is not None:
            yield from _guarded(f"probe {self._probe_topic}", self._probe(cluster, survey, self._probe_topic))
        known = set(cluster.view.groups())
        shared = _shared_groups(survey, [each for each, nodes in brokers.items() if nodes.master is not None])
        every = known.union(shared, own_topics_groups(cluster, DEAD_PREFIX))
        chosen = [each for each in self._groups or sorted(every) if each not in self._ignored]
        groups = [each for each in chosen if each in known]
        for group in chosen:
            if group in known:
                yield from _guarded(f"group {group}", self._group(cluster, survey, group))
            if group in shared:
                yield _shared(group, shared[group])
            yield from _guarded(f"group {group}", self._dead_letters(cluster, survey, group))
        hidden = sorted(brokers.keys() & survey.silent.keys())
        if hidden and (not self._groups or not known.issuperset(self._groups)):
            yield Seen(ProbeLevel.UNKNOWN, "shared groups", f"unknown on {_brokers(hidden)}")
        yield from _gone(cluster, groups, {*brokers, *leaderless, *self._ignored_brokers})

    def _sets(self, cluster: Cluster, leaderless: set[int]) -> Iterator[Seen]:
        """Yield a result for each broker set. Add the ids of sets without a leader to `leaderless`, so that the caller
        does not report these ids a second time as absent brokers.
        """
        views = {each: view for each, view in cluster.sets().items() if each not in self._ignored_brokers}
        for look in look_at_sets(views):
            if not look.leader and not look.is_replaced:
                leaderless.add(look.broker_id)
            yield _set(look)

    # --- brokers ------------------------------------------------------------------------------------------------------

    def _broker(self, survey: Survey, broker_id: int) -> Iterator[Seen]:
        place = TopicPartition("", broker_id, 0)
        found = survey.attempt(place, lambda connection, _: list(self._asked(broker_id, connection)))
        if found is None:
            why = survey.silent.get(broker_id) or f"does not tell how it is ({survey.refused[place]})"
            found = [Seen(ProbeLevel.ALARM, f"broker {broker_id}", why)]
        yield from found

    def _asked(self, broker_id: int, connection: Connection) -> Iterator[Seen]:
        what, limits = f"broker {broker_id}", self._limits
        figures = named_figures(read_stats(connection))
        yield Seen(ProbeLevel.OK, what, f"{connection.endpoint} answers, version {figures.get('version')}")
        yield from _above(what, "connection", _number(figures, "curr_connections"), limits.max_connections)
        failed = _number(figures, "put_failed")
        before = self._put_failed.get(broker_id)
        if failed is None:
            yield Seen(ProbeLevel.UNKNOWN, what, "does not tell how many puts have failed")
        elif before is not None and failed < before:
            yield Seen(ProbeLevel.WARNING, what, "has been restarted since the last look")
        elif before is not None:
            yield from _above(what, "failed put", failed - before, limits.max_put_failed, " since the last look")
        if failed is not None:
            self._put_failed[broker_id] = failed
        if connection.speaks_frames:  # a Java broker reports this only by JMX
            try:
                prepared = len(prepared_transactions(connection))
            except RequestRefused as error:
                yield Seen(ProbeLevel.UNKNOWN, what, f"prepared transactions cannot be seen: {error}")
            else:
                yield from _above(what, "prepared transaction", prepared, limits.max_prepared)
            yield from _writes(what, connection)
            yield from _certificate(what, connection)
            yield from users_by_address(what, connection)
        if connection.takes_halves:
            parked = list_halves(connection, limit=0).states[HalfState.PARKED]
            remedy = " (metaq halves list --state parked)"
            yield from _above(what, "parked half message", parked, limits.max_parked, remedy)

    # --- a message there and back -------------------------------------------------------------------------------------

    def _probe(self, cluster: Cluster, survey: Survey, topic: str) -> Iterator[Seen]:
        first: dict[int, TopicPartition] = {}
        for partition in cluster.partitions(topic):
            first.setdefault(partition.broker, partition)
        with Producer(self._zk, config=ProducerConfig(start_timeout_seconds=zk_timeout())) as producer:
            for partition in first.values():
                what = f"probe {topic} {partition}"
                if partition.broker in survey.silent:
                    yield Seen(ProbeLevel.UNKNOWN, what, f"not tried: broker {partition.broker} does not answer")
                else:
                    yield from _guarded(what, _round_trip(cluster, producer, partition))

    # --- groups -------------------------------------------------------------------------------------------------------

    def _group(self, cluster: Cluster, survey: Survey, group: str) -> Iterator[Seen]:
        members = len(cluster.members(group))
        rows: list[GroupPartition] = []
        for topic in cluster.group_topics(group):
            found = group_partitions(cluster, survey, group, topic)
            rows += [row for row in found if row.partition.broker not in self._ignored_brokers]
            if members and not is_own_topic(topic) and not any(survey.source(row.partition) for row in found):
                yield Seen(ProbeLevel.ALARM, f"group {group}", f"no live broker has its topic {topic}")
        by_cause: dict[_Cause, list[GroupPartition]] = {}
        for row in rows:
            refused = survey.refused.get(row.partition)
            cause = self._cause(group, row, members) if refused is None else _Cause(ProbeLevel.ALARM, refused)
            by_cause.setdefault(cause, []).append(row)
        for cause, found in by_cause.items():
            yield Seen(cause.level, f"group {group}", f"{cause.text}: {_listed(found)}")

    def _dead_letters(self, cluster: Cluster, survey: Survey, group: str) -> Iterator[Seen]:
        """Yield a warning if the group has dead letters. The dead letters are counted only if messages were appended to
        the group's dead-letter topic since the last count, because counting has to read all messages of the topic.
        """
        partitions = [each for each in cluster.readable(dead_topic(group)) if each.broker not in self._ignored_brokers]
        if not partitions:
            return
        ends = survey.ask_each(partitions, max_offset)
        if missing := [each for each in partitions if each not in ends]:
            text = f"dead letters are unknown in {_some([f'{each.topic} {each}' for each in missing])}"
            refused = [survey.refused[each] for each in missing if each in survey.refused]
            level = ProbeLevel.ALARM if refused else ProbeLevel.UNKNOWN
            yield Seen(level, f"group {group}", "; ".join([text, *refused[:1]]))
            return
        known = self._dead.get(group)
        if known is None or known[0] != ends:
            known = self._dead[group] = ends, count_dead_letters(cluster, group)
        if known[1]:
            text = f"{counted(known[1], 'dead letter')}: see `metaq dead-letters list --group {group}`"
            yield Seen(ProbeLevel.WARNING, f"group {group}", text)

    def _cause(self, group: str, row: GroupPartition, members: int) -> _Cause:
        """Return the first problem that a group has in a partition, or a _Cause with the level OK if there is none. The
        caller reports all partitions of a group with an equal _Cause in one line.
        """
        key = (group, row.partition)
        before = self._waited.pop(key, None)
        if row.closed:
            return _Cause(ProbeLevel.WARNING, "closed by an operator, lag unknown")
        if row.bounds is None:
            return _Cause(ProbeLevel.UNKNOWN, f"lag unknown without broker {row.partition.broker}")
        if row.missed_from is not None:
            return _Cause(
                ProbeLevel.ALARM,
                "has read messages that are lost, and skips the messages that took their place; stop its members, and "
                f"run `metaq groups seek {group} --topic TOPIC --partition PARTITION --to OFFSET`",
            )
        if row.outside:
            return _Cause(ProbeLevel.ALARM, "the offset is outside the readable bytes")
        lag = row.lag_bytes or 0
        limit = self._limits.max_lag
        still = False
        if lag and row.committed is not None:  # messages that came since the last check may still be processed
            self._waited[key] = row.committed
            still = before == row.committed
        if not members:
            return (
                _Cause(ProbeLevel.ALARM, "no live member, and messages are waiting")
                if lag
                else _Cause(ProbeLevel.OK, "at the end, no live member")
            )
        if row.owner is None:
            return _Cause(
                ProbeLevel.ALARM if lag > limit or still else ProbeLevel.WARNING,
                f"no owner among {counted(members, 'member')}",
            )
        if still:
            return _Cause(ProbeLevel.ALARM, "stands still since the last look")
        if lag > limit:
            return _Cause(ProbeLevel.ALARM, f"more than {byte_size(limit)} behind (--max-lag)")
        if lag and row.committed is None:
            return _Cause(ProbeLevel.WARNING, "no offset is committed yet, so at most this is waiting")
        return _Cause(ProbeLevel.OK, "behind by")

    # --- this machine -------------------------------------------------------------------------------------------------

    def _machine(self) -> Iterator[Seen]:
        for directory in self._data_dirs:
            try:
                usage = shutil.disk_usage(directory)
            except OSError as error:  # the directory existed when the command began
                yield Seen(ProbeLevel.ALARM, f"disk {directory}", f"cannot be read: {error.strerror}")
                continue
            full = usage.used * 100 // usage.total
            level = ProbeLevel.ALARM if full > self._limits.max_disk else ProbeLevel.OK
            yield Seen(level, f"disk {directory}", f"{full} percent full (limit {self._limits.max_disk})")
        free = _available_memory_percent()
        if free is not None:
            level = ProbeLevel.ALARM if free < self._limits.min_memory else ProbeLevel.OK
            yield Seen(level, "memory", f"{free} percent available (limit {self._limits.min_memory})")


class _Cause(NamedTuple):
    """A problem that partitions of a group have: the level of the result, and the reason."""

    level: ProbeLevel
    text: str


_NAMED = 8
"""Maximum number of partitions or topics that a line names."""


def _listed(rows: Sequence[GroupPartition]) -> str:
    """Return a text with the total amount of waiting data in these partitions, and with the partitions' names, in the
    order of decreasing lag.
    """
    farthest = sorted(rows, key=lambda row: row.lag_bytes or 0, reverse=True)
    names = [_place(row) for row in farthest]
    return f"{_waiting(rows)} in {_some(names)}"


def _place(row: GroupPartition) -> str:
    name = f"{row.partition.topic} {row.partition}"
    if row.missed_from is not None:
        return f"{name} (offset {row.committed}, back to {row.missed_from})"
    if row.bounds is not None and row.outside:
        return f"{name} (offset {row.committed}, readable [{row.bounds.first}, {row.bounds.end}])"
    return name


def _waiting(rows: Sequence[GroupPartition]) -> str:
    messages = _total(row.lag_messages for row in rows)
    seconds = [row.lag_seconds for row in rows]
    oldest = None if None in seconds else max(each or 0 for each in seconds)
    size = _total(row.lag_bytes for row in rows)
    known = [counted(messages, "message"), counted(size, "byte"), counted(oldest, "second")]
    return ", ".join(known)


def _total(numbers: Iterable[int | None]) -> int | None:
    known = list(numbers)
    return None if None in known else sum(each or 0 for each in known)


def _shared_groups(survey: Survey, broker_ids: Iterable[int]) -> dict[str, list[SharedPartition]]:
    """Return the reports of these brokers on shared groups, by the name of the group. Brokers that do not know shared
    groups, such as 1.x brokers, have no reports.
    """
    found: dict[str, list[SharedPartition]] = {}
    for broker_id in broker_ids:
        try:
            answer = survey.ask(TopicPartition("", broker_id, 0), _shared_status) or []
        except RequestRefused:
            continue
        for each in answer:
            found.setdefault(each.group, []).append(each)
    return found


def _shared_status(connection: Connection, partition: TopicPartition) -> list[SharedPartition]:
    return shared_status(connection, partition.broker)


def _shared(group: str, parts: Sequence[SharedPartition]) -> Seen:
    """Return the result for a shared group. Waiting messages are not a problem if the group has members that request
    messages.
    """
    members = {name for each in parts for name in each.members}
    left, leased = sum(each.left for each in parts), sum(each.leased for each in parts)
    text = f"{counted(left, 'message')} left, {leased:,} of them leased: see `metaq shared describe {group}`"
    if left and not members:
        text = f"shared group, no live member, and messages are waiting: {text}"
        return Seen(ProbeLevel.ALARM, f"group {group}", text)
    return Seen(ProbeLevel.OK, f"group {group}", f"shared group, {counted(len(members), 'member')}: {text}")


def _brokers(ids: Sequence[int]) -> str:
    return f"broker{'' if len(ids) == 1 else 's'} {', '.join(map(str, ids))}"


def _set(look: SetLook) -> Seen:
    """Return the result for a broker set. The text of the result names the set's leader, its in-sync nodes, problems of
    the other nodes, and topics for which the set refuses messages.
    """
    what = f"set {look.broker_id}"
    others = "".join(f"; {_node(look, name)}" for name in look.names if name not in look.in_sync or not look.leader)
    if not look.leader:
        if look.is_replaced:
            assert look.view.master is not None
            text = f"broker {look.broker_id} at {look.view.master.url} is no node of it{others}"
            return Seen(ProbeLevel.WARNING, what, f"{text}: see `metaq brokers forget {look.broker_id}`")
        if look.set_back:
            advice = (
                "ZooKeeper was set back to an older state: choose the node that led last, which has most data, with "
                f"`metaq brokers elect {look.broker_id} --unclean --node NODE`"
            )
            return Seen(ProbeLevel.ALARM, what, f"nobody leads it, so it takes no messages{others}: {advice}")
        advice = f"start an in-sync node, or `metaq brokers forget {look.broker_id}` if it is given up"
        if look.stopped:
            advice = f"put right what has stopped {', '.join(look.stopped)}, or start another in-sync node"
        return Seen(ProbeLevel.ALARM, what, f"nobody leads it, so it takes no messages{others}: {advice}")
    says = look.leader_says
    if not says:
        return Seen(ProbeLevel.UNKNOWN, what, f"its leader {look.leader} does not tell how far the others are")
    text = f"{look.leader} leads epoch {says['epoch']}, in sync: {', '.join(look.in_sync)}{others}"
    refusing, short = says.get("refusing"), says.get("underReplicated")
    level = ProbeLevel.OK
    if others or short:
        level = ProbeLevel.WARNING
    if short and not others:
        text += f"; fewer nodes than replicas= says: {_some(short)}"
    if len(look.in_sync) < 2:
        level, text = ProbeLevel.ALARM, f"{text}; new messages have one copy"
    if refusing:
        level, text = (
            ProbeLevel.ALARM,
            f"{text}; fewer nodes than minInSync, so no messages are taken: {_some(refusing)}",
        )
    if differences := look.differences:
        level, text = ProbeLevel.ALARM, f"{text}; {told_differences(differences)}"
    return Seen(level, what, text)


def _node(look: SetLook, name: str) -> str:
    error = look.error(name)
    return f"{name} is {look.role(name)}{f' ({error})' if error else ''}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


def _gone(cluster: Cluster, groups: Sequence[str], accounted: Set[int]) -> Iterator[Seen]:
    """Yield an alarm for each absent broker that was registered before, or in whose partitions groups have committed
    offsets. The number of messages waiting at this broker is unknown.
    """
    having: dict[int, list[str]] = {each: [] for each in cluster.view.broker_ids()}
    for group in groups:
        for broker_id in _committed_brokers(cluster, group):
            having.setdefault(broker_id, []).append(group)
    for broker_id in sorted(having.keys() - accounted):
        names = having[broker_id]
        text = f"is not registered, so what waits there is unknown{'; groups with offsets on it: ' if names else ''}"
        advice = f"start it, or --ignore-broker {broker_id} if it is out of service for good"
        yield Seen(ProbeLevel.ALARM, f"broker {broker_id}", f"{text}{', '.join(names)}: {advice}")


def _committed_brokers(cluster: Cluster, group: str) -> set[int]:
    view = cluster.view
    topics = view.committed_topics(group)
    return {
        TopicPartition.parse(topic, each).broker for topic in topics for each in view.committed_partitions(group, topic)
    }


def _round_trip(cluster: Cluster, producer: Producer, partition: TopicPartition) -> Iterator[Seen]:
    started = time.monotonic()
    payload = f"metaq monitor {time.time_ns()}".encode()
    offset = producer.send(partition.topic, payload, partition=partition).offset
    endpoint = cluster.endpoint(partition.broker)
    while payload not in _readable(cluster, partition, offset):
        if time.monotonic() - started > PROBE_SECONDS:
            text = f"{endpoint} took a message but does not show it within {PROBE_SECONDS:g} s"
            yield Seen(ProbeLevel.ALARM, f"probe {partition.topic} {partition}", text)
            return
        time.sleep(0.05)
    milliseconds = (time.monotonic() - started) * 1000
    yield Seen(ProbeLevel.OK, f"probe {partition.topic} {partition}", f"sent and read back in {milliseconds:.0f} ms")


def _readable(cluster: Cluster, partition: TopicPartition, offset: int) -> bytes:
    try:
        question = partial(read_bytes, partition=partition, offset=offset, max_bytes=_PROBE_READ_BYTES)
        return bytes(cluster.ask(partition, question))
    except OffsetOutOfRange:  # a Java broker has not flushed it yet
        return b""


def _guarded(what: str, steps: Iterator[Seen]) -> Iterator[Seen]:
    """Yield the results of the iterator `steps`. If it raises an error, yield an alarm with the error text.
    There is one exception: a CoordinationUnavailable is passed on to the caller, which reports it.
    """
    try:
        yield from steps
    except CoordinationUnavailable:
        raise
    except MetaqError as error:
        yield Seen(ProbeLevel.ALARM, what, str(error))


def _above(what: str, noun: str, value: int | None, limit: int, rest: str = "") -> Iterator[Seen]:
    """Yield a result for a counted value: an alarm if `value` is larger than `limit`. noun: what is counted, in the
    singular. rest: words that the result's text has after the number and the noun.
    """
    if value is None:
        yield Seen(ProbeLevel.UNKNOWN, what, f"does not tell its {noun}s")
        return
    level = ProbeLevel.ALARM if value > limit else ProbeLevel.OK
    yield Seen(level, what, f"{counted(value, noun)}{rest} (limit {limit})")


def _servers(cluster: Cluster) -> Iterator[Seen]:
    """Check each server of the ZooKeeper ensemble. The check is useful even if ZooKeeper as a whole answers, because an
    ensemble that has lost one server can lose only few more before it stops.
    """
    found = cluster.servers(zk_timeout())
    for each in found:
        if not each.serves:
            yield Seen(ProbeLevel.ALARM, "zookeeper", each.text)
    for version in sorted({each.version for each in found if is_unsafe(each.version)}):
        text = f"version {version} lets anybody who reaches its port delete znodes (CVE-2026-79993): "
        yield Seen(ProbeLevel.WARNING, "zookeeper", f"{text}update it to {'.'.join(map(str, MIN_VERSION))} or later")
    serving = sum(each.serves for each in found)
    text = f"{cluster.zookeeper} answers, {serving} of {counted(len(found), 'server')}"
    yield Seen(ProbeLevel.OK, "zookeeper", text)


_DISK = re.compile(r"(?P<path>.*) free_bytes (?P<free>\d+) reserve_bytes (?P<reserve>\d+) takes_puts (?P<takes>\w+)")


def _writes(what: str, connection: Connection) -> Iterator[Seen]:
    """Yield a result for each disk of a broker; the result is an alarm if the disk is too full for messages. Also yield
    an alarm if the broker's journal has failed, and an alarm if partitions refuse messages because a write to their
    files failed.
    """
    rooms = [match for line in read_stats(connection, "disk") if (match := _DISK.fullmatch(line))]
    for room in rooms:
        text = f"{room['path']} has {byte_size(int(room['free']))} free, reserve {byte_size(int(room['reserve']))}"
        if room["takes"] == "true":
            yield Seen(ProbeLevel.OK, what, text)
        else:
            yield Seen(ProbeLevel.ALARM, what, f"refuses messages for want of room: {text}")
    lines = read_stats(connection, "journal")
    journal = named_figures(lines)
    if journal.get("state") == "failed":
        text = f"its journal has failed, so it refuses messages: {journal.get('cause')}: restart it"
        yield Seen(ProbeLevel.ALARM, what, text)
    closed = [line for line in lines if line.startswith("read_only:")]
    if closed:
        text = f"partitions that take no messages since a write failed: {_some(closed)}"
        yield Seen(ProbeLevel.ALARM, what, text)


def _certificate(what: str, connection: Connection) -> Iterator[Seen]:
    """Check the certificate of a broker's port, if it has one. Brokers before version 3.1 do not report their
    certificate.
    """
    figures = named_figures(read_stats(connection, "certificate"))
    if figures.get("tls") != "true":
        return
    path, expires = figures.get("certificate"), _number(figures, "expires") or 0
    left = expires - time.time()
    text = f"its certificate {path} expires on {time.strftime('%Y-%m-%d', time.gmtime(expires))}"
    if left <= 0:
        yield Seen(ProbeLevel.ALARM, what, f"its certificate {path} has expired, so clients refuse it: renew it")
    elif left < CERTIFICATE_SECONDS:
        yield Seen(ProbeLevel.WARNING, what, f"{text}: renew it")
    else:
        yield Seen(ProbeLevel.OK, what, text)
    if failure := figures.get("failure"):
        yield Seen(ProbeLevel.ALARM, what, f"it cannot use the new files of its certificate: {failure}")


def users_by_address(what: str, connection: Connection) -> Iterator[Seen]:
    """Check the users whom a broker knows by the client's address: each must exist and expire, and clients are refused
    as soon as a user has expired. There are none as long as everybody may do everything, or if the broker's version
    knows no users.
    """
    report = parse_report(read_stats(connection, ITEM))
    if report is None or report.mode is AccessMode.OPEN:
        return
    refused = ProbeLevel.ALARM if report.mode is AccessMode.ENFORCE else ProbeLevel.WARNING
    for user in report.addresses:
        name = f"the user {user.name} (by address: {', '.join(user.networks)})"
        prolong = f"metaq users expire {user.name} 90d"
        if not user.exists:
            yield Seen(refused, what, f"{name} does not exist, so its clients may do nothing")
        elif user.expires_ms is None:
            yield Seen(refused, what, f"{name} does not expire, so its clients may do nothing: {prolong}")
        else:
            left = user.expires_ms / 1000 - time.time()
            text = f"{name} expires on {time.strftime('%Y-%m-%d', time.gmtime(user.expires_ms / 1000))}"
            if left <= 0:
                yield Seen(refused, what, f"{name} has expired, so its clients may do nothing: {prolong}")
            elif left < USER_SECONDS:
                yield Seen(ProbeLevel.WARNING, what, f"{text}: {prolong}")
            else:
                yield Seen(ProbeLevel.OK, what, text)


def _number(figures: dict[str, object], name: str) -> int | None:
    value = figures.get(name)
    return value if isinstance(value, int) else None


def _available_memory_percent() -> int | None:
    """Return the percentage of memory that is available on this machine, or None if the system does not report it (only
    Linux does).
    """
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    kilobytes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines) if rest}
    return kilobytes["MemAvailable"] * 100 // kilobytes["MemTotal"]
