"""Topics as DataFrames: real Spark, real brokers."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, timedelta
from uuid import uuid4

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, LessThan

from metaq import Producer
from metaq.client.questions.cluster import Cluster
from metaq.client.questions.partition_bounds import partition_bounds
from metaq.client.questions.stored_records import BegunPull, Pulled
from metaq.client.records.results import TopicPartition
from metaq.spark_connector import reader as reader_module
from metaq.spark_connector import register
from metaq.spark_connector.options import ReadOptions
from metaq.spark_connector.reader import FilteringReader
from metaq.spark_connector.schema import SPARK_SCHEMA
from tests.waiting import eventually

from .cli_helpers import Up

TOPICS = [
    "read:2",
    "tagged:1",
    "empty:1",
    "group:2",
    "explicit:2",
    "kept:1",
    "out:2",
    "a:1",
    "b:1",
    "text:2",
    "cut:2",
    "big:1",
    "head:1",
    "table:1",
    "threads:1",
]
OPTIONS = ("--brokers", "2", "--flush", "async")
PARTITIONS = 2


@pytest.fixture
def producer(cluster) -> Iterator[Producer]:
    with Producer(cluster.zookeeper) as shared:
        yield shared


def read(spark: SparkSession, cluster: Up, topics: str, **options: str) -> DataFrame:
    given = {"zookeeper": cluster.zookeeper, "subscribe": topics} | options
    return spark.read.format("metaq").options(**given).load()


def values(frame: DataFrame) -> list[str]:
    return sorted(row.value for row in frame.select(frame.value.cast("string")).collect())


def send_numbered(producer: Producer, topic: str, count: int, first: int = 0) -> list[str]:
    """Messages spread over all partitions, in batches of 10; their payloads."""
    payloads = [f"{number:06d}" for number in range(first, first + count)]
    for begin in range(0, count, 10):
        producer.send_batch(topic, [payload.encode() for payload in payloads[begin : begin + 10]])
    return payloads


def test_a_topic_is_read_completely_with_its_places_in_order(spark, cluster, producer):
    sent = send_numbered(producer, "read", 2000)
    frame = read(spark, cluster, "read", **{"metaq.fetch.bytes": "4096"})
    assert frame.schema == SPARK_SCHEMA
    rows = frame.collect()
    assert sorted(bytes(row.value).decode() for row in rows) == sent
    assert {(row.broker, row.partition) for row in rows} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert {row.topic for row in rows} == {"read"}
    assert all(row.key is None and row.tag is None and row.timestamp is not None for row in rows)
    for place in {(row.broker, row.partition) for row in rows}:
        offsets = [row.offset for row in rows if (row.broker, row.partition) == place]
        assert offsets == sorted(offsets)
        assert len({row.id for row in rows if (row.broker, row.partition) == place}) == len(offsets)


def test_text_protocol_reads_the_same(spark, cluster, producer):
    sent = send_numbered(producer, "text", 500)
    assert values(read(spark, cluster, "text", **{"metaq.protocol": "text", "metaq.fetch.bytes": "4096"})) == sent


def test_keys_tags_and_attributes_are_columns(spark, cluster, producer):
    here = TopicPartition("tagged", 0, 0)
    producer.send("tagged", b"x", tag="buy", keys=["o-1", "o-2"], attribute="old", partition=here)
    producer.send("tagged", b"y", partition=here)
    rows = read(spark, cluster, "tagged").orderBy("offset").select("key", "value", "tag", "attribute").collect()
    assert [tuple(row) for row in rows] == [(b"o-1 o-2", b"x", "buy", "old"), (None, b"y", None, None)]


def test_several_topics_are_one_frame_and_an_empty_one_is_empty(spark, cluster, producer):
    assert read(spark, cluster, "empty").count() == 0
    producer.send("a", b"from a")
    producer.send("b", b"from b")
    assert values(read(spark, cluster, "a,b,empty")) == ["from a", "from b"]


def test_reading_starts_at_a_groups_offsets(spark, cluster, producer):
    before = send_numbered(producer, "group", 100)
    with Cluster(cluster.zookeeper) as asked:
        partitions = asked.partitions("group")
        ends = {each: end_of(asked, each) for each in partitions}
        asked.commit("spark-group", ends)
    after = send_numbered(producer, "group", 50, first=100)
    assert values(read(spark, cluster, "group", startingOffsets="committed", group="spark-group")) == after
    assert values(read(spark, cluster, "group", startingOffsets="committed", group="never-seen")) == before + after


def end_of(asked: Cluster, partition: TopicPartition) -> int:
    return partition_bounds(asked.connection(partition.broker), partition).end


def test_explicit_offsets_bound_what_is_read(spark, cluster, producer):
    send_numbered(producer, "explicit", 200)
    rows = read(spark, cluster, "explicit").select("broker", "partition", "offset").collect()
    names = sorted({f"{row.broker}-{row.partition}" for row in rows})
    assert len(names) == 2 * PARTITIONS
    offsets = sorted(row.offset for row in rows if (row.broker, row.partition) == (0, 0))
    start = json.dumps({"explicit": {name: offsets[5] if name == "0-0" else -1 - 1 for name in names}})
    end = json.dumps({"explicit": {name: offsets[9] if name == "0-0" else -1 for name in names}})
    found = read(spark, cluster, "explicit", startingOffsets=start, endingOffsets=end)
    assert found.where("broker = 0 and partition = 0").count() == 4
    assert found.where("not (broker = 0 and partition = 0)").count() == len(rows) - len(offsets)


def test_a_pattern_or_named_partitions_choose_what_is_read(spark, cluster, producer):
    sent = send_numbered(producer, "cut", 400)
    only = {"zookeeper": cluster.zookeeper}
    assert values(spark.read.format("metaq").options(**only, subscribePattern="cu[st]").load()) == sent
    assert spark.read.format("metaq").options(**only, subscribePattern="nothing.*").load().count() == 0
    rows = spark.read.format("metaq").options(**only, assign='{"cut":["0-1","1-0"]}').load().collect()
    assert {(row.broker, row.partition) for row in rows} == {(0, 1), (1, 0)}
    with pytest.raises(AnalysisException, match=r"assign: there is no partition cut 0-9: choose from cut 0-0"):
        spark.read.format("metaq").options(**only, assign='{"cut":["0-9"]}').load().count()


def test_partitions_are_split_between_messages(spark, cluster, producer):
    whole = read(spark, cluster, "cut")
    sent = values(whole)
    by_size = read(spark, cluster, "cut", minPartitions="10")
    assert by_size.rdd.getNumPartitions() == 12  # four equal partitions, three parts each
    assert values(by_size) == sent
    by_count = read(spark, cluster, "cut", maxRecordsPerPartition="30")
    sizes = by_count.groupBy(sql.spark_partition_id()).count().collect()
    assert max(row["count"] for row in sizes) == 30
    assert len(sizes) == sum(-(-row["count"] // 30) for row in whole.groupBy("broker", "partition").count().collect())
    assert values(by_count) == sent


def test_times_bound_what_is_read(spark, cluster, producer):
    rows = read(spark, cluster, "cut").selectExpr("*", "unix_millis(timestamp) AS ms").collect()
    times = sorted({row.ms for row in rows})
    start, end = times[len(times) // 4], times[len(times) // 2]
    expected = sorted(bytes(row.value).decode() for row in rows if start <= row.ms < end)
    bounds = {"startingTimestamp": str(start), "endingTimestamp": str(end)}
    found = read(spark, cluster, "cut", **bounds, startingOffsetsByTimestampStrategy="latest")
    assert values(found) == expected
    names = {f"{row.broker}-{row.partition}" for row in rows}
    per_partition = json.dumps({"cut": dict.fromkeys(sorted(names), start)})
    until = json.dumps({"cut": dict.fromkeys(sorted(names), end)})
    options = {"startingOffsetsByTimestamp": per_partition, "endingOffsetsByTimestamp": until}
    assert values(read(spark, cluster, "cut", **options, startingOffsetsByTimestampStrategy="latest")) == expected
    with pytest.raises(AnalysisException, match="has no message stored at this time or later"):
        read(spark, cluster, "cut", startingTimestamp=str(times[-1] + 60_000)).count()


def test_headers_are_a_column_if_asked_for(spark, cluster, producer):
    here = TopicPartition("head", 1, 0)
    producer.send("head", b"x", properties={"trace": "7", "from": "é", "n": 12, "raw": b"\xff"}, partition=here)
    producer.send("head", b"y", tag="t", partition=here)
    rows = read(spark, cluster, "head", includeHeaders="true").orderBy("offset").collect()
    assert [tuple(each) for each in rows[0].headers] == [
        ("trace", b"7"),
        ("from", "é".encode()),
        ("n", b"12"),
        ("raw", b"\xff"),
    ]
    assert rows[1].headers is None
    assert read(spark, cluster, "head").columns == SPARK_SCHEMA.fieldNames()
    given = {"zookeeper": cluster.zookeeper, "subscribe": "head"}
    few = spark.read.format("metaq").schema("value BINARY, tag STRING").options(**given).load()
    assert sorted(tuple(each) for each in few.collect()) == [(b"x", None), (b"y", "t")]


def fetched_bytes(spark: SparkSession, cluster: Up, filters: list[Filter], **options: str) -> tuple[int, int]:
    """(bytes of records pulled, rows) of the topic `big` by what tasks run, without Spark around it."""
    given = ReadOptions.parse({"zookeeper": cluster.zookeeper, "subscribe": "big"} | options)
    reader = FilteringReader(given)
    reader.pushFilters(filters)
    pulled = 0

    class Counting(BegunPull):
        def result(self) -> Pulled:
            nonlocal pulled
            answer = super().result()
            pulled += sum(len(data) for _, data in answer.runs)
            return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader_module, "BegunPull", Counting)
        rows = sum(batch.num_rows for each in reader.partitions() for batch in reader.read(each))
    return pulled, rows


def test_filters_reduce_what_is_fetched(spark, cluster, producer):
    for number in range(100):
        tag = "rare" if number == 50 else "common"
        for future in [producer.send_async("big", b"x" * 1000, tag=tag) for _ in range(20)]:
            future.result()
    rows = read(spark, cluster, "big").select("timestamp", "offset", "tag", "broker").collect()
    small = {"metaq.fetch.bytes": "65536"}
    everything, count = fetched_bytes(spark, cluster, [], **small)
    assert count == 2000
    assert everything >= 2_000_000
    by_tag, found = fetched_bytes(spark, cluster, [EqualTo(("tag",), "rare")], **small)
    assert found == 20
    assert by_tag <= 0.03 * everything
    by_option, found = fetched_bytes(spark, cluster, [], tags="rare", **small)
    assert (by_option, found) == (by_tag, 20)
    assert fetched_bytes(spark, cluster, [EqualTo(("broker",), 0)])[1] == sum(row.broker == 0 for row in rows)
    spot = sorted(row.timestamp for row in rows)[1000].replace(tzinfo=UTC)
    window = [GreaterThanOrEqual(("timestamp",), spot), LessThan(("timestamp",), spot + timedelta(milliseconds=1))]
    by_time, found = fetched_bytes(spark, cluster, window, **small)
    assert found >= 1
    assert by_time <= 0.5 * everything


def test_pushed_filters_give_the_same_rows_as_spark_alone(spark, cluster):
    pushed = {"pushFilters": "true", "metaq.fetch.bytes": "65536"}
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        for condition in ("tag = 'rare'", "offset > 5000 AND offset <= 90000", "broker = 1 AND tag IN ('rare', 'x')"):
            expected = read(spark, cluster, "big").where(condition).count()
            assert read(spark, cluster, "big", **pushed).where(condition).count() == expected > 0
        assert read(spark, cluster, "big", tags="rare").count() == 20
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_frame_and_its_views_keep_their_plan_until_they_are_loaded_again(spark, cluster, producer):
    """docs/spark.md says so, and what to do: Spark's Kafka source plans again at each action."""

    def count(view):
        return spark.table(view).count()

    given = f"USING metaq OPTIONS (zookeeper '{cluster.zookeeper}', subscribe 'kept')"
    send_numbered(producer, "kept", 10)
    frame = read(spark, cluster, "kept")
    frame.createOrReplaceTempView("kept_frame")
    spark.sql(f"CREATE TEMP VIEW kept {given}")
    assert [frame.count(), count("kept_frame"), count("kept")] == [10] * 3
    send_numbered(producer, "kept", 10, first=10)
    spark.sql("REFRESH TABLE kept")
    assert [frame.count(), len(values(frame)), count("kept_frame"), count("kept")] == [10] * 4
    spark.sql(f"CREATE OR REPLACE TEMP VIEW kept {given}")
    frame = read(spark, cluster, "kept")
    frame.createOrReplaceTempView("kept_frame")
    assert [frame.count(), count("kept_frame"), count("kept")] == [20] * 3


