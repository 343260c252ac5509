"""Messages of all kinds in a broker set whose leader is killed: requests and replies, compressed ones and those that
expire, retries and dead letters, leases of shared groups. The next leader knows all of it."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from metaq import (
    Consumer,
    ConsumerConfig,
    DeadLetters,
    Message,
    Producer,
    ProducerConfig,
    Retry,
    SharedConfig,
    SharedConsumer,
)
from metaq.errors import SharedRefused
from metaq.protocol.record import COMPRESSED_FLAG
from tests.integration.client_cluster import SESSION_SECONDS, Running, leased, read
from tests.integration.set_nodes import SetNodes
from tests.waiting import DEADLINE, eventually

TOPIC = "t"
SET_TOPICS = {TOPIC: "numPartitions=4\nacceptCompressed=true"}
LONG = b'{"name": "value", "again": "and again"}' * 200


def test_requests_are_answered_by_way_of_the_next_leader(nodes: SetNodes) -> None:
    with Producer(nodes.connect) as server, Producer(nodes.connect) as asking:

        def answer(request: Message) -> None:
            server.reply(request, request.payload.upper(), timeout=DEADLINE)

        with Running(Consumer(nodes.connect, group="servers", topics=[TOPIC]), answer, max_retries=None):
            assert asking.request(TOPIC, b"before", timeout=DEADLINE).result().payload == b"BEFORE"
            under_way = [asking.request(TOPIC, b"m%d" % number, timeout=DEADLINE) for number in range(50)]
            nodes.kill_leader()
            after = [asking.request(TOPIC, b"a%d" % number, timeout=DEADLINE) for number in range(50)]
            assert [each.result().payload for each in under_way] == [b"M%d" % number for number in range(50)]
            assert [each.result().payload for each in after] == [b"A%d" % number for number in range(50)]


def test_the_next_leader_has_compressed_messages_as_they_were_and_gives_out_none_that_has_expired(
    nodes: SetNodes,
) -> None:
    config = ProducerConfig(compression="zstd", delivery_timeout_seconds=DEADLINE)
    with Producer(nodes.connect, config=config) as producer:
        for number in range(20):
            producer.send(TOPIC, b"%d" % number + LONG, properties={"n": number}, ttl=0.5 if number % 2 else 600.0)
        nodes.kill_leader()
        producer.send(TOPIC, b"20" + LONG, properties={"n": 20}, ttl=600.0)
    time.sleep(0.6)
    with Consumer(nodes.connect, group="g", topics=[TOPIC], where="n >= 4") as consumer:
        messages = read(consumer, 9)
        assert consumer.poll(timeout=0.5) == []
    assert sorted(int(each.properties["n"]) for each in messages) == list(range(4, 21, 2))
    assert {each.payload.removeprefix(b"%d" % int(each.properties["n"])) for each in messages} == {LONG}
    assert all(each.flag & COMPRESSED_FLAG for each in messages)


CONFIG = ConsumerConfig(session_timeout_seconds=SESSION_SECONDS, auto_commit_seconds=0.1)
RETRY = Retry(attempts=2, first=8.0, most=8.0, jitter=0)
"""Its pause is longer than a failover."""


def test_what_waits_and_what_is_dead_survives_the_leader(nodes: SetNodes) -> None:
    calls: Counter[tuple[bytes, int]] = Counter()
    gone = threading.Event()

    def handler(message: Message) -> None:
        calls[message.payload, message.attempts] += 1
        if message.payload == b"bad" or message.attempts == 1:
            raise ValueError("not now")
        assert gone.is_set(), "the pause is over, and the leader is still there"

    leader = nodes.leader
    (other,) = {"a", "b"} - {leader}
    consumer = Consumer(nodes.connect, group="g", topics=["t"], config=CONFIG)
    with Producer(nodes.connect) as producer, Running(consumer, handler, retry=RETRY):
        for payload in (b"flaky", b"bad"):
            producer.send("t", payload)
        eventually(lambda: calls[b"flaky", 1] and calls[b"bad", 1], what="the first attempts")
        producer.send("t", b"after")
        eventually(lambda: calls[b"after", 1], what="what came after they were sent back")
        nodes.kill(leader)
        gone.set()
        nodes.wait_for_leader(other)
        eventually(lambda: calls[b"flaky", 2] and calls[b"bad", 2], what="the second attempts")
        with DeadLetters(nodes.connect, group="g") as letters:
            eventually(lambda: letters.count() >= 1, what="the dead letter")
        nodes.start(leader)
        nodes.wait_in_sync("a", "b")
        nodes.kill(other)
        nodes.wait_for_leader(leader)
        with DeadLetters(nodes.connect, group="g") as letters:
            assert {each.original.payload for each in letters.read()} == {b"bad"}
            (done,) = letters.redrive(letters.read(limit=1), to="group")
            assert done.letter.attempts == 2
        eventually(lambda: calls[b"bad", 1] >= 2, what="the redriven one")


def test_the_next_leader_knows_leases_attempts_acknowledgements_and_the_filter(nodes: SetNodes) -> None:
    with Producer(nodes.connect) as producer:
        for number in range(12):
            producer.send(TOPIC, b"%d" % number)
    config = SharedConfig(prefetch=0, lease_seconds=60)
    with SharedConsumer(nodes.connect, group="g", topics=[TOPIC], config=config) as consumer:
        first = leased(consumer, 6)
        consumer.ack(*first[:2])
        consumer.release(first[2])
        consumer.flush()
        former, epoch = nodes.leader, nodes.epoch
        nodes.kill_leader()
        with (
            SharedConsumer(nodes.connect, group="g", topics=[TOPIC], ordered_by_key=True) as wrong,
            pytest.raises(SharedRefused, match="ordered_by_key=False"),
        ):
            wrong.poll(60.0)
        with SharedConsumer(nodes.connect, group="g", topics=[TOPIC], config=config) as other:
            rest = leased(other, 7)
            assert {each.payload for each in rest} == {b"%d" % number for number in range(12)} - {
                each.payload for each in (*first[:2], *first[3:])
            }
            again = [each for each in rest if each.payload == first[2].payload]
            assert [each.attempts for each in again] == [2]
            assert other.poll(1.0) == []
            consumer.ack(*first[3:])
            other.ack(*rest)
            consumer.flush(60)
            other.flush(60)
            assert (consumer.counts, other.counts) == ((5, 0), (7, 0))
            nodes.start(former)
            nodes.wait_in_sync("a", "b", after=epoch)
            time.sleep(0.5)
            assert other.poll(0.5) == []
