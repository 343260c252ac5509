"""Puts of one connection: appended once per partition and read, answered in order, refused one by one."""

import pytest

from metaq.protocol.errors import LogReadOnly
from metaq.protocol.frames import ONE_WAY, encode_frame
from metaq.protocol.limits import MAX_BODY_BYTES, MAX_RECORD_BODY_BYTES
from metaq.protocol.message_id import store_time_ms
from metaq.protocol.record import encode_record
from metaq.protocol.sends import SendReply
from metaq.protocol.statuses import RequestCode, ResponseCode
from metaq.protocol.text import encode_get, encode_put, parse_put_result
from tests.raising import raising
from tests.unit.broker.harness import NOW, batch, put, raw_batch, send


def test_a_put_is_answered_with_id_partition_and_offset(peer):
    first = parse_put_result(peer.ask(put("t", 2)).text)
    second = parse_put_result(peer.ask(put("t", 2)).text)
    assert first[1:] == (2, 0)
    assert second[1:] == (2, 25)
    assert 0 < first[0] < second[0]
    assert store_time_ms(first[0]) == NOW * 1000


def test_all_puts_of_one_read_are_one_append_per_partition_and_one_write(peer, appends):
    peer.send(b"".join(put("t", number % 2, opaque=number) for number in range(10)))
    assert sorted(appends) == [("t", 0, 5), ("t", 1, 5)]
    assert len(peer.transport.writes) == 1
    answers = [(answer.opaque, *parse_put_result(answer.text)[1:]) for answer in peer.answers()]
    assert answers == [(number, number % 2, number // 2 * 25) for number in range(10)]


def test_a_refused_put_leaves_the_others_as_they_are(peer):
    bad = encode_put("t", 0, 0, 1, 2, b"bad") + put("t", 7, opaque=3)
    peer.send(put("t", 0, opaque=1) + bad + put("t", 0, opaque=4))
    answers = peer.answers()
    assert [(answer.opaque, answer.code) for answer in answers] == [(1, 200), (2, 500), (3, 500), (4, 200)]
    assert parse_put_result(answers[3].text)[2] == 25
    prefix = "Put message to [broker 'meta://127.0.0.1:8123'] [partition 't-%d'] failed.Detail:"
    assert answers[1].text == prefix % 0 + "Checksum failure,message may be corrupted when transfering on networking."
    assert answers[2].text == prefix % 7 + "wrong partition 7"


@pytest.mark.parametrize("topic", ["wild/../x", "wild\x01", "wild*"])
def test_a_topic_that_would_be_a_path_is_refused_even_if_a_pattern_matches(peer, harness, topic):
    answer = peer.ask(put(topic, 0))
    assert answer.code == 400
    assert "topic" in answer.text
    assert list(harness.store.logs()) == []


def test_what_follows_a_put_in_the_same_read_sees_it(peer):
    peer.send(put("t", 0) + encode_get("t", "g", 0, 0, 100, 2) + put("t", 0) + b"offset t g 0 999 3\r\n")
    answers = peer.answers()
    assert len(answers[1].data) == 25
    assert answers[3].text == "50"


def test_a_put_to_any_partition_goes_to_each_of_them(peer):
    peer.send(b"".join(put("t", -1, opaque=number) for number in range(100)))
    assert {parse_put_result(answer.text)[1] for answer in peer.answers()} == {0, 1, 2}


def test_a_topic_matched_by_a_pattern_has_the_systems_partitions_and_is_announced_once(peer, harness):
    assert peer.ask(put("wildcat", 0)).code == 200
    assert peer.ask(put("wildcat", 1)).text.endswith("Detail:wrong partition 1")
    peer.ask(put("wildcat", 0))
    assert harness.topics_seen == ["wildcat"]


# --- group commit -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
def test_a_safe_put_is_answered_after_its_sync_and_what_follows_after_it(peer, harness, monkeypatch, fails):
    peer.send(put("safe", 0) + b"version 2\r\n" + encode_get("safe", "g", 0, 0, 100, 3))
    assert peer.received() == b""
    if fails:
        monkeypatch.setattr(harness.store.files, "fdatasync", raising(OSError(5, "Input/output error")))
    assert harness.threads.run() >= 1
    answers = peer.answers()
    assert [(answer.opaque, answer.code) for answer in answers] == [
        (1, 500 if fails else 200),
        (2, 200),
        (3, 404),  # it was not yet readable when it was asked for
    ]
    assert ("read-only" in answers[0].text) == fails


def test_safe_puts_of_all_connections_share_a_sync(harness):
    peers = [harness.connect() for _ in range(5)]
    for peer in peers:
        peer.send(put("safe", 0))
        peer.send(put("safe", 0))
    assert harness.threads.run() <= 2  # the one under way when the rest came, and the rest
    assert all([answer.code for answer in peer.answers()] == [200, 200] for peer in peers)


def test_puts_to_safe_and_fast_topics_in_one_read_are_answered_in_order(peer, harness):
    peer.send(put("t", 0, opaque=1) + put("safe", 0, opaque=2) + put("safe", 1, opaque=3) + put("t", 0, opaque=4))
    assert peer.received() == b""
    harness.threads.run()
    assert [answer.opaque for answer in peer.answers()] == [1, 2, 3, 4]


# --- frames -----------------------------------------------------------------------------------------------------------


def test_send_is_a_put_and_shares_its_append(peer, appends):
    peer.send(send("t", 0, opaque=5) + put("t", 0, opaque=6) + send("t", 0, opaque=7))
    assert appends == [("t", 0, 3)]
    raw = peer.received()
    assert raw.count(b"result 200") == 1
    assert raw.count(b'"offset":"') == 2


def test_send_one_way_is_not_answered_even_if_refused(peer, harness):
    peer.send(send("t", 0, one_way=ONE_WAY) + send("t", 99, one_way=ONE_WAY) + send("nope", 0, one_way=ONE_WAY))
    assert peer.received() == b""
    assert harness.store.get("t", 0).segments.message_count == 1


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (send("nope", 0), ResponseCode.TOPIC_NOT_EXIST),
        (send("t", 3), ResponseCode.TOPIC_NOT_EXIST),
        (encode_frame(RequestCode.SEND, 1, {"topic": "t"}), ResponseCode.MESSAGE_ILLEGAL),
        (encode_frame(RequestCode.SEND_BATCH, 1, {"topic": "t"}), ResponseCode.MESSAGE_ILLEGAL),
        (send("t", 0, b"x", crc=5), ResponseCode.MESSAGE_ILLEGAL),
        (raw_batch("t", 0, [encode_record(b"abc", 0, 0)[:-1] + b"X"]), ResponseCode.MESSAGE_ILLEGAL),
        (raw_batch("t", 0, [encode_record(b"abc", 0, 0) + b"x"]), ResponseCode.MESSAGE_ILLEGAL),
        (batch("nope", 0, [b"x"]), ResponseCode.TOPIC_NOT_EXIST),
    ],
)
def test_a_frame_that_cannot_be_done_is_refused_with_a_remark(peer, harness, frame, code):
    answer = peer.ask_frame(frame)
    assert answer.code == code
    assert answer.remark
    assert sum(log.segments.message_count for log in harness.store.logs()) == 0