def test_a_frame_is_written_and_read_back(spark, cluster):
    frame = spark.range(1000).select(
        sql.concat(sql.lit("k"), sql.col("id") % 10).alias("key"),
        sql.col("id").cast("string").alias("value"),
        sql.lit("t").alias("tag"),
    )
    frame.write.format("metaq").options(zookeeper=cluster.zookeeper, topic="out").mode("append").save()
    back = read(spark, cluster, "out")
    assert values(back) == sorted(str(number) for number in range(1000))
    assert back.where("tag = 't'").count() == 1000
    places = back.groupBy("key").agg(sql.countDistinct("broker", "partition").alias("places")).collect()
    assert len(places) == 10
    assert {row.places for row in places} == {1}


def test_rows_may_name_their_topic(spark, cluster):
    frame = spark.createDataFrame([("a", "row for a"), ("b", "row for b")], "topic string, value string")
    frame.write.format("metaq").option("zookeeper", cluster.zookeeper).mode("append").save()
    assert "row for a" in values(read(spark, cluster, "a"))
    assert "row for b" in values(read(spark, cluster, "b"))


def test_threads_and_further_sessions_write_once_they_have_registered(spark, cluster):
    """Spark looks a Python data source up in the thread's active session, and a Python thread begins without one."""

    def write(session, value):
        frame = session.range(1).selectExpr(f"'{value}' as value")
        frame.write.format("metaq").options(zookeeper=cluster.zookeeper, topic="threads").mode("append").save()

    def register_and_write():
        another = spark.newSession()
        for session, value in ((spark, "first"), (another, "other session"), (spark, "second")):
            register(session)
            write(session, value)

    with ThreadPoolExecutor(1) as threads:
        threads.submit(register_and_write).result()
    assert values(read(spark, cluster, "threads")) == ["first", "other session", "second"]


