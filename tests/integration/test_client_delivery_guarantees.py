"""Producer and consumer together on real brokers: nothing acknowledged is lost; positions, filters, protocols."""

import time
from datetime import UTC, datetime, timedelta

import pytest

from metaq import Consumer, ConsumerConfig, Producer, ProducerConfig, TopicPartition
from metaq.protocol.errors import CoordinationUnavailable, NoPartition, NotOwner
from tests.integration.client_cluster import SESSION_SECONDS, read, running_brokers
from tests.waiting import assert_within, eventually

TOPICS = {"t": 1}
CONFIG = ConsumerConfig(session_timeout_seconds=SESSION_SECONDS)
HERE = TopicPartition("t", 0, 0)


@pytest.fixture
def producer(brokers, protocol):
    with Producer(brokers.connect, protocol=protocol) as producer:
        yield producer


@pytest.fixture
def consumer(brokers, protocol):
    with Consumer(brokers.connect, group="g", topics=["t"], protocol=protocol, config=CONFIG) as consumer:
        eventually(lambda: consumer.assignment() == [HERE], 10)
        yield consumer


def test_blocking_sends_go_on_when_a_broker_is_killed(chroot, tmp_path):
    with running_brokers(chroot, tmp_path, {"t": 1}, count=2) as brokers, Producer(chroot) as producer:
        for number in range(50):
            producer.send("t", b"%d" % number)
        brokers.running[1].kill()
        slowest = 0.0
        for number in range(50, 150):
            started = time.monotonic()
            assert producer.send("t", b"%d" % number).partition.broker == 0
            slowest = max(slowest, time.monotonic() - started)
        assert slowest < SESSION_SECONDS / 2  # long before ZooKeeper knows


def test_what_was_sent_is_read_with_everything_its_producer_set(producer, consumer):
    result = producer.send("t", b"payload", tag="buy", keys=["k"], properties={"h": "1"})
    producer.send("t", b"")
    message, empty = read(consumer, 2)
    assert (message.id, message.partition, message.offset) == (result.message_id, result.partition, result.offset)
    assert (message.payload, message.tag, message.keys, message.properties) == (b"payload", "buy", ("k",), {"h": "1"})
    assert message.timestamp is not None
    assert abs(message.timestamp - datetime.now(UTC)) < timedelta(minutes=1)
    assert empty.payload == b""


def test_seek_goes_to_an_offset_the_beginning_and_the_end(producer, consumer):
    results = [producer.send("t", b"%d" % number) for number in range(5)]
    read(consumer, 5)
    consumer.seek(HERE, results[3].offset)
    assert [message.payload for message in read(consumer, 2)] == [b"3", b"4"]
    consumer.seek(HERE, "earliest")
    assert len(read(consumer, 5)) == 5
    consumer.seek(HERE, "earliest")
    consumer.seek(HERE, "latest")
    producer.send("t", b"new")
    assert [message.payload for message in read(consumer, 1)] == [b"new"]
    with pytest.raises(NotOwner):
        consumer.seek(TopicPartition("t", 9, 9), 0)


def test_a_seek_is_committed(brokers, producer, consumer):
    producer.send_batch("t", [b"0", b"1", b"2"])
    messages = read(consumer, 3)
    consumer.seek(HERE, messages[1].offset)
    consumer.commit()
    consumer.close()
    with Consumer(brokers.connect, group="g", topics=["t"], config=CONFIG) as again:
        assert [message.payload for message in read(again, 2)] == [b"1", b"2"]


def test_a_topic_nobody_publishes_is_said_at_once(producer):
    def attempt() -> float:
        started = time.monotonic()
        with pytest.raises(NoPartition, match="no-such-topic"):
            producer.send("no-such-topic", b"")
        return time.monotonic() - started

    assert_within(2, attempt)


def test_a_broker_added_later_is_used(chroot, tmp_path):
    with running_brokers(chroot, tmp_path, {"t": 1}, count=1) as brokers, Producer(chroot) as producer:
        assert {producer.send("t", b"").partition.broker for _ in range(4)} == {0}
        brokers.start(1)
        eventually(lambda: len(producer.partitions("t")) == 2, 5)
        assert {producer.send("t", b"").partition.broker for _ in range(4)} == {0, 1}
        brokers.running[1].stop()
        eventually(lambda: len(producer.partitions("t")) == 1, 5)
        assert {producer.send("t", b"").partition.broker for _ in range(4)} == {0}


@pytest.mark.parametrize(
    "begin",
    [
        lambda: Producer("127.0.0.1:1", config=ProducerConfig(start_timeout_seconds=0.5)),
        lambda: Consumer("127.0.0.1:1", group="g", topics="t", config=ConsumerConfig(start_timeout_seconds=0.5)),
    ],
    ids=["producer", "consumer"],
)
def test_an_unreachable_zookeeper_is_said_within_the_deadline(begin):
    def attempt() -> float:
        started = time.monotonic()
        with pytest.raises(CoordinationUnavailable, match=r"127\.0\.0\.1:1"):
            begin()
        return time.monotonic() - started

    assert_within(5, attempt)
