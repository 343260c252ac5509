"""A streaming query while its cluster changes: partitions and brokers come, brokers die, retention is faster."""

import re
import signal
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from metaq import Producer
from metaq.client.questions.cluster import Cluster
from metaq.client.questions.partition_bounds import partition_bounds
from metaq.client.records.results import TopicPartition
from metaq.protocol.errors import BrokerUnavailable
from metaq.spark_connector.options import ReadOptions
from metaq.spark_connector.planning import plan_query
from metaq.spark_connector.pushdown import Pushed
from tests.broker_process import RunningBroker, server_ini
from tests.integration.forked_processes import ForkedBroker
from tests.waiting import eventually

from .client_cluster import SESSION_SECONDS, SHORT_SESSION_SECONDS, Brokers, running_brokers
from .replication_helpers import broker, same_files, slave

SECONDS = 240
ZERO = TopicPartition("t", 0, 0)


class Stream:
    """One query into Parquet, begun again from its checkpoint as often as wanted."""

    def __init__(self, spark: SparkSession, connect: str, directory: Path, **options: str) -> None:
        self._spark = spark
        self._options = {"zookeeper": connect, "subscribe": "t", "startingOffsets": "earliest"} | options
        self._checkpoint, self._rows = str(directory / "checkpoint"), directory / "rows"

    def start(self, *, once: bool = False, **options: str) -> StreamingQuery:
        stream = self._spark.readStream.format("metaq").options(**(self._options | options)).load()
        writer = stream.selectExpr("CAST(value AS STRING) AS value").writeStream.format("parquet")
        timed = writer.trigger(availableNow=True) if once else writer.trigger(processingTime="100 milliseconds")
        return timed.option("checkpointLocation", self._checkpoint).start(str(self._rows))

    def written(self) -> int:
        """Rows of the micro-batches that are done, cheaply: the sink's log names their files."""
        logs = [log.read_text() for log in self._rows.glob("_spark_metadata/[0-9]*")]
        files = {name for log in logs for name in re.findall(r'"path":"[^"]*/([^"/]+\.parquet)"', log)}
        return sum(pq.read_metadata(self._rows / name).num_rows for name in files)

    def rows(self) -> list[str]:
        return sorted(row.value for row in self._spark.read.parquet(str(self._rows)).collect())


def sender(producer: Producer) -> tuple[list[str], Callable[..., None]]:
    """All that was sent, and how to send more: spread over all partitions, or to one."""
    sent: list[str] = []

    def send(count: int, partition: TopicPartition | None = None) -> None:
        for _ in range(count):
            sent.append(f"{len(sent):05d}")
            producer.send("t", sent[-1].encode(), partition=partition, timeout=60)

    return sent, send


def test_a_query_follows_its_cluster_and_reads_every_message_once(spark: SparkSession, chroot: str, tmp_path: Path):
    stream = Stream(spark, chroot, tmp_path)
    others = Brokers(chroot, tmp_path, {"t": 2})
    with broker(tmp_path / "master", chroot, {"t": 2}) as master, Producer(chroot) as producer:
        sent, send = sender(producer)
        try:
            send(20)
            query = stream.start()
            eventually(lambda: stream.written() == len(sent), SECONDS)
            master.ini.write_text(master.ini.read_text().replace("numPartitions=2", "numPartitions=3"))
            master.process.send_signal(signal.SIGHUP)
            eventually(lambda: len(producer.partitions("t")) == 3, SECONDS)
            send(10, TopicPartition("t", 0, 2))
            eventually(lambda: stream.written() == len(sent), SECONDS)
            other = others.start(1)
            eventually(lambda: len(producer.partitions("t")) == 5, SECONDS)
            send(10, TopicPartition("t", 1, 1))
            eventually(lambda: stream.written() == len(sent), SECONDS)
            other.kill()  # no slave has its partitions: they wait, the others go on
            send(10, ZERO)
            eventually(lambda: stream.written() == len(sent), SECONDS)
            others.start(1)
            eventually(lambda: len(producer.partitions("t")) == 5, SECONDS)
            send(10, TopicPartition("t", 1, 0))
            eventually(lambda: stream.written() == len(sent), SECONDS)
            query.stop()
            with slave(tmp_path, chroot, {"t": 3}):
                send(30, ZERO)
                eventually(lambda: same_files(tmp_path / "master" / "data", tmp_path / "slave" / "data"), SECONDS)
                master.kill()  # its slave has what was not read yet
                query = stream.start()
                eventually(lambda: stream.written() == len(sent), SECONDS)
                assert query.isActive
                query.stop()
            assert stream.rows() == sent
        finally:
            spark.streams.resetTerminated()
            for each in spark.streams.active:
                each.stop()
            others.stop()


