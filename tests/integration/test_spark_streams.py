"""Topics as streaming DataFrames: real Spark, real brokers; admission also by the reader's own methods."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from metaq import Producer
from metaq.client.questions.cluster import Cluster
from metaq.client.questions.partition_bounds import partition_bounds
from metaq.protocol.record import HEADER_BYTES
from metaq.spark_connector import LagListener, LagReport
from metaq.spark_connector.offsets import from_json, to_json
from metaq.spark_connector.options import ReadOptions
from metaq.spark_connector.stream import MetaqStreamReader
from tests.waiting import eventually

from .cli_helpers import Up

TOPICS = ["flow:2", "behind:2", "steps:2", "bytes:1", "least:1", "now:1"]
OPTIONS = ("--flush", "async")


@pytest.fixture
def producer(cluster) -> Iterator[Producer]:
    with Producer(cluster.zookeeper) as shared:
        yield shared


def send(producer: Producer, topic: str, first: int, last: int) -> list[str]:
    payloads = [f"{number:06d}" for number in range(first, last)]
    for begin in range(0, len(payloads), 10):
        producer.send_batch(topic, [payload.encode() for payload in payloads[begin : begin + 10]])
    return payloads


def drain(spark: SparkSession, cluster: Up, topic: str, place: Path, **options: str) -> list[int]:
    """Run a query to the end of the topic into Parquet; the rows of each micro-batch that had any."""
    stream = spark.readStream.format("metaq").options(zookeeper=cluster.zookeeper, subscribe=topic, **options).load()
    query = (
        stream.selectExpr("CAST(value AS STRING) AS value", "partition", "offset")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(place / "rows"))
    )
    assert query.awaitTermination(120)
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


def drained(spark: SparkSession, place: Path) -> list[str]:
    return sorted(row.value for row in spark.read.parquet(str(place / "rows")).collect())


def test_a_query_drains_a_topic_in_limited_batches_and_goes_on_where_it_was(spark, cluster, producer, tmp_path):
    sent = send(producer, "flow", 0, 200)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "70", "group": "spark-flow"}
    batches = drain(spark, cluster, "flow", tmp_path, **options)
    assert batches == [70, 70, 60]
    sent += send(producer, "flow", 200, 250)
    assert drain(spark, cluster, "flow", tmp_path, **options) == [50]
    assert drained(spark, tmp_path) == sent
    with Cluster(cluster.zookeeper) as asked:
        for partition in asked.partitions("flow"):
            end = partition_bounds(asked.connection(partition.broker), partition).end
            committed = asked.committed("spark-flow", partition)
            assert committed is not None
            assert committed.offset == end


def test_a_listener_says_how_far_a_query_is_behind(spark, cluster, producer):
    sent = send(producer, "behind", 0, 100)
    seen: list[LagReport] = []
    options = {"subscribe": "behind", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "30"}
    stream = spark.readStream.format("metaq").options(zookeeper=cluster.zookeeper, **options).load()
    with LagListener(cluster.zookeeper, seen.append) as listener:
        spark.streams.addListener(listener)
        query = stream.writeStream.format("noop").queryName("behind").start()
        try:
            query.processAllAvailable()
            eventually(lambda: (last := listener.report(query)) and last.messages == 0, 120)
            assert seen[-1].bytes == 0
            assert seen[-1].seconds == 0.0
            first = seen[0]
            assert (first.name, len(first.partitions)) == ("behind", 2)
            assert first.messages == len(sent) - 30 * (first.batch + 1)
            assert first.bytes == (len(sent) - 30 * (first.batch + 1)) * (HEADER_BYTES + 6)
            assert (first.seconds or 0.0) > 0.0
            with Cluster(cluster.zookeeper) as asked:
                for each in seen[-1].partitions:
                    bounds = partition_bounds(asked.connection(each.partition.broker), each.partition)
                    assert each.position == each.end == bounds.end
        finally:
            spark.streams.removeListener(listener)
            query.stop()


# --- the reader itself ------------------------------------------------------------------------------------------------


@pytest.fixture
def reader(cluster, request) -> Iterator[MetaqStreamReader]:
    topic, options = request.param
    given = {"zookeeper": cluster.zookeeper, "subscribe": topic, "startingOffsets": "earliest"} | options
    made = MetaqStreamReader(ReadOptions.parse(given, "stream"))
    yield made
    made.stop()


def rows_between(reader: MetaqStreamReader, start: dict, end: dict) -> list[str]:
    batches = [batch for each in reader.partitions(start, end) for batch in reader.read(each)]
    return sorted(bytes(value.as_py()).decode() for batch in batches for value in batch.column("value"))


@pytest.mark.parametrize("reader", [("steps", {"maxOffsetsPerTrigger": "33", "minPartitions": "6"})], indirect=True)
def test_every_message_is_in_one_micro_batch(reader, producer):
    sent = send(producer, "steps", 0, 100)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(33)
    start, seen = reader.initialOffset(), []
    while (end := reader.latestOffset(start, limit)) != start:
        rows = rows_between(reader, start, end)
        assert len(reader.partitions(start, end)) >= min(6, len(rows))
        assert 1 <= len(rows) <= 33
        seen += rows
        start = end
    assert sorted(seen) == sent
    assert reader.reportLatestOffset() == to_json(from_json(start))
    assert from_json(reader.latestOffset(reader.initialOffset(), ReadAllAvailable())) == from_json(start)


@pytest.mark.parametrize("reader", [("bytes", {"maxBytesPerTrigger": "1000"})], indirect=True)
def test_a_micro_batch_ends_between_messages_within_its_bytes(reader, producer):
    producer.send("bytes", b"x" * 5000)  # larger than the limit: goes alone
    sent = send(producer, "bytes", 0, 100)
    (start,) = from_json(reader.initialOffset()).values()
    steps = []
    position = reader.initialOffset()
    while (end := reader.latestOffset(position, reader.getDefaultReadLimit())) != position:
        steps.append((position, end))
        position = end
    sizes = [next(iter(from_json(end).values())) - next(iter(from_json(begin).values())) for begin, end in steps]
    assert start == 0
    assert sizes[0] == 5020
    assert all(size == 1000 // 26 * 26 for size in sizes[1:-1])
    assert sorted(row for begin, end in steps[1:] for row in rows_between(reader, begin, end)) == sent


@pytest.mark.parametrize("reader", [("now", {})], indirect=True)
def test_available_now_ends_where_the_topic_ended(reader, producer):
    sent = send(producer, "now", 0, 10)
    reader.prepareForTriggerAvailableNow()
    send(producer, "now", 10, 20)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert rows_between(reader, start, end) == sent
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end


def test_a_minimum_is_waited_for_until_the_delay_has_passed(cluster, producer):
    now = [0.0]
    given = {"zookeeper": cluster.zookeeper, "subscribe": "least", "startingOffsets": "earliest"}
    options = ReadOptions.parse(given | {"minOffsetsPerTrigger": "20", "maxTriggerDelay": "1m"}, "stream")
    reader = MetaqStreamReader(options, lambda: now[0])
    try:
        limit = reader.getDefaultReadLimit()
        send(producer, "least", 0, 10)
        first = reader.latestOffset(reader.initialOffset(), limit)  # the first batch waits for nothing
        assert first != reader.initialOffset()
        send(producer, "least", 10, 20)
        now[0] = 59.0
        assert reader.latestOffset(first, limit) == first
        now[0] = 60.0
        second = reader.latestOffset(first, limit)
        assert second != first
        send(producer, "least", 20, 40)
        assert reader.latestOffset(second, limit) != second  # enough at once
    finally:
        reader.stop()
