"""What the cases share: one broker behind a proxy, producers, readers of every kind, and Spark's jobs."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from kazoo.client import KazooClient

from metaq import (
    Consumer,
    ConsumerConfig,
    DeadLetters,
    Message,
    PartitionReader,
    Producer,
    ProducerConfig,
    Retry,
    SharedConfig,
    SharedConsumer,
    SharedMessage,
    TopicPartition,
)
from metaq.client.browsing.dead_letters import DeadLetter
from metaq.coordination.records.paths import Paths
from metaq.protocol.message_id import store_time_ms
from metaq.protocol.own_topics import dead_topic
from tests.integration.java_sides import Side, decoded
from tests.waiting import eventually

from .declared import Combination
from .losing import LosingProxy

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

__all__ = ["LONG", "WANTED", "Attempt", "World", "stored_at_ms"]

T = TypeVar("T")

WANTED = "wanted"
"""The filter of the cases: a property that is true."""
LONG = b"again and again " * 200
RETRIES = "retries"
_SOON = Retry(attempts=2, first=0.05, factor=1.0, most=0.05, jitter=0)
_CONFIG = ConsumerConfig(auto_commit_seconds=0.2)


class Attempt(NamedTuple):
    """A call of a handler of run(retry=…). at_ms: when, Unix ms."""

    payload: bytes
    attempts: int
    message: Message
    at_ms: int


def stored_at_ms(message_id: int) -> int:
    """When a message was given to its partition, Unix ms."""
    found = store_time_ms(message_id)
    assert found is not None
    return found


class World:
    """Made for the cases that are run, before the first of them."""

    def __init__(self, side: Side, cases: Sequence[Combination]) -> None:
        self.side = side
        self.connect = side.connect
        self.proxy = LosingProxy(side.broker.port)
        self._register(f"meta://127.0.0.1:{self.proxy.port}")
        self._stack = ExitStack()
        self._stack.callback(self.proxy.close)
        self._cases = cases
        self._rows: dict[str, list[Row]] | None = None
        self._writes: list[tuple[str, Callable[[], list[dict[str, Any]]], Mapping[str, str]]] = []
        self._awaited: list[tuple[str, Callable[[], object]]] = []
        self.failed: dict[str, BaseException] = {}
        """What has ended a case, by its topic, before its second half."""
        self._looked: dict[tuple[str, str], tuple[int, list[Any]]] = {}
        self.spark: SparkSession | None = None
        self.java_messages: dict[str, list[dict[str, Any]]] = defaultdict(list)
        config = ProducerConfig(producer_group="bank")
        self.producer = self._stack.enter_context(Producer(self.connect, config=config))
        self.packing = self._stack.enter_context(
            Producer(self.connect, config=ProducerConfig(producer_group="bank", compression="zstd"))
        )
        self.steady = self._stack.enter_context(Producer(self.connect))
        """For transactions that stay open, on a connection that no lost answer ends."""
        self.wanted = self._collect("filter", self._filtering, without=("retry", "shared", "Spark read"))
        self.batches = self._collect("batch", self._batching, without=("retry", "shared", "filter"))
        self.attempts = self._collect("retry", self._retrying, without=("shared", "batch"))
        java = self._topics("Java 1.x reader", without=())
        self._has_java = bool(java)
        if java:
            side.app.subscribe("java", ",".join(java), max_delay=100)

    def _register(self, url: str) -> None:
        """Have clients find the proxy where the broker has registered itself."""
        zookeeper = KazooClient(self.connect)
        zookeeper.start()
        zookeeper.set(Paths("/meta").master(0), url.encode())
        zookeeper.stop()
        zookeeper.close()

    # --- collectors: one group of each kind for all topics ------------------------------------------------------------

    def _topics(self, kind: str, without: Iterable[str]) -> list[str]:
        """Of the pairs that work with this kind, and with none of the others."""
        cases = [each for each in self._cases if kind in each and each.works]
        return [each.topic for each in cases if not any(other in each for other in without)]

    def _collect(self, kind: str, collector: Callable[[list[str], Any], None], without: Iterable[str]) -> Any:
        found: dict[str, list[Any]] = defaultdict(list)
        if topics := self._topics(kind, without):
            collector(topics, found)
        return found

    def _filtering(self, topics: list[str], found: dict[str, list[Message]]) -> None:
        consumer = Consumer(self.connect, group="filter", topics=topics, where=WANTED, config=_CONFIG)
        self._run(consumer, lambda: consumer.run_batches(lambda batch: found[batch[0].topic].extend(batch), threads=2))

    def _batching(self, topics: list[str], found: dict[str, list[Message]]) -> None:
        consumer = Consumer(self.connect, group="batches", topics=topics, config=_CONFIG)
        self._run(consumer, lambda: consumer.run_batches(lambda batch: found[batch[0].topic].extend(batch), threads=2))

    def _retrying(self, topics: list[str], found: dict[str, list[Attempt]]) -> None:
        where = f"{WANTED} IS NULL OR {WANTED}"
        consumer = Consumer(self.connect, group=RETRIES, topics=topics, where=where, config=_CONFIG)

        def handle(message: Message) -> None:
            attempt = Attempt(message.payload, message.attempts, message, int(time.time() * 1000))
            found[message.topic].append(attempt)
            if message.attempts == 1 or message.payload.startswith(b"never"):
                raise ValueError("as the case wants it")

        self._run(consumer, lambda: consumer.run(handle, retry=_SOON, threads=4))

    def _run(self, consumer: Consumer, run: Callable[[], None]) -> None:
        self._stack.enter_context(consumer)
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self._stack.callback(thread.join, 10)
        self._stack.callback(consumer.stop)

    # --- reading ------------------------------------------------------------------------------------------------------

    def stored(self, topic: str, count: int = 1) -> list[Message]:
        """What the topic's partition has: exactly `count` messages, once that many have come."""
        place = TopicPartition(topic, 0, 0)
        found: list[Message] = []

        def has_all() -> bool:
            with PartitionReader(f"127.0.0.1:{self.side.broker.port}", place, start="earliest") as reader:
                found[:] = reader.poll(timeout=0.2)
            return len(found) >= count

        eventually(has_all, what=f"{count} messages of {topic}")
        assert len(found) == count, found
        return found

    def filtered(self, topic: str, count: int = 1) -> list[Message]:
        """What run_batches with `where` has got: exactly so many."""
        return self._exactly("filter", self.wanted, topic, count)

    def retried(self, topic: str, count: int = 2) -> list[Attempt]:
        """The attempts of run(retry=…): exactly so many. The first one of each message fails."""
        return self._exactly("retry", self.attempts, topic, count)

    def batched(self, topic: str, count: int) -> list[Message]:
        """What run_batches has got: exactly so many."""
        return self._exactly("batch", self.batches, topic, count)

    def letters(self, topic: str, group: str = RETRIES) -> list[DeadLetter]:
        """The dead letters of a topic, once there are some."""
        with DeadLetters(self.connect, group=group) as letters:
            return eventually(lambda: [each for each in letters.read() if each.original.topic == topic])

    def lease(self, topic: str, count: int = 1, group: str = "shared") -> list[SharedMessage]:
        """One message after the other, each acknowledged before the next: exactly so many, each leased once."""
        config = SharedConfig(prefetch=0)
        with SharedConsumer(self.connect, group=group, topics=[topic], config=config) as consumer:
            leased: list[SharedMessage] = []

            def have_all() -> bool:
                taken = consumer.poll(0.5, max_messages=1)
                consumer.ack(*taken)
                leased.extend(taken)
                return len(leased) >= count

            eventually(have_all, what=f"{count} leases of {topic}")
            consumer.flush()
            assert consumer.counts == (count, 0)
        assert [each.attempts for each in leased] == [1] * count
        return leased

    def java(self, topic: str, count: int = 1) -> list[dict[str, Any]]:
        """What the Java consumer has got: exactly so many; each has data, attribute, id."""

        eventually(lambda: self._take_java()[topic][count - 1 :], what=f"{count} messages of {topic} in Java")
        return self._exactly("java", self.java_messages, topic, count)

    def _take_java(self) -> dict[str, list[dict[str, Any]]]:
        if self._has_java:
            for message in decoded(self.side.app.call("taken", "java")["messages"]):
                self.java_messages[message["topic"]].append(message)
        return self.java_messages

    def _exactly(self, collector: str, found: Mapping[str, list[T]], topic: str, count: int) -> list[T]:
        eventually(lambda: len(found[topic]) >= count, what=f"{count} messages of {topic} ({collector})")
        assert len(found[topic]) == count, found[topic]
        self._looked[collector, topic] = count, found[topic]
        return list(found[topic])

    def come_since(self) -> list[str]:
        """Topics of which a collector has got more than a case has seen."""
        self._take_java()
        return [f"{name} of {topic}" for (name, topic), (count, found) in self._looked.items() if len(found) != count]

    # --- lost answers -------------------------------------------------------------------------------------------------

    def lose(self, mark: bytes) -> None:
        """The answer to the next request with these bytes is lost, whoever sends it."""
        self.proxy.lose(mark)

    def has_lost(self, mark: bytes) -> bool:
        """Whether it was."""
        return self.proxy.lost[mark] == 1

    def watch(self, mark: bytes) -> None:
        """Count these bytes in the requests from now on."""
        self.proxy.watched[mark] = []

    def seen(self, mark: bytes) -> list[int]:
        """How often each request had them, of those that had."""
        return self.proxy.watched[mark]

    # --- Spark --------------------------------------------------------------------------------------------------------

    def write(self, topic: str, rows: Callable[[], list[dict[str, Any]]], **options: str) -> None:
        """Have Spark write these rows, made when the job begins, between the two halves of the cases."""
        self._writes.append((topic, rows, options))

    def before_spark(self, topic: str, condition: Callable[[], object]) -> None:
        """What must be so, or is done, before Spark reads the topic."""
        self._awaited.append((topic, condition))

    def run_spark(self, spark: SparkSession) -> None:
        """All jobs of the cases: one for the writes with the same options, one that reads all topics."""
        self.spark = spark
        jobs: dict[tuple[tuple[str, str], ...], list[dict[str, Any]]] = defaultdict(list)
        for topic, rows, options in self._writes:
            jobs[tuple(sorted(options.items()))] += [{**row, "topic": topic} for row in rows()]
        for named, all_rows in jobs.items():
            self._charge({row["topic"] for row in all_rows}, partial(self.write_now, all_rows, **dict(named)))
        for topic, condition in self._awaited:
            self._charge({topic}, partial(eventually, condition))
        topics = [each.topic for each in self._cases if "Spark read" in each and each.works]
        if topics:
            if "retry-spark-read" in topics:
                topics.append(dead_topic(RETRIES))
            self._rows = defaultdict(list)
            for row in self.read_now(topics).collect():
                self._rows[row.topic].append(row)

    def _charge(self, topics: Iterable[str], step: Callable[[], object]) -> None:
        """What fails of a step is the failure of these cases alone."""
        try:
            step()
        except Exception as error:
            self.failed.update(dict.fromkeys(topics, error))

    def write_now(self, rows: list[dict[str, Any]], **options: str) -> None:
        """One job. Raises what Spark raises."""
        assert self.spark is not None
        types = {
            "value": "string",
            "topic": "string",
            "key": "string",
            "tag": "string",
            "headers": "map<string,string>",
            "deliver_at": "timestamp",
            "priority": "int",
        }
        names = [name for name in types if any(name in row for row in rows)]
        schema = ", ".join(f"{name} {types[name]}" for name in names)
        frame = self.spark.createDataFrame([tuple(row.get(name) for name in names) for row in rows], schema)
        frame.coalesce(1).write.format("metaq").options(zookeeper=self.connect, **options).mode("append").save()

    def read_now(self, topics: Iterable[str], **options: str) -> Any:
        """A DataFrame."""
        assert self.spark is not None
        every = {"includeHeaders": "true", "includePriority": "true", "typedHeaders": "true"}
        given = {"zookeeper": self.connect, "subscribe": ",".join(topics), **every, **options}
        return self.spark.read.format("metaq").options(**given).load()

    def all_rows(self, topic: str) -> list[Row]:
        """What Spark has read of the topic, in its order."""
        assert self._rows is not None
        return sorted(self._rows[topic], key=lambda row: row.offset)

    def rows(self, topic: str, count: int = 1) -> list[Row]:
        """What Spark has read of the topic: exactly so many, in their order."""
        found = self.all_rows(topic)
        assert len(found) == count, found
        return found

    # --- the end ------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
