"""A streaming job whose driver is killed again and again: nothing is lost, and with exactlyOnce nothing is repeated."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaq import Producer, browse
from metaq.coordination.decided_batches import DecidedBatches
from metaq.coordination.session import ZkSession
from metaq.spark_connector.decisions import qualifier

from .cli_helpers import Up, eventually, start_up, stop

# every life of a driver costs some 20 s on two busy processors
KILLS = int(os.environ.get("METAQ_SPARK_KILLS", "1"))
FILES_PER_LIFE, LINES = 6, 40
MOST_SECONDS_UNTIL_KILL = 2.0
"""A micro-batch takes about 0.4 s on an idle machine, so a random moment within this hits any part of one."""
START_SECONDS = 240.0
pytestmark = pytest.mark.timeout(60 + 120 * (KILLS + 1))
"""Of a test, in seconds: a driver starts in 6 s on an idle machine, and a loaded one may need minutes for all."""

JOB = """
import sys
from pyspark.sql import SparkSession
from metaq.spark_connector import register

zookeeper, topic, source, checkpoint, exactly_once = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .getOrCreate()
)
register(spark)
lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(source)
rows = lines.repartition(2).selectExpr("value", "CASE WHEN value LIKE '%7' THEN value END AS key", "'t' AS tag")
query = (
    rows.writeStream.format("metaq")
    .options(zookeeper=zookeeper, topic=topic, exactlyOnce=exactly_once, checkpointLocation=checkpoint)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    up = start_up(tmp_path_factory.mktemp("up"), ["once:2", "least:2"], "--brokers", "2", "--session-timeout", "5")
    yield up
    assert stop(up.process) == 0


class Job:
    """One query over a folder of files, one file a batch, in drivers that come one after the other."""

    def __init__(self, cluster: Up, topic: str, directory: Path, exactly_once: bool, files: int) -> None:
        self.source, self.checkpoint = directory / "source", directory / "checkpoint"
        self.source.mkdir()
        self.lines = [f"{number:06d}" for number in range(files * LINES)]
        for number in range(files):
            text = "\n".join(self.lines[number * LINES : (number + 1) * LINES])
            (self.source / f"{number:04d}.txt").write_text(text)
        script = directory / "job.py"
        script.write_text(JOB)
        places = [str(self.source), str(self.checkpoint)]
        self._command = [sys.executable, str(script), cluster.zookeeper, topic, *places, str(exactly_once).lower()]
        self._log = directory / "log"

    def start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
            return subprocess.Popen(self._command, stdout=log, stderr=log, env=environment, start_new_session=True)

    def batches(self) -> int:
        """How many Spark has noted as done."""
        return sum(each.name.isdigit() for each in (self.checkpoint / "commits").glob("*"))

    def kill_in_the_middle(self, seconds: float) -> None:
        """SIGKILL to the driver's Python and JVM together, `seconds` after the first batch of this life."""
        before, driver = self.batches(), self.start()
        try:
            eventually(lambda: self.batches() > before or driver.poll() is not None, START_SECONDS)
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
        return str((self.checkpoint / "metadata").read_text().split('"')[3])


def end(driver: subprocess.Popen[bytes]) -> None:
    if driver.poll() is None:
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait(10)


def payloads(cluster: Up, topic: str) -> list[str]:
    return sorted(message.payload.decode() for message in browse(cluster.zookeeper, topic))


def test_an_exactly_once_query_whose_driver_is_killed_repeats_and_loses_nothing(cluster: Up, tmp_path: Path) -> None:
    job = Job(cluster, "once", tmp_path, exactly_once=True, files=(KILLS + 1) * FILES_PER_LIFE)
    for _ in range(KILLS):
        moment = random.uniform(0.0, MOST_SECONDS_UNTIL_KILL)
        job.kill_in_the_middle(moment)
        print(f"killed {moment:.3f} s after its first batch, {job.batches()} batches done")
    job.run_to_the_end()
    assert payloads(cluster, "once") == job.lines
    with ZkSession(cluster.zookeeper) as session, Producer(cluster.zookeeper) as producer:
        decided = DecidedBatches(session).load(job.query_id()).decided
        assert decided is not None
        assert (decided.batch, decided.pending) == (job.batches() - 1, ())
        in_doubt = producer.xa(["once"], qualifier=qualifier(job.query_id())).recover()
        assert in_doubt == ((), {})


def test_a_query_with_the_default_sink_whose_driver_is_killed_loses_nothing(cluster: Up, tmp_path: Path) -> None:
    job = Job(cluster, "least", tmp_path, exactly_once=False, files=2 * FILES_PER_LIFE)
    job.kill_in_the_middle(random.uniform(0.0, MOST_SECONDS_UNTIL_KILL))
    job.run_to_the_end()
    assert set(payloads(cluster, "least")) == set(job.lines)
