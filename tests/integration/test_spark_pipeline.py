"""The pipeline of docs/spark.md: stopped in the middle and started again, it gives what a batch computation gives."""

import json
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from metaq import Producer, browse
from metaq.cli.demo.flights import flights_table, json_messages
from tests.waiting import eventually

from .cli_helpers import serving_up
from .doc_examples import blocks

SECONDS = 240.0
LATER = b'{"carrier":"later","time_hour":"2013-06-01T00:00:00Z","dep_delay":0}'
"""Moves the watermark behind all days."""

Delay = tuple[str, str, int, float | None]
"""Day, carrier, flights, mean delay."""


def sent_messages() -> list[list[bytes]]:
    """The flights of a few carriers in the first ten days, in batches."""
    table = flights_table()
    few = table[(table["month"] == 1) & (table["day"] <= 10) & table["carrier"].isin(["AA", "HA", "US"])]
    return list(json_messages(few, 100))


def in_files(spark: SparkSession, directory: Path) -> list[Delay]:
    if not list(directory.glob("*.parquet")):
        return []
    return sorted((str(row.day), row.carrier, row.flights, row.mean_delay) for row in read(spark, directory))


def read(spark: SparkSession, directory: Path) -> list[Any]:
    return spark.read.parquet(str(directory)).collect()


def in_topic(zookeeper: str) -> list[Delay]:
    found = [json.loads(message.payload) for message in browse(zookeeper, "delays")]
    return sorted((each["day"], each["carrier"], each["flights"], each.get("mean_delay")) for each in found)


def test_a_restarted_pipeline_gives_the_batch_result_in_files_and_topic(spark: SparkSession, tmp_path: Path) -> None:
    with serving_up(tmp_path / "data", ["flights:2", "delays:2"], "--session-timeout", "20") as up:
        names: dict[str, Any] = {}
        (example,) = [block for block in blocks("spark.md", "python") if "daily_delays" in block]
        exec(example.replace("127.0.0.1:2181", up.zookeeper), names)
        batches = sent_messages()
        half = len(batches) // 2
        with Producer(up.zookeeper) as producer:
            for batch in batches[:half]:
                producer.send_batch("flights", batch)
            queries = names["start"](spark, tmp_path)
            eventually(lambda: all(query.lastProgress or query.exception() for query in queries), SECONDS)
            for query in queries:
                query.stop()  # in the middle: behind the first of its micro-batches, or within a later one
            for batch in batches[half:]:
                producer.send_batch("flights", batch)
            topic = spark.read.format("metaq").options(zookeeper=up.zookeeper, subscribe="flights").load()
            rows = names["daily_delays"](names["flights"](topic)).collect()
            expected = sorted((str(row.day), row.carrier, row.flights, row.mean_delay) for row in rows)
            assert len(expected) >= 30
            producer.send("flights", LATER)
            queries = names["start"](spark, tmp_path)
            try:
                eventually(lambda: len(in_files(spark, tmp_path / "delays")) >= len(expected), SECONDS)
                eventually(lambda: len(in_topic(up.zookeeper)) >= len(expected), SECONDS)
                for query in queries:
                    query.processAllAvailable()
            finally:
                for query in queries:
                    query.stop()
        assert in_files(spark, tmp_path / "delays") == expected
        assert in_topic(up.zookeeper) == expected
