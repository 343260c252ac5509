"""The steps of the demo: start a cluster, produce, consume with a group that rebalances, run Spark, and check the
results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from metaq import Producer
from metaq.client.admin.group_lag import group_partitions
from metaq.client.questions.cluster import Cluster
from metaq.client.questions.partition_bounds import partition_bounds
from metaq.coordination.embedded import find_java
from metaq.coordination.servers.free_ports import ready_ports
from metaq.protocol.errors import ClientError, ConfigError, RequestTimedOut

from ..direct_read import Wanted, read_topic
from ..local_cluster import ClusterPlan, LocalCluster
from ..options import TopicSpec
from ..servers import Child, wait_until
from .delivery import History, check_delivery
from .flights import FLIGHTS as FLIGHT_COUNT
from .flights import delays_in, flights_table, json_messages, mean_delays
from .group import ConsumerGroup, GroupSettings, Rebalance
from .report import BySpark, DemoFigures, Report
from .spark_install import INSTALL_SECONDS, SparkInstallation, is_missing

__all__ = ["Script", "play"]

FLIGHTS, DELAYS = "flights", "carrier-delays"
PARTITIONS_PER_BROKER = 4
GROUP, SPARK_GROUP = "demo", "demo-spark"
SEND_BATCH = 1000
REBALANCE_SECONDS = 30.0
DRAIN_SECONDS = 120.0
SPARK_SECONDS = 400.0
LAG_SECONDS = 0.25
"""While the group reads its backlog, the demo checks the group's lag at this interval, in seconds."""


@dataclass(frozen=True, slots=True)
class Script:
    """The parameters of the demo. flights: the number of flights to send; None means all. join_at: when this fraction
    of all messages is received, a member joins. kill_at: when this fraction of all messages is received, a member is
    killed.
    """

    directory: Path
    brokers: int = 2
    flights: int | None = None
    rate: int = 12_000
    session_seconds: float = 4.0
    join_at: float = 0.25
    kill_at: float = 0.5
    install_spark: bool = False
    """Whether to install PySpark during the demo if it is missing."""


@contextmanager
def play(script: Script, report: Report) -> Iterator[tuple[DemoFigures, str]]:
    """Run all steps of the demo; all files that they write are below `script.directory`. Yield the demo's results, and
    the ZooKeeper connect string of the cluster.

    The caller uses this function in a `with` statement: the cluster runs until the end of the block. At the end of the
    block, or if this function raises an error, all processes of the demo are ended.
    """
    began = time.monotonic()
    with_spark = _has_java(report)
    with _spark_installation(script, with_spark, report) as installation, _cluster(script, report) as local:
        figures = _play(script, report, local, with_spark, installation, began)
        yield figures, local.connect_string


def _play(
    script: Script,
    report: Report,
    local: LocalCluster,
    with_spark: bool,
    installation: SparkInstallation | None,
    began: float,
) -> DemoFigures:
    table = flights_table().head(script.flights or FLIGHT_COUNT)
    with Cluster(local.connect_string) as cluster:
        send_rate = _send(local.connect_string, table, report)
        settings = GroupSettings(
            local.connect_string, GROUP, FLIGHTS, script.directory, script.rate, script.session_seconds
        )
        histories, rebalances = _consume(ConsumerGroup(cluster, settings), cluster, script, len(table), report)
        lag = _lag(cluster, GROUP)
        _wait_for(installation, began + INSTALL_SECONDS, report)
        by_spark = _run_spark(cluster, local.connect_string, script.directory, report) if with_spark else None
    return DemoFigures(
        delivery=check_delivery(len(table), histories),
        rebalances=rebalances,
        send_rate=send_rate,
        receive_rate=_receive_rate(histories),
        lag=lag,
        by_spark=by_spark,
        by_pandas=mean_delays(table),
        seconds=time.monotonic() - began,
    )


def _has_java(report: Report) -> bool:
    """Return whether Spark can run, that is, whether Java is installed. If Spark cannot run, print the reason."""
    try:
        find_java()
    except ConfigError as error:
        report.say(f"the last step, Spark, is left out: {error}")
        return False
    return True


@contextmanager
def _spark_installation(script: Script, with_spark: bool, report: Report) -> Iterator[SparkInstallation | None]:
    if not (with_spark and script.install_spark and is_missing()):
        yield None
        return
    report.say("PySpark (500 MB), for the last step, is installed meanwhile")
    installation = SparkInstallation(script.directory)
    try:
        yield installation
    finally:
        installation.stop()


def _wait_for(installation: SparkInstallation | None, deadline: float, report: Report) -> None:
    if installation is not None:
        with report.waiting("PySpark is being installed"):
            ended = wait_until(lambda: not installation.running, deadline)
        installation.finish(report, ended)


@contextmanager
def _cluster(script: Script, report: Report) -> Iterator[LocalCluster]:
    report.step("Start a cluster on this machine")
    topics = (TopicSpec(FLIGHTS, PARTITIONS_PER_BROKER), TopicSpec(DELAYS, 1))
    ports = ready_ports("--port", 0, script.brokers + 1)
    local = LocalCluster(ClusterPlan(script.directory, ports[1:], ports[0], topics))
    try:
        with report.waiting("ZooKeeper and brokers are starting"):
            local.start()
        report.say(f"ZooKeeper at {local.connect_string}, brokers at {', '.join(local.addresses)}")
        report.say(f"topic {FLIGHTS}: {PARTITIONS_PER_BROKER} partitions on each broker; every message synced to disk")
        yield local
    finally:
        local.stop()


