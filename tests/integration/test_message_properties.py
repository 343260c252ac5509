"""Properties, expiry and compression of messages on a real broker, over both protocols."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from metaq import Consumer, ConsumerConfig, Message, Producer, ProducerConfig, browse
from metaq.protocol.errors import RequestRefused
from metaq.protocol.properties import PropertyValue
from metaq.protocol.record import COMPRESSED_FLAG
from tests.integration.client_cluster import Brokers, read, running_brokers
from tests.speaking import speaking
from tests.waiting import DEADLINE

PACKED = "1\nacceptCompressed=true"
PROPERTIES: dict[str, PropertyValue] = {
    "region": "EU",
    "amount": 7,
    "price": 0.5,
    "paid": True,
    "raw": b"\x00\xff\x01",
    "mark": "\x03i7",
}
ZSTD = ProducerConfig(compression="zstd")
LONG = b'{"name": "value", "again": "and again"}' * 200

Protocols = pytest.mark.parametrize("protocol", ["auto", "text"])


@pytest.fixture(scope="module")
def brokers(zookeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    plain = "typed-auto", "typed-text", "short-auto", "short-text", "plain", "run"
    packed = "packed-auto", "packed-text"
    topics: dict[str, int | str] = {**dict.fromkeys(plain, 1), **dict.fromkeys(packed, PACKED)}
    connect = f"{zookeeper.connect_string}/properties"
    with running_brokers(connect, tmp_path_factory.mktemp("properties"), topics) as running:
        yield running


def consumed(brokers: Brokers, topic: str, count: int, protocol: str = "auto") -> list[Message]:
    with Consumer(
        brokers.connect, group=f"g-{topic}", topics=[topic], config=speaking(protocol, ConsumerConfig())
    ) as consumer:
        return read(consumer, count)


@Protocols
def test_properties_come_back_with_their_types(brokers: Brokers, protocol: Literal["auto", "text"]) -> None:
    topic = f"typed-{protocol}"
    with Producer(brokers.connect, config=speaking(protocol, ProducerConfig())) as producer:
        producer.send(topic, b"1", properties=PROPERTIES, tag="t", key="k")
        producer.send_batch(topic, [b"2", b"3"], properties=PROPERTIES)
        producer.produce(topic, b"4", properties=PROPERTIES)
    messages = consumed(brokers, topic, 4, protocol)
    assert sorted(message.payload for message in messages) == [b"1", b"2", b"3", b"4"]
    for message in messages:
        assert [(name, type(value), value) for name, value in message.properties.items()] == [
            (name, type(value), value) for name, value in PROPERTIES.items()
        ]


@Protocols
def test_an_expired_message_is_not_handed_out_and_its_place_is_committed(
    brokers: Brokers, protocol: Literal["auto", "text"]
) -> None:
    topic = f"short-{protocol}"
    with Producer(brokers.connect, config=speaking(protocol, ProducerConfig())) as producer:
        producer.send_batch(topic, [b"gone"] * 50, ttl=0.05)
        producer.send(topic, b"stays", ttl=600)
        time.sleep(0.1)
    (message,) = consumed(brokers, topic, 1, protocol)
    assert message.payload == b"stays"
    assert message.expires_at is not None
    with Producer(brokers.connect) as producer:
        end = producer.send(topic, b"gone too", ttl=0.001)
    time.sleep(0.05)
    config = ConsumerConfig(auto_commit_seconds=0)
    with Consumer(brokers.connect, group=f"g-{topic}", topics=[topic], config=speaking(protocol, config)) as consumer:
        give_up = time.monotonic() + DEADLINE
        while (lag := consumer.lag().get(end.partition)) is None or lag.bytes:
            assert consumer.poll(timeout=0.1) == []
            assert time.monotonic() < give_up
    assert [each.payload for each in browse(brokers.connect, topic)].count(b"gone") == 50


def test_a_handler_never_gets_an_expired_message_again(brokers: Brokers) -> None:
    with Producer(brokers.connect) as producer:
        producer.send("run", b"fails until it expires", ttl=1.0)
        producer.send("run", b"next")
    seen: list[bytes] = []
    config = ConsumerConfig(retry_step_seconds=0.2, retry_max_seconds=0.2)
    with Consumer(brokers.connect, group="run", topics=["run"], config=config) as consumer:

        def handler(message: Message) -> None:
            seen.append(message.payload)
            if message.payload == b"next":
                consumer.stop()
            else:
                raise ValueError("not yet")

        consumer.run(handler, max_retries=None)
    assert seen[-1] == b"next"
    assert 1 <= seen.count(b"fails until it expires") < 10


@Protocols
def test_compressed_messages_are_read_as_they_were_sent(brokers: Brokers, protocol: Literal["auto", "text"]) -> None:
    topic = f"packed-{protocol}"
    with Producer(brokers.connect, config=speaking(protocol, ZSTD)) as producer:
        producer.send(topic, LONG, tag="t", properties={"n": 1})
        producer.send_batch(topic, [LONG, b"short"])
        producer.send_async(topic, LONG, key="k").result(DEADLINE)
        with producer.transaction() as transaction:
            transaction.send(topic, LONG)
    messages = consumed(brokers, topic, 5, protocol)
    assert [message.payload for message in messages] == [LONG, LONG, b"short", LONG, LONG]
    assert [bool(message.flag & COMPRESSED_FLAG) for message in messages] == [True, True, False, True, True]
    assert (messages[0].tag, messages[0].properties) == ("t", {"n": 1})
    assert sum(len(message.body) for message in messages) < len(LONG)
    assert [each.payload for each in browse(brokers.connect, topic, config=speaking(protocol, ConsumerConfig()))] == [
        message.payload for message in messages
    ]


@Protocols
def test_a_topic_that_takes_no_compressed_messages_says_so(brokers: Brokers, protocol: Literal["auto", "text"]) -> None:
    with Producer(brokers.connect, config=speaking(protocol, ZSTD)) as producer:
        with pytest.raises(RequestRefused, match="topic plain takes no compressed messages: set acceptCompressed=true"):
            producer.send("plain", LONG, timeout=10)
        producer.send("plain", b"short")


def test_a_broker_that_does_not_know_of_compression_gets_no_compressed_message(tmp_path: Path) -> None:
    from metaq.errors import CompressionUnknown
    from metaq.testing import FakeBroker, FakeCluster

    with FakeBroker({"t": 1}) as broker:
        broker.knows_compressed = False
        with Producer(metadata=FakeCluster([broker]), config=ZSTD) as producer:
            with pytest.raises(CompressionUnknown, match="run a newer broker there, or send without"):
                producer.send("t", LONG)
            with pytest.raises(CompressionUnknown):
                producer.send_async("t", LONG).result(DEADLINE)
        assert broker.bodies("t", 0) == []
