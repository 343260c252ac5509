"""close() within its timeout when ZooKeeper, a broker or both hang: a stopped process answers and refuses nothing."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from metaq import Consumer, ConsumerConfig, LocalMessageStore, OrderedProducer, Producer, ProducerConfig, TopicBrowser
from metaq.client.questions.cluster import Cluster
from metaq.client.runtime.timers import END_SECONDS
from metaq.coordination.servers.local_zookeeper import ZooKeeperProcess
from tests.integration.client_cluster import Brokers, running_brokers
from tests.waiting import DEADLINE, assert_within, eventually
from tests.zookeepers import zookeeper_process

TIMEOUT = 2.0
BOUND = TIMEOUT + END_SECONDS + 0.5
"""What close() promises, and a little for the machine."""

Hung = Callable[[], list[int]]


@pytest.fixture(scope="module")
def own_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    """Not the one of all tests: it is stopped here."""
    with zookeeper_process(tmp_path_factory.mktemp("zookeeper"), tick_time_ms=500) as server:
        yield server


@pytest.fixture(scope="module")
def brokers(own_zookeeper: ZooKeeperProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    directory = tmp_path_factory.mktemp("brokers")
    with running_brokers(own_zookeeper.connect_string, directory, {"t": 4}, session_seconds=30.0) as brokers:
        yield brokers


@pytest.fixture(params=["zookeeper", "broker", "both"])
def hung(request: pytest.FixtureRequest, own_zookeeper: ZooKeeperProcess, brokers: Brokers) -> Hung:
    def pids() -> list[int]:
        assert own_zookeeper.pid is not None
        zookeeper, broker = own_zookeeper.pid, brokers.running[0].process.pid
        return {"zookeeper": [zookeeper], "broker": [broker], "both": [zookeeper, broker]}[request.param]

    return pids


@contextmanager
def stopped(pids: Iterable[int]) -> Iterator[None]:
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def took(close: Callable[[float], None]) -> float:
    started = time.monotonic()
    close(TIMEOUT)
    return time.monotonic() - started


def test_a_producer(brokers: Brokers, hung: Hung) -> None:
    def attempt() -> float:
        producer = Producer(brokers.connect)
        eventually(lambda: producer.partitions("t"), what="the topic")
        producer.send("t", b"1")
        with stopped(hung()):
            futures = [producer.send_async("t", b"2") for _ in range(10)]
            seconds = took(producer.close)
            ended = [future.done() for future in futures]
        assert all(ended)
        return seconds

    assert_within(BOUND, attempt)


def test_a_consumer(brokers: Brokers, hung: Hung) -> None:
    def attempt() -> float:
        with Producer(brokers.connect) as producer:
            eventually(lambda: producer.partitions("t"), what="the topic")
            consumer = Consumer(brokers.connect, group="g", topics=["t"], start="latest")
            eventually(lambda: len(consumer.assignment()) == 4, what="owning everything")
            eventually(lambda: producer.send("t", b"1") and consumer.poll(timeout=0.1), what="a message")
            consumer.poll(timeout=0)
            with stopped(hung()):
                return took(consumer.close)

    assert_within(BOUND, attempt)


def test_a_consumer_that_commits_all_the_time_with_a_handler_at_work(brokers: Brokers, hung: Hung) -> None:
    def attempt() -> float:
        works, go = threading.Event(), threading.Event()
        consumer = Consumer(
            brokers.connect, group="handlers", topics=["t"], config=ConsumerConfig(auto_commit_seconds=0.01)
        )

        def handle(_: object) -> None:
            if works.is_set():
                go.wait(DEADLINE)
            works.set()

        thread = threading.Thread(target=consumer.run, args=(handle,))
        thread.start()
        with Producer(brokers.connect) as producer:
            eventually(lambda: producer.partitions("t"), what="the topic")
            eventually(lambda: producer.send("t", b"1") and works.wait(0.1), what="a message")
            with stopped(hung()):
                time.sleep(0.2)  # a commit hangs
                seconds = took(consumer.close)
        go.set()
        thread.join(DEADLINE)
        return seconds

    assert_within(BOUND, attempt)


def test_an_ordered_producer_and_one_with_a_store_for_undelivered_messages(
    brokers: Brokers, hung: Hung, tmp_path: Path
) -> None:
    numbers = iter(range(100))

    def attempt() -> float:
        number = next(numbers)
        config = ProducerConfig(delivery_timeout_seconds=0.5)
        ordered = OrderedProducer(
            brokers.connect,
            partitions={"t": {0: 4}},
            store=LocalMessageStore(tmp_path / f"{number}-ordered.db"),
            save_failed=True,
            config=config,
        )
        keeping = Producer(
            brokers.connect, undelivered=LocalMessageStore(tmp_path / f"{number}-undelivered.db"), config=config
        )
        eventually(lambda: keeping.partitions("t"), what="the topic")
        ordered.send("t", b"1")
        keeping.send("t", b"1")
        with stopped(hung()):
            futures = [keeping.send_async("t", b"2") for _ in range(10)]
            ordered.send("t", b"2", timeout=0.1)
            seconds = max(took(ordered.close) - END_SECONDS, took(keeping.close))
            assert all(future.done() for future in futures)
        return seconds

    assert_within(BOUND, attempt)


def test_a_look_at_the_cluster_and_a_browser(brokers: Brokers, hung: Hung) -> None:
    def attempt() -> float:
        with Producer(brokers.connect) as producer:
            eventually(lambda: producer.partitions("t"), what="the topic")
            producer.send("t", b"1")
        cluster, browser = Cluster(brokers.connect), TopicBrowser(brokers.connect, "t")
        assert cluster.partitions("t")
        assert next(iter(browser)).payload
        with stopped(hung()):
            return max(took(cluster.close), took(browser.close))

    assert_within(BOUND, attempt)