def _send(zookeeper: str, table: pd.DataFrame, report: Report) -> float:
    """Send all flights in batches, round robin over the partitions; return the rate in messages per second."""
    report.step(f"Send {len(table):,} flights of 2013 as JSON, round robin")
    sent = 0
    began = time.monotonic()
    with Producer(zookeeper) as producer, report.progress("sending", len(table)) as set_done:
        for batch in json_messages(table, SEND_BATCH):
            sent += len(producer.send_batch(FLIGHTS, batch))
            set_done(sent)
    seconds = time.monotonic() - began
    report.say(f"{sent:,} messages acknowledged in {seconds:.1f} s")
    return sent / seconds


def _consume(
    group: ConsumerGroup, cluster: Cluster, script: Script, total: int, report: Report
) -> tuple[list[History], list[Rebalance]]:
    """Run a group of two consumers, let a third consumer join, and kill one. Wait until the group has committed all
    messages.
    """
    report.step("Consume as a group of processes: two, a third joins, one is killed")
    try:
        with report.progress("receiving", total) as set_done:
            rebalances = _rebalances(group, script, total, report, lambda: set_done(min(total, group.received)))
            _wait_until_committed(cluster, group, lambda: set_done(min(total, group.received)))
    finally:
        group.stop()
    return [member.history() for member in group.members], rebalances


def _rebalances(
    group: ConsumerGroup, script: Script, total: int, report: Report, tick: Callable[[], None]
) -> list[Rebalance]:
    partitions = PARTITIONS_PER_BROKER * script.brokers
    found: list[Rebalance] = []

    def rebalanced(cause: str, begin: Callable[[], None]) -> None:
        began = time.monotonic()
        begin()
        found.append(group.rebalanced(cause, began, began + REBALANCE_SECONDS, tick))
        report.rebalance(found[-1], partitions)

    rebalanced("c1 and c2 start", lambda: group.start("c1", "c2"))
    group.wait_for(script.join_at * total, DRAIN_SECONDS, tick)
    rebalanced("c3 joins", lambda: group.start("c3"))
    group.wait_for(script.kill_at * total, DRAIN_SECONDS, tick)
    rebalanced(f"c1 is killed by SIGKILL (ZooKeeper gives it {script.session_seconds:g} s)", lambda: group.kill("c1"))
    return found


def _wait_until_committed(cluster: Cluster, group: ConsumerGroup, tick: Callable[[], None]) -> None:
    def committed() -> bool:
        tick()
        group.check()
        return set(_lag(cluster, GROUP).values()) == {0}

    if not wait_until(committed, time.monotonic() + DRAIN_SECONDS, LAG_SECONDS):
        raise RequestTimedOut(
            f"the group did not reach the end within {DRAIN_SECONDS:.0f} s: lag {_lag(cluster, GROUP)}"
        )


def _lag(cluster: Cluster, group: str) -> dict[str, int | None]:
    """Return for each partition the number of messages between the group's committed offset and the end of the
    partition.
    """
    measured = group_partitions(cluster, cluster.survey(), group, FLIGHTS)
    return {str(each.partition): each.lag_messages for each in measured}


def _receive_rate(histories: list[History]) -> float:
    times = np.concatenate([history["time_ns"] for history in histories])
    return len(times) / max(1e-9, float(times.max() - times.min()) / 1e9) if len(times) else 0.0


def _run_spark(cluster: Cluster, zookeeper: str, directory: Path, report: Report) -> BySpark:
    """Run the Spark job with a second consumer group, and return the job's results. The group's offsets are first set
    to the beginning of each partition, so that the job reads all messages.
    """
    report.step(f"Spark: from the offsets of group {SPARK_GROUP} in ZooKeeper to topic {DELAYS}")
    partitions = cluster.partitions(FLIGHTS)
    begins = {each: cluster.ask(each, partial(partition_bounds, partition=each)).first for each in partitions}
    cluster.commit(SPARK_GROUP, begins)
    began = time.monotonic()
    arguments = (zookeeper, SPARK_GROUP, FLIGHTS, DELAYS)
    job = Child("Spark job", arguments, directory / "spark.log", module="metaq.cli.demo.spark_job")
    try:
        with report.waiting("Spark is working"):
            ended = wait_until(lambda: not job.running, began + SPARK_SECONDS)
    finally:
        code = job.stop()
    if not ended:
        raise RequestTimedOut(f"the Spark job did not end within {SPARK_SECONDS:.0f} s: {job.last_words()}")
    if code != 0:
        raise ClientError(f"the Spark job ended with exit code {code}: {job.last_words()}")
    seconds = time.monotonic() - began
    report.say(f"the job took {seconds:.1f} s, Spark's start included")
    return BySpark(seconds, delays_in(message.payload for message in read_topic(cluster, Wanted(DELAYS, "earliest"))))
