"""Run Spark, local[2], to read and write topics of metaq or of Kafka. bench.processes.Worker drives it by its line
protocol.

    python bench/spark_worker.py metaq ZOOKEEPER [HEAP]
    python bench/spark_worker.py kafka BOOTSTRAP HEAP CLASS_PATH_OF_SPARK_SQL_KAFKA

The script imports nothing from this package, because the peer's Spark is another version in a separate environment.
Each command is answered with one line of JSON. Its seconds are the time of the whole action, including planning.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

TASKS = 2


class Topics:
    """Reads and writes the topics of one system as DataFrames, with the same queries for both systems."""

    def __init__(self, system: str, address: str, heap: str = "2g", class_path: str = "") -> None:
        self._format = system
        self._where = {"zookeeper" if system == "metaq" else "kafka.bootstrap.servers": address}
        self._spark = _session(heap, class_path)
        if system == "metaq":
            from metaq.spark_connector import register

            register(self._spark)

    def read(self, topic: str, count: int, size: int) -> dict[str, Any]:
        """Read all rows and use each value. Raises ValueError unless there are `count` values of `size` bytes."""
        start = time.perf_counter()
        frame = self._spark.read.format(self._format).options(subscribe=topic, **self._where).load()
        (row,) = frame.agg(sql.count("*").alias("rows"), sql.sum(sql.length("value")).alias("bytes")).collect()
        seconds = time.perf_counter() - start
        if (row.rows, row.bytes) != (count, count * size):
            raise ValueError(f"{row.rows} rows of {row.bytes} bytes instead of {count} of {size} each")
        return {"count": count, "seconds": seconds, "rate": count / seconds}

    def write(self, topic: str, count: int, size: int) -> dict[str, Any]:
        """Write `count` values of `size` bytes. As many tasks as can run at once make and write them."""
        rows: DataFrame = self._spark.range(0, count, numPartitions=TASKS)
        values = rows.select(sql.rpad(sql.col("id").cast("string"), size, "x").cast("binary").alias("value"))
        start = time.perf_counter()
        values.write.format(self._format).options(topic=topic, **self._where).mode("append").save()
        seconds = time.perf_counter() - start
        return {"count": count, "seconds": seconds, "rate": count / seconds}

    def version(self) -> dict[str, Any]:
        return {"spark": self._spark.version}


def _session(heap: str, class_path: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master(f"local[{TASKS}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", heap)
    )
    if class_path:
        builder = builder.config("spark.driver.extraClassPath", class_path)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what Spark's JVM prints must not be taken for an answer
    topics = Topics(*sys.argv[1:])
    for line in sys.stdin:
        command, *words = line.split()
        try:
            answer = getattr(topics, command)(*(int(word) if word.isdigit() else word for word in words))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
