"""One partition of one broker, without ZooKeeper, over both protocols."""

import threading
import time
from dataclasses import replace

import pytest

from metaq.client.browsing.browser import PartitionReader
from metaq.client.records.message import Message
from metaq.client.records.results import TopicPartition
from metaq.client.settings.consumer_config import ConsumerConfig
from metaq.protocol.errors import ClientError, ConfigError, CorruptRecord, OffsetOutOfRange
from tests.component.client.harness import address
from tests.speaking import speaking
from tests.waiting import DEADLINE, eventually

HERE = TopicPartition("t", 0, 0)
FAST = ConsumerConfig(text_idle_step_ms=1, text_idle_max_ms=5, error_min_seconds=0.001, error_max_seconds=0.01)


@pytest.fixture
def reader(broker, protocol):
    with reading(broker, config=speaking(protocol, FAST)) as reader:
        yield reader


def reading(broker, start="earliest", **arguments):
    return PartitionReader(address(broker), HERE, start, **{"config": FAST, **arguments})


def take(reader, count):
    messages: list[Message] = []

    def is_enough():
        messages.extend(reader.poll(timeout=0.1))
        return len(messages) >= count

    eventually(is_enough)
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


def test_an_interrupted_poll_takes_nothing_away_from_position_and_seek(broker, monkeypatch):
    offsets = broker.append("t", 0, b"1", b"2", b"3")
    with reading(broker) as reader:
        take = reader._core.take

        def interrupted(limit):
            if take(limit):
                raise KeyboardInterrupt  # what it took does not reach poll()'s caller
            return []

        monkeypatch.setattr(reader._core, "take", interrupted)
        for at in (0, offsets[1]):
            with pytest.raises(KeyboardInterrupt):
                reader.poll(timeout=DEADLINE)
            assert reader.position == at
            reader.seek(offsets[1])
        with pytest.raises(KeyboardInterrupt):
            reader.poll(timeout=DEADLINE)
        reader.seek(offsets[2])
        monkeypatch.setattr(reader._core, "take", take)
        assert payloads(reader, 1) == [b"3"]


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


def test_damage_is_reported_at_each_poll_until_a_seek(broker, protocol):
    offsets = broker.append("t", 0, b"good", b"bad", b"after")
    broker.log("t", 0).data[offsets[2] - 1] ^= 1
    with reading(broker, config=speaking(protocol, FAST)) as reader:
        assert payloads(reader, 1) == [b"good"]
        for _ in range(2):
            with pytest.raises(CorruptRecord) as caught:
                take(reader, 1)
            assert (caught.value.position, caught.value.end) == tuple(offsets[1:])
        reader.seek(caught.value.end)
        assert payloads(reader, 1) == [b"after"]


DAMAGES = {
    "a body": lambda data, start, end: data.__setitem__(end - 1, data[end - 1] ^ 1),
    "a checksum": lambda data, start, end: data.__setitem__(start + 7, data[start + 7] ^ 1),
    "a negative length": lambda data, start, end: data.__setitem__(start, 0xFF),
    "a length beyond everything": lambda data, start, end: data.__setitem__(start + 1, 0x7F),
    "a length beyond the end": lambda data, start, end: data.__setitem__(start + 2, 0x7F),
    "a shorter length": lambda data, start, end: data.__setitem__(start + 3, 1),
    "zeros": lambda data, start, end: data.__setitem__(slice(start, end), bytes(end - start)),
}


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("what", DAMAGES)
def test_everything_but_what_is_damaged_is_read_once(broker, protocol, what, last):
    """The last record of all, too, behind which new ones come."""
    starts = [*broker.append("t", 0, *(b"%d" % number * 30 for number in range(5))), broker.log("t", 0).end]
    bad = 4 if last else 2
    DAMAGES[what](broker.log("t", 0).data, *starts[bad : bad + 2])
    told: list[CorruptRecord] = []
    config = replace(FAST, damage="skip", on_damaged=told.append)
    with reading(broker, config=speaking(protocol, config)) as reader:
        good = [b"%d" % number * 30 for number in range(5) if number != bad]
        assert payloads(reader, 4) == good
        assert eventually(lambda: told or reader.poll(timeout=0.01)) is told, "a message came instead"
        assert [(each.position, each.end) for each in told] == [tuple(starts[bad : bad + 2])]
        broker.append("t", 0, b"later")
        assert payloads(reader, 1) == [b"later"]
        assert len(told) == 1
        assert len(reader.fetch(0)) == bad
        with pytest.raises(CorruptRecord) as caught:
            reader.fetch(starts[bad])
        assert (caught.value.position, caught.value.end) == tuple(starts[bad : bad + 2])


def test_a_poll_inside_a_poll_is_refused(broker):
    broker.append("t", 0, b"1")
    polling: list[PartitionReader] = []
    with reading(broker, accept=lambda message: polling[0].poll()) as opened:
        polling.append(opened)
        with pytest.raises(ClientError, match="under way"):
            take(opened, 1)


def test_a_poll_that_waits_ends_when_another_thread_closes_the_reader(broker, reader):
    closing = threading.Timer(0.05, reader.close)
    closing.start()
    started = time.monotonic()
    assert reader.poll(timeout=DEADLINE) == []
    assert time.monotonic() - started < DEADLINE
    closing.join()


def test_a_closed_reader_says_so(reader):
    reader.close()
    for call in (reader.poll, lambda: reader.fetch(0)):
        with pytest.raises(ClientError, match="closed"):
            call()


@pytest.mark.parametrize("arguments", [("", HERE), ("host:0", HERE), ("host:1", HERE, "middle"), ("host:1", HERE, -1)])
def test_arguments_that_cannot_be_are_refused(arguments):
    with pytest.raises(ConfigError):
        PartitionReader(*arguments)
