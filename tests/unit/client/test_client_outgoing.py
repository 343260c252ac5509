"""From messages to the bytes of a request."""

import threading
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.client.producer import tuning
from metaq.client.producer.building import build_message
from metaq.client.producer.codec import encode_batch, give_results
from metaq.client.producer.delays import Timing
from metaq.client.producer.outgoing import ASKED, GatheredBatch, Outgoing, OutgoingBatch, call_back
from metaq.client.records.results import SendResult, TopicPartition
from metaq.protocol.errors import RequestTimedOut
from metaq.protocol.frames import encode_frame, parse_frame
from metaq.protocol.message_id import message_ids_from
from metaq.protocol.record import checksum, encode_record
from metaq.protocol.sends import SendHeaders, SendRequest, split_batch
from metaq.protocol.statuses import RequestCode
from tests.waiting import DEADLINE

HERE = TopicPartition("t", 0, 1)


def one(body, flag=0):
    return Outgoing("t", flag, checksum(body), body, 10.0)


def many(*bodies):
    return OutgoingBatch("t", 0, np.array([checksum(body) for body in bodies], np.uint32), bodies, 10.0)


@given(
    st.lists(st.one_of(st.binary(max_size=50), st.lists(st.binary(max_size=50), min_size=1, max_size=4)), min_size=1)
)
def test_a_batch_is_the_sizes_and_then_the_records_as_stored(items):
    batch = [many(*item) if isinstance(item, list) else one(item) for item in items]
    bodies = [body for item in items for body in (item if isinstance(item, list) else [item])]
    sizes, records = split_batch(memoryview(b"".join(encode_batch(batch))), len(bodies))
    assert sizes.tolist() == [20 + len(body) for body in bodies]
    assert bytes(records) == b"".join(encode_record(body, 0, 0) for body in bodies)


@given(st.lists(st.binary(max_size=9), min_size=1), st.booleans())
def test_a_batch_made_ahead_is_the_same(bodies, one_size):
    if one_size:
        bodies = [bodies[0]] * len(bodies)
    flags = [number % 2 for number in range(len(bodies))]
    checksums = np.array([checksum(body) for body in bodies], np.uint32)
    batch = OutgoingBatch("t", flags, checksums, bodies, 10.0)
    now = b"".join(batch.encoded())
    batch.encode()
    assert b"".join(batch.encoded()) == now
    assert now == b"".join(encode_record(body, 0, flag) for body, flag in zip(bodies, flags, strict=True))
    assert list(batch.records()) == [(flag, checksum(body), body) for flag, body in zip(flags, bodies, strict=True)]


@given(
    st.lists(st.tuples(st.binary(max_size=50), st.integers(0, 3)), min_size=1, max_size=3 * tuning.FEW),
    st.integers(0, 4095),
)
def test_gathered_messages_are_the_records_and_results_of_single_ones(messages, sequence):
    """Few of them are made one by one, more of them with numpy; single messages are the reference for both."""
    batch = GatheredBatch("t", "t", messages[0][1], messages[0][0], 10.0, ASKED)
    for body, flag in messages[1:]:
        batch.put_flag(flag)
        batch.bodies.append(body)
    batch.put_flag(3)  # of one that did not join, because its caller was interrupted
    singles = [one(body, flag) for body, flag in messages]
    assert b"".join(encode_batch([batch])) == b"".join(encode_batch(singles))
    give_results([batch], 5 << 22 | sequence, HERE, 500, None, [])
    give_results(singles, 5 << 22 | sequence, HERE, 500, None, [])
    assert [batch.result[place] for place in range(len(messages))] == [single.result for single in singles]


def test_large_records_are_sent_from_where_they_are():
    body = bytes(100_000)
    parts = encode_batch([one(body), one(body)])
    assert any(part is body for part in parts)


@pytest.mark.parametrize("options", [{"delay": 60}, {"deliver_at": datetime.now(UTC) + timedelta(days=1)}, None])
def test_single_messages_that_wait_have_no_offset_whatever_went_with_them(options):
    """None: half messages."""
    given: Any = options or {}
    singles = [build_message("t", b"a", 10.0, given) for _ in range(3)]
    for single in singles:
        single.timing = single.timing if options else Timing.HALF
    give_results(singles, 5 << 22, HERE, -1, None, [])
    assert [(each.result.offset, each.result.pending) for each in singles] == [(-1, True)] * 3


