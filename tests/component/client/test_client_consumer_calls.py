"""Calls of a consumer on real brokers: pauses, and commits of given positions."""

import threading
import time
from collections.abc import Iterator

import pytest

from metaq import Admin, Consumer, ConsumerConfig, Producer, ProducerHealth, SharedConsumer, TopicPartition
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

    def look() -> bool:
        found.extend(each.payload for each in consumer.poll(timeout=0.1))
        return len(found) >= count

    eventually(look)
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


def test_several_delayed_messages_are_cancelled_together(cluster):
    with Producer(cluster.zookeeper, compression="zstd", producer_group="p") as producer:
        sent = [producer.send("t", b"later", delay=3600) for _ in range(2)]
        assert producer.cancel(sent[0]) is True
        assert producer.cancel(iter(sent)) == [True, True]
        assert producer.cancel([]) == []


def test_arguments_of_poll_by_position_keep_their_meaning_and_warn(cluster, consumer):
    cluster.producer().send_batch("t", [b"1", b"2"])
    with pytest.warns(DeprecationWarning, match=r"write Consumer\.poll\(max_messages=1, timeout=10.0\)"):
        assert [each.payload for each in consumer.poll(1, 10.0)] == [b"1"]
    with (
        SharedConsumer(cluster.zookeeper, group="s", topics=["t"]) as shared,
        pytest.warns(DeprecationWarning, match="max_messages=1"),
    ):
        assert len(shared.poll(10.0, 1)) == 1


def test_health_and_repr_say_what_the_client_knows(cluster, consumer):
    producer = cluster.producer()
    producer.send("t", b"1")
    received(consumer, 1)
    eventually(lambda: consumer.health().ok)
    consumer.pause("t")
    assert (consumer.health().partitions, consumer.health().paused, consumer.health().trouble) == (2, 1, "")
    assert producer.health() == ProducerHealth(True, [], 0, 0, closed=False)
    assert repr(producer) == f"<Producer of {cluster.zookeeper}, 0 messages buffered>"
    assert repr(consumer) == f"<Consumer {consumer.consumer_id} of the group g, t, u: 2 partitions>"
    address = f"127.0.0.1:{cluster.broker.port}"
    cluster.broker.kill()
    eventually(lambda: address in str(consumer.health().brokers_down))
    assert not consumer.health().ok
    for client in (producer, consumer):
        client.close()
        assert client.health().closed
        assert "closed" in repr(client)


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
