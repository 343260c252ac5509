"""Filters by content on our broker, which leaves out what is not wanted, and on the Java one, which sends all."""

from pathlib import Path
from typing import Any

import pytest

from metaq import Consumer, ConsumerConfig, Message, PartitionReader, Producer, TopicPartition, browse
from metaq.client.questions.partition_bounds import max_offset
from metaq.client.questions.stored_records import BegunPull
from metaq.client.settings.config import ConnectionConfig
from metaq.client.transport.connection import Endpoint, open_connection
from metaq.protocol.where import Where
from tests.integration.client_cluster import read, running_brokers
from tests.integration.java_sides import ON_DISK_WHEN_ANSWERED
from tests.properties import sent_with
from tests.waiting import DEADLINE, eventually

TOPICS = dict.fromkeys(["polled", "tagged", "arrow", "browsed", "of-1x", "many", "rejected", "orders"], 2)
"""A test has one of its own."""
WHERE = "region = 'EU' AND amount >= 90"
JAVA_SETTINGS = ON_DISK_WHEN_ANSWERED  # else the last message of a partition is not visible for a while
CONFIG = ConsumerConfig(auto_commit_seconds=0.2)


def send_orders(connect: str, topic: str, count: int, first: int = 0, payload: bytes = b"") -> list[int]:
    """Orders by their number; those that WHERE is for."""
    wanted = []
    with Producer(connect) as producer:
        futures = []
        for number in range(first, first + count):
            region, amount = ("EU", "US", "CN")[number % 3], number % 100
            properties = {"region": region, "amount": amount if number % 2 else str(amount), "express": number % 5 == 0}
            futures.append(producer.send_async(topic, b"%d " % number + payload, **sent_with(properties)))
            if region == "EU" and amount >= 90:
                wanted.append(number)
        for each in futures:
            each.result(DEADLINE)
    return wanted


def pass_the_rest(consumer: Consumer) -> None:
    """Until nothing lies behind the consumer, and nothing came."""

    def has_passed() -> bool:
        assert consumer.poll(timeout=0.1) == []
        return [lag.bytes for lag in consumer.lag().values()] == [0, 0]

    eventually(has_passed, DEADLINE, "passing the rest")


def numbers(messages: list[Message]) -> list[int]:
    return sorted(int(message.payload.split()[0]) for message in messages)


def test_poll_run_and_commits_see_only_what_the_filter_holds_for(server: Any) -> None:
    wanted = send_orders(server.connect, "polled", 1000)
    with Consumer(server.connect, group="g", topics=["polled"], where=WHERE, config=CONFIG) as consumer:
        assert numbers(read(consumer, len(wanted))) == wanted
        # what was left out is behind us, too
        pass_the_rest(consumer)
    later = send_orders(server.connect, "polled", 300, first=1000)
    seen: list[int] = []
    with Consumer(server.connect, group="g", topics="polled", where=WHERE, config=CONFIG) as consumer:

        def handle(message: Message) -> None:
            seen.append(int(message.payload.split()[0]))
            if len(seen) == len(later):
                consumer.stop()

        consumer.run(handle, threads=2)
    assert sorted(seen) == later


def test_a_filter_goes_with_tags_accept_and_start(server: Any) -> None:
    with Producer(server.connect) as producer:
        for number in range(60):
            properties: dict[str, Any] = {"n": number, "TAGS-like": "x"}
            producer.send("tagged", b"%d" % number, tag="ab"[number % 2], **sent_with(properties))
    arguments: dict[str, Any] = {"topics": "tagged", "tags": "a", "where": "n > 20 AND TAGS = 'a' AND ATTR IS NULL"}
    with Consumer(
        server.connect, group="accepting", accept=lambda each: each.payload != b"30", **arguments
    ) as consumer:
        assert numbers(read(consumer, 18)) == [n for n in range(22, 60, 2) if n != 30]
    with Consumer(server.connect, group="late", start="latest", **arguments) as consumer:
        assert consumer.poll(timeout=1) == []
        with Producer(server.connect) as producer:
            producer.send("tagged", b"99", tag="b", **sent_with({"n": 99}))
            producer.send("tagged", b"100", tag="a", **sent_with({"n": 100}))
        assert numbers(read(consumer, 1)) == [100]


def test_a_topic_and_a_partition_are_read_without_a_group(server: Any) -> None:
    wanted = send_orders(server.connect, "browsed", 600)
    assert numbers(list(browse(server.connect, "browsed", where=WHERE))) == wanted
    found: list[Message] = []
    for number in range(2):
        here = TopicPartition("browsed", 0, number)
        with PartitionReader(f"127.0.0.1:{server.port}", here, where="express AND region <> 'CN'") as reader:
            while messages := reader.poll(timeout=2):
                found += messages
    assert numbers(found) == [n for n in range(600) if n % 5 == 0 and n % 3 != 2]


def test_messages_of_1x_have_their_tag_alone(server: Any) -> None:
    with Producer(server.connect) as producer:
        for number in range(20):
            producer.send("of-1x", b"%d" % number, tag=None if number % 2 else f"t{number}")
    assert numbers(list(browse(server.connect, "of-1x", where="TAGS IN ('t4', 't6') AND region IS NULL"))) == [4, 6]
    assert numbers(list(browse(server.connect, "of-1x", where="NOT region = 'EU'"))) == []
    assert numbers(list(browse(server.connect, "of-1x", where="ATTR IS NULL"))) == list(range(1, 20, 2))


@pytest.mark.parametrize("server", ["ours"], indirect=True)
def test_one_percent_of_the_messages_moves_one_percent_of_the_bytes(server: Any) -> None:
    send_orders(server.connect, "many", 5000, payload=bytes(900))
    connection = open_connection(Endpoint("127.0.0.1", server.port), ConnectionConfig())
    whole = moved = pulls = 0
    for number in range(2):
        here, position = TopicPartition("many", 0, number), 0
        end = max_offset(connection, here)
        while position < end:
            pulled = BegunPull(connection, here, position, 1 << 20, where=Where("amount = 7")).result()
            assert pulled.next_offset is not None
            position = pulled.next_offset
            moved += sum(len(records) for _, records in pulled.runs)
            pulls += 1
        whole += end
    connection.close()
    assert 0.009 < moved / whole < 0.011
    assert pulls < 20  # 5 MB


def test_a_filter_that_rejects_everything_moves_the_committed_offset(server: Any) -> None:
    send_orders(server.connect, "rejected", 400)
    with Consumer(
        server.connect, group="none", topics="rejected", where="region = 'nowhere'", config=CONFIG
    ) as consumer:
        pass_the_rest(consumer)
        consumer.poll(timeout=0.1)
    send_orders(server.connect, "rejected", 1, first=93)
    with Consumer(server.connect, group="none", topics="rejected") as consumer:
        assert numbers(read(consumer, 1)) == [93]  # and nothing of the 400


def test_a_filter_reads_from_the_disk_too(chroot: str, tmp_path: Path) -> None:
    """Over many small segments, after a restart."""
    with running_brokers(chroot, tmp_path, TOPICS, max_segment_size=65536):
        wanted = send_orders(chroot, "orders", 3000, payload=bytes(100))
    with (
        running_brokers(chroot, tmp_path, TOPICS, max_segment_size=65536),
        Consumer(chroot, group="g", topics="orders", where=WHERE) as consumer,
    ):
        assert numbers(read(consumer, len(wanted))) == wanted
