"""Reading without a group on our broker and on the Java one: the topic browser, one partition, single fetches."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.javapeer import JavaBroker
from metaq import Consumer, ConsumerConfig, PartitionReader, Producer, TopicBrowser, TopicPartition, browse
from metaq.coordination.session.zk_session import ZkSession
from metaq.protocol.errors import ClientError, NoPartition
from tests.integration.client_cluster import read
from tests.integration.java_peers import require_java
from tests.waiting import DEADLINE, eventually

TOPICS = {"browsed": 12, "closed": 12, "read": 12, "fetched": 12}
"""A test has one of its own."""
SEGMENT_BYTES = 4096
JAVA_SETTINGS = {"maxSegmentSize": SEGMENT_BYTES}


@pytest.fixture
def producer(server: Any) -> Iterator[Producer]:
    with Producer(server.connect) as producer:
        yield producer


def test_a_topic_is_browsed_in_numeric_order_to_the_end_seen_at_the_beginning(server: Any, producer: Producer) -> None:
    wanted = []
    for number in (0, 2, 10):
        payloads = [b"%d-%d" % (number, each) for each in range(30)]
        for payload in payloads:
            producer.send("browsed", payload, partition=TopicPartition("browsed", 0, number))
        wanted += payloads
    with TopicBrowser(server.connect, "browsed", config=ConsumerConfig(fetch_max_bytes=100)) as browser:
        assert len(browser.partitions()) == 12
        found = iter(browser)
        first = next(found)
        producer.send("browsed", b"too late", partition=TopicPartition("browsed", 0, 10))
        assert [first.payload, *(message.payload for message in found)] == wanted
        # a Java broker shows a message once it has flushed it
        eventually(lambda: [message.payload for message in browser] == [*wanted, b"too late"], 20)
    assert next(browse(server.connect, "browsed")).payload == b"0-0"
    with ZkSession(server.connect) as session:
        assert session.nodes.children("/meta/consumers") == []


def test_a_closed_client_says_so_for_a_topic_that_it_has_not_used(server: Any) -> None:
    producer, browser = Producer(server.connect), TopicBrowser(server.connect, "closed")
    producer.close()
    browser.close()
    for call in (
        lambda: producer.send("closed", b"x"),
        lambda: producer.send("closed", b"x", key="k"),
        lambda: producer.send_async("closed", b"x"),
        lambda: producer.produce("closed", b"x"),
        lambda: producer.send_batch("closed", [b"x"]),
        lambda: producer.send_batch_async("closed", [b"x"]),
        lambda: producer.transaction().send("closed", b"x"),
        lambda: producer.partitions("closed"),
        browser.partitions,
        lambda: next(iter(browser)),
    ):
        with pytest.raises(ClientError, match="closed"):
            call()


def test_an_unknown_topic_is_said(server: Any) -> None:
    with pytest.raises(NoPartition, match="nothing"):
        list(browse(server.connect, "nothing"))


def test_one_partition_is_read_without_zookeeper_from_any_offset(server: Any, producer: Producer) -> None:
    where = TopicPartition("read", 0, 7)
    results = [producer.send("read", b"%d" % number, partition=where) for number in range(5)]
    address = f"127.0.0.1:{server.port}"
    with PartitionReader(address, where, results[2].offset, accept=lambda each: each.payload != b"3") as reader:
        messages = read(reader, 2)
        assert [(message.payload, message.offset) for message in messages] == [
            (b"2", results[2].offset),
            (b"4", results[4].offset),
        ]
        assert [message.payload for message in reader.fetch(results[3].offset, 1)] == [b"3"]  # whole all the same
        assert reader.position == messages[-1].next_offset
        reader.seek(0)
        assert next(iter(reader)).payload == b"0"
    with PartitionReader(address, where, "latest") as reader:
        eventually(lambda: reader.poll(timeout=0.1) == [] and reader.position == results[-1].offset + 21, 20)


def test_a_consumer_fetches_single_messages_of_any_partition(server: Any, producer: Producer) -> None:
    where = TopicPartition("fetched", 0, 11)
    producer.send("fetched", b"skip", partition=where)
    offset = producer.send("fetched", b"wanted", partition=where).offset
    with Consumer(server.connect, group="g", topics=["fetched"]) as consumer:
        eventually(lambda: [message.payload for message in consumer.fetch(where, offset)] == [b"wanted"], 20)
        assert consumer.fetch(where, offset + 26) == []


def test_a_topic_whose_oldest_messages_were_deleted_is_browsed_from_the_oldest_left(
    chroot: str, tmp_path: Path
) -> None:
    """1.x takes such a partition for empty."""
    require_java()
    where = TopicPartition("t", 0, 0)
    settings = {"unflushThreshold": 1, "maxSegmentSize": SEGMENT_BYTES}
    with Producer(chroot) as producer:
        with JavaBroker(tmp_path / "java", chroot, {"t": 1}, settings) as broker:
            for number in range(20):
                producer.send("t", bytes([number]) * 1000, partition=where, timeout=DEADLINE)
            port, data = broker.port, broker.data
        min((data / "t-0").glob("*.meta")).unlink()
        with JavaBroker(tmp_path / "java", chroot, {"t": 1}, settings, port=port):
            for number in (20, 21):  # a Java broker may open a partition of an earlier run with its first put only
                producer.send("t", bytes([number]) * 1000, partition=where, timeout=DEADLINE)
            found = [message.payload[0] for message in browse(chroot, "t")]
    assert found[0] > 0
    assert found == list(range(found[0], 22))