def test_the_results_of_a_batch_count_up_ids_and_offsets():
    first, second, third = one(b"aa"), many(b"b", b"cccc"), one(b"")
    give_results([first, second, third], 4096, HERE, 500, None, [])
    ids = message_ids_from(4096, 4).tolist()
    assert first.result == SendResult(ids[0], HERE, 500)
    assert list(second.result) == [SendResult(ids[1], HERE, 522), SendResult(ids[2], HERE, 543)]
    assert third.result == SendResult(ids[3], HERE, 567)


def test_a_message_given_up_by_its_caller_takes_no_result():
    outgoing = one(b"x")
    outgoing.done = True
    outgoing.succeed(SendResult(1, HERE, 0))
    outgoing.fail(OSError())
    assert (outgoing.result, outgoing.error) == (None, None)


def test_only_the_puts_of_a_batch_that_failed_are_sent_again():
    batch = many(b"a", b"b", b"c")
    stored = [SendResult(number, HERE, number) for number in range(3)]
    batch.keep([stored[0], None, None])
    assert [body for _, _, body in batch.records()] == [b"b", b"c"]
    batch.keep([None, stored[2]])
    assert [body for _, _, body in batch.records()] == [b"b"]
    batch.succeed_text([stored[1]])
    assert batch.result == stored


@pytest.mark.parametrize("topic", ["t", "a%d%b", 'quote"\\', "中文", "1900000002", "1900000003"])
def test_a_send_header_from_the_template_is_what_the_codec_writes(topic):
    headers, partition = SendHeaders(), TopicPartition(topic, 0, 7)
    for opaque, flag, crc, size in ((1, 0, 0, 0), (2**31 - 1, -5, 907060870, 1024)):
        expected = encode_frame(RequestCode.SEND, opaque, SendRequest(topic, 7, flag, crc).to_ext(), size)
        assert headers.encode(opaque, partition, flag, crc, size) == expected
    assert parse_frame(expected + bytes(1024), 0, len(expected) + 1024).ext["topic"] == topic


# --- what a message ends with -----------------------------------------------------------------------------------------


def gathered(on_delivery):
    batch = GatheredBatch("t", "t", 0, b"0", 10.0, on_delivery)
    batch.bodies += [b"1", b"2"]
    return batch


def with_a_key(on_delivery):
    outgoing = one(b"0")
    outgoing.key = "k"
    outgoing.report = partial(call_back, on_delivery)
    return outgoing


@pytest.mark.parametrize("make", [gathered, with_a_key])
@pytest.mark.parametrize("first", ["fail", "succeed"])
def test_what_comes_while_a_thread_tells_the_outcome_changes_nothing_and_tells_nobody(make, first):
    told, telling, go_on = [], threading.Event(), threading.Event()

    def on_delivery(error, result):
        told.append((error, result))
        telling.set()
        assert go_on.wait(DEADLINE)

    outgoing, error = make(on_delivery), RequestTimedOut("late")
    results = [SendResult(number, HERE, number) for number in range(outgoing.count)]
    answer = partial(outgoing.succeed, results if make is gathered else results[0])
    actions = [partial(outgoing.fail, error), answer]
    if first == "succeed":
        actions.reverse()
    teller = threading.Thread(target=actions[0])
    teller.start()
    assert telling.wait(DEADLINE)
    actions[1]()
    assert len(told) == 1
    go_on.set()
    teller.join(DEADLINE)
    assert told == [(error, None)] * len(results) if first == "fail" else [(None, each) for each in results]


@pytest.mark.parametrize("make", [gathered, with_a_key])
@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_call_back_that_raises_keeps_nothing_from_the_others(make, kind, caplog):
    told = []

    def on_delivery(error, result):
        told.append(error)
        raise kind("in a call-back")

    outgoing, error = make(on_delivery), RequestTimedOut("late")
    outgoing.fail(error)
    assert told == [error] * outgoing.count
    assert len([record for record in caplog.records if "on_delivery" in record.message]) == outgoing.count
