"""Producer and consumer together on real brokers: nothing acknowledged is lost; positions, filters, protocols."""

import time
from collections import defaultdict
from concurrent.futures import Future, wait
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from metaq import Consumer, ConsumerConfig, Producer, ProducerConfig, TopicPartition
from metaq.protocol.errors import CoordinationUnavailable, NoPartition, NotOwner
from tests.integration.client_cluster import SESSION_SECONDS, read, running_brokers
from tests.speaking import speaking
from tests.waiting import DEADLINE, assert_within, eventually

TOPICS = {"t": 1}
CONFIG = ConsumerConfig(session_timeout_seconds=SESSION_SECONDS)
HERE = TopicPartition("t", 0, 0)


@pytest.fixture
def producer(brokers, protocol):
    with Producer(brokers.connect, config=speaking(protocol, ProducerConfig())) as producer:
        yield producer


@pytest.fixture
def consumer(brokers, protocol):
    with Consumer(brokers.connect, group="g", topics=["t"], config=speaking(protocol, CONFIG)) as consumer:
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


CONFIG = ConsumerConfig(session_timeout_seconds=SESSION_SECONDS)
PARTITIONS = 300
ROUNDS = 40


def test_order_holds_and_nothing_is_lost_when_the_broker_is_killed_and_comes_back(chroot, tmp_path):
    futures: list[Future[Any]] = []
    batches: list[Future[Any]] = []
    here = [TopicPartition("t", 0, number) for number in range(PARTITIONS)]
    with running_brokers(chroot, tmp_path, {"t": PARTITIONS}) as brokers, Producer(chroot) as producer:
        eventually(lambda: len(producer.partitions("t")) == PARTITIONS, 10)
        for number in range(ROUNDS):
            if number == ROUNDS // 2:
                brokers.running[0].kill()
                brokers.start(0)
            futures += [producer.send_async("t", b"%d" % number, partition=each, timeout=DEADLINE) for each in here]
        batches += [producer.send_batch_async("t", [b"a", b"b"], partition=each, timeout=DEADLINE) for each in here]
        assert not wait([*futures, *batches], timeout=2 * DEADLINE).not_done
        found = defaultdict(list)
        results = [future.result() for future in futures]
        for future in batches:
            results += future.result()
        places = {}
        with Consumer(chroot, group="g", topics=["t"], start="earliest", config=CONFIG) as consumer:
            wanted = {(result.partition, result.offset) for result in results}

            def all_read() -> bool:
                for message in consumer.poll(timeout=0.1):
                    found[message.partition].append(bytes(message.payload))
                    places[message.partition, message.offset] = message.id
                return places.keys() >= wanted

            eventually(all_read, 20, "reading everything")
    for result in results:
        assert places[result.partition, result.offset] == result.message_id
    expected = [*(b"%d" % number for number in range(ROUNDS)), b"a", b"b"]
    for partition in here:
        assert list(dict.fromkeys(found[partition])) == expected  # what was not acknowledged may be there twice
