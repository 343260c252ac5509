"""From fetched bytes to messages, and what of them counts as consumed."""

import pickle
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq import Message
from metaq.client.fetching.chunk import Chunk
from metaq.client.fetching.cursor import Ask
from metaq.client.questions.stored_records import damaged_bytes
from metaq.client.records.arrow import SCHEMA, record_batch
from metaq.client.records.decoding import decode_sized, decode_walking
from metaq.protocol.errors import CorruptRecord
from metaq.protocol.message_id import counter_at, message_id
from tests.raising import raising
from tests.unit.client.chunks import HERE, THERE, Bench, chunk_of, damage_of, damaged, payloads, record, sized


@given(st.lists(st.binary(max_size=40)), st.integers(1, 7))
def test_every_message_comes_once_in_order_with_its_offset(bodies, limit):
    chunk = chunk_of(*(record(payload, number) for number, payload in enumerate(bodies, 1 << 60)))
    messages = []
    while got := chunk.take(HERE, limit):
        assert len(got) <= limit
        messages += got
    assert [(message.id, message.payload) for message in messages] == list(enumerate(bodies, 1 << 60))
    assert [message.offset for message in messages] == [1000, *(message.next_offset for message in messages)][:-1]
    assert (chunk.bytes_left, chunk.offset) == (0, chunk.end_offset)


PAYLOADS = st.one_of(
    st.lists(st.binary(max_size=40), min_size=1),
    st.builds(lambda payload, count: [payload] * count, st.binary(max_size=5), st.integers(60, 200)),
)


@settings(deadline=None)  # the first batch imports and allocates; a busy machine takes its time
@given(PAYLOADS, st.data())
def test_records_with_a_table_of_sizes_are_found_as_those_without(bodies, data):
    records = [record(payload, number - 3, tag=None if number % 5 else "x") for number, payload in enumerate(bodies)]
    for number in data.draw(st.sets(st.integers(0, len(records) - 1), max_size=2)):
        position = data.draw(st.integers(0, 7))  # in the length or the checksum: each byte counts
        raw = bytearray(records[number])
        raw[position] ^= data.draw(st.integers(1, 255))
        records[number] = bytes(raw)
    tags = data.draw(st.sampled_from([None, {"x"}]))
    found, expected = decode_sized(sized(*records), HERE, tags), decode_walking(chunk_of(*records), HERE, tags)
    assert list(found.messages) == list(expected.messages)
    assert (found.total, found.end) == (expected.total, expected.end)


ATTRIBUTES = st.sampled_from(
    [{}, {"tag": "x"}, {"attribute": "a"}, {"tag": "é", "keys": ["k1", "k2"]}, {"properties": {"h": "v", "n": 1}}]
)


@settings(deadline=None)  # the first batch imports and allocates; a busy machine takes its time
@given(PAYLOADS, st.lists(ATTRIBUTES, min_size=1, max_size=5), st.integers(1, 300), st.booleans())
def test_a_batch_is_what_the_messages_are(bodies, attributes, limit, check):
    records = [
        record(payload, number - 3 if number < 3 else (1 << 60) + number, **attributes[number % len(attributes)])
        for number, payload in enumerate(bodies)
    ]
    chunk, messages = sized(*records), sized(*records).take(HERE, len(records))
    batches = []
    while chunk.bytes_left:
        batches.append(chunk.take_batch(HERE, limit, check))
        assert 0 < batches[-1].num_rows <= limit
    found = pa.Table.from_batches(batches)
    found.validate(full=True)
    assert found.equals(pa.Table.from_batches([record_batch(messages)]))


def test_a_batch_ends_at_a_damaged_record_and_messages_can_follow_it():
    chunk = sized(record(b"1"), record(b"2"), record(b"3"), damaged(record(b"4")), record(b"5"))
    assert chunk.take_batch(HERE, 2)["payload"].to_pylist() == [b"1", b"2"]
    assert payloads(chunk.take(HERE, 2)) == [b"3"]
    assert not chunk.gives_batches
    chunk = sized(record(b"1"), damaged(record(b"2")))
    assert chunk.take_batch(HERE, 10).num_rows == 1
    assert damage_of(chunk.take_batch, HERE, 10).position == 1021


