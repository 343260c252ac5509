"""Spark tasks and queries on a broker set whose leader is killed, or frozen, in the middle."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition

from metaq import Producer, TopicPartition, browse
from metaq.protocol.errors import MetaqError
from metaq.spark_connector.options import ReadOptions
from metaq.spark_connector.planning import plan_query
from metaq.spark_connector.pushdown import Pushed
from metaq.spark_connector.reader import read_partition
from tests.integration.background import Repeating
from tests.integration.set_nodes import SetNodes, set_nodes
from tests.waiting import DEADLINE, eventually

SET_TOPICS = {"t": "numPartitions=2", "out": "numPartitions=2"}
MESSAGES = 20_000


@pytest.fixture(autouse=True)
def messages(nodes: SetNodes) -> None:
    with Producer(nodes.connect) as producer:
        for start in range(0, MESSAGES, 1000):
            producer.send_batch("t", [b"%d" % number for number in range(start, start + 1000)])


def _kill(nodes: SetNodes, name: str) -> None:
    nodes.kill(name)


def _freeze(nodes: SetNodes, name: str) -> None:
    nodes.signal(name, signal.SIGSTOP)


GOES = pytest.mark.parametrize("go", [_kill, _freeze])


def options(nodes: SetNodes, **more: str) -> ReadOptions:
    return ReadOptions.parse({"zookeeper": nodes.connect, "subscribe": "t", "metaq.fetch.bytes": "16384", **more})


@GOES
@pytest.mark.parametrize("begun", [True, False])
def test_a_task_asks_the_other_nodes_when_its_leader_is_silent(
    nodes: SetNodes, go: Callable[[SetNodes, str], None], begun: bool
) -> None:
    """begun: the leader goes in the middle of the task; otherwise before it, with the old leader in its plan."""
    chosen = options(nodes)
    leader = nodes.leader
    read = []
    longest = 0.0
    for number, planned in enumerate(plan_query(chosen, Pushed())):
        assert len(planned.nodes) == 2
        batches = read_partition(chosen, InputPartition(planned))
        if begun:
            read += next(batches).column("value").to_pylist()
        if number == 0:
            go(nodes, leader)
        last = time.monotonic()
        for batch in batches:
            longest = max(longest, time.monotonic() - last)
            last = time.monotonic()
            read += batch.column("value").to_pylist()
    assert sorted(map(int, read)) == list(range(MESSAGES))
    assert longest < 8.0


@GOES
def test_a_query_reads_and_writes_each_message_once_when_the_leader_goes(
    spark: SparkSession, nodes: SetNodes, tmp_path: Path, go: Callable[[SetNodes, str], None]
) -> None:
    """A stream in small micro-batches, so that it happens in the middle."""

    def goes_on(condition: Callable[[], object]) -> None:
        leader = nodes.leader
        eventually(condition, 60)
        go(nodes, leader)
        nodes.wait_for_leader(*{"a", "b"} - {leader})

    settings = {"zookeeper": nodes.connect, "subscribe": "t", "startingOffsets": "earliest"}
    written = (
        spark.readStream.format("metaq")
        .options(**settings, maxOffsetsPerTrigger="2000")
        .load()
        .selectExpr("CAST(value AS STRING) AS value")
        .writeStream.format("metaq")
        .options(zookeeper=nodes.connect, topic="out", exactlyOnce="true")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        goes_on(lambda: _lines(nodes) >= 2000)
        eventually(lambda: _lines(nodes) >= MESSAGES or written.exception(), 120)
        assert written.exception() is None
    finally:
        written.stop()
    assert sorted(int(bytes(each.payload)) for each in browse(nodes.connect, "out")) == list(range(MESSAGES))


def _lines(nodes: SetNodes) -> int:
    try:
        return sum(1 for _ in browse(nodes.connect, "out"))
    except MetaqError:  # between two leaders
        return 0


@GOES
def test_a_batch_query_goes_on_when_the_leader_goes(
    spark: SparkSession, nodes: SetNodes, go: Callable[[SetNodes, str], None]
) -> None:
    leader = nodes.leader
    gone = threading.Timer(0.4, lambda: go(nodes, leader))
    frame = (
        spark.read.format("metaq")
        .options(zookeeper=nodes.connect, subscribe="t", maxRecordsPerPartition="500")
        .option("metaq.fetch.bytes", "4096")
        .load()
    )
    gone.start()
    try:
        rows = frame.selectExpr("CAST(value AS STRING) AS value").collect()
    finally:
        gone.join()
    assert sorted(int(row.value) for row in rows) == list(range(MESSAGES))
    assert nodes.nodes[leader].process.poll() is not None or go is _freeze


@pytest.mark.parametrize("go", [signal.SIGTERM, signal.SIGKILL])
def test_queries_that_are_planned_while_the_leader_goes_have_all_partitions(
    nodes: SetNodes, tmp_path: Path, go: signal.Signals
) -> None:
    """Another set has the topic, too, so that a query without this set's partitions could be planned."""
    chosen = options(nodes)
    with set_nodes(tmp_path / "other", nodes.connect, SET_TOPICS, broker_id=1) as others:
        (tmp_path / "other").mkdir()
        others.start("c")
        others.wait_in_sync("c")
        with Producer(nodes.connect) as producer:
            eventually(lambda: {each.broker for each in producer.partitions("t")} == {0, 1}, what="both sets' topic")
            for number in range(2):
                producer.send("t", b"0", partition=TopicPartition("t", 1, number))
        _plan_while_leaders_go(chosen, nodes, go)


def _plan_while_leaders_go(chosen: ReadOptions, nodes: SetNodes, go: signal.Signals) -> None:
    found: set[tuple[str, ...]] = set()

    def plan(_step: int) -> None:
        found.add(tuple(str(each.id) for each in plan_query(chosen, Pushed())))

    with Repeating(plan, 0.0) as one, Repeating(plan, 0.0) as other:
        for _ in range(3):
            leader = nodes.leader
            for each in (one, other):
                each.wait_for(2)
            nodes.signal(leader, go)
            nodes.nodes[leader].process.wait(DEADLINE)
            nodes.wait_for_leader(*{"a", "b"} - {leader})
            nodes.start(leader)
            nodes.wait_in_sync("a", "b")
    assert one.errors + other.errors == []
    assert found == {("0-0", "0-1", "1-0", "1-1")}
