"""Fetching ahead over both protocols, against a broker in memory."""

import socket
import time
from contextlib import ExitStack, closing
from dataclasses import replace

import pytest

from metaq.client.fetching.core import ConsumerCore
from metaq.client.fetching.cursor import PartitionCursor
from metaq.client.fetching.fetcher import Fetcher
from metaq.client.questions.partition_bounds import (
    bounds_at,
    lag_behind,
    max_offset,
    min_offset,
    offset_at_time,
    partition_bounds,
)
from metaq.client.records.message import Message
from metaq.client.records.results import Lag, TopicPartition
from metaq.client.runtime.timers import Timers
from metaq.client.settings.consumer_config import ConsumerConfig
from metaq.client.transport.connection import Endpoint
from metaq.client.transport.pool import ConnectionPool
from metaq.protocol.errors import CorruptRecord, RequestRefused
from metaq.protocol.limits import INT64_MAX
from metaq.protocol.record import encode_attributes, encode_body
from metaq.protocol.statuses import ResponseCode
from metaq.testing import FakeBroker
from tests.speaking import speaking
from tests.waiting import DEADLINE, assert_within, eventually

HERE = TopicPartition("t", 0, 0)
NUMBERS = [b"%d" % number for number in range(200)]
FAST = ConsumerConfig(text_idle_step_ms=1, text_idle_max_ms=5, error_min_seconds=0.001, error_max_seconds=0.01)


