"""Spark jobs whose partitions move to another broker in the middle: each message is read once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from metaq import Producer, TopicPartition
from metaq.client.questions.moves import MovesOfCluster
from metaq.coordination.records.move_payloads import Move, MoveState
from metaq.coordination.session.zk_session import ZkSession
from tests.integration.client_cluster import Brokers, running_brokers
from tests.integration.test_moves import FAST, TOPIC
from tests.waiting import eventually

MESSAGES = 20_000
SECONDS = 400


@pytest.fixture
def brokers(chroot: str, tmp_path: Path) -> Iterator[Brokers]:
    """The source has all messages."""
    with running_brokers(chroot, tmp_path, {TOPIC: 2}, count=2) as brokers:
        with Producer(chroot) as producer:
            send(producer, 0, MESSAGES)
        yield brokers


def send(producer: Producer, first: int, last: int) -> None:
    for start in range(first, last, 1000):
        payloads = [b"%d" % number for number in range(start, start + 1000)]
        producer.send_batch(TOPIC, payloads, partition=TopicPartition(TOPIC, 0, start // 1000 % 2))


def begin(session: ZkSession) -> tuple[MovesOfCluster, Move]:
    moves = MovesOfCluster(session)
    return moves, moves.begin(moves.plan(TOPIC, 0, 1, FAST))


def test_a_stream_goes_on_at_the_broker_to_which_its_partitions_have_moved(
    spark: SparkSession, chroot: str, brokers: Brokers, tmp_path: Path
) -> None:
    rows = tmp_path / "rows"
    query = (
        spark.readStream.format("metaq")
        .options(zookeeper=chroot, subscribe=TOPIC, startingOffsets="earliest", maxOffsetsPerTrigger="3000")
        .load()
        .selectExpr("CAST(value AS STRING) AS value")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="100 milliseconds")
        .start(str(rows))
    )

    def written() -> int:
        return sum(each["numInputRows"] for each in query.recentProgress)

    try:
        eventually(lambda: written() >= 3000 or query.exception(), SECONDS, "the first micro-batch")
        with ZkSession(chroot) as session:
            moves, move = begin(session)
            eventually(lambda: moves.look(move).move.state is MoveState.DONE, what="the move")
        assert written() < MESSAGES  # it happened in the middle
        with Producer(chroot) as producer:
            producer.send_batch(TOPIC, [b"%d" % number for number in range(MESSAGES, MESSAGES + 1000)])
        brokers.running[0].kill()  # what it had is at the other one
        eventually(lambda: written() >= MESSAGES + 1000 or query.exception(), SECONDS, "all messages")
        assert query.exception() is None
    finally:
        query.stop()
    found = [int(row.value) for row in spark.read.parquet(str(rows)).collect()]
    assert sorted(found) == list(range(MESSAGES + 1000))


def test_a_batch_query_ends_that_was_planned_before_its_partitions_moved(
    spark: SparkSession, chroot: str, brokers: Brokers
) -> None:
    """The source keeps what it had, so what is planned is read to its end."""
    frame = (
        spark.read.format("metaq")
        .options(zookeeper=chroot, subscribe=TOPIC, maxRecordsPerPartition="250")
        .option("metaq.fetch.bytes", "4096")
        .load()
        .selectExpr("CAST(value AS STRING) AS value")
    )
    read: list[int] = []

    def collect() -> None:
        read.extend(int(row.value) for row in frame.toLocalIterator())

    reading = threading.Thread(target=collect)
    with ZkSession(chroot) as session:
        reading.start()
        eventually(lambda: read, what="the first rows")
        moves, move = begin(session)
        eventually(lambda: moves.look(move).move.state is MoveState.DONE, what="the move")
        in_the_middle = len(read)
    reading.join()
    assert in_the_middle < MESSAGES
    assert sorted(read) == list(range(MESSAGES))
    again = sorted(int(row.value) for row in frame.collect())
    assert again == list(range(MESSAGES))
