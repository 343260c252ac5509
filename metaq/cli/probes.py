"""What `metaq monitor` looks at, and when it gives an alarm."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from metaq import Producer
from metaq.client.admin import prepared_transactions
from metaq.client.cluster import Cluster
from metaq.client.inquiry import Bounds, partition_bounds, read_bytes, read_stats
from metaq.client.values import TopicPartition
from metaq.protocol.errors import CoordinationUnavailable, MetaqError, OffsetOutOfRange, RequestRefused

from .output import byte_size
from .stats import named_figures

__all__ = ["Level", "Limits", "Monitor", "Seen"]

PROBE_SECONDS = 10.0
"""A probe must be readable within this time (a Java broker with asynchronous flush shows it after unflushInterval)."""
_PROBE_READ_BYTES = 4096


class Level(StrEnum):
    """Worst first."""

    ALARM = "alarm"
    WARNING = "warning"
    OK = "ok"


class Seen(NamedTuple):
    """One thing that was looked at."""

    level: Level
    what: str
    text: str


@dataclass(frozen=True, slots=True)
class Limits:
    """Beyond these there is an alarm. max_lag: bytes; max_disk and min_memory: percent."""

    max_lag: int = 100_000_000
    max_put_failed: int = 0
    max_connections: int = 10_000
    max_prepared: int = 0
    max_disk: int = 90
    min_memory: int = 5


class Monitor:
    """Remembers the look before: what has moved since is only known from the second on. One thread."""

    def __init__(
        self,
        zk: str,
        limits: Limits,
        probe_topic: str | None = None,
        groups: Sequence[str] = (),
        data_dirs: Sequence[str] = (),
    ) -> None:
        self._zk = zk
        self._limits = limits
        self._probe_topic = probe_topic
        self._groups = groups
        self._data_dirs = data_dirs
        self._put_failed: dict[int, int] = {}
        self._committed: dict[tuple[str, TopicPartition], int] = {}

    def look(self) -> list[Seen]:
        """Everything once, worst first. What cannot be asked is a finding, no error."""
        found = [*self._machine()]
        try:
            with Cluster(self._zk) as cluster:
                found.append(Seen(Level.OK, "zookeeper", f"{self._zk} answers"))
                for broker_id in cluster.view.brokers():
                    found += _guarded(f"broker {broker_id}", self._broker(cluster, broker_id))
                if self._probe_topic is not None:
                    found += _guarded(f"probe {self._probe_topic}", self._probe(cluster, self._probe_topic))
                for group in self._groups or cluster.view.groups():
                    found += _guarded(f"group {group}", self._group(cluster, group))
        except CoordinationUnavailable as error:
            found.append(Seen(Level.ALARM, "zookeeper", str(error)))
        return sorted(found, key=lambda each: list(Level).index(each.level))

    # --- brokers ------------------------------------------------------------------------------------------------------

    def _broker(self, cluster: Cluster, broker_id: int) -> Iterator[Seen]:
        what, limits = f"broker {broker_id}", self._limits
        connection = cluster.connection(broker_id)
        figures = named_figures(read_stats(connection))
        yield Seen(Level.OK, what, f"{connection.endpoint} answers, version {figures.get('version')}")
        yield from _above(what, "connections", _number(figures, "curr_connections"), limits.max_connections)
        failed = _number(figures, "put_failed")
        before = self._put_failed.get(broker_id, failed)
        self._put_failed[broker_id] = failed
        if failed < before:
            yield Seen(Level.WARNING, what, "has been restarted since the last look")
        else:
            yield from _above(what, "failed puts since the last look", failed - before, limits.max_put_failed)
        if connection.speaks_frames:  # a Java broker tells it by JMX only
            try:
                prepared = len(prepared_transactions(connection))
            except RequestRefused as error:
                yield Seen(Level.OK, what, f"prepared transactions cannot be seen: {error}")
            else:
                yield from _above(what, "prepared transactions", prepared, limits.max_prepared)

    # --- a message there and back -------------------------------------------------------------------------------------

    def _probe(self, cluster: Cluster, topic: str) -> Iterator[Seen]:
        first: dict[int, TopicPartition] = {}
        for partition in cluster.partitions(topic):
            first.setdefault(partition.broker, partition)
        with Producer(self._zk) as producer:
            for partition in first.values():
                yield from _guarded(f"probe {topic} {partition}", _round_trip(cluster, producer, partition))

    # --- groups -------------------------------------------------------------------------------------------------------

    def _group(self, cluster: Cluster, group: str) -> Iterator[Seen]:
        members = cluster.members(group)
        published = set(cluster.topics())
        for topic in cluster.group_topics(group):
            if topic not in published:
                yield Seen(Level.WARNING, f"group {group}", f"no live broker has its topic {topic}")
                continue
            partitions = cluster.partitions(topic)
            owners = cluster.owners(group, topic)
            for partition, offset in zip(partitions, cluster.committed_many(group, partitions), strict=True):
                what = f"group {group} {topic} {partition}"
                if members and str(partition) not in owners:
                    yield Seen(Level.WARNING, what, f"no owner among {len(members)} members")
                if offset is not None:
                    bounds = partition_bounds(cluster.connection(partition.broker), partition)
                    yield from self._progress(what, (group, partition), offset.offset, bounds, bool(members))

    def _progress(
        self, what: str, key: tuple[str, TopicPartition], offset: int, bounds: Bounds, live: bool
    ) -> Iterator[Seen]:
        before = self._committed.get(key)
        self._committed[key] = offset
        if not bounds.first <= offset <= bounds.end:
            text = f"offset {offset} is outside the readable bytes [{bounds.first}, {bounds.end}]"
            yield Seen(Level.ALARM, what, text)
            return
        lag = bounds.end - offset
        if live and lag and before == offset:
            yield Seen(Level.ALARM, what, f"stands still at {offset} since the last look, {byte_size(lag)} are waiting")
        yield from _above(what, "bytes behind", lag, self._limits.max_lag)

    # --- this machine -------------------------------------------------------------------------------------------------

    def _machine(self) -> Iterator[Seen]:
        for directory in self._data_dirs:
            usage = shutil.disk_usage(directory)
            yield from _above(
                f"disk {directory}", "percent full", usage.used * 100 // usage.total, self._limits.max_disk
            )
        free = _available_memory_percent()
        if free is not None:
            level = Level.ALARM if free < self._limits.min_memory else Level.OK
            yield Seen(level, "memory", f"{free} percent available (limit {self._limits.min_memory})")


def _round_trip(cluster: Cluster, producer: Producer, partition: TopicPartition) -> Iterator[Seen]:
    started = time.monotonic()
    payload = f"metaq monitor {time.time_ns()}".encode()
    offset = producer.send(partition.topic, payload, partition=partition).offset
    connection = cluster.connection(partition.broker)
    while payload not in _readable(cluster, partition, offset):
        if time.monotonic() - started > PROBE_SECONDS:
            text = f"{connection.endpoint} took a message but does not show it within {PROBE_SECONDS:g} s"
            yield Seen(Level.ALARM, f"probe {partition.topic} {partition}", text)
            return
        time.sleep(0.05)
    milliseconds = (time.monotonic() - started) * 1000
    yield Seen(Level.OK, f"probe {partition.topic} {partition}", f"sent and read back in {milliseconds:.0f} ms")


def _readable(cluster: Cluster, partition: TopicPartition, offset: int) -> bytes:
    try:
        return bytes(read_bytes(cluster.connection(partition.broker), partition, offset, _PROBE_READ_BYTES))
    except OffsetOutOfRange:  # a Java broker that has not flushed it yet
        return b""


def _guarded(what: str, steps: Iterator[Seen]) -> Iterator[Seen]:
    """The steps; an error ends them and is an alarm. That ZooKeeper is gone is for the whole look to say."""
    try:
        yield from steps
    except CoordinationUnavailable:
        raise
    except MetaqError as error:
        yield Seen(Level.ALARM, what, str(error))


def _above(what: str, name: str, value: int, limit: int) -> Iterator[Seen]:
    level = Level.ALARM if value > limit else Level.OK
    yield Seen(level, what, f"{value} {name} (limit {limit})")


def _number(figures: dict[str, object], name: str) -> int:
    value = figures.get(name)
    return value if isinstance(value, int) else 0


def _available_memory_percent() -> int | None:
    """None where the system does not tell (not Linux)."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    kilobytes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines) if rest}
    return kilobytes["MemAvailable"] * 100 // kilobytes["MemTotal"]
