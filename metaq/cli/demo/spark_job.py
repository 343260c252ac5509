"""The demo's Spark job. The job reads flights from one topic. It computes the mean departure delay and the number of
flights of each carrier, and sends these results to another topic.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from metaq.spark_connector import register

__all__ = ["delays_by_carrier", "main"]

FLIGHT = "carrier STRING, dep_delay DOUBLE"


def delays_by_carrier(flights: DataFrame) -> DataFrame:
    """Return a DataFrame with one message per carrier: the key is the carrier, and the payload is a JSON object with
    the carrier's number of flights and mean delay. `flights`: messages that each hold a flight as JSON.
    """
    flight = sql.from_json(sql.col("value").cast("string"), FLIGHT)
    figures = (
        flights.select(flight.alias("flight"))
        .groupBy(sql.col("flight.carrier").alias("carrier"))
        .agg(sql.count(sql.lit(1)).alias("flights"), sql.avg("flight.dep_delay").alias("mean_dep_delay"))
    )
    return figures.select(sql.col("carrier").alias("key"), sql.to_json(sql.struct("*")).alias("value"))


def main(arguments: Sequence[str]) -> None:
    """Run the Spark job. The arguments are ZOOKEEPER GROUP FROM_TOPIC TO_TOPIC."""
    zookeeper, group, source, target = arguments
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("metaq demo")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    try:
        register(spark)
        flights = (
            spark.read.format("metaq")
            .option("zookeeper", zookeeper)
            .option("subscribe", source)
            .option("group", group)
            .option("startingOffsets", "committed")
            .load()
        )
        messages = delays_by_carrier(flights)
        messages.write.format("metaq").option("zookeeper", zookeeper).option("topic", target).mode("append").save()
    finally:
        spark.stop()
