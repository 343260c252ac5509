"""Messages whose time is over: nobody gets them, and they count as consumed."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from metaq.client.producer.building import build_batch, build_body
from metaq.client.runtime.durations import check_ttl
from metaq.client.runtime.wall_clock import now_ms
from metaq.protocol.errors import ConfigError, LocalProtocolError
from metaq.protocol.record import DELAYED_FLAG, EXPIRES_FLAG, attribute_of, decode_attribute
from tests.unit.client.chunks import Bench, chunk_of, record, sized

NOW = 1_700_000_000_000


def expiring(payload, identity, expires=None):
    return record(payload, identity, reserved=None if expires is None else {"metaq.expires": str(expires)})


MIXED = [expiring(b"dead", 1, NOW), expiring(b"late", 2, NOW + 1), expiring(b"ever", 3), expiring(b"dead too", 4, 1)]
END = 1000 + sum(map(len, MIXED))


def bench(*chunks, now=NOW, **options):
    made = Bench(wall_clock=lambda: now, **options)
    made.arrive(*(chunks or [chunk_of(*MIXED)]))
    return made


@pytest.mark.parametrize("make", [chunk_of, sized])
def test_an_expired_message_is_passed_over_and_counts_as_consumed(make):
    found = bench(make(*MIXED))
    assert (found.take(), found.consumed) == ([b"late", b"ever"], (END, 4))


def test_the_same_in_arrow_batches():
    found = bench(sized(*MIXED))
    assert found.take_batch(1) == [b"late"]  # the first batch would be empty
    assert (found.take_batch(), found.consumed) == ([b"ever"], (END, 4))


def test_time_passes_while_a_message_waits_to_be_handed_out():
    now = [NOW]
    found = Bench(wall_clock=lambda: now[0])
    found.arrive(chunk_of(*MIXED))
    now[0] += 1
    assert found.take() == [b"ever"]


@pytest.mark.parametrize("take", [Bench.take, Bench.take_batch])
def test_where_all_have_expired_nothing_comes_and_all_count_as_consumed(take):
    found = bench(sized(MIXED[0]))
    assert take(found) == []
    assert not found.core.under_way
    assert found.consumed == (1000 + len(MIXED[0]), 1)
    assert found.cursor.next_chunk() is None


def test_a_users_filter_does_not_see_expired_messages():
    seen = []

    def accept(message):
        seen.append(message.payload)
        return True

    assert bench(accept=accept).take() == seen == [b"late", b"ever"]


def test_a_message_says_when_it_expires():
    late, ever = bench().core.take(10)
    assert (late.expires_at, ever.expires_at) == (datetime.fromtimestamp((NOW + 1) / 1000, UTC), None)
    assert dict(late.properties) == {}


@pytest.mark.parametrize("options", [{}, {"tag": "x"}, {"key": "k"}, {"properties": {"a": 1}}])
def test_a_ttl_becomes_the_time_of_the_producers_clock_and_the_flag(options):
    before = now_ms()
    flag, body = build_body(b"p", options | {"ttl": 1.5})
    assert flag & EXPIRES_FLAG
    expires = decode_attribute(attribute_of(body, flag), flag).expires_ms
    assert expires is not None
    assert before + 1500 <= expires <= now_ms() + 1500


def test_without_a_ttl_nothing_is_said():
    assert build_body(b"p", {"ttl": None, "tag": "x"}) == build_body(b"p", {"tag": "x"})


@pytest.mark.parametrize(
    ("ttl", "error", "words"),
    [
        *((ttl, ConfigError, "choose more than 0") for ttl in (0, -1, float("nan"), float("inf"), 1e12)),
        *((ttl, TypeError, "no number of seconds") for ttl in ("5", True)),
    ],
)
def test_a_ttl_that_cannot_be_is_refused(ttl, error, words):
    with pytest.raises(error, match=rf"ttl=.*{words}"):
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
    flag, _ = build_body(b"p", timing | {"ttl": 60})
    assert flag & EXPIRES_FLAG
    assert flag & DELAYED_FLAG
