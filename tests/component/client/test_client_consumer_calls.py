"""Calls of a consumer on real brokers: pauses, and commits of given positions."""

import threading
import time
from collections.abc import Iterator

import pytest

from metaq import Admin, Consumer, ConsumerConfig, TopicPartition
from metaq.broker.standalone.in_process import InProcessZooKeeper
from metaq.protocol.errors import ConfigError, NotOwner
from metaq.testing import Cluster
from tests.waiting import eventually

HOME = TopicPartition("t", 0, 0)


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[InProcessZooKeeper]:
    with InProcessZooKeeper() as server:
        yield server


@pytest.fixture
def cluster(zookeeper: InProcessZooKeeper) -> Iterator[Cluster]:
    with Cluster({"t": 1, "u": 1}, zookeeper=zookeeper) as cluster:
        yield cluster


@pytest.fixture
def consumer(cluster: Cluster) -> Consumer:
    return cluster.consumer(group="g", topics=["t", "u"], config=ConsumerConfig(auto_commit_seconds=0))


def received(consumer: Consumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    eventually(lambda: found.extend(each.payload for each in consumer.poll(timeout=0.1)) or len(found) >= count)
    return found


def test_a_paused_topic_waits_while_the_others_are_read(cluster, consumer):
    producer = cluster.producer()
    producer.send("t", b"1")
    assert received(consumer, 1) == [b"1"]
    consumer.pause("t")
    assert consumer.paused() == [HOME]
    producer.send("t", b"2")
    producer.send("u", b"3")
    assert received(consumer, 1) == [b"3"]
    assert consumer.poll(timeout=0.2) == []
    consumer.resume()
    assert received(consumer, 1) == [b"2"]
    assert consumer.paused() == []
    with pytest.raises(ConfigError, match="does not read the topic"):
        consumer.pause("unknown")


def test_a_handler_pauses_its_topic_and_another_thread_resumes_it(cluster, consumer):
    cluster.producer().send_batch("t", [b"1", b"2", b"3"])
    handled: list[bytes] = []

    def handle(message):
        if not handled:
            consumer.pause("t")
        handled.append(message.payload)

    thread = threading.Thread(target=consumer.run, args=(handle,), kwargs={"retry": None})
    thread.start()
    try:
        eventually(lambda: handled == [b"1"])
        time.sleep(0.3)
        assert handled == [b"1"]
        consumer.resume("t")
        eventually(lambda: handled == [b"1", b"2", b"3"])
    finally:
        consumer.stop()
        thread.join()


def test_given_positions_are_committed_and_no_others(cluster, consumer):
    cluster.producer().send_batch("t", [b"1", b"2", b"3"])
    messages = consumer.poll(timeout=10)
    assert len(messages) == 3
    assert consumer.commit({HOME: messages[0].next_offset}) == 1
    with Admin(cluster.zookeeper) as admin:
        assert [each.offset for each in admin.offsets.list(topic="t")] == [messages[1].offset]
        with pytest.raises(ConfigError, match="seek"):
            consumer.commit({HOME: messages[2].next_offset + 1})
        with pytest.raises(NotOwner):
            consumer.commit({HOME: messages[2].next_offset, TopicPartition("t", 0, 7): 0})
        assert [each.offset for each in admin.offsets.list(topic="t")] == [messages[1].offset]
        assert consumer.commit() == 1
        assert [each.offset for each in admin.offsets.list(topic="t")] == [messages[2].next_offset]
