"""What goes with a message: the key that chooses its partition is one of its keys, and attributes are texts."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from metaq import LocalMessageStore, Message, OrderedProducer, Producer, TopicPartition
from metaq.client.producer import partition_for_key
from metaq.protocol.errors import LocalProtocolError
from metaq.testing import FakeBroker, FakeCluster
from tests.waiting import DEADLINE

WAYS = ["send", "send_async", "send_batch", "send_batch_async", "tx_send", "tx_send_batch", "ordered"]


class Way:
    """One way of sending one message."""

    def __init__(self, name: str, broker: FakeBroker, store: LocalMessageStore) -> None:
        cluster = FakeCluster([broker])
        self._name = name
        self.broker = broker
        self.producer = Producer(metadata=cluster)
        self._ordered = OrderedProducer(partitions={"t": {0: 2}}, store=store, metadata=cluster)

    def send(self, **arguments: Any) -> None:
        producer = self.producer
        if self._name == "send":
            producer.send("t", b"x", **arguments)
        elif self._name == "send_async":
            producer.send_async("t", b"x", **arguments).result(DEADLINE)
        elif self._name == "send_batch":
            producer.send_batch("t", [b"x"], **arguments)
        elif self._name == "send_batch_async":
            producer.send_batch_async("t", [b"x"], **arguments).result(DEADLINE)
        elif self._name == "ordered":
            self._ordered.send("t", b"x", **arguments)
        else:
            with producer.transaction() as transaction:
                if self._name == "tx_send":
                    transaction.send("t", b"x", **arguments)
                else:
                    transaction.send_batch("t", [b"x"], **arguments)

    def message(self) -> Message:
        """The only one that is stored."""
        (message,) = stored(self.broker)
        return message

    def close(self) -> None:
        self._ordered.close()
        self.producer.close()


def stored(broker: FakeBroker) -> list[Message]:
    messages: list[Message] = []
    for partition in broker.partitions:
        log = broker.log(partition.topic, partition.partition)
        for start, identity in zip(log.starts, log.ids, strict=True):
            length, flag = (int.from_bytes(log.data[start + at : start + at + 4]) for at in (0, 16))
            body = bytes(log.data[start + 20 : start + 20 + length])
            messages.append(Message(partition, start, identity, flag, body))
    return messages


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Way]:
    with FakeBroker({"t": 2}) as broker, LocalMessageStore(tmp_path / "ordered.db") as store:
        way = Way(request.param, broker, store)
        yield way
        way.close()


@pytest.mark.parametrize("key", ["order-7", b"order-7"])
def test_the_key_is_one_of_the_messages_keys_and_chooses_its_partition(way: Way, key: str | bytes) -> None:
    way.send(key=key)
    message = way.message()
    assert (message.payload, message.keys) == (b"x", ("order-7",))
    assert message.partition == partition_for_key("order-7", way.producer.partitions("t"))


@pytest.mark.parametrize(
    ("key", "keys", "found"),
    [
        ("a", ["b", "c"], ("b", "c", "a")),
        ("a", ["a"], ("a",)),
        ("order 7", [], ("order", "7")),  # blanks separate keys
        ("schlüssel", [], ("schlüssel",)),
        ("schlüssel".encode(), [], ("schlüssel",)),
        (b"\xff\x00", [], ()),  # no text: it only chooses the partition
        ("a\x01b", ["c"], ("c",)),
        ("", [], ()),
    ],
)
def test_a_keys_words_join_the_other_keys(way: Way, key: str | bytes, keys: list[str], found: tuple[str, ...]) -> None:
    way.send(key=key, keys=keys)
    message = way.message()
    assert (message.payload, message.keys) == (b"x", found)
    assert message.partition == partition_for_key(key, way.producer.partitions("t"))


def test_a_key_goes_with_tag_attribute_and_headers(way: Way) -> None:
    way.send(key="k", tag="buy", attribute="old", properties={"n": "1", "amount": 2.5})
    message = way.message()
    assert (message.keys, message.tag, message.attribute) == (("k",), "buy", "old")
    assert message.properties == {"n": "1", "amount": 2.5}


def test_a_consumed_message_keeps_its_own_keys(tmp_path: Any) -> None:
    with FakeBroker({"t": 1}) as broker, Producer(metadata=FakeCluster([broker])) as producer:
        producer.send_batch("t", [Message(TopicPartition("t", 0, 0), 0, 1, 0, b"as it was"), b"new"], key="k")
        assert [(each.payload, each.keys) for each in stored(broker)] == [(b"as it was", ()), (b"new", ("k",))]


NO_TEXTS: list[tuple[Mapping[str, object], str]] = [
    ({"properties": {"n": [1]}}, r"properties\['n'\]=\[1\] is no str, int, float, bool or bytes but list.*'\[1\]'"),
    ({"properties": {"n": None}}, r"properties\['n'\]=None.*leave it out"),
    ({"properties": {"n": bytearray(b"v")}}, r"properties\['n'\]=.*write bytes"),
    ({"properties": {5: "v"}}, r"name of a property=5"),
    ({"properties": ["v"]}, r"properties=\['v'\] is no dict but list: write"),
    ({"tag": 5}, r"tag=5"),
    ({"attribute": b"a"}, r"attribute=b'a'"),
    ({"keys": "abc"}, r"keys='abc'.*\['abc'\]"),
    ({"keys": [7]}, r"keys=7"),
    ({"key": 7}, r"key=7"),
]


@pytest.mark.parametrize(("arguments", "said"), NO_TEXTS)
def test_what_is_no_text_is_refused_by_its_name_with_the_remedy(way, arguments, said):
    with pytest.raises(TypeError, match=said):
        way.send(**arguments)
    assert stored(way.broker) == []


def test_a_lookup_key_with_a_blank_is_refused(way: Way) -> None:
    with pytest.raises(LocalProtocolError, match="blank"):
        way.send(keys=["a b"])
