"""The broker of metaq.testing, where its clients do what a broker must live with."""

import socket
import struct

import pytest

from metaq import Producer, ProducerConfig
from metaq.client.producer.building import build_body
from metaq.client.producer.packing import Packer
from metaq.errors import MetaqError, RequestRefused
from metaq.protocol.frames import encode_frame
from metaq.protocol.pulls import PullRequest
from metaq.protocol.record import checksum
from metaq.protocol.statuses import RequestCode
from metaq.protocol.text import encode_get, encode_put
from metaq.serializers import Json
from metaq.testing import FakeBroker, FakeCluster
from tests.speaking import speaking
from tests.waiting import eventually


def test_a_client_that_is_gone_before_its_parked_pull_is_answered_ends_no_broker():
    with FakeBroker({"t": 1}) as broker:
        with socket.create_connection((broker.endpoint.host, broker.endpoint.port)) as client:
            pull = PullRequest("t", 0, 0, 1000, wait_ms=15_000)
            client.sendall(encode_frame(RequestCode.PULL, 1, pull.to_ext()))
            eventually(lambda: broker._parked)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # the close is a reset

            def cut_and_append() -> None:
                """On the broker's thread: it answers before it looks at the connection again."""
                client.close()
                broker.log("t", 0).append(b"1", 1, 0)

            broker.run_there(cut_and_append)
        assert broker.append("t", 0, b"2")


def test_the_port_of_a_stopped_broker_goes_to_nobody_but_its_successor():
    with FakeBroker({"t": 1}) as broker:
        place = (broker.endpoint.host, broker.endpoint.port)
        broker.stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(place)
        with socket.socket() as another, pytest.raises(OSError, match="already in use"):
            another.bind(place)
        with FakeBroker({"t": 1}, port=broker.endpoint.port):
            socket.create_connection(place).close()
    with socket.socket() as another:
        another.bind(place)


LONG = b"the same again and again, " * 100
ZSTD = ProducerConfig(compression="zstd", linger_ms=5)
REFUSED = r"topic plain takes no compressed messages: set acceptCompressed=true in its section of server\.ini"


@pytest.fixture
def packing():
    with FakeBroker({"packed": 1, "plain": 1}, accept_compressed=["packed"]) as broker:
        yield broker


def _in_transaction(producer, topic):
    with producer.transaction() as tx:
        tx.send(topic, LONG)


SENDS = {
    "send": lambda producer, topic: producer.send(topic, LONG),
    "send_batch": lambda producer, topic: producer.send_batch(topic, [LONG, LONG]),
    "send_async": lambda producer, topic: producer.send_async(topic, LONG).result(),
    "transaction": _in_transaction,
    "delayed": lambda producer, topic: producer.send(topic, LONG, delay=0.001),
}


@pytest.mark.parametrize("kind", SENDS)
def test_compressed_messages_are_for_topics_that_accept_them_as_at_a_real_broker(packing, protocol, kind):
    with Producer(metadata=FakeCluster([packing]), config=speaking(protocol, ZSTD)) as producer:
        SENDS[kind](producer, "packed")
        with pytest.raises(MetaqError, match=REFUSED):  # TransactionRefused, in one
            SENDS[kind](producer, "plain")
        producer.send("plain", b"short")
        eventually(lambda: packing.log("packed", 0).ids)
        assert packing.bodies("plain", 0) == [b"short"]


def test_of_messages_that_go_together_only_those_of_the_topic_that_does_not_accept_them_are_refused(packing):
    with Producer(metadata=FakeCluster([packing]), config=ZSTD) as producer:
        sent = {topic: producer.send_async(topic, LONG) for topic in ("packed", "plain")}
        assert sent["packed"].result().partition.topic == "packed"
        with pytest.raises(MetaqError, match=REFUSED):
            sent["plain"].result()


def test_a_topic_may_begin_to_accept_them_and_an_older_broker_does_not_look(packing):
    with Producer(metadata=FakeCluster([packing]), config=ZSTD) as producer:
        with pytest.raises(RequestRefused, match=REFUSED):
            producer.send("plain", LONG)
        packing.accept_compressed = {"packed", "plain"}
        producer.send("plain", LONG)
    flag, body = build_body(LONG, {}, Packer.of(ZSTD))
    packing.accept_compressed, packing.knows_compressed = (), False
    with socket.create_connection((packing.endpoint.host, packing.endpoint.port)) as client:
        client.sendall(encode_put("plain", 0, flag, checksum(body), 1, body))
        assert client.makefile("rb").readline().startswith(b"result 200 ")
    assert len(packing.log("plain", 0).ids) == 2


def test_a_client_of_metaq_1x_gets_nothing_of_a_topic_that_accepts_them(packing):
    for topic in packing.topics:
        packing.append(topic, 0, b"1")
    with socket.create_connection((packing.endpoint.host, packing.endpoint.port)) as client:
        lines = client.makefile("rb")
        client.sendall(encode_get("packed", "java", 0, 0, 1000, 1))
        _, _, size, _ = lines.readline().split()
        assert b"group java needs a newer client" in lines.read(int(size))
    with socket.create_connection((packing.endpoint.host, packing.endpoint.port)) as client:
        lines = client.makefile("rb")
        client.sendall(encode_get("packed", "ours", 0, 0, 1000, 1, True))
        assert lines.readline().startswith(b"value ")
    with socket.create_connection((packing.endpoint.host, packing.endpoint.port)) as client:
        lines = client.makefile("rb")
        client.sendall(encode_get("plain", "java", 0, 0, 1000, 1))
        assert lines.readline().startswith(b"value ")


@pytest.mark.parametrize("given", [None, 5, b"one", "one"])
def test_what_is_no_batch_is_named(packing, given):
    said = f"of a batch are a list or another iterable, not {type(given).__name__}"
    with Producer(metadata=FakeCluster([packing])) as producer:
        typed = producer.typed(Json())
        for send in (producer.send_batch, producer.send_batch_async, typed.send_batch, typed.send_batch_async):
            with pytest.raises(TypeError, match=said):
                send("plain", given)
        with producer.transaction() as tx, pytest.raises(TypeError, match=said):
            tx.send_batch("plain", given)


def test_what_is_no_message_cannot_be_replied_to(packing):
    with Producer(metadata=FakeCluster([packing])) as producer, pytest.raises(TypeError, match="None is no Message"):
        producer.reply(None, b"x")  # type: ignore[arg-type]
