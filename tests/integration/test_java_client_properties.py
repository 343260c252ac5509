"""What a Java 1.x client sees of typed properties, and of a topic with compressed messages."""

from __future__ import annotations

from bench.server_ini import Topics
from metaq import Consumer, Producer, ProducerConfig
from tests.integration.java_sides import Side
from tests.waiting import DEADLINE, eventually

TOPICS: Topics = {"typed": 1, "packed": {"numPartitions": 1, "acceptCompressed": "true"}}
LONG = b"again and again " * 200


def test_a_java_consumer_sees_typed_properties_as_the_attributes_text(ours: Side) -> None:
    with Producer(ours.connect) as producer:
        producer.send("typed", b"p", properties={"region": "EU", "amount": 7, "raw": b"\xff"}, ttl=600)
    ours.app.subscribe("typed", "typed")
    (message,) = ours.app.taken("typed", 1)
    assert message["data"] == b"p"
    text, expires = message["attribute"].split("metaq.expires\x01")
    assert text == "region\x01EU\x02amount\x01\x03i7\x02raw\x01\x03x/w==\x02"
    assert expires[:-1].isdigit()
    ours.app.unsubscribe("typed")


def test_a_java_consumer_is_refused_a_topic_with_compressed_messages_and_its_log_says_why(ours: Side) -> None:
    with Producer(ours.connect, config=ProducerConfig(compression="zstd")) as producer:
        producer.send("packed", LONG)
    ours.app.subscribe("java", "packed")
    log = ours.directory / "client.log"
    wanted = "which a client of metaq 1.x cannot read: group java needs a newer client"
    eventually(lambda: wanted in log.read_text("utf-8", "replace"))
    assert ours.app.unsubscribe("java") == []
    with Consumer(ours.connect, group="new", topics=["packed"], protocol="text") as consumer:
        assert [message.payload for message in consumer.poll(timeout=DEADLINE)] == [LONG]


def test_a_java_producer_may_send_to_that_topic(ours: Side) -> None:
    ours.app.send_all(ours.app.producer("j", "packed"), "packed", b"from Java")
    with Consumer(ours.connect, group="both", topics=["packed"]) as consumer:
        found = eventually(lambda: [m.payload for m in consumer.poll(timeout=0.2)][-1:] == [b"from Java"])
    assert found
