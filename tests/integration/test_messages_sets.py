"""Requests and replies, compressed messages and those that expire, in a broker set whose leader is killed meanwhile."""

from __future__ import annotations

import time

from metaq import Consumer, Message, Producer, ProducerConfig
from metaq.protocol.record import COMPRESSED_FLAG
from tests.integration.client_cluster import Running, read
from tests.integration.set_nodes import SetNodes
from tests.waiting import DEADLINE

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
