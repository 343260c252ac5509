"""A filter by content in the client: what it hands out, whatever the broker has left out already."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq import Consumer, ConsumerConfig, PartitionReader, TopicBrowser, browse
from metaq.client.fetching.codec import PullCodec
from metaq.client.fetching.cursor import Ask, PartitionCursor, Request
from metaq.client.records.arrow import columns_of, decode_columns
from metaq.client.records.decoding import Records, decode_sized, decode_walking, in_bytes, joined
from metaq.protocol.errors import ConfigError
from metaq.protocol.pulls import PullRequest
from metaq.protocol.record import encode_record
from metaq.protocol.where import Where
from tests.frames import FrameReader
from tests.properties import LISTED, body_with
from tests.unit.client.chunks import HERE, Bench, chunk_of, damaged, payloads, sized

WHERE = Where("n < 3")


def records_with(numbers):
    return [encode_record(body_with({"n": n}, b"%d" % n), number + 1, LISTED) for number, n in enumerate(numbers)]


NUMBERS = st.lists(st.integers(0, 6), min_size=1, max_size=80)


@settings(deadline=None)
@given(NUMBERS, st.booleans())
def test_messages_of_both_decoders_are_those_for_which_it_holds(numbers, damage):
    raw = records_with(numbers)
    if damage:
        raw[-1] = damaged(raw[-1])
        numbers = numbers[:-1]
    walked_chunk, sized_chunk = chunk_of(*raw), sized(*raw)
    walked, found = decode_walking(walked_chunk, HERE, where=WHERE), decode_sized(sized_chunk, HERE, where=WHERE)
    messages = list(walked.messages)
    assert list(found.messages) == messages
    assert payloads(messages) == [b"%d" % n for n in numbers if n < 3]
    assert (walked.end, walked.damage) == (found.end, found.damage)
    assert walked.end == walked_chunk.end_offset - (len(raw[-1]) if damage else 0)
    assert list(decode_sized(sized_chunk, HERE, tags={"x"}, where=WHERE).messages) == []


def test_a_chunk_passes_what_is_left_out():
    raw = records_with([0, 5, 1, 5, 5])
    chunk = chunk_of(*raw)
    assert payloads(chunk.take(HERE, 1, where=WHERE)) == [b"0"]
    assert chunk.reached == 1000 + len(raw[0])
    assert payloads(chunk.take(HERE, 9, where=WHERE)) == [b"1"]
    assert (chunk.bytes_left, chunk.reached) == (0, chunk.end_offset)


@pytest.mark.parametrize("make", [chunk_of, sized])
@pytest.mark.parametrize("take", [Bench.take, Bench.take_batch])
@pytest.mark.parametrize(("numbers", "given", "last_id"), [([0, 5, 1, 5, 5], [b"0", b"1"], 3), ([5, 5], [], -1)])
def test_only_what_it_holds_for_comes_and_what_is_left_out_counts_as_consumed(make, take, numbers, given, last_id):
    bench, chunk = Bench(where=WHERE), make(*records_with(numbers))
    bench.arrive(chunk)
    assert (take(bench), bench.consumed) == (given, (chunk.end_offset, last_id))


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
