"""Our client on a Java broker, the Java client on ours, and both kinds of consumer in one group (metaq 1.4.6.2)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.javapeer import JavaBroker, JavaClient
from metaq import Consumer, ConsumerConfig, Message, Producer, Retry, TopicPartition
from tests.integration.client_cluster import Running, read, running_brokers
from tests.integration.java_peers import received, require_java
from tests.waiting import DEADLINE, eventually

MESSAGES = [(f"message {number}".encode(), "red" if number % 2 else None) for number in range(40)]
READABLE_AT_ONCE = {"unflushThreshold": 1}


@pytest.fixture(scope="module", autouse=True)
def _java() -> None:
    require_java()


@pytest.fixture
def java_broker(chroot: str, tmp_path: Path) -> Iterator[JavaBroker]:
    with JavaBroker(tmp_path / "java", chroot, {"t": 2}, READABLE_AT_ONCE) as broker:
        yield broker


def test_our_client_chooses_the_text_protocol_on_a_java_broker_by_itself(java_broker: JavaBroker, chroot: str) -> None:
    with Producer(chroot) as producer:
        results = [producer.send("t", data, attribute=attribute) for data, attribute in MESSAGES]
        results += producer.send_batch("t", [b"batch 1", b"batch 2"])
        results.append(producer.send_async("t", b"future").result(DEADLINE))
        assert {result.partition for result in results} == {TopicPartition("t", 0, 0), TopicPartition("t", 0, 1)}
        with Consumer(chroot, group="g", topics=["t"], start="earliest") as consumer:
            messages = read(consumer, len(MESSAGES) + 3)
            assert {(message.partition, message.offset) for message in messages} == {
                (result.partition, result.offset) for result in results
            }
            attributes = {message.payload: message.attribute for message in messages}
            assert [(data, attributes[data]) for data, _ in MESSAGES] == MESSAGES
            consumer.commit()
            assert {lag.bytes for lag in consumer.lag().values()} == {0}


def test_our_producer_reaches_a_java_broker_without_zookeeper(java_broker: JavaBroker, chroot: str) -> None:
    with Producer.direct(f"meta://127.0.0.1:{java_broker.port}", broker_id=0) as producer:
        results = [producer.send("t", b"%d" % number) for number in range(10)]
    with Consumer(chroot, group="g", topics=["t"], start="earliest") as consumer:
        found = {(message.partition, message.offset, message.payload) for message in read(consumer, 10)}
    assert found == {(result.partition, result.offset, b"%d" % number) for number, result in enumerate(results)}


def test_a_java_client_takes_up_where_our_consumer_stopped_on_a_java_broker(
    java_broker: JavaBroker, chroot: str, tmp_path: Path
) -> None:
    with Producer(chroot) as producer:
        for data, attribute in MESSAGES:
            producer.send("t", data, attribute=attribute)
        with Consumer(chroot, group="g", topics=["t"], start="earliest") as consumer:
            read(consumer, len(MESSAGES))
        producer.send("t", b"later")
    with JavaClient(chroot, tmp_path / "client.log") as client:
        client.join("t", "g")
        assert received(client, "g", 1) == [(b"later", None)]


def test_a_java_client_sends_to_and_reads_from_our_broker_as_from_its_own(chroot: str, tmp_path: Path) -> None:
    with running_brokers(chroot, tmp_path, {"t": 2}), JavaClient(chroot, tmp_path / "client.log") as client:
        answers = [client.put("t", data, attribute) for data, attribute in MESSAGES]
        assert {answer["partition"] for answer in answers} == {"0-0", "0-1"}
        client.join("t", "java")
        assert sorted(received(client, "java", len(MESSAGES)), key=str) == sorted(MESSAGES, key=str)
        assert client.leave("java") == []
        with Consumer(chroot, group="ours", topics=["t"], start="earliest") as consumer:
            ours = [(message.payload, message.attribute) for message in read(consumer, len(MESSAGES))]
        assert sorted(ours, key=str) == sorted(MESSAGES, key=str)


@pytest.mark.parametrize(
    "config", [ConsumerConfig(), ConsumerConfig(strategy="zone", zone="east")], ids=lambda config: config.strategy
)
def test_a_java_and_a_python_consumer_share_the_partitions_of_one_group(
    chroot: str, tmp_path: Path, config: ConsumerConfig
) -> None:
    with (
        running_brokers(chroot, tmp_path, {"t": 4}, zone="east"),
        JavaClient(chroot, tmp_path / "client.log") as client,
        Consumer(chroot, group="mixed", topics=["t"], start="earliest", config=config) as consumer,
        Producer(chroot) as producer,
    ):
        eventually(lambda: len(consumer.assignment()) == 4, 10, "owning everything")
        client.join("t", "mixed")

        def shared() -> bool:
            assert consumer.poll(timeout=0.1) == []  # poll() lets go of what is handed over
            return len(consumer.assignment()) == 2

        eventually(shared, 20, "sharing with the Java consumer")
        sent = [f"{partition}-{number}".encode() for partition in range(4) for number in range(10)]
        for data in sent:
            producer.send("t", data, partition=TopicPartition("t", 0, int(data[:1])))
        mine = [message.payload for message in read(consumer, 20)]
        theirs = [data for data, _ in received(client, "mixed", 20)]
        assert sorted(mine + theirs) == sorted(sent)


def test_a_java_member_is_not_disturbed_by_retries_of_ours_in_its_group(chroot: str, tmp_path: Path) -> None:
    """It subscribes to none of the topics in which failed messages wait, and keeps what it owns."""
    seen: list[tuple[bytes, int]] = []

    def handler(message: Message) -> None:
        seen.append((message.payload, message.attempts))
        if message.attempts < 3:
            raise ValueError("not yet")

    with (
        running_brokers(chroot, tmp_path, {"t": 2}),
        Producer(chroot) as producer,
        JavaClient(chroot, tmp_path / "client.log") as client,
    ):
        client.join("t", "g")
        consumer = Consumer(chroot, group="g", topics=["t"])
        with Running(consumer, handler, retry=Retry(attempts=3, first=0.05, most=0.05)):
            eventually(lambda: [each.topic for each in consumer.assignment()] == ["t"], what="its share")
            (ours,) = consumer.assignment()
            theirs = TopicPartition("t", 0, 1 - ours.partition)
            producer.send("t", b"for us", partition=ours)
            eventually(lambda: seen == [(b"for us", 1), (b"for us", 2), (b"for us", 3)], what="three attempts")
            producer.send("t", b"for Java", partition=theirs)
            assert received(client, "g", 1) == [(b"for Java", None)]
            assert [each for each in consumer.assignment() if each.topic == "t"] == [ours]
