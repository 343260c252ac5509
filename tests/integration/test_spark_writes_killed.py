"""Streaming jobs whose driver is killed: nothing is lost; files, and topics with exactlyOnce, have nothing twice."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from metaq import Producer, browse
from metaq.coordination.offsets.decided_batches import DecidedBatches
from metaq.coordination.session.zk_session import ZkSession
from metaq.spark_connector.exactly_once import qualifier
from metaq.spark_connector.job import DONE, FAILED, main
from tests.waiting import DEADLINE, eventually

from .cli_helpers import Up
from .forked_processes import spark_python

TOPICS = ["once:2", "source:2", "least:2"]
OPTIONS = ("--brokers", "2")

# every life of a driver costs some 20 s on two busy processors
KILLS = int(os.environ.get("METAQ_SPARK_KILLS", "1"))
FILES_PER_LIFE, LINES = 6, 40
MOST_SECONDS_UNTIL_KILL = 2.0
"""A micro-batch takes about 0.4 s on an idle machine, so a random moment within this hits any part of one."""
START_SECONDS = 240.0
pytestmark = pytest.mark.timeout(120 + 240 * (KILLS + 1))
"""Of a test, in seconds: a driver starts in 6 s on an idle machine, and a loaded one may need minutes for all."""

SESSION = """
import sys
from pyspark.sql import SparkSession
from metaq.spark_connector import register

spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .getOrCreate()
)
register(spark)
"""

QUERIES = """
zookeeper, source, files, checkpoint = sys.argv[1:]
lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(source)
rows = lines.repartition(2).selectExpr("value", "CASE WHEN value LIKE '%7' THEN value END AS key", "'t' AS tag")
options = {"subscribe": "source", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "60"}
stream = spark.readStream.format("metaq").options(zookeeper=zookeeper, **options).load()
values = stream.selectExpr("CAST(value AS STRING) AS value")
sinks = (
    rows.writeStream.format("metaq").options(zookeeper=zookeeper, topic="once", exactlyOnce="true"),
    values.writeStream.format("parquet").option("path", files),
    values.writeStream.format("metaq").options(zookeeper=zookeeper, topic="least"),
)
started = [
    sink.option("checkpointLocation", f"{checkpoint}-{number}").trigger(availableNow=True).start()
    for number, sink in enumerate(sinks)
]
for query in started:
    query.awaitTermination()
with open(f"{checkpoint}-read", "w") as read:
    read.writelines(f"{row.value}\\n" for row in spark.read.parquet(files).collect())
"""
"""From files to a topic, exactly once; from a topic to files; and to another topic. At last, the driver writes down
what Spark finds in the files."""


class Job:
    """QUERIES in drivers that come one after the other."""

    def __init__(self, cluster: Up, directory: Path, source: Path, files: Path) -> None:
        """source: of the first query; files: where the second writes."""
        self.read = directory / "checkpoint-read"
        """A line for each that Spark has found in `files`, when a driver has run to the end."""
        self._checkpoints = [directory / f"checkpoint-{number}" for number in range(3)]
        script, checkpoint = directory / "job.py", directory / "checkpoint"
        script.write_text(SESSION + QUERIES)
        self._command = [sys.executable, str(script), cluster.zookeeper, str(source), str(files), str(checkpoint)]
        self._log = directory / "log"

    def start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            environment = {**os.environ, "PYSPARK_PYTHON": spark_python()}
            return subprocess.Popen(self._command, stdout=log, stderr=log, env=environment, start_new_session=True)

    def batches(self, query: int = 0) -> int:
        """How many Spark has noted as done."""
        return sum(each.name.isdigit() for each in (self._checkpoints[query] / "commits").glob("*"))

    def _all_beyond(self, batches: list[int]) -> bool:
        return all(self.batches(query) > done for query, done in enumerate(batches))

    def kill_in_the_middle(self, seconds: float) -> None:
        """SIGKILL to the driver's Python and JVM together, `seconds` after each query's first batch of this life."""
        before, driver = [self.batches(query) for query in range(3)], self.start()
        try:
            eventually(lambda: driver.poll() is not None or self._all_beyond(before), START_SECONDS)
            time.sleep(seconds)  # the random moment: nothing is waited for
            assert driver.poll() is None, f"the query ended by itself: {self._log.read_text()[-3000:]}"
        finally:
            end(driver)

    def run_to_the_end(self) -> None:
        driver = self.start()
        try:
            assert driver.wait(START_SECONDS) == 0, self._log.read_text()[-3000:]
        finally:
            end(driver)

    def query_id(self) -> str:
        return str((self._checkpoints[0] / "metadata").read_text().split('"')[3])


def end(driver: subprocess.Popen[bytes]) -> None:
    if driver.poll() is None:
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait(DEADLINE)


def payloads(cluster: Up, topic: str) -> list[str]:
    return sorted(message.payload.decode() for message in browse(cluster.zookeeper, topic))


def lines(files: int) -> list[str]:
    return [f"{number:06d}" for number in range(files * LINES)]


def test_queries_whose_driver_is_killed_lose_nothing_and_exactly_once_and_files_repeat_nothing(
    cluster: Up, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "source"
    sent = lines((KILLS + 1) * FILES_PER_LIFE)
    source.mkdir()
    with Producer(cluster.zookeeper) as producer:
        for number, begin in enumerate(range(0, len(sent), LINES)):
            (source / f"{number:04d}.txt").write_text("\n".join(sent[begin : begin + LINES]))
            producer.send_batch("source", [line.encode() for line in sent[begin : begin + LINES]])
    job = Job(cluster, tmp_path, source, tmp_path / "files")
    for _ in range(KILLS):
        moment = random.uniform(0.0, MOST_SECONDS_UNTIL_KILL)
        job.kill_in_the_middle(moment)
        with capsys.disabled():
            print(f"killed {moment:.3f} s after its first batches, {[job.batches(query) for query in range(3)]} done")
    job.run_to_the_end()
    assert payloads(cluster, "once") == sent
    assert sorted(job.read.read_text().splitlines()) == sent
    assert set(payloads(cluster, "least")) == set(sent)
    with ZkSession(cluster.zookeeper) as session, Producer(cluster.zookeeper) as producer:
        decided = DecidedBatches(session).load(job.query_id()).decided
        assert decided is not None
        assert (decided.batch, decided.pending) == (job.batches() - 1, ())
        in_doubt = producer.xa(["once"], qualifier=qualifier(job.query_id())).recover()
        assert in_doubt == ((), {})
    where = ("--zookeeper", cluster.zookeeper)
    assert main(("queries", *where)) == DONE
    listed = json.loads(capsys.readouterr().out)
    assert listed == {"query": job.query_id(), "batch": job.batches() - 1, "pending": 0, "topic": "once"}
    assert main(("forget", job.query_id(), *where)) == DONE
    assert main(("forget", job.query_id(), *where)) == FAILED
    assert main(("queries", *where)) == DONE
    assert capsys.readouterr().out == ""
    assert payloads(cluster, "once") == sent