class Reader:
    """A core with a fetcher, and what both need."""

    cursor: PartitionCursor

    def __init__(
        self, broker, protocol="auto", tags=None, config=FAST, is_slave=lambda endpoint: False, endpoint_of=None
    ):
        config = speaking(protocol, config)
        self.pool, self.timers = ConnectionPool(config.connection), Timers("fetch")
        self.broker = broker
        self.core = ConsumerCore("g", config, tags=frozenset(tags) if tags else None, is_slave=is_slave)
        self.fetcher = Fetcher(
            self.core, self.pool, endpoint_of or (lambda partition: self.broker.endpoint), self.timers
        )

    def open(self, begin=0, partition=HERE, stored=None):
        (self.cursor,) = self.core.claim([partition], [begin], [stored], announced=True)
        self.fetcher.serve_soon()
        return self.cursor

    def seek(self, offset):
        self.cursor.moved_to(offset)
        self.fetcher.serve_soon()

    def take(self, count):
        messages = self.core.take(count)
        self.fetcher.serve()
        self.core.under_way = False
        return messages

    def read(self, count, seconds=DEADLINE):
        """The next `count` messages."""
        found: list[Message] = []
        deadline = time.monotonic() + seconds
        while len(found) < count:
            self.fetcher.listen()
            found += self.take(count - len(found))
            if len(found) < count:
                assert time.monotonic() < deadline, f"only {len(found)} messages came"
                self.fetcher.wait(deadline - time.monotonic())
        return found

    def until(self, condition, seconds=DEADLINE):
        """Wait for something other than messages, as a thread in poll() does."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline
            self.fetcher.listen()
            self.fetcher.wait(0.01)

    def payloads(self, count):
        return [message.payload for message in self.read(count)]

    def close(self):
        self.core.lose(self.core.owned.values())
        self.timers.close()
        self.pool.close()


@pytest.fixture
def new_reader(broker):
    with ExitStack() as opened:
        yield lambda *arguments, **options: opened.enter_context(closing(Reader(broker, *arguments, **options)))


@pytest.fixture
def reader(new_reader, protocol):
    return new_reader(protocol)


def test_what_is_stored_and_what_comes_later_is_read_in_order(broker, reader):
    broker.append("t", 0, *NUMBERS)
    reader.open(0)
    assert reader.payloads(200) == NUMBERS
    broker.append("t", 0, b"later")
    assert reader.payloads(1) == [b"later"]


class KeepsBodies(FakeBroker):
    """Sends the body of an answer only once the next request is there, or breaks the connection instead."""

    kept = b""
    breaks = 0

    def _take(self, session, request):
        kept, self.kept = self.kept, b""
        if kept and self.breaks:
            self.breaks -= 1
            raise OSError("broken by the test")
        session.out += kept
        super()._take(session, request)

    def _reply(self, session, opaque, code, ext, body=b"", remark=""):
        super()._reply(session, opaque, code, ext, body, remark)
        if body:
            self.kept = bytes(body)
            del session.out[-len(body) :]


@pytest.mark.parametrize("breaks", [0, 3])
def test_what_follows_is_pulled_before_an_answer_is_complete_and_nothing_is_lost_if_it_breaks(breaks):
    config = replace(FAST, arrow_fetch_bytes=1000)
    with KeepsBodies({"t": 1}) as broker, closing(Reader(broker, config=config)) as reader:
        broker.breaks = breaks
        broker.append("t", 0, *NUMBERS)
        reader.core.codec.reads_in_bulk = True
        reader.open(0)
        assert reader.payloads(200) == NUMBERS
        assert (broker.breaks, broker.connections) == (0, 1 + breaks)


def test_no_more_is_pulled_ahead_than_may_be_buffered(broker, new_reader):
    broker.append("t", 0, *NUMBERS)
    reader = new_reader(config=ConsumerConfig(arrow_fetch_bytes=1000, max_buffered_bytes=900))
    reader.core.codec.reads_in_bulk = True
    reader.open(0)
    assert reader.payloads(1) == [b"0"]
    assert broker.pulls == 1
    assert reader.payloads(199) == NUMBERS[1:]


def test_a_partition_without_any_message_yet_is_waited_for(broker, reader):
    reader.open(0)
    broker.append("t", 0, b"first")
    assert reader.payloads(1) == [b"first"]


def test_a_seek_while_the_begin_is_looked_for_holds(broker, reader):
    broker.append("t", 0, b"0", b"1", b"2")

    def late(connection, partition):
        end = max_offset(connection, partition)
        reader.seek(0)  # the user's seek comes before the begin that was found
        return end

    reader.open(late)
    assert reader.payloads(3) == [b"0", b"1", b"2"]


def test_a_seek_before_the_begin_is_looked_for_holds(broker, reader):
    broker.append("t", 0, b"0", b"1", b"2")
    (reader.cursor,) = reader.core.claim([HERE], [max_offset], announced=True)
    reader.seek(0)
    assert reader.payloads(3) == [b"0", b"1", b"2"]


def test_a_partition_that_is_kept_goes_on_where_a_seek_has_led_meanwhile(broker, reader):
    broker.append("t", 0, b"0", b"1", b"2")
    reader.open(3 * 21)
    reader.seek(21)
    reader.cursor.again()
    reader.fetcher.serve_soon()
    assert reader.payloads(2) == [b"1", b"2"]


def test_latest_begins_at_the_end(broker, reader):
    broker.append("t", 0, b"old")
    reader.open(max_offset)
    eventually(lambda: reader.cursor.opened)
    broker.append("t", 0, b"new")
    assert reader.payloads(1) == [b"new"]


def test_a_position_in_front_of_what_is_kept_goes_on_at_the_first_message(broker, reader, caplog):
    _, second = broker.append("t", 0, b"gone", b"kept")
    broker.log("t", 0).drop_before(second)
    reader.open(0)
    (message,) = reader.read(1)
    assert (message.payload, message.offset) == (b"kept", second)
    assert "not readable" not in caplog.text


@pytest.mark.parametrize(("begin", "stored"), [(24, None), (0, (0, -1))], ids=["a position", "a committed 0"])
def test_a_position_that_retention_has_overtaken_is_said(broker, reader, caplog, begin, stored):
    broker.append("t", 0, b"gone", b"gone too", b"kept")
    broker.log("t", 0).drop_before(broker.log("t", 0).starts[2])
    reader.open(begin, stored=stored)
    assert reader.payloads(1) == [b"kept"]
    assert f"t 0-0: position {begin} is not readable, going on at 52" in caplog.text


def test_a_message_larger_than_a_pull_is_read(broker, new_reader, protocol):
    reader = new_reader(protocol, config=ConsumerConfig(fetch_max_bytes=1000, text_idle_step_ms=1))
    broker.append("t", 0, b"small", bytes(50_000), b"after")
    reader.open(0)
    assert [len(payload) for payload in reader.payloads(3)] == [5, 50_000, 5]


def test_no_more_is_fetched_ahead_than_the_buffer_holds(broker, new_reader, protocol):
    config = ConsumerConfig(fetch_max_bytes=1020, max_buffered_bytes=3000, text_idle_step_ms=1)
    reader = new_reader(protocol, config=config)
    broker.append("t", 0, *[bytes(1000)] * 50)
    reader.open(0)
    reader.read(1)
    reader.until(lambda: not reader.cursor.asking)
    assert 3000 <= reader.cursor.buffered_bytes <= 3000 + 1020
    assert len(reader.read(49)) == 49


def test_a_broker_that_dies_and_comes_back_is_read_on(broker, reader, caplog):
    broker.append("t", 0, b"before")
    reader.open(0)
    assert reader.payloads(1) == [b"before"]
    broker.stop()
    reader.until(lambda: "fetching t 0-0 failed" in caplog.text)
    with FakeBroker({"t": 1}, port=broker.endpoint.port) as again:
        reader.broker = again
        again.append("t", 0, b"before", b"after")
        assert reader.payloads(1) == [b"after"]


def test_a_refusal_is_complained_about_once_and_tried_again(broker, reader, caplog):
    caplog.set_level("INFO")
    refusals = [ResponseCode.SYSTEM_ERROR if reader.core.config.connection.protocol == "auto" else 500] * 5
    broker.refuse = lambda request: (
        refusals.pop() if refusals and (getattr(request, "code", 0) == 11 or type(request).__name__ == "Get") else None
    )
    broker.append("t", 0, b"x")
    reader.open(0)
    assert reader.payloads(1) == [b"x"]
    assert caplog.text.count("fetching t 0-0 failed") == 1
    broker.append("t", 0, b"y")
    assert reader.payloads(1) == [b"y"]  # by now the first answer is dealt with
    assert caplog.text.count("works again") == 1


def test_a_seek_drops_what_was_fetched(broker, reader):
    offsets = broker.append("t", 0, *(b"%d" % number for number in range(10)))
    reader.open(0)
    assert reader.payloads(3) == [b"0", b"1", b"2"]
    reader.seek(offsets[7])
    assert reader.payloads(3) == [b"7", b"8", b"9"]


def test_nothing_is_asked_for_any_more_once_the_partition_is_lost(broker, new_reader):
    reader = new_reader()
    reader.open(0)
    broker.append("t", 0, b"x")
    reader.read(1)
    reader.core.lose([reader.cursor])
    broker.append("t", 0, b"y")
    pulls = broker.pulls
    reader.fetcher.ask(reader.cursor)
    assert broker.pulls == pulls


def test_only_wanted_tags_come_and_the_position_passes_the_others(broker, new_reader, protocol):
    reader = new_reader(protocol, tags=["a"])
    for number in range(10):
        flag, raw = encode_attributes(tag="b" if number % 3 else "a")
        broker.append("t", 0, bytes(encode_body(b"%d" % number, flag, raw)), flag=flag)
    reader.open(0)
    assert reader.payloads(4) == [b"0", b"3", b"6", b"9"]
    reader.core.acknowledge()
    assert reader.cursor.consumed == (broker.log("t", 0).end, broker.log("t", 0).ids[9])


# --- lookups ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def connection(broker, protocol):
    pool = ConnectionPool(speaking(protocol, FAST).connection)
    yield pool.connection(broker.endpoint, 3)
    pool.close()


def test_the_bounds_of_a_partition_are_known_over_both_protocols(broker, connection):
    assert (min_offset(connection, HERE), max_offset(connection, HERE)) == (0, 0)
    offsets = broker.append("t", 0, b"a", b"b")
    broker.log("t", 0).drop_before(offsets[1])
    assert (min_offset(connection, HERE), max_offset(connection, HERE)) == (21, 42)


def test_lag_is_counted_in_messages_where_the_broker_can(broker, connection, protocol):
    broker.append("t", 0, b"a", b"b", b"c")
    assert lag_behind(connection, HERE, 21) == Lag(2 if protocol == "auto" else None, 42)
    assert lag_behind(connection, HERE, 63) == Lag(0 if protocol == "auto" else None, 0)
    assert partition_bounds(connection, HERE).messages == (3 if protocol == "auto" else None)
    assert bounds_at(connection, HERE, 21)[1] == (1 if protocol == "auto" else None)


def test_a_time_is_looked_up_or_its_impossibility_said(broker, connection, protocol):
    broker.append("t", 0, b"a")
    if protocol == "auto":
        assert offset_at_time(connection, HERE, 0) == 0
        assert offset_at_time(connection, HERE, int(time.time() * 1000) + 60_000) == 21
    else:
        with pytest.raises(RequestRefused, match="name an offset, 'earliest' or 'latest'"):
            offset_at_time(connection, HERE, 0)


# --- text protocol: what a Java broker may answer --------------------------------------------------------------------


@pytest.fixture
def text_reader(new_reader):
    return new_reader("text")


def test_a_record_that_the_broker_will_not_hand_out_whole_is_complained_about(broker, new_reader, caplog):
    reader = new_reader("text", config=ConsumerConfig(fetch_max_bytes=1 << 20, error_min_seconds=0.001))
    broker.append("t", 0, bytes(5000))
    broker.max_transfer_bytes = 1000
    reader.open(0)
    reader.until(lambda: "1000 bytes of the record at 0" in caplog.text)
    assert "raise its maxTransferSize" in caplog.text
    broker.max_transfer_bytes = 10_000
    assert len(reader.payloads(1)[0]) == 5000


@pytest.mark.parametrize("length", [-1, 1 << 30])
def test_a_length_that_cannot_be_is_damage_behind_what_is_good(broker, text_reader, length):
    _, second = broker.append("t", 0, b"good", b"bad")
    log = broker.log("t", 0)
    log.data[second : second + 4] = length.to_bytes(4, "big", signed=True)
    text_reader.open(0)
    assert text_reader.payloads(1) == [b"good"]
    with pytest.raises(CorruptRecord) as caught:
        text_reader.read(1)
    assert caught.value.position == second


def test_a_position_behind_the_end_of_a_java_broker_is_said(broker, text_reader, caplog):
    broker.append("t", 0, b"short")
    text_reader.open(5000)
    text_reader.until(lambda: "the position 5000 lies behind the end 25" in caplog.text)


def test_the_end_that_a_moved_position_names_is_gone_on_from(broker, text_reader, caplog):
    broker.append("t", 0, b"old")
    text_reader.open(INT64_MAX)  # a Java broker answers 301 <end>
    text_reader.until(lambda: text_reader.cursor.fetch_offset == 23)
    broker.append("t", 0, b"new")
    assert text_reader.payloads(1) == [b"new"]


# --- slaves -----------------------------------------------------------------------------------------------------------


def test_a_slave_that_lags_never_moves_the_position_back(broker, new_reader, protocol, caplog):
    """It may hold less than the master did: the consumer waits for it."""
    reader = new_reader(protocol, is_slave=lambda endpoint: endpoint == broker.endpoint)
    behind = broker.append("t", 0, b"replicated")[0] + 30
    reader.open(behind + 24)
    if protocol == "auto":
        reader.until(lambda: "ends at 30 and the position is 54 already" in caplog.text)
    broker.append("t", 0, b"late", b"next")
    assert reader.payloads(1) == [b"next"]


def test_a_parked_pull_is_sent_again_when_another_broker_is_to_be_read(broker, new_reader):
    reader = new_reader()
    broker.append("t", 0, b"1")
    with FakeBroker({"t": 1}, broker_id=0) as master:
        reader.open(0)
        assert reader.payloads(1) == [b"1"]
        reader.until(lambda: broker.pulls == 2)  # parked: the slave has no more
        master.append("t", 0, b"1", b"2")
        reader.broker = master
        reader.cursor.ask_anew()
        reader.fetcher.serve_soon()
        assert reader.payloads(1) == [b"2"]


def test_a_broker_that_never_answers_holds_up_no_other(broker, new_reader):
    """It accepts the connection, as a process that was stopped does: the kernel does it."""
    broker.append("t", 0, b"there")
    with socket.create_server(("127.0.0.1", 0)) as hung:
        endpoints = {0: Endpoint("127.0.0.1", hung.getsockname()[1]), 1: broker.endpoint}
        reader = new_reader(endpoint_of=lambda partition: endpoints[partition.broker])

        def attempt() -> float:
            started = time.monotonic()
            for number in range(8):
                reader.open((lambda connection, partition: 0) if number % 2 else 0, TopicPartition("t", 0, number))
            reader.open(0, TopicPartition("t", 1, 0))
            assert reader.payloads(1) == [b"there"]
            return time.monotonic() - started

        assert_within(2, attempt, tries=1)
