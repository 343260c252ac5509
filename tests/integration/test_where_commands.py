"""Filters by content on the command line and in Spark."""

from collections.abc import Iterator

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from metaq import Producer
from tests.properties import sent_with

from .cli_helpers import Up

TOPICS = ["orders:2", "spark:2"]
OPTIONS = ("--brokers", "2", "--flush", "async")


@pytest.fixture
def producer(cluster: Up) -> Iterator[Producer]:
    with Producer(cluster.zookeeper) as shared:
        yield shared


def send(producer: Producer, topic: str, count: int) -> None:
    for number in range(count):
        properties = {"region": "EU" if number % 4 else "US", "n": number}
        producer.send(topic, b"%d" % number, tag="ab"[number % 2], **sent_with(properties))


def test_consume_prints_what_the_filter_holds_for(cluster: Up, producer: Producer) -> None:
    send(producer, "orders", 100)
    for more in ((), ("--group", "g", "--count", "3", "--timeout", "60")):
        ran = cluster.run("consume", "--topic", "orders", "--where", "region = 'US' AND n BETWEEN 80 AND 90", *more)
        assert (ran.code, sorted(ran.out.split())) == (0, ["80", "84", "88"]), ran.err
    ran = cluster.run("consume", "--topic", "orders", "--tag", "b", "--where", "n IN (3, 4, 5)")
    assert sorted(ran.out.split()) == ["3", "5"]


def test_a_bad_filter_is_refused_with_the_place(cluster: Up) -> None:
    ran = cluster.run("consume", "--topic", "orders", "--where", "region = EU")
    assert ran.code == 2
    assert "at character 10: expected a literal" in " ".join(ran.err.split())


def test_spark_reads_what_the_filter_holds_for(cluster: Up, producer: Producer, spark: SparkSession) -> None:
    send(producer, "spark", 400)
    options = {"zookeeper": cluster.zookeeper, "subscribe": "spark", "where": "region = 'US' AND n >= 200"}
    frame = spark.read.format("metaq").options(**options).load()
    rows = frame.select(frame.value.cast("string"), "offset", "partition", "broker").collect()
    assert sorted(int(row.value) for row in rows) == list(range(200, 400, 4))
    whole = spark.read.format("metaq").options(**{**options, "where": "TRUE"}).load()
    every = whole.select(whole.value.cast("string"), "offset", "partition", "broker").collect()
    places = {(row.broker, row.partition, row.offset): row.value for row in every}
    assert len(places) == 400
    assert all(places[row.broker, row.partition, row.offset] == row.value for row in rows)
    tagged = spark.read.format("metaq").options(**options, tags="b").load()
    assert tagged.count() == 0  # what is divisible by four has the tag a


def test_a_stream_has_what_the_filter_holds_for(
    cluster: Up, producer: Producer, spark: SparkSession, tmp_path: object
) -> None:
    options = {"zookeeper": cluster.zookeeper, "subscribe": "spark", "startingOffsets": "earliest", "where": "n < 10"}
    stream = spark.readStream.format("metaq").options(**options).load()
    query = (
        stream.writeStream.format("memory")
        .queryName("filtered")
        .option("checkpointLocation", f"{tmp_path}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(300)
    assert query.exception() is None
    rows = spark.sql("SELECT string(value) AS value FROM filtered").collect()
    assert sorted(int(row.value) for row in rows) == list(range(10))


def test_spark_refuses_a_bad_filter(cluster: Up, spark: SparkSession) -> None:
    options = {"zookeeper": cluster.zookeeper, "subscribe": "spark", "where": "n = = 5"}
    with pytest.raises(AnalysisException, match="where=n = = 5: at character 5: expected a literal"):
        spark.read.format("metaq").options(**options).load()
