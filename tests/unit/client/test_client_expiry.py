"""Messages whose time is over: nobody gets them, and they count as consumed."""

import re
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from metaq.client.consumer.chunk import Chunk
from metaq.client.consumer.core import ConsumerCore
from metaq.client.consumer.cursor import Ask, Request
from metaq.client.consumer_config import ConsumerConfig
from metaq.client.durations import check_ttl
from metaq.client.producer.building import build_batch, build_body
from metaq.client.values import TopicPartition
from metaq.client.wall_clock import now_ms
from metaq.protocol.errors import ConfigError, LocalProtocolError
from metaq.protocol.record import (
    DELAYED_FLAG,
    EXPIRES_FLAG,
    attribute_of,
    decode_attribute,
    encode_attributes,
    encode_body,
    encode_record,
)

HERE = TopicPartition("t", 0, 1)
NOW = 1_700_000_000_000


def record(payload, expires=None, identity=7, **attributes):
    reserved = None if expires is None else {"metaq.expires": str(expires)}
    flag, raw = encode_attributes(reserved=reserved, **attributes)
    return encode_record(encode_body(payload, flag, raw), identity, flag)


MIXED = [record(b"dead", NOW, 1), record(b"late", NOW + 1, 2), record(b"ever", None, 3), record(b"dead too", 1, 4)]


class Bench:
    """A core with a clock of the test's."""

    def __init__(self, accept=None):
        self.now = NOW
        self.core = ConsumerCore("g", ConsumerConfig(), accept=accept, wall_clock=lambda: self.now)
        (self.cursor,) = self.core.claim([HERE], [1000], announced=True)

    def arrive(self, records, sized=False, offset=1000):
        data = b"".join(records)
        sizes = np.array([len(each) for each in records]) if sized else None
        chunk = Chunk.of(data, offset, offset + len(data), sizes)
        assert self.cursor.arrived(Request(self.cursor, self.cursor._generation, Ask.PULL, offset), chunk)
        self.core.make_ready(self.cursor)

    def take(self, limit=10):
        messages = [message.payload for message in self.core.take(limit)]
        self.core.under_way = False
        return messages

    def take_batch(self, limit=10):
        payloads = self.core.take_batch(limit)["payload"].to_pylist()
        self.core.under_way = False
        return payloads

    @property
    def consumed(self):
        self.core.acknowledge()
        return self.cursor.consumed


@pytest.mark.parametrize("sized", [False, True])
def test_an_expired_message_is_passed_over_and_counts_as_consumed(sized):
    bench = Bench()
    bench.arrive(MIXED, sized)
    assert bench.take() == [b"late", b"ever"]
    assert bench.consumed == (1000 + sum(map(len, MIXED)), 4)


def test_the_same_in_arrow_batches():
    bench = Bench()
    bench.arrive(MIXED, sized=True)
    assert bench.take_batch(1) == [b"late"]  # the first batch would be empty
    assert bench.take_batch() == [b"ever"]
    assert bench.consumed == (1000 + sum(map(len, MIXED)), 4)


def test_time_passes_while_a_message_waits_to_be_handed_out():
    bench = Bench()
    bench.arrive(MIXED)
    bench.now += 1
    assert bench.take() == [b"ever"]


@pytest.mark.parametrize("take", [Bench.take, Bench.take_batch])
def test_where_all_have_expired_nothing_comes_and_all_count_as_consumed(take):
    bench = Bench()
    bench.arrive(MIXED[:1], sized=True)
    assert take(bench) == []
    assert not bench.core.under_way
    assert bench.consumed == (1000 + len(MIXED[0]), 1)
    assert bench.cursor.next_chunk() is None


def test_a_users_filter_does_not_see_expired_messages():
    seen = []

    def accept(message):
        seen.append(message.payload)
        return True

    bench = Bench(accept)
    bench.arrive(MIXED)
    assert bench.take() == seen == [b"late", b"ever"]


def test_a_message_says_when_it_expires():
    bench = Bench()
    bench.arrive(MIXED)
    late, ever = bench.core.take(10)
    assert late.expires_at == datetime.fromtimestamp((NOW + 1) / 1000, UTC)
    assert ever.expires_at is None
    assert dict(late.properties) == {}


@pytest.mark.parametrize("options", [{}, {"tag": "x"}, {"key": "k"}, {"properties": {"a": 1}}])
def test_a_ttl_becomes_the_time_of_the_producers_clock_and_the_flag(options):
    before = now_ms()
    options["ttl"] = 1.5
    flag, body = build_body(b"p", options)
    assert flag & EXPIRES_FLAG
    expires = decode_attribute(attribute_of(body, flag), flag).expires_ms
    assert expires is not None
    assert before + 1500 <= expires <= now_ms() + 1500


def test_without_a_ttl_nothing_is_said():
    assert build_body(b"p", {"ttl": None, "tag": "x"}) == build_body(b"p", {"tag": "x"})


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), 1e12])
def test_a_ttl_out_of_range_is_refused(ttl):
    with pytest.raises(ConfigError, match=r"ttl=.*choose more than 0"):
        check_ttl(ttl)


@pytest.mark.parametrize("ttl", ["5", True])
def test_a_ttl_that_is_no_number_is_refused(ttl):
    with pytest.raises(TypeError, match=r"ttl=.*no number of seconds"):
        check_ttl(ttl)


@pytest.mark.parametrize("delay", [1, 1.5, 2])
def test_a_ttl_that_is_over_before_the_delay_is_refused_with_both(delay):
    with pytest.raises(LocalProtocolError, match=f"^ttl=1 counts from the send.* before delay={delay}, .*longer ttl"):
        build_body(b"p", {"ttl": 1, "delay": delay})


def test_a_ttl_that_is_over_before_the_time_of_delivery_is_refused_with_both():
    at = datetime.now(UTC) + timedelta(hours=1)
    with pytest.raises(LocalProtocolError, match=re.escape(f"before deliver_at={at}")):
        build_batch("t", [b"p"], 1.0, {"ttl": 3590, "deliver_at": at})


@pytest.mark.parametrize("timing", [{"delay": 59.9}, {"delay": 0}, {"deliver_at": datetime(2020, 1, 1, tzinfo=UTC)}])
def test_a_ttl_that_outlives_the_delay_is_sent(timing):
    timing["ttl"] = 60
    flag, _ = build_body(b"p", timing)
    assert flag & EXPIRES_FLAG
    assert flag & DELAYED_FLAG
