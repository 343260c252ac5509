"""One partition of one broker, without ZooKeeper, over both protocols."""

import time

import pytest

from metaq.client.config import ConsumerConfig
from metaq.client.message import Message
from metaq.client.reading import PartitionReader
from metaq.client.testing import FakeBroker
from metaq.client.values import TopicPartition
from metaq.protocol.errors import ClientError, ConfigError, CorruptRecord, OffsetOutOfRange
from tests.waiting import DEADLINE

HERE = TopicPartition("t", 0, 0)
FAST = ConsumerConfig(text_idle_step_ms=1, text_idle_max_ms=5, error_min_seconds=0.001, error_max_seconds=0.01)


@pytest.fixture
def broker():
    with FakeBroker({"t": 1}) as broker:
        yield broker


@pytest.fixture(params=["auto", "text"])
def reader(broker, request):
    with reading(broker, protocol=request.param) as reader:
        yield reader


def reading(broker, start="earliest", **arguments):
    return PartitionReader(f"127.0.0.1:{broker.endpoint.port}", HERE, start, config=FAST, **arguments)


def take(reader, count):
    messages: list[Message] = []
    deadline = time.monotonic() + DEADLINE
    while len(messages) < count:
        assert time.monotonic() < deadline
        messages += reader.poll(timeout=0.1)
    return messages


def payloads(reader, count):
    return [message.payload for message in take(reader, count)]


def test_it_reads_what_is_there_and_what_comes_and_the_position_follows(broker, reader):
    broker.append("t", 0, b"1", b"2")
    assert payloads(reader, 2) == [b"1", b"2"]
    broker.append("t", 0, b"3")
    assert payloads(reader, 1) == [b"3"]
    assert reader.position == broker.log("t", 0).end
    assert reader.poll(timeout=0.01) == []


def test_it_begins_where_it_is_told_and_goes_on_from_its_position(broker):
    offsets = broker.append("t", 0, b"1", b"2", b"3")
    with reading(broker, offsets[1]) as reader:
        first = next(iter(reader))
        position = reader.position
    with reading(broker, position) as reader:
        assert (first.payload, payloads(reader, 1)) == (b"2", [b"3"])


def test_a_filter_passes_over_messages(broker):
    broker.append("t", 0, b"no", b"yes", b"no")
    with reading(broker, accept=lambda message: message.payload == b"yes") as reader:
        assert payloads(reader, 1) == [b"yes"]
        assert reader.poll(timeout=0.02) == []
        assert reader.position == broker.log("t", 0).end


def test_what_a_filter_raises_comes_out_behind_the_messages_in_front_of_it_and_again(broker):
    def accept(message):
        if message.payload == b"odd":
            raise KeyError("header")
        return True

    offsets = broker.append("t", 0, b"odd", b"next")
    with reading(broker, accept=accept) as reader:
        for _ in range(2):
            with pytest.raises(KeyError):
                take(reader, 1)
        reader.seek(offsets[1])
        assert payloads(reader, 1) == [b"next"]


def test_a_single_fetch_changes_nothing(broker, reader):
    offsets = broker.append("t", 0, b"1", bytes(5000), b"3")
    assert len(reader.fetch(offsets[1], 100)[0].payload) == 5000  # one at least, and whole
    assert [message.offset for message in reader.fetch(0)] == offsets
    assert reader.fetch(broker.log("t", 0).end) == []
    assert [len(payload) for payload in payloads(reader, 3)] == [1, 5000, 1]


def test_a_fetch_in_front_of_what_is_kept_says_what_is_kept(broker, reader):
    offsets = broker.append("t", 0, b"gone", b"kept")
    broker.log("t", 0).drop_before(offsets[1])
    with pytest.raises(OffsetOutOfRange) as caught:
        reader.fetch(0)
    assert caught.value.first == offsets[1]


@pytest.mark.parametrize("protocol", ["auto", "text"])
def test_damage_is_reported_at_each_poll_until_a_seek(broker, protocol):
    offsets = broker.append("t", 0, b"good", b"bad", b"after")
    broker.log("t", 0).data[offsets[2] - 1] ^= 1
    with reading(broker, protocol=protocol) as reader:
        assert payloads(reader, 1) == [b"good"]
        for _ in range(2):
            with pytest.raises(CorruptRecord):
                take(reader, 1)
        reader.seek(offsets[2])
        assert payloads(reader, 1) == [b"after"]


def test_a_closed_reader_says_so(broker, reader):
    reader.close()
    with pytest.raises(ClientError, match="closed"):
        reader.poll()


@pytest.mark.parametrize("arguments", [("", HERE), ("host:0", HERE), ("host:1", HERE, "middle"), ("host:1", HERE, -1)])
def test_arguments_that_cannot_be_are_refused(arguments):
    with pytest.raises(ConfigError):
        PartitionReader(*arguments)