def everywhere(offset: int) -> str:
    return json.dumps({"read": dict.fromkeys(("0-0", "0-1", "1-0", "1-1"), offset)})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOffsets": "first"}, "startingOffsets=first: choose from earliest, committed, latest"),
        (
            {"startingOffset": "earliest"},
            "startingoffset=earliest: is not an option here: did you mean startingOffsets",
        ),
        ({"subscribe": "a/b"}, "use a name without '/'"),
        ({"subscribe": "nowhere"}, "topic 'nowhere' is published by no live broker"),
        ({"startingOffsets": '{"read":{"0-0":0}}'}, "3 missing"),
        ({"startingOffsets": everywhere(10**9)}, "failOnDataLoss"),
        ({"startingOffsets": everywhere(7)}, "no message begins in read 0-0 at byte 7 (one does at "),
        ({"endingOffsets": everywhere(7)}, "no message begins in read 0-0 at byte 7 (one does at "),
    ],
)
def test_a_wrong_option_fails_on_the_driver_before_any_task(spark, cluster, options, said):
    with no_job(spark), pytest.raises(AnalysisException) as refused:
        read(spark, cluster, "read", **options).collect()
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("options", "mode", "said"),
    [
        ({"topic": "a/b"}, "append", "use a name without '/'"),
        ({}, "append", "set the option, or add a column topic"),
        ({"topic": "nowhere"}, "append", "topic 'nowhere' is published by no live broker"),
        ({"topic": "out"}, "overwrite", "a topic can only be appended to"),
    ],
)
def test_a_wrong_write_fails_on_the_driver_before_any_task(spark, cluster, options, mode, said):
    writer = spark.range(1).selectExpr("'x' as value").write.format("metaq").option("zookeeper", cluster.zookeeper)
    with no_job(spark), pytest.raises(AnalysisException, match=said):
        writer.options(**options).mode(mode).save()


