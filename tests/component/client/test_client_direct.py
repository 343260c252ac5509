"""A producer for one broker by its address: partition -1 in both protocols, or partitions whose number is told."""

import pytest

from metaq import Producer, ProducerConfig, TopicPartition
from metaq.client.transport.connection import Endpoint
from metaq.client.transport.metadata import parse_address
from metaq.protocol.errors import ConfigError, InvalidName, NoPartition, RequestRefused, TopicNotAccepted
from tests.speaking import speaking
from tests.waiting import DEADLINE

TOPICS = {"t": 2}


def address(broker):
    return f"meta://{broker.endpoint.host}:{broker.endpoint.port}"


def test_the_broker_chooses_the_partition_and_the_result_names_it(broker, protocol):
    with Producer.direct(address(broker), config=speaking(protocol, ProducerConfig())) as producer:
        results = [producer.send("t", b"%d" % number) for number in range(6)]
        results += producer.send_batch("t", [b"6", b"7"])
        assert {result.partition for result in results} <= {TopicPartition("t", -1, 0), TopicPartition("t", -1, 1)}
        assert producer.send_async("t", b"8").result(DEADLINE).partition.partition in (0, 1)
        for result, number in zip(results, range(8), strict=True):
            stored = broker.log("t", result.partition.partition)
            assert result.message_id in stored.ids
            assert result.offset in stored.starts
            assert b"%d" % number in broker.bodies("t", result.partition.partition)
        with pytest.raises(NoPartition, match=r"Producer\.direct\(partitions"):
            producer.send("t", b"", key="k")
        with pytest.raises(NoPartition, match="a transaction needs"):
            producer.transaction().send("t", b"")
        with pytest.raises(InvalidName):
            producer.send("a/b", b"")
        with pytest.raises((TopicNotAccepted, RequestRefused)):
            producer.send("unknown", b"")


def test_a_request_needs_to_know_the_partitions_that_replies_go_to(broker):
    config = ProducerConfig(reply_topic="t")
    with Producer.direct(address(broker), config=config) as producer, pytest.raises(NoPartition, match="replies go to"):
        producer.request("t", b"x", timeout=DEADLINE)


def test_partitions_whose_number_is_told_can_be_chosen(broker, protocol):
    with Producer.direct(
        address(broker), config=speaking(protocol, ProducerConfig()), broker_id=7, partitions={"t": 2}
    ) as producer:
        assert producer.partitions("t") == (TopicPartition("t", 7, 0), TopicPartition("t", 7, 1))
        assert [producer.send("t", b"").partition.partition for _ in range(4)] in ([0, 1, 0, 1], [1, 0, 1, 0])
        assert producer.send("t", b"", key="k").partition == producer.send("t", b"", key="k").partition
        with producer.transaction() as transaction:
            transaction.send("t", b"x", partition=TopicPartition("t", 7, 1))
        assert broker.bodies("t", 1)[-1] == b"x"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("host", Endpoint("host", 8123)),
        ("127.0.0.1:9", Endpoint("127.0.0.1", 9)),
        ("meta://broker-1.example:8124", Endpoint("broker-1.example", 8124)),
        ("meta://[::1]:8123", Endpoint("::1", 8123)),
        ("[fe80::1]", Endpoint("fe80::1", 8123)),
    ],
)
def test_addresses(text, expected):
    assert parse_address(text) == expected


@pytest.mark.parametrize("wrong", ["", "host:", "host:0", "host:70000", "http://host:1", "::1", "a b", "host:1/x"])
def test_what_is_no_address_is_refused(wrong):
    with pytest.raises(ConfigError, match="host:port"):
        Producer.direct(wrong)


def test_a_number_of_partitions_below_1_is_refused():
    with pytest.raises(ConfigError, match="choose 1 or more"):
        Producer.direct("host", partitions={"t": 0})