def retaining_broker(directory: Path, connect: str) -> RunningBroker:
    """Closes a segment every 4 KiB, and keeps all until told otherwise."""
    ini = server_ini(
        directory / "data",
        {"t": "numPartitions=1\ndeleteWhen=* * * * * ?\ndeletePolicy=delete,168"},
        unflush_threshold=1,
        zookeeper=f"zk.zkConnect={connect}\nzk.zkSessionTimeoutMs={int(SESSION_SECONDS * 1000)}\nzk.zkSyncTimeMs=100",
        max_segment_size=4096,
    )
    return ForkedBroker(directory, ini)


def test_retention_that_overtakes_a_query_is_named_exactly(spark: SparkSession, chroot: str, tmp_path: Path):
    stream = Stream(spark, chroot, tmp_path)
    with retaining_broker(tmp_path, chroot) as running, Producer(chroot) as producer, Cluster(chroot) as cluster:
        sent, send = sender(producer)
        send(20)
        assert stream.start(once=True).awaitTermination(SECONDS)
        position = partition_bounds(cluster.connection(0), ZERO).end
        size = position // len(sent)
        send(1000)
        running.ini.write_text(running.ini.read_text().replace("delete,168", "delete,1s"))
        running.process.send_signal(signal.SIGHUP)
        first = max(int(path.stem) for path in (tmp_path / "data" / "t-0").glob("*.meta"))  # the last one stays
        eventually(lambda: partition_bounds(cluster.connection(0), ZERO).first == first, SECONDS)
        with pytest.raises(StreamingQueryException) as lost:
            stream.start(once=True).awaitTermination(SECONDS)
        assert f"1 ranges are not readable: t 0-0: [{position}, {first})" in str(lost.value)
        assert stream.rows() == sent[:20]
        assert stream.start(once=True, failOnDataLoss="false").awaitTermination(SECONDS)
        assert stream.rows() == sent[:20] + sent[first // size :]


LEFT_OUT = r"t 1-0, t 1-1 \(broker 1 is not registered in ZooKeeper: start it; known from offsets of group g\)"


def test_partitions_of_a_broker_that_is_gone_are_waited_for_and_named(
    spark: SparkSession,
    chroot: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    def rows(**options: str) -> int:
        return spark.read.format("metaq").options(zookeeper=chroot, **options).load().count()

    def planned(**options: str) -> set[str]:
        caplog.clear()
        ranges = plan_query(ReadOptions.parse({"zookeeper": chroot} | options), Pushed())
        return {str(each.id) for each in ranges}

    stream = Stream(spark, chroot, tmp_path)
    with running_brokers(chroot, tmp_path, {"t": 2}, 2, session_seconds=SHORT_SESSION_SECONDS) as brokers:
        with Producer(chroot) as producer, Cluster(chroot) as cluster:
            partitions = producer.partitions("t")
            for number in range(40):
                producer.send("t", b"%02d" % number, partition=partitions[number % 4])
            brokers.running[1].kill()
            eventually(lambda: 1 not in cluster.view.brokers(), what="the end of its session")
            assert planned(subscribe="t") == {"0-0", "0-1"}  # nothing tells whether it had partitions of the topic
            assert "broker 1 is not registered in ZooKeeper; if it has partitions, they are left out" in caplog.text
            cluster.commit("g", dict.fromkeys(partitions, 0))
        monkeypatch.setattr("metaq.spark_connector.planning.FAILOVER_SECONDS", 1.0)
        for options in (
            {"subscribe": "t"},
            {"subscribe": "t", "startingOffsets": "committed", "group": "g"},
            {"subscribe": "t", "startingTimestamp": "0"},
            {"subscribe": "t", "startingOffsets": '{"t": {"0-0": 0, "0-1": 0, "1-0": 0, "1-1": 0}}'},
            {"subscribe": "t", "endingOffsets": '{"t": {"0-0": -1, "0-1": -1}}'},
            {"subscribePattern": "t.*"},
        ):
            with pytest.raises(BrokerUnavailable, match=f"{LEFT_OUT}: .*set failOnDataLoss=false to read the others"):
                planned(**options)
            assert planned(failOnDataLoss="false", **options) == {"0-0", "0-1"}
            assert re.search(f"{LEFT_OUT} .failOnDataLoss=false", caplog.text), options
        with pytest.raises(BrokerUnavailable, match=r"now: t 1-0 \(broker 1 is not registered in ZooKeeper: start it;"):
            planned(assign='{"t": ["0-0", "1-0"]}')
        assert planned(assign='{"t": ["0-0"]}') == {"0-0"}
        assert rows(subscribe="t", failOnDataLoss="false") == 20
        assert stream.start(once=True, failOnDataLoss="false").awaitTermination(SECONDS)
        assert len(stream.rows()) == 20
        with ThreadPoolExecutor() as pool:
            waiting: list[Future[Any]] = [pool.submit(rows, subscribe="t"), pool.submit(_drained, stream)]
            done, _ = wait(waiting, 5.0, return_when=FIRST_COMPLETED)
            assert not done
            brokers.start(1)
            assert [each.result(SECONDS) for each in waiting] == [40, [f"{number:02d}" for number in range(40)]]


def _drained(stream: Stream) -> list[str]:
    assert stream.start(once=True).awaitTermination(SECONDS)
    return stream.rows()
