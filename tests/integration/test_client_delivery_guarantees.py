"""Producer and consumer together on real brokers: nothing acknowledged is lost; positions, filters, protocols."""

import time
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from metaq import Consumer, ConsumerConfig, Lag, Producer, ProducerConfig, SendResult, TopicPartition
from metaq.protocol.errors import CoordinationUnavailable, NoPartition, NotOwner
from tests.integration.client_cluster import SESSION_SECONDS, read, read_until_quiet, running_brokers
from tests.waiting import DEADLINE, assert_within, eventually

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


def test_nothing_acknowledged_is_lost_when_one_of_two_brokers_is_killed_under_load(chroot, tmp_path):
    acknowledged: set[int] = set()

    def note(number: int, future: Future[SendResult]) -> None:
        if future.exception() is None:
            acknowledged.add(number)

    with running_brokers(chroot, tmp_path, {"t": 2}, count=2) as brokers, Producer(chroot) as producer:
        for number in range(6000):
            future = producer.send_async("t", b"%d" % number)
            future.add_done_callback(partial(note, number))
            if number == 2000:
                producer.flush()
            if number == 2500:
                brokers.running[0].kill()
        brokers.start(0)  # which knows what became of the messages that were under way
        producer.flush(DEADLINE)
        assert len(acknowledged) == 6000  # every one found a place
        with Consumer(chroot, group="g", topics=["t"], config=CONFIG) as consumer:
            found: set[int] = set()

            def all_read() -> bool:
                found.update(int(message.payload) for message in consumer.poll(timeout=0.1))
                return found >= acknowledged

            eventually(all_read, 20, "reading what was acknowledged")


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
    (message,) = read(consumer, 1)
    assert (message.id, message.partition, message.offset) == (result.message_id, result.partition, result.offset)
    assert (message.payload, message.tag, message.keys, message.properties) == (b"payload", "buy", ("k",), {"h": "1"})
    assert message.timestamp is not None
    assert abs(message.timestamp - datetime.now(UTC)) < timedelta(minutes=1)


def test_an_empty_message_is_a_message(producer, consumer):
    producer.send("t", b"")
    assert [message.payload for message in read(consumer, 1)] == [b""]


def test_a_backlog_is_read_completely_and_in_order(producer, consumer):
    for part in range(10):
        producer.send_batch("t", [b"%d" % number for number in range(part * 500, part * 500 + 500)])
    assert [int(message.payload) for message in read(consumer, 5000)] == list(range(5000))


def test_tags_are_filtered_whoever_does_it(brokers, producer, protocol):
    for number in range(30):
        producer.send("t", b"%d" % number, tag="abc"[number % 3])
    producer.send("t", b"untagged")
    arguments = {"group": "tags", "topics": ["t"], "protocol": protocol, "config": CONFIG, "tags": {"a", "c"}}
    with Consumer(brokers.connect, **arguments) as consumer:
        wanted = [number for number in range(30) if number % 3 != 1]
        assert [int(message.payload) for message in read(consumer, 20)] == wanted
        # what was filtered away is behind us, too
        eventually(lambda: consumer.poll(timeout=0.1) == [] and consumer.lag()[HERE].bytes == 0, 5, "passing the rest")


def test_lag_and_position_follow_the_messages_handed_out(producer, consumer, protocol):
    producer.send_batch("t", [b"x" * 80] * 10)
    eventually(lambda: consumer.lag()[HERE].bytes == 1000, 5)
    assert consumer.lag() == {HERE: Lag(10 if protocol == "auto" else None, 1000)}
    assert len(consumer.poll(max_messages=4, timeout=DEADLINE)) == 4
    assert consumer.position(HERE) == 400
    assert consumer.lag() == {HERE: Lag(6 if protocol == "auto" else None, 600)}


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


def test_seek_to_a_time_finds_the_first_message_stored_since(brokers):
    with (
        Producer(brokers.connect) as producer,
        Consumer(brokers.connect, group="g", topics=["t"], config=CONFIG) as consumer,
    ):
        producer.send_batch("t", [b"old"] * 3)
        time.sleep(0.05)
        moment = datetime.now(UTC)
        time.sleep(0.05)
        producer.send_batch("t", [b"new"] * 2)
        read(consumer, 5)
        consumer.seek(HERE, moment)
        assert [message.payload for message in read_until_quiet(consumer, 2, 0.5)] == [b"new"] * 2


def test_start_latest_skips_what_is_there(brokers, producer, protocol):
    producer.send_batch("t", [b"old"] * 5)
    arguments = {"group": "late", "topics": ["t"], "protocol": protocol, "config": CONFIG, "start": "latest"}
    with Consumer(brokers.connect, **arguments) as consumer:
        eventually(lambda: any(state.opened for state in consumer._core.owned.values()), 10)
        producer.send("t", b"new")
        assert [message.payload for message in read_until_quiet(consumer, 1, 0.5)] == [b"new"]


def test_arrow_batches_hold_the_same_messages(producer, consumer):
    producer.send_batch("t", [b"%d" % number for number in range(10)], tag="x")
    rows: list[dict[str, Any]] = []
    while len(rows) < 10:
        batch = consumer.poll_arrow(timeout=DEADLINE)
        assert batch.num_rows
        rows += batch.to_pylist()
    assert [row["payload"] for row in rows] == [b"%d" % number for number in range(10)]
    assert {(row["topic"], row["broker"], row["partition"], row["tag"]) for row in rows} == {("t", 0, 0, "x")}


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
