"""What the largest request of a verb makes the reactor do is bounded: counted here, measured by bench/worst.py."""

from dataclasses import replace
from itertools import pairwise

import pytest
import simplejson
from hypothesis import given
from hypothesis import strategies as st
from twisted.web import http as twisted_http

from bench.worst import FRAMES, TEXTS
from metaq.broker import tuning
from metaq.broker.configuration import settings as settings_module
from metaq.broker.http.gateway import Gateway
from metaq.broker.shared.queue import SharedQueue
from metaq.broker.writing import taking
from metaq.protocol import frames as frames_module
from metaq.protocol import record as record_module
from metaq.protocol.delays import pending_id, pending_ids_of
from metaq.protocol.errors import RemoteProtocolError
from metaq.protocol.fields import ExtFields
from metaq.protocol.frames import encode_frame, parse_frame
from metaq.protocol.half_messages import CheckHalvesRequest
from metaq.protocol.limits import (
    MAX_BATCH_RECORDS,
    MAX_CHECKED_TOPICS,
    MAX_FRAME_HEADER_BYTES,
    MAX_HEADER_TEXTS,
    MAX_PARTS,
    MAX_PULLED_TAGS,
)
from metaq.protocol.message_id import EPOCH_MS
from metaq.protocol.pulls import PullRequest
from metaq.protocol.put_run import MOST_PUTS
from metaq.protocol.record import (
    DELAYED_FLAG,
    decode_attribute,
    encode_attributes,
    encode_body,
    encode_record,
    iter_headers,
    tag_hash,
    tag_of_attribute,
)
from metaq.protocol.requests import RequestReader, one_by_one
from metaq.protocol.sends import SendBatchRequest, SendManyRequest, announced_topics
from metaq.protocol.shared import AcquireRequest
from metaq.protocol.statuses import RequestCode, ResponseCode
from tests.unit.broker.harness import many, noted, put, raw_batch, record, records_of, reserved, send
from tests.unit.broker.http.test_http_pages import Browser
from tests.unit.broker.test_slices import turns


def test_each_verb_has_a_worst_request(harness):
    assert set(FRAMES) == set(harness.gate.frames)
    assert set(TEXTS) == set(harness.gate.texts)


@pytest.fixture
def gateway(harness):
    return Browser(Gateway(harness.gate, harness.broker, harness.broker.logins))


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
@pytest.mark.parametrize("body", [b"topic=safe&length=1", b"&=" * 1000])
def test_a_message_that_is_put_as_a_form_is_not_parsed_as_one(gateway, harness, monkeypatch, kind, body):
    parsed = noted(monkeypatch, twisted_http, "parse_qs", lambda text, *_: len(text))
    query = f"topic=t&partition=1&flag=0&length={len(body)}"
    status, _, text = gateway.ask("POST", f"/put/0?{query}", body, content_type=kind)
    assert (status, text.split()[1:2]) == (200, [b"1"])
    assert parsed == [len(query)]
    assert harness.store.get("t", 1).segments.read(20, 1 << 20) == body


def header(text):
    data = text.encode()
    return (4 + len(data)).to_bytes(4, "big") + len(data).to_bytes(4, "big") + data


