"""The Java client on our broker: filters of the broker, closed partitions, a reload, typed properties, compression."""

from __future__ import annotations

import signal

from bench.server_ini import Topics
from metaq import Consumer, Producer, ProducerConfig
from metaq.protocol.frames import encode_frame
from metaq.protocol.statuses import RequestCode, ResponseCode
from tests.broker_process import Connection
from tests.integration.java_sides import Fields, Side
from tests.waiting import eventually

FILTERS = "def only_red(group, message):\n    return message.attribute == 'red'\n"
FILTERS_INI = "[filters]\ncom.acme.OnlyRed = acme_filters:only_red\n"
TOPICS: Topics = {
    "filtered": {"numPartitions": 1, "group.picky": "com.acme.OnlyRed"},
    "closed": {"numPartitions": 1},
    "grown": {"numPartitions": 1},
    "typed": {"numPartitions": 1},
    "packed": {"numPartitions": 1, "acceptCompressed": "true"},
    "wild*": {},
}


def ask(side: Side, code: RequestCode, ext: dict[str, str | int]) -> None:
    with Connection(side.broker.port) as connection:
        assert connection.ask_frame(encode_frame(code, 1, ext)).code == ResponseCode.SUCCESS


def test_a_filter_of_the_broker_loses_nothing_and_costs_the_client_no_offset(ours: Side) -> None:
    """The Java broker sends its own client into an endless loop here (semantics.md §9)."""
    sender = ours.app.producer("painter", "filtered")
    colours = ["blue", "red", "red", "blue", None, "red", "blue"] * 10
    sent: list[Fields] = [
        ours.app.send(sender, "filtered", str(number).encode(), colour)
        if colour
        else ours.app.send(sender, "filtered", str(number).encode())
        for number, colour in enumerate(colours)
    ]
    red = [str(number).encode() for number, colour in enumerate(colours) if colour == "red"]
    ours.app.subscribe("picky", "filtered", max_delay=50, commit=100)
    ours.app.subscribe("other", "filtered", max_delay=50)
    assert ours.app.payloads("picky", len(red)) == red
    assert len(ours.app.payloads("other", len(sent))) == len(sent)
    ours.app.send_all(sender, "filtered", b"plain")
    assert ours.app.send(sender, "filtered", b"last", "red")["success"]
    assert ours.app.payloads("picky", 1) == [b"last"]
    for name in ("picky", "other"):
        ours.app.unsubscribe(name)


def test_a_closed_partition_is_forbidden_until_it_is_opened(ours: Side) -> None:
    sender = ours.app.producer("closing", "closed")
    ours.app.send_all(sender, "closed", b"before")
    ask(ours, RequestCode.CLOSE_PARTITIONS, {"topic": "closed", "start": 0, "end": 0})
    refused = ours.app.send(sender, "closed", b"never")
    assert (refused["success"], refused["reason"]) == (False, "403")
    ours.app.subscribe("waiting", "closed", max_delay=50)
    ask(ours, RequestCode.OPEN_PARTITIONS, {"topic": "closed"})
    ours.app.send_all(sender, "closed", b"after")
    assert ours.app.payloads("waiting", 2) == [b"before", b"after"]
    ours.app.unsubscribe("waiting")


def test_clients_follow_a_reload(ours: Side) -> None:
    sender = ours.app.producer("following", "grown", selector="length")
    ours.app.subscribe("following", "grown", max_delay=50)
    config = ours.directory / "conf" / "ours" / "server.ini"
    text = config.read_text()
    assert "[topic=grown]\nnumPartitions=1\n" in text
    config.write_text(text.replace("[topic=grown]\nnumPartitions=1\n", "[topic=grown]\nnumPartitions=3\n"))
    ours.broker.process.send_signal(signal.SIGHUP)
    reached: set[str] = set()

    def reach_all() -> bool:
        reached.update(result["partition"] for result in ours.app.send_all(sender, "grown", b"", b"1", b"22"))
        return len(reached) == 3

    eventually(reach_all, 20, "sends to the new partitions")
    assert ours.app.call("partitions", "grown")["partitions"] == ["0-0", "0-1", "0-2"]
    received: set[str] = set()

    def receive_all() -> bool:
        received.update(message["partition"] for message in ours.app.taken("following", 1))
        return len(received) == 3

    eventually(receive_all, 20, "messages from the new partitions")
    ours.app.unsubscribe("following")


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


def test_a_java_producer_may_send_to_a_topic_with_compressed_messages(ours: Side) -> None:
    with Producer(ours.connect, config=ProducerConfig(compression="zstd")) as producer:
        producer.send("packed", b"again and again " * 200)
    ours.app.send_all(ours.app.producer("j", "packed"), "packed", b"from Java")
    with Consumer(ours.connect, group="both", topics=["packed"]) as consumer:
        found = eventually(lambda: [m.payload for m in consumer.poll(timeout=0.2)][-1:] == [b"from Java"])
    assert found