def test_a_batch_is_one_append_and_its_ids_and_offsets_follow_from_the_first(peer, harness, appends):
    peer.ask(put("t", 1))
    reply = SendReply.from_ext(peer.ask_frame(batch("t", 1, [b"a", b"bc", b"def"])).ext)
    assert (reply.partition, reply.offset) == (1, 25)
    assert appends == [("t", 1, 1), ("t", 1, 3)]
    units = harness.store.get("t", 1).lookup.units(0, 1000)
    assert units["offset"].tolist() == [0, 25, 46, 68]
    assert units["id"].tolist()[1:] == [reply.message_id + number for number in range(3)]


def test_a_safe_batch_is_answered_after_its_sync(peer, harness):
    peer.send(batch("safe", 0, [b"a"]) + b"version 1\r\n")
    assert peer.received().startswith(b"result")  # frames do not hold up text
    harness.threads.run()
    (frame,) = peer.frames()
    assert frame.code == ResponseCode.SUCCESS


def test_a_log_that_takes_no_writes_refuses_puts_and_batches(peer, harness):
    peer.ask(put("t", 0))
    harness.store.get("t", 0).durability.read_only = "disk full"
    assert "disk full" in peer.ask(put("t", 0)).text
    answer = peer.ask_frame(batch("t", 0, [b"x"]))
    assert (answer.code, LogReadOnly.retriable) == (ResponseCode.SERVICE_NOT_AVAILABLE, True)


def test_a_bug_in_a_handler_is_answered_and_logged(peer, harness, monkeypatch, caplog):
    monkeypatch.setattr(harness.store, "get", lambda *_: 1 / 0)
    monkeypatch.setattr(harness.store, "find", lambda *_: 1 / 0)
    assert peer.ask(b"offset t g 0 0 5\r\n").text == "internal error: ZeroDivisionError"
    assert peer.ask_frame(encode_frame(RequestCode.MIN_OFFSET, 1, {"topic": "t", "partition": 0})).code == 1
    assert "ZeroDivisionError" in caplog.text


def test_a_put_above_the_limit_is_refused_by_its_size_and_the_connection_goes_on(peer, harness):
    size = MAX_BODY_BYTES + 1
    limit = f"message of {size} bytes is above the limit of {MAX_BODY_BYTES} bytes"
    peer.send(put("t", 0, opaque=1) + b"put t 0 %d 0 -1 2\r\n" % size + bytes(size) + put("t", 0, opaque=3))
    first, refused, last = peer.answers()
    assert (refused.code, refused.opaque) == (500, 2)
    assert refused.text == f"Put message to [broker '{harness.broker.url}'] [partition 't-0'] failed.Detail:{limit}"
    assert [parse_put_result(answer.text)[2] for answer in (first, last)] == [0, 25]
    frame = peer.ask_frame(send("t", 0, bytes(MAX_RECORD_BODY_BYTES + 1), opaque=4))
    limit = f"message of {MAX_RECORD_BODY_BYTES + 1} bytes is above the limit of {MAX_RECORD_BODY_BYTES} bytes"
    assert (frame.code, frame.remark) == (ResponseCode.MESSAGE_ILLEGAL, limit)
    assert peer.ask_frame(send("t", 0, bytes(MAX_RECORD_BODY_BYTES), opaque=5)).code == ResponseCode.SUCCESS
