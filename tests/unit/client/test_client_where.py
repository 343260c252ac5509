"""A filter by content in the client: what it hands out, whatever the broker has left out already."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq import Consumer, PartitionReader, TopicBrowser, browse
from metaq.client.arrow import columns_of, decode_columns
from metaq.client.consumer.answers import PullCodec
from metaq.client.consumer.chunk import Chunk
from metaq.client.consumer.core import ConsumerCore
from metaq.client.consumer.cursor import Ask, PartitionCursor, Request
from metaq.client.consumer_config import ConsumerConfig
from metaq.client.decoding import Records, decode_sized, decode_walking, in_bytes, joined
from metaq.client.values import TopicPartition
from metaq.protocol.errors import ConfigError
from metaq.protocol.pulls import PullRequest
from metaq.protocol.record import encode_record
from metaq.protocol.where import Where
from tests.frames import FrameReader
from tests.properties import LISTED, body_with

HERE = TopicPartition("t", 0, 1)
WHERE = Where("n < 3")


def records_with(numbers):
    return [encode_record(body_with({"n": n}, b"%d" % n), number + 1, LISTED) for number, n in enumerate(numbers)]


def damaged(raw):
    return raw[:-1] + bytes([raw[-1] ^ 1])


def payloads(messages):
    return [int(message.payload) for message in messages]


NUMBERS = st.lists(st.integers(0, 6), min_size=1, max_size=80)


@settings(deadline=None)
@given(NUMBERS, st.booleans())
def test_messages_of_both_decoders_are_those_for_which_it_holds(numbers, damage):
    raw = records_with(numbers)
    if damage:
        raw[-1] = damaged(raw[-1])
        numbers = numbers[:-1]
    data = b"".join(raw)
    sizes = np.array(list(map(len, raw)), np.int64)
    walked = decode_walking(Records(data, 0, len(data), 1000, None), HERE, where=WHERE)
    sized = decode_sized(Records(data, 0, len(data), 1000, sizes), HERE, where=WHERE)
    messages = list(walked.messages)
    assert list(sized.messages) == messages
    assert payloads(messages) == [n for n in numbers if n < 3]
    assert (walked.end, walked.damage) == (sized.end, sized.damage)
    assert walked.end == 1000 + len(data) - (len(raw[-1]) if damage else 0)
    tagged = decode_sized(Records(data, 0, len(data), 1000, sizes), HERE, tags={"x"}, where=WHERE)
    assert list(tagged.messages) == []


def test_a_chunk_passes_what_is_left_out():
    raw = records_with([0, 5, 1, 5, 5])
    ends = np.cumsum(list(map(len, raw))) + 1000
    data = b"".join(raw)
    chunk = Chunk.of(data, 1000, 1000 + len(data))
    assert payloads(chunk.take(HERE, 1, where=WHERE)) == [0]
    assert chunk.reached == ends[0]
    assert payloads(chunk.take(HERE, 9, where=WHERE)) == [1]
    assert (chunk.bytes_left, chunk.reached) == (0, ends[-1])


def core_with(raw, sized=False):
    core = ConsumerCore("g", ConsumerConfig(), where=WHERE)
    (cursor,) = core.claim([HERE], [0], announced=True)
    data = b"".join(raw)
    sizes = np.array(list(map(len, raw)), np.int64) if sized else None
    request = cursor.next_request(0.0)
    assert request is not None
    assert cursor.arrived(request, Chunk.of(data, 0, len(data), sizes))
    cursor.answered(request, 0.0, 0.0)
    core.make_ready(cursor)
    return core, cursor, len(data)


@pytest.mark.parametrize("sized", [False, True])
def test_what_is_left_out_counts_as_consumed(sized):
    core, cursor, end = core_with(records_with([0, 5, 1, 5, 5]), sized)
    assert payloads(core.take(10)) == [0, 1]
    core.under_way = False
    core.acknowledge()
    assert cursor.consumed == (end, 3)  # the id of the last that was handed out
    core, cursor, end = core_with(records_with([5, 5]), sized)
    assert core.take(10) == []
    core.acknowledge()
    assert cursor.consumed is not None
    assert cursor.consumed[0] == end


@pytest.mark.parametrize("sized", [False, True])
def test_arrow_batches_have_only_what_it_holds_for(sized):
    core, cursor, end = core_with(records_with([0, 5, 1, 5, 5]), sized)
    assert core.take_batch(10)["payload"].to_pylist() == [b"0", b"1"]
    core.under_way = False
    core.acknowledge()
    assert cursor.consumed is not None
    assert cursor.consumed[0] == end


@settings(deadline=None)
@given(NUMBERS, st.data())
def test_columns_of_runs_that_are_apart_are_those_of_their_messages(numbers, data):
    """The answer of a broker that left records out: runs behind a table, decoded in one go."""
    raw = records_with(numbers)
    keep = data.draw(st.lists(st.booleans(), min_size=len(raw), max_size=len(raw)).filter(any))
    offsets = (np.cumsum(list(map(len, raw))) - list(map(len, raw)) + 500).tolist()
    wholes: list[list] = []
    for number, (record, kept) in enumerate(zip(raw, keep, strict=True)):
        if kept and number and keep[number - 1]:
            wholes[-1][1] += record
        elif kept:
            wholes.append([offsets[number], record])
    bad = data.draw(st.integers(0, 2)) == 0
    if bad:
        wholes[-1][1] = damaged(wholes[-1][1])
    answer = memoryview(b"head" + b"".join(record for _, record in wholes))
    runs, position = [], 4
    for offset, record in wholes:
        runs.append((offset, answer[position : position + len(record)]))
        position += len(record)
    records = joined(runs)
    assert records is not None
    limit = data.draw(st.none() | st.integers(500, offsets[-1] + 60))
    found = decode_columns(records, HERE, True, limit, WHERE)
    expected, end, damage = [], offsets[0], ""
    for offset, data_of in runs:
        if limit is not None and offset >= limit:
            break
        decoded = decode_walking(Records(*in_bytes(data_of), offset, None), HERE)
        messages = [each for each in decoded.messages if limit is None or each.offset < limit]
        expected += [each for each in messages if int(each.payload) < 3]
        end, damage = (messages[-1].next_offset if messages else offset), decoded.damage
        if limit is not None and end >= limit:
            damage = ""
    assert found.columns.to_batch() == columns_of(expected).to_batch()
    assert found.damage == damage
    if expected or damage:
        assert found.end >= (expected[-1].next_offset if expected else 0)
    assert found.end == end or limit is not None


def test_runs_of_different_buffers_are_not_joined():
    raw = records_with([1, 2])
    assert joined([(0, memoryview(raw[0])), (900, memoryview(raw[1]))]) is None


@pytest.mark.parametrize("takes_where", [True, False])
def test_only_a_broker_that_filters_by_content_is_asked_to(takes_where):
    codec = PullCodec("g", None, ConsumerConfig(), where=WHERE.text)
    request = Request(PartitionCursor(HERE, ConsumerConfig()), 0, Ask.PULL, 0)
    (frame,) = FrameReader().receive(b"".join(codec.encode(request, True, takes_where=takes_where)(1)))
    assert PullRequest.from_ext(frame.ext).where == (WHERE.text if takes_where else "")


@pytest.mark.parametrize(
    "make",
    [
        lambda where: Consumer(group="g", topics="t", where=where),
        lambda where: PartitionReader("127.0.0.1:1", HERE, where=where),
        lambda where: TopicBrowser("127.0.0.1:1", "t", where=where),
        lambda where: next(browse("127.0.0.1:1", "t", where=where)),
    ],
)
@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("a = = 5", "where=a = = 5: at character 5: expected a literal ('text', a number, TRUE or FALSE), found '='"),
        ("", "where=: at character 1: expected a property"),
        (5, "where=5: write the filter as a text (str), or leave it out"),
    ],
)
def test_what_is_no_filter_is_refused_at_once(make, where, words):
    with pytest.raises(ConfigError) as refused:
        make(where)
    assert words in str(refused.value)