def test_a_wrong_length_in_a_table_is_damage_at_its_record_and_checksums_need_not_be_looked_at():
    good, bad = record(b"good"), damaged(record(b"bad!"))
    assert payloads(sized(good, bad).take(HERE, 10, check=False)) == [b"good", b"bad "]
    chunk = sized(good, bad, b"\x00\x00\x00\x09" + good[4:], good)
    assert len(chunk.take(HERE, 10, check=False)) == 2
    assert damage_of(chunk.take, HERE, 10, check=False).position == 1048


@pytest.mark.parametrize("attributes", [{}, {"tag": "a"}])
def test_what_a_message_is_does_not_show_how_it_was_found(attributes):
    records = [record(b"payload", number, **attributes) for number in range(3)] + [record(b"plain", 3)]
    for found, walked in zip(sized(*records).take(HERE, 9), chunk_of(*records).take(HERE, 9), strict=True):
        copy = pickle.loads(pickle.dumps(found))
        assert found == walked == copy
        assert found.payload == walked.payload == copy.payload
        assert (repr(found), hash(found), found.tag) == (repr(walked), hash(walked), walked.tag)
        assert type(copy) is Message


def test_what_is_given_back_comes_again():
    chunk = sized(*(record(b"%d" % number) for number in range(5)))
    chunk.take(HERE, 2)
    chunk.give_back(chunk.take(HERE, 2))
    assert (chunk.offset, chunk.bytes_left) == (1042, 63)
    assert payloads(chunk.take(HERE, 10)) == [b"2", b"3", b"4"]


def test_records_inside_a_larger_buffer_are_read_where_they_are():
    raw = b"in front" + record(b"a") + record(b"b") + record(b"of another answer")
    chunk = Chunk.of(memoryview(raw)[8 : 8 + 42], 1000, 1042)
    assert chunk.data is raw
    assert [(each.offset, each.payload) for each in chunk.take(HERE, 10)] == [(1000, b"a"), (1021, b"b")]
    assert payloads(Chunk.of(memoryview(bytearray(raw))[8:50], 0, 42).take(HERE, 10)) == [b"a", b"b"]


def test_a_cut_last_record_is_left_out():
    whole, cut = record(b"a"), record(b"bbbb")
    for length in range(len(cut)):
        assert payloads(chunk_of(whole, cut[:length]).take(HERE, 10)) == [b"a"]


@pytest.mark.parametrize(
    "bad", [damaged(record(b"bad")), b"\xff\xff\xff\xff" + bytes(40)], ids=["a sum", "a length < 0"]
)
def test_what_is_good_in_front_of_a_damaged_record_is_given_first(bad):
    chunk = chunk_of(record(b"good"), bad, record(b"after"))
    assert payloads(chunk.take(HERE, 10)) == [b"good"]
    error = damage_of(chunk.take, HERE, 10)
    assert (error.position, error.partition, str(error)[:22]) == (1024, HERE, "topic t, partition 0-1")


def test_only_messages_with_a_wanted_tag_are_given():
    tags: list[dict[str, Any]] = [{"tag": "a"}, {"tag": "b"}, {}, {"tag": "c", "keys": ["a"]}, {"tag": "a"}]
    chunk = chunk_of(*(record(b"%d" % number, **each) for number, each in enumerate(tags, 1)))
    assert payloads(chunk.take(HERE, 10, {"a", "c"})) == [b"1", b"4", b"5"]
    assert chunk.bytes_left == 0


def test_an_arrow_batch_has_one_row_per_message():
    identity = message_id(counter_at(1_700_000_000_123), 1)
    chunk = chunk_of(record(b"p", identity, tag="x", keys=["k1", "k2"]), record(b"q", -5))
    batch = record_batch(chunk.take(HERE, 10))
    assert batch.schema == SCHEMA
    first, second = batch.to_pylist()
    assert first.pop("timestamp").timestamp() == 1_700_000_000.123
    assert first == {
        "topic": "t", "broker": 0, "partition": 1, "offset": 1000, "id": identity,
        "tag": "x", "attribute": None, "keys": ["k1", "k2"], "payload": b"p",
    }  # fmt: skip
    assert (second["timestamp"], second["id"], second["keys"], second["payload"]) == (None, -5, [], b"q")
    assert record_batch([]).num_rows == 0


# --- handing out ------------------------------------------------------------------------------------------------------


def test_a_message_counts_as_consumed_only_after_the_next_call():
    bench = Bench()
    bench.arrive(chunk_of(record(b"a", 7), record(b"b", 8)))
    assert bench.take() == [b"a", b"b"]
    assert (bench.cursor.consumed, bench.core.is_out([bench.cursor])) == (None, True)
    assert (bench.consumed, bench.core.is_out([bench.cursor])) == ((1042, 8), False)


