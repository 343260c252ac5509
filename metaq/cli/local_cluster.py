"""A whole cluster on this machine: ZooKeeper's own server and broker processes below one data directory.

<data>/zookeeper/            ZooKeeper's data
<data>/broker-<id>/          server.ini (written at every start), broker.log, data/
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from metaq.broker import inspection
from metaq.coordination.brokers import ClusterView
from metaq.coordination.embedded import EmbeddedZooKeeper
from metaq.coordination.session import ZkSession
from metaq.protocol.errors import BrokerUnavailable

from .options import TopicSpec
from .servers import Child, stop_all, wait_until

__all__ = ["HOST", "ClusterPlan", "LocalCluster", "server_ini", "stored_topics", "with_stored"]

HOST = "127.0.0.1"
START_SECONDS = 30.0
"""Longest time all brokers may take until every topic is published."""

GRACE_MS = 500
"""How long a stopping broker goes on serving for clients that move: here they all stop."""

SYNC_FLUSH = {"unflushThreshold": 0, "unflushInterval": 10_000}  # group commit: acknowledged means on disk
ASYNC_FLUSH = {"unflushThreshold": 1_000, "unflushInterval": 1_000}


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """What to start. ports: one per broker, whose ids are 0, 1, …; partitions of a topic are per broker."""

    data_dir: Path
    ports: Sequence[int]
    zookeeper_port: int
    topics: Sequence[TopicSpec]
    durable: bool = True
    session_timeout_ms: int = 30_000
    disk_reserve: int | None = None
    """Bytes; None: the broker's default."""


def stored_topics(data_dir: Path) -> dict[int, dict[str, int]]:
    """By id of each broker whose directory has partitions: their topics, and how many partitions reach the highest."""
    found: dict[int, dict[str, int]] = {}
    for data in data_dir.glob("broker-*/data"):
        number = data.parent.name.removeprefix("broker-")
        topics = inspection.stored_topics(data) if number.isascii() and number.isdecimal() else {}
        if topics:
            found[int(number)] = topics
    return found


def with_stored(topics: Sequence[TopicSpec], stored: Mapping[int, Mapping[str, int]]) -> list[TopicSpec]:
    """`topics` and what brokers hold besides: a caller that starts a cluster again need not name what is in it."""
    counts = {topic.name: topic.partitions for topic in topics}
    for held in stored.values():
        for name, partitions in held.items():
            counts[name] = max(counts.get(name, 0), partitions)
    return [TopicSpec(*each) for each in counts.items()]


def server_ini(plan: ClusterPlan, broker_id: int, connect_string: str) -> str:
    """The configuration of one broker of `plan`."""
    system = {
        "brokerId": broker_id,
        "hostName": HOST,
        "serverPort": plan.ports[broker_id],
        "numPartitions": 1,
        "dataPath": plan.data_dir / f"broker-{broker_id}" / "data",
        "maxSegmentSize": 1 << 30,
        "maxTransferSize": 1 << 20,
        **(SYNC_FLUSH if plan.durable else ASYNC_FLUSH),
    }
    zookeeper = {
        "zk.zkConnect": connect_string,
        "zk.zkSessionTimeoutMs": plan.session_timeout_ms,
        "zk.zkSyncTimeMs": GRACE_MS,
    }
    sections = {"system": system, "zookeeper": zookeeper}
    sections |= {f"topic={topic.name}": {"numPartitions": topic.partitions} for topic in plan.topics}
    lines = ["; written at every start of the cluster: changes are lost"]
    for name, values in sections.items():
        lines += [f"[{name}]", *(f"{key}={value}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


class LocalCluster:
    """Starts and stops the processes of a ClusterPlan. Main thread only: the processes die with that thread."""

    def __init__(self, plan: ClusterPlan) -> None:
        self.plan = plan
        self.brokers: list[Child] = []
        self._zookeeper = EmbeddedZooKeeper(plan.data_dir / "zookeeper", port=plan.zookeeper_port, host=HOST)

    @property
    def connect_string(self) -> str:
        return self._zookeeper.connect_string

    @property
    def addresses(self) -> list[str]:
        return [f"{HOST}:{port}" for port in self.plan.ports]

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start everything and wait until all topics are published by all brokers.

        Raises CoordinationUnavailable or BrokerUnavailable with the last words of the process that failed.
        """
        self._zookeeper.start()
        self.brokers = [self._start_broker(broker_id) for broker_id in range(len(self.plan.ports))]
        session = ZkSession(self.connect_string)
        session.start()
        try:
            self._wait_for_brokers(ClusterView(session))
        finally:
            session.close()

    def _start_broker(self, broker_id: int) -> Child:
        directory = self.plan.data_dir / f"broker-{broker_id}"
        (directory / "data").mkdir(parents=True, exist_ok=True)
        ini = directory / "server.ini"
        ini.write_text(server_ini(self.plan, broker_id, self.connect_string), "utf-8")
        reserve = [] if self.plan.disk_reserve is None else ["--disk-reserve", str(self.plan.disk_reserve)]
        return Child(f"broker {broker_id}", ["broker", "-f", str(ini), *reserve], directory / "broker.log")

    def _wait_for_brokers(self, view: ClusterView) -> None:
        def all_serve() -> bool:
            self.check()
            return all(map(_listens, self.plan.ports)) and all(
                len(view.topic_partitions(topic.name)) >= topic.partitions * len(self.brokers)
                for topic in self.plan.topics
            )

        if not wait_until(all_serve, time.monotonic() + START_SECONDS):
            logs = ", ".join(str(broker.log) for broker in self.brokers)
            raise BrokerUnavailable(f"the brokers do not publish all topics after {START_SECONDS:.0f} s: see {logs}")

    def check(self) -> None:
        """Raise BrokerUnavailable if a process has ended by itself."""
        for broker in self.brokers:
            broker.check()
        if not self._zookeeper.running:
            raise BrokerUnavailable(f"ZooKeeper has ended: see {self.plan.data_dir / 'zookeeper'}")

    def watch(self, wait: Callable[[float], bool]) -> None:
        """Return when `wait(seconds)` says true; raise BrokerUnavailable as soon as a process has ended by itself."""
        while not wait(0.5):
            self.check()

    def stop(self) -> None:
        """Stop the brokers, which unregister, then ZooKeeper. Does nothing the second time."""
        stop_all(self.brokers)
        self.brokers = []
        self._zookeeper.stop()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((HOST, port)) == 0