ROOM = MAX_FRAME_HEADER_BYTES - 1000
EXPENSIVE = {
    "fields": '{"code":10,"extFields":{' + ",".join(f'"{n:x}":""' for n in range(70_000)) + "}}",
    "lists": '{"code":10,"x":[' + "[]," * (ROOM // 3) + "0]}",
    "nested": '{"code":10,"x":' + "[" * (ROOM // 2) + "]" * (ROOM // 2) + "}",
    "numbers": '{"code":10,"x":[' + ",".join(["9" * 4000] * 250) + "]}",
    "no end": '{"code":10,"x":"' + "a" * ROOM,
    "quotes without an end": '{"code":10,"x":"' + r"\"" * (ROOM // 2),
    "quotes and half an escape": '{"code":10,"x":"' + r"\"" * (ROOM // 2 - 1) + "\\",
    "quotes": '{"code":10,"x":[' + '"",' * (ROOM // 3) + "0]}",
}


@pytest.mark.parametrize("text", EXPENSIVE.values(), ids=list(EXPENSIVE))
def test_a_large_header_of_many_values_is_refused_before_it_is_decoded(monkeypatch, text):
    def decode(text):
        raise AssertionError(f"{len(text)} characters")

    monkeypatch.setattr(frames_module, "_decode_json", decode)
    data = header(text)
    with pytest.raises(RemoteProtocolError, match=r"names and values|beside its texts|within a text"):
        parse_frame(data, 0, len(data))


@pytest.mark.parametrize("letter", ["a", '"', "\\", "é", "\n", ",", "[", "😀"])
def test_a_large_header_with_one_long_text_is_taken(letter):
    text = letter * (ROOM // len(simplejson.dumps(letter)))
    ext = {"key": text, **{f"f{number}": "1" for number in range(MAX_HEADER_TEXTS // 2 - 20)}}
    data = encode_frame(12, 7, ext)
    assert parse_frame(data, 0, len(data)).ext == ext


@pytest.fixture
def decoded(monkeypatch):
    """The attributes that are decoded as a whole."""
    return noted(monkeypatch, record_module, "decode_attribute")


def test_no_property_but_the_tag_is_decoded_of_what_is_stored(peer, harness, decoded, monkeypatch):
    monkeypatch.setattr("metaq.broker.store.batch.decode_attribute", record_module.decode_attribute, raising=False)
    flag, attribute = encode_attributes(tag="a", properties={f"{number:x}": "" for number in range(1000)})
    body = encode_body(b"", flag, attribute)
    peer.ask_frame(send("t", 0, body, flag=flag))
    peer.send(raw_batch("t", 0, [record(body, flag)]))
    harness.turn()
    assert harness.store.get("t", 0).lookup.units(0, 1 << 20)["tag"].tolist() == [tag_hash("a")] * 2
    assert decoded == []


PIECES = st.sampled_from([b"TAGS", b"KEYS", b"\x01", b"\x02", b"a", b"\xc3", b"\xa9", b"TAGS\x01", b"\x02TAGS\x01"])


@given(st.lists(PIECES, max_size=12).map(b"".join), st.sampled_from([1, 3]))
def test_the_tag_alone_is_that_of_the_whole_attribute(attribute, flag):
    assert tag_of_attribute(attribute, flag) == decode_attribute(attribute, flag).tag


def test_a_long_property_list_of_a_single_message_is_looked_through_once(peer, harness, monkeypatch):
    begun = noted(monkeypatch, record_module, "_find", lambda data, wanted, start, end: start)
    flag = 3 | DELAYED_FLAG
    for number, own in enumerate((b"metaq.delay\x0160000\x02", b"metaq.half\x01bank\x02"), 1):
        request = send("t", 0, encode_body(b"", flag, b"a\x01b\x02" * 5000 + own), flag=flag)
        assert peer.ask_frame(request, work=True).code == ResponseCode.SUCCESS
        assert begun.count(0) == number


def test_long_attributes_of_a_batch_are_looked_at_in_slices(peer, harness, monkeypatch):
    monkeypatch.setattr("metaq.broker.tuning.TURN_SECONDS", 0.0)
    monkeypatch.setattr("metaq.broker.store.tuning.SLICE_ATTRIBUTE_BYTES", 100_000)
    monkeypatch.setattr("metaq.broker.tuning.DELAYED_SLICE_BYTES", 100_000)
    for flag, own, least in ((3, b"", 7), (3 | DELAYED_FLAG, b"metaq.delay\x0160000\x02", 14)):
        attribute = b"a\x01b\x02" * 5000 + own
        peer.send(raw_batch("t", 0, [encode_record(encode_body(b"", flag, attribute), 0, flag)] * 40))
        assert turns(harness) >= least
        harness.threads.run()
        assert peer.frames()[0].code == ResponseCode.SUCCESS


LISTS = {
    "tags": (PullRequest, {"topic": "t", "partition": "0", "offset": "0", "maxBytes": "9"}, "||", MAX_PULLED_TAGS),
    "topics of CHECK_HALVES": (CheckHalvesRequest, {"group": "g"}, " ", MAX_CHECKED_TOPICS),
    "topics": (SendManyRequest, {"parts": "1", "count": "1"}, "/", MAX_PARTS),
    "repeats": (SendManyRequest, {"parts": "1", "count": "1", "topics": "t"}, ",", MAX_PARTS),
}


@pytest.mark.parametrize("name", list(LISTS))
def test_a_header_names_only_so_many(name):
    kind: type[ExtFields]
    kind, ext, separator, most = LISTS[name]
    field = name.split()[0]
    kind.from_ext(ext | {field: separator.join(["1"] * most)})
    with pytest.raises(RemoteProtocolError, match=f"more than {most} "):
        kind.from_ext(ext | {field: separator.join(["1"] * (most + 1))})


def test_topics_that_are_too_many_are_no_question_for_the_gates_check():
    assert announced_topics({"topics": "/" * MAX_PARTS}) == (None,)


def test_too_many_topics_are_refused_with_the_limit(peer, harness):
    harness.gate.check = lambda verb, request: None
    ext = SendManyRequest(("t",) * (MAX_PARTS + 1), 1, 1).to_ext()
    answer = peer.ask_frame(encode_frame(RequestCode.SEND_MANY, 1, ext))
    assert (answer.code, str(MAX_PARTS) in answer.remark) == (ResponseCode.MESSAGE_ILLEGAL, True)


# --- reads of many requests -------------------------------------------------------------------------------------------


def taken(reader, data):
    """What each call gives."""
    calls = [reader.receive(data)]
    while reader.more:
        calls.append(reader.receive(b""))
    return calls


PUT, SENT = put("t", 0), send("t", 0, b"")
READS = {
    "versions": b"version\r\n" * 1000,
    "puts": PUT * 9000,
    "frames": SENT * 1000,
    "all": (PUT * 40 + SENT * 300 + b"version\r\n") * 4 + b"put t 0 5 0 1\r\nhel",
    "wrong": b"version\r\n" * 600 + b"wrong\r\n",
}


@pytest.mark.parametrize("name", list(READS))
def test_one_call_gives_so_many_requests_and_all_together_the_same(name):
    data = READS[name]
    whole, bounded = RequestReader(), RequestReader(256)
    calls = taken(bounded, data)
    expected = list(one_by_one(whole.receive(data)))
    assert list(one_by_one(request for call in calls for request in call)) == expected
    assert max(map(len, calls)) <= 256
    assert max(len(list(one_by_one(call))) for call in calls) <= MOST_PUTS + 256
    assert bounded.held_bytes == whole.held_bytes
    assert str(bounded.failure) == str(whole.failure)


@pytest.mark.parametrize("name", ["versions", "puts", "frames", "all"])
def test_bytes_that_come_before_all_is_decoded_come_behind_it(name):
    data = READS[name]
    cut = len(data) * 3 // 4
    whole, bounded = RequestReader(), RequestReader(256)
    requests = bounded.receive(data[:cut])
    assert bounded.more
    for call in taken(bounded, data[cut:]):
        requests += call
    assert list(one_by_one(requests)) == list(one_by_one(whole.receive(data)))
    assert bounded.buffered_bytes == whole.buffered_bytes


@pytest.fixture
def decoded_at_once(monkeypatch):
    """How many requests each call of the reader gave."""
    return noted(monkeypatch, RequestReader, "receive", result=len)


def test_others_have_their_turn_while_a_read_of_many_requests_is_served(peer, harness, decoded_at_once):
    other = harness.connect()
    count = 4 * tuning.READ_REQUESTS
    peer.send(b"".join(b"version %d\r\n" % number for number in range(count)))
    assert not peer.is_read
    answered = [peer.answers()]

    def between(turn):
        answered.append(peer.answers())
        assert other.ask(b"version 7\r\n").opaque == 7

    turns(harness, between)
    answers = [answer for each in [*answered, peer.answers()] for answer in each]
    assert [answer.opaque for answer in answers] == list(range(count))
    assert max(decoded_at_once) <= tuning.READ_REQUESTS
    assert sum(map(bool, answered)) >= 3
    assert peer.is_read


def test_a_client_that_has_sent_all_and_ended_gets_all_answers(peer, harness):
    count = 4 * tuning.READ_REQUESTS
    peer.send(b"version\r\n" * count)
    peer.half_close()
    answers = peer.answers()
    for _ in range(5):
        harness.turn()
        answers += peer.answers()
    assert len(answers) == count
    assert peer.transport.disconnecting


def test_sends_of_one_read_are_stored_in_order(peer, harness):
    peer.send(b"".join(send("t", 0, b"%d" % number, number) for number in range(1000)))
    for _ in range(10):
        harness.turn()
    assert [frame.opaque for frame in peer.frames()] == bodies(harness, 0) == list(range(1000))


# --- puts to many partitions, and puts that are refused ---------------------------------------------------------------

COUNT = 90


@pytest.fixture
def small_steps(monkeypatch):
    """A partition, or ten puts, at once, and a turn for each."""
    monkeypatch.setattr("metaq.broker.tuning.STEP_PARTITIONS", 1)
    monkeypatch.setattr("metaq.broker.tuning.STEP_PUTS", 10)
    monkeypatch.setattr("metaq.broker.tuning.TURN_SECONDS", 0.0)


def bodies(harness, partition, topic="t"):
    data = harness.store.get(topic, partition).segments.read(0, 1 << 20)
    return [int(data[each.end - each.length : each.end]) for each in iter_headers(data)]


def puts(topic="t", make=put):
    return b"".join(make(topic, number % 3, b"%d" % number, number) for number in range(COUNT))


def all_stored(harness, partitions, topic="t"):
    return [bodies(harness, each, topic) for each in partitions] == [list(range(each, COUNT, 3)) for each in partitions]


@pytest.mark.parametrize("make", [put, send])
def test_others_have_their_turn_between_the_partitions_of_puts(peer, harness, appends, small_steps, make):
    counts = [0]
    peer.send(puts(make=make))
    turns(harness, lambda turn: counts.append(len(appends)))
    counts.append(len(appends))
    assert max(after - before for before, after in pairwise(counts)) == 1
    answers = peer.answers() if make is put else peer.frames()
    assert [(each.code, each.opaque) for each in answers] == [(answers[0].code, number) for number in range(COUNT)]
    assert all_stored(harness, range(3))


def test_what_follows_a_run_on_its_connection_is_served_behind_it(peer, harness, small_steps):
    peer.send(puts() + b"offset t g 2 0 1000\r\nversion 1001\r\n")
    turns(harness)
    answers = peer.answers()
    assert [each.opaque for each in answers] == [*range(COUNT), 1000, 1001]


def test_a_partition_that_is_closed_during_a_run_refuses_its_puts(peer, harness, small_steps):
    peer.send(puts())
    turns(harness, lambda turn: harness.broker.partitions.close("t", 2, 2))
    assert [each.code == 200 for each in peer.answers()] == [number % 3 != 2 for number in range(COUNT)]
    assert all_stored(harness, range(2))
    assert harness.store.find("t", 2) is None or bodies(harness, 2) == []


def test_a_run_of_a_connection_that_is_gone_is_stored(peer, harness, small_steps):
    peer.send(puts())
    peer.lose()
    turns(harness)
    assert all_stored(harness, range(3))
    assert harness.broker.pending_puts.bytes == 0


def test_a_run_with_refused_puts_is_served_in_several_turns(peer, harness, small_steps, monkeypatch):
    monkeypatch.setattr("metaq.broker.tuning.STEP_PARTITIONS", 100)
    peer.send(puts("unknown"))
    assert turns(harness) >= COUNT // 10 - 1
    answers = peer.answers()
    assert [(each.code == 200, each.opaque) for each in answers] == [(False, number) for number in range(COUNT)]
    assert harness.broker.metrics.put_failed == COUNT


def test_a_run_with_refused_puts_is_answered_when_the_others_are_safe(peer, harness, small_steps):
    peer.send(puts("safe"))  # it has two partitions
    turns(harness)
    assert peer.received() == b""
    harness.threads.run()
    answers = peer.answers()
    assert [(each.code == 200, each.opaque) for each in answers] == [(n % 3 != 2, n) for n in range(COUNT)]
    assert all_stored(harness, range(2), "safe")


def test_parts_that_are_refused_are_counted_once(peer, harness):
    peer.ask_frame(many([("unknown", 0, [record(), record()]), ("t", 0, [record()]), ("t", 7, [record()])]))
    assert harness.broker.metrics.put_failed == 3


def test_sections_without_a_pattern_cost_nothing_for_a_topic_that_there_is_not(harness, monkeypatch):
    plain = {f"topic-{number}": replace(harness.config.topics["t"], name=f"topic-{number}") for number in range(1000)}
    monkeypatch.setattr(settings_module, "_pattern", None)
    config = replace(harness.config, topics=plain)
    assert (config.topic("other"), config.has_stat("other"), config.has_stat("topic-7")) == (None, False, True)


def test_the_bodies_of_a_delayed_batch_are_taken_in_slices(peer, harness, monkeypatch):
    monkeypatch.setattr("metaq.broker.tuning.DELAYED_SLICE_RECORDS", 10)
    taken = noted(monkeypatch, taking._Bodies, "__getitem__", result=len)
    peer.send(raw_batch("t", 0, records_of([reserved(b"", {"metaq.delay": "3600000"})] * 25)))
    turns(harness)
    assert peer.frames()[0].code == ResponseCode.SUCCESS
    assert sorted(taken) == [5, 5, 10, 10, 10, 10]


@pytest.mark.parametrize("request_", [SendBatchRequest("t", 0, 1), SendManyRequest(("t",), 1, 1)])
def test_more_messages_than_a_frame_may_bring_are_refused_with_the_limit(peer, request_):
    code = RequestCode.SEND_BATCH if isinstance(request_, SendBatchRequest) else RequestCode.SEND_MANY
    answer = peer.ask_frame(encode_frame(code, 1, request_.to_ext() | {"count": str(MAX_BATCH_RECORDS + 1)}))
    assert (answer.code, str(MAX_BATCH_RECORDS) in answer.remark) == (ResponseCode.MESSAGE_ILLEGAL, True)


@given(st.integers(0, 1 << 30), st.lists(st.integers(EPOCH_MS + 1, EPOCH_MS + (1 << 40)), min_size=1, max_size=80))
def test_ids_by_columns_are_those_one_by_one(counter, dues):
    assert list(pending_ids_of(dues, counter)) == [pending_id(due, n) for n, due in enumerate(dues, counter)]


def test_groups_look_at_new_messages_in_several_turns_if_they_are_many(peer, harness, monkeypatch):
    monkeypatch.setattr("metaq.broker.tuning.SHARED_LOOKS", 2)
    peer.send(b"".join(put("t", number % 3) for number in range(3)))
    waiting = []
    for number in range(9):
        member = harness.connect()
        request = AcquireRequest("t", number % 3, f"g{number}", "m", 10, 1 << 20, 30_000, wait_ms=5000)
        member.send(encode_frame(RequestCode.ACQUIRE, 5, request.to_ext()))
        waiting.append(member)
    turns_until_quiet(harness)
    looked = noted(monkeypatch, SharedQueue, "look", lambda queue: queue.key)
    peer.send(b"".join(put("t", number % 3) for number in range(3)))
    assert len(looked) == 2
    turns_until_quiet(harness)
    assert {key.group for key in looked} == {f"g{number}" for number in range(9)}
    assert [member.frames()[0].code for member in waiting] == [ResponseCode.SUCCESS] * 9


def turns_until_quiet(harness):
    for _ in range(20):
        harness.turn()
        harness.threads.run()