@contextmanager
def no_job(spark: SparkSession) -> Iterator[None]:
    """Spark starts no job in the block. Its status tells of a job a while after it has begun, but in their order."""
    context, group = spark.sparkContext, uuid4().hex
    context.setJobGroup(group, "the block")
    yield
    context.setJobGroup(f"{group}-behind", "behind the block")
    spark.range(1).collect()
    context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    eventually(lambda: context.statusTracker().getJobIdsForGroup(f"{group}-behind"))
    assert not context.statusTracker().getJobIdsForGroup(group)


def test_a_null_value_fails_the_write_and_says_which_column(spark, cluster):
    frame = spark.createDataFrame([(None,)], "value string")
    with pytest.raises(PythonException, match="column value is null"):
        frame.write.format("metaq").options(zookeeper=cluster.zookeeper, topic="out").mode("append").save()


def test_load_and_save_name_a_topic_and_a_table_is_refused(spark, cluster, producer):
    sent = send_numbered(producer, "table", 20)
    at = spark.read.format("metaq").option("zookeeper", cluster.zookeeper)
    assert values(at.load("table")) == sorted(sent)
    one = spark.createDataFrame([("last",)], ["value"])
    one.write.format("metaq").option("zookeeper", cluster.zookeeper).mode("append").save("table")
    assert values(at.load("table")) == sorted([*sent, "last"])
    given = f"USING metaq OPTIONS (zookeeper '{cluster.zookeeper}', subscribe 'table')"
    with pytest.raises(AnalysisException, match="CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE numbers {given}")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW numbers {given}")
    assert spark.sql("SELECT count(*) FROM numbers").collect() == [(21,)]