class Interrupted(BaseException):
    """As Ctrl-C."""


class Interruption:
    """A profiler that raises at the event with this number: begins and ends of calls, where signals are delivered."""

    def __init__(self, number):
        self.left = number

    def __call__(self, frame, event, argument):
        # no signal comes between the end of a `with` block and the release of its lock
        if "/client/fetching/" in frame.f_code.co_filename and getattr(argument, "__name__", "") != "__exit__":
            self.left -= 1
            if not self.left:
                raise Interrupted


RECORD_BYTES = len(record(b"a0"))


def interrupted_bench(first):
    """Six messages of HERE and THERE each, in two chunks; the first of them were handed out."""
    bench, stored = Bench(), {}
    other = bench.claim(THERE)
    for cursor, letter in ((bench.cursor, b"a"), (other, b"b")):
        stored[cursor] = [record(letter + b"%d" % number) for number in range(6)]
        bench.arrive(chunk_of(*stored[cursor][:3]), cursor=cursor)
        bench.arrive(chunk_of(*stored[cursor][3:], offset=1000 + 3 * RECORD_BYTES), cursor=cursor)
    assert bench.take(first) == [b"a%d" % number for number in range(first)]
    return bench, other, stored


def fetch_again(bench, stored):
    for request in bench.requests():
        for begin in (0, 3):
            kept = max(begin, (request.offset - 1000) // RECORD_BYTES)
            if records := stored[request.cursor][kept : begin + 3]:
                bench.arrive(chunk_of(*records, offset=1000 + kept * RECORD_BYTES), cursor=request.cursor)


@pytest.mark.parametrize("first", [0, 2, 3])
def test_an_exception_from_outside_loses_no_message_wherever_it_comes(first):
    for number in range(1, 1000):
        bench, other, stored = interrupted_bench(first)
        sys.setprofile(Interruption(number))
        interrupted = False
        found = []
        try:
            bench.core.acknowledge()
            found = bench.core.take(5)
            bench.core.under_way = False
        except Interrupted:
            interrupted, found = True, []  # poll() has returned nothing
        finally:
            sys.setprofile(None)
        bench.core.acknowledge()
        fetch_again(bench, stored)
        if interrupted:
            assert bench.cursor.consumed == ((1000 + first * RECORD_BYTES, 1) if first else None)
            assert other.consumed is None
        came = payloads(found) + bench.take(100)
        for letter, skipped in ((b"a", first), (b"b", 0)):
            expected = [letter + b"%d" % number for number in range(6)]
            assert [each for each in came if each[:1] == letter] == expected[skipped:]
        if not interrupted:
            assert number > 50
            return
    raise AssertionError("the end was not reached")


def test_what_the_broker_filtered_away_is_passed_over():
    bench = Bench(tags=frozenset({"x"}))
    bench.arrive(chunk_of(record(b"a", tag="x"), end=5000), Chunk.of(b"", 5000, 9000))
    assert (bench.take(), bench.consumed, bench.cursor.position) == ([b"a"], (9000, 1), 9000)


def test_what_was_fetched_but_not_handed_out_is_dropped_when_the_partition_is_lost():
    bench = Bench()
    bench.arrive(chunk_of(record(b"a"), record(b"b")))
    assert bench.take(1) == [b"a"]
    bench.cursor.revoke()
    assert (bench.take(), bench.consumed) == ([], (1021, 1))  # handed out before: committed before the release


def test_a_record_that_fails_its_check_is_looked_into_behind_what_is_good():
    bench = Bench()
    bench.arrive(chunk_of(record(b"good"), damaged(record(b"bad"))))
    assert bench.take() == [b"good"]
    assert (bench.examined(), bench.cursor.position) == ([(Ask.PULL, 1024, True)], 1024)
    bench.arrive(chunk_of(damaged(record(b"bad")), offset=1024))
    assert bench.take() == []
    bench.arrive(chunk_of(record(b"bad"), offset=1024))  # it was damaged on the way
    assert bench.take() == [b"bad"]
    asked = []
    for _ in range(4):
        bench.arrive(chunk_of(damaged(record(b"other")), offset=1047))
        assert bench.take() == []
        asked += bench.examined()
    assert asked == [(Ask.PULL, 1047, True)] * 3 + [(Ask.DAMAGE, 1047, True)]


def damage(start, end):
    return Chunk.damaged(damaged_bytes(HERE, start, end), start)


def test_damage_is_reported_at_every_call_until_a_seek():
    told: list[CorruptRecord] = []
    bench = Bench(on_damaged=told.append)
    bench.arrive(chunk_of(record(b"good", 1)), damage(1024, 1050), chunk_of(record(b"after"), offset=1050))
    assert bench.take() == [b"good"]
    errors = [damage_of(bench.take) for _ in range(2)]
    assert [(error.position, error.end) for error in errors] == [(1024, 1050)] * 2
    assert (bench.consumed, told) == ((1024, 1), errors[1:])


def test_damage_is_skipped_if_that_is_wanted_and_told_once(caplog):
    told: list[CorruptRecord] = []
    bench = Bench(damage="skip", on_damaged=told.append)
    bench.arrive(damage(1000, 1024), chunk_of(record(b"after", 5), offset=1024), damage(1049, 2000))
    assert (bench.take(), bench.take(), bench.consumed) == ([b"after"], [], (2000, 5))
    assert [(each.position, each.end) for each in told] == [(1000, 1024), (1049, 2000)]
    assert [line.levelname for line in caplog.records] == ["WARNING", "WARNING"]
    assert "[1000, 1024)" in caplog.text


def test_what_on_damaged_raises_comes_out_once_and_loses_no_message_in_front_of_the_damage_or_behind_it():
    bench = Bench(damage="skip", on_damaged=raising(KeyError))
    bench.arrive(chunk_of(record(b"before")), damage(1026, 1050), chunk_of(record(b"after"), offset=1050))
    with pytest.raises(KeyError):
        bench.core.take(10)  # as poll(), which has returned nothing
    assert (bench.consumed, bench.cursor.position) == (None, 1000)
    assert [request.offset for request in bench.requests()] == [1000]
    bench.arrive(chunk_of(record(b"before")), chunk_of(record(b"after"), offset=1026))
    assert bench.take() == [b"before", b"after"]


def test_damage_whose_end_nobody_knows_is_never_skipped():
    bench = Bench(damage="skip")
    bench.arrive(Chunk.damaged(CorruptRecord("t", 1000, "strange"), 1000))
    assert [damage_of(bench.take).position for _ in range(2)] == [1000, 1000]


def test_damage_ends_a_batch(caplog):
    bench = Bench(damage="skip")
    bench.arrive(sized(record(b"1"), record(b"2")), damage(1042, 1100), sized(record(b"3"), offset=1100))
    batches = [bench.core.take_batch(10)["payload"].to_pylist() for _ in range(3)]
    assert [each for batch in batches for each in batch] == [b"1", b"2", b"3"]


def test_damage_of_one_partition_does_not_hold_up_another():
    bench = Bench()
    other = bench.claim(THERE)
    bench.arrive(damage(1000, 1024))
    damage_of(bench.take)
    bench.arrive(chunk_of(record(b"fine")), cursor=other)
    seen = []
    for _ in range(4):
        try:
            seen += bench.take()
        except CorruptRecord:
            seen.append("corrupt")
    assert {*seen} == {b"fine", "corrupt"}


def test_bytes_that_are_no_whole_record_are_damage_and_not_skipped():
    bench = Bench()
    bench.arrive(chunk_of(record(b"x" * 100)[:50]))
    assert (bench.take(), bench.examined()) == ([], [(Ask.PULL, 1000, True)])


@pytest.mark.parametrize("check", [True, False])
def test_zeros_are_no_messages(check):
    """An index that is good, or none, over a page of zeros: legal empty messages have ids."""
    empty, zeros = record(b"", 7 << 56), bytes(20)
    for chunk in (chunk_of(empty, zeros, zeros, empty), sized(empty, zeros, zeros, empty)):
        assert [message.id for message in chunk.take(HERE, 10, check=check)] == [7 << 56]
        error = damage_of(chunk.take, HERE, 10, check=check)
        assert (error.position, "zeros" in str(error)) == (1020, True)
    assert sized(empty, zeros).take_batch(HERE, 10, check).num_rows == 1
    assert "zeros" in str(damage_of(sized(zeros, empty).take_batch, HERE, 10, check))


def test_a_message_shows_itself_shortly():
    text = repr(Message(HERE, 5, 6, 0, b"x" * 100))
    assert "t 0-1 @5" in text
    assert "100 bytes" in text
