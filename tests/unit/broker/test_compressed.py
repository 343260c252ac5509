"""Compressed messages: which topics take them, by which verb they come, and whom they are given to."""

import pytest

from metaq.broker import tuning
from metaq.broker.filters.message import FilteredMessage
from metaq.protocol.compression import compress
from metaq.protocol.record import COMPRESSED_FLAG, checksum, encode_record, iter_headers
from metaq.protocol.sends import decode_rows
from metaq.protocol.statuses import ResponseCode, Status
from metaq.protocol.text import Value, encode_get, encode_put
from tests.unit.broker import harness as module
from tests.unit.broker.harness import many, put, raw_batch, reserved

TOPICS = "[topic=packed]\nnumPartitions=2\nacceptCompressed=true\n"
PACKED = COMPRESSED_FLAG
FRAME = compress(b"x" * 1000, 3)


def stored(harness, topic, partition=0):
    log = harness.store.find(topic, partition)
    return [] if log is None else [each.flag for each in iter_headers(log.segments.read(0, 1 << 20))]


def send(topic, opaque, transaction=None, body=FRAME):
    return module.send(topic, 0, body, opaque, PACKED, tx_key=transaction)


def batch(topic, *flags, body=FRAME):
    return raw_batch(topic, 0, [encode_record(body, 0, flag) for flag in flags])


def test_the_version_says_that_compressed_messages_are_known(peer):
    assert "compressed/1" in peer.ask(b"version 7\r\n").text.split()


@pytest.mark.parametrize(
    ("make", "flags"),
    [
        pytest.param(lambda topic: send(topic, 1), [PACKED], id="send"),
        pytest.param(lambda topic: batch(topic, 0, 0, PACKED), [0, 0, PACKED], id="batch, as a whole"),
    ],
)
def test_a_compressed_message_is_taken_where_the_topic_allows_it_and_refused_elsewhere(harness, peer, make, flags):
    assert peer.ask_frame(make("packed")).code == ResponseCode.SUCCESS
    refused = peer.ask_frame(make("t"))
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    assert "topic t takes no compressed messages: set acceptCompressed=true" in refused.remark
    assert (stored(harness, "packed"), stored(harness, "t")) == (flags, [])


def test_a_delayed_message_that_is_refused_as_compressed_leaves_those_beside_it(harness, peer):
    flag, body = reserved(b"x", {"metaq.delay": "60000"})
    peer.send(module.send("t", 0, body, 1, flag | PACKED) + module.send("t", 0, body, 2, flag))
    assert [answer.code for answer in peer.frames()] == [ResponseCode.MESSAGE_ILLEGAL, ResponseCode.SUCCESS]
    assert len(harness.broker.delays) == 1


@pytest.mark.parametrize(("flag", "crc", "said"), [(PACKED, 0, "acceptCompressed"), (0, 1, "Checksum failure")])
def test_a_numbered_send_that_is_refused_is_told_why_and_the_number_is_free(harness, peer, flag, crc, said):
    numbered = {"producer": 9, "sequence": 1}
    refused = peer.ask_frame(module.send("t", 0, b"x", flag=flag, crc=checksum(b"x") ^ crc, **numbered))
    assert (refused.code, said in refused.remark) == (ResponseCode.MESSAGE_ILLEGAL, True)
    assert peer.ask_frame(module.send("t", 0, b"x", **numbered)).code == ResponseCode.SUCCESS
    assert stored(harness, "t") == [0]


@pytest.mark.parametrize("count", [1, 200])
def test_a_text_put_of_a_compressed_payload_is_taken_where_the_topic_allows_it(harness, peer, count):
    body = compress(b"x" * 1000, 3)
    puts = [put("t", 0, body if number == count // 2 else b"x", number, PACKED) for number in range(count)]
    peer.send(b"".join(puts))
    expected = [Status.ERROR if number == count // 2 else Status.SUCCESS for number in range(count)]
    assert [answer.code for answer in peer.answers()] == expected
    assert peer.ask(put("packed", 0, body, flag=PACKED)).code == Status.SUCCESS
    refused = peer.ask(put("t", 0, body, flag=PACKED))
    assert "topic t takes no compressed messages: set acceptCompressed=true" in refused.text


@pytest.mark.parametrize("count", [1, 200])
def test_the_bit_means_nothing_in_a_text_put_of_anything_else(harness, peer, count):
    flags = [PACKED if number == count // 2 else 0 for number in range(count)]
    peer.send(b"".join(put("t", 0, opaque=number, flag=flag) for number, flag in enumerate(flags, 1)))
    assert [answer.code for answer in peer.answers()] == [Status.SUCCESS] * count
    assert stored(harness, "t") == flags


def test_of_many_parts_only_those_are_refused_that_have_a_compressed_message(harness, peer):
    plain, packed = encode_record(b"x", 0, 0), encode_record(FRAME, 0, PACKED)
    parts = [("t", 0, [plain]), ("t", 1, [plain, packed]), ("packed", 0, [packed]), ("t", 2, [plain])]
    answer = peer.ask_frame(many(parts))
    assert decode_rows(answer.body, 4).codes == [0, ResponseCode.MESSAGE_ILLEGAL, 0, 0]
    assert "acceptCompressed" in answer.remark
    assert [stored(harness, topic, partition) for topic, partition, _ in parts] == [[0], [], [PACKED], [0]]


def test_a_transaction_refuses_the_send(peer):
    peer.ask(b"transaction TX:s:1 s BEGIN 1\r\n")
    refused = peer.ask_frame(send("t", 2, "TX:s:1"))
    assert (refused.code, "acceptCompressed" in refused.remark) == (ResponseCode.MESSAGE_ILLEGAL, True)
    assert peer.ask_frame(send("packed", 3, "TX:s:1")).code == ResponseCode.SUCCESS


NO_FRAMES = {
    "no frame": (b"x", "no Zstandard frame"),
    "empty": (b"", "no Zstandard frame"),
    "cut in its header": (FRAME[:5], "no Zstandard frame"),
    "skippable": (b"\x50\x2a\x4d\x18\4\0\0\0abcd", "no Zstandard frame"),
    "too large": (FRAME[:4] + b"\xe0" + (1 << 40).to_bytes(8, "little") + b"\1\0\0", "more than the"),
    "of no known size": (FRAME[:4] + b"\0\x58\1\0\0", "does not say how large"),
    "with a dictionary": (FRAME[:4] + b"\x21\7\1\1\0\0", "dictionary, number 7"),
}


@pytest.mark.parametrize(("body", "said"), NO_FRAMES.values(), ids=NO_FRAMES)
@pytest.mark.parametrize("way", ["send", "batch", "many", "text", "transaction", "batch in one", "text in one"])
def test_what_is_no_frame_is_refused_by_each_way_in_since_no_consumer_could_read_it(harness, peer, way, body, said):
    peer.ask(b"transaction TX:s:1 s BEGIN 1\r\n")
    record = encode_record(body, 0, PACKED)
    if way.startswith("text"):
        key = None if way == "text" else "TX:s:1"
        answer = peer.ask(encode_put("packed", 0, PACKED, checksum(body), 5, body, key))
        assert (answer.code, said in answer.text) == (Status.ERROR, True)
    elif way == "many":
        answer = peer.ask_frame(many([("packed", 0, [record]), ("t", 0, [encode_record(b"x", 0, 0)])]))
        assert (*decode_rows(answer.body, 2).codes, said in answer.remark) == (ResponseCode.MESSAGE_ILLEGAL, 0, True)
    else:
        key = None if way in ("send", "batch") else "TX:s:1"
        packed = raw_batch("packed", 0, [record], tx_key=key) if "batch" in way else send("packed", 2, key, body)
        answer = peer.ask_frame(packed)
        assert (answer.code, said in answer.remark) == (ResponseCode.MESSAGE_ILLEGAL, True)
    assert stored(harness, "packed") == []


def test_many_compressed_messages_of_one_batch_are_looked_at_in_slices(harness, peer):
    flags = [PACKED] * (2 * tuning.PACKED_SLICE_RECORDS + 1)
    assert peer.ask_frame(batch("packed", *flags)).code == ResponseCode.SUCCESS
    assert stored(harness, "packed") == flags


def test_a_1x_client_is_refused_the_topic_with_a_clear_text_and_ours_is_not(peer):
    for topic in ("packed", "t"):
        peer.ask(put(topic, 0))
    refused = peer.ask(encode_get("packed", "g", 0, 0, 1000, 7))
    said = "compressed messages (acceptCompressed=true), which a client of metaq 1.x cannot read: group g"
    assert (refused.code, said in refused.text) == (Status.ERROR, True)
    for topic, group, more in (
        ("packed", "g", {"unpacks": True}),
        ("packed", "meta-slave-group_1", {}),
        ("t", "g", {}),
    ):
        assert isinstance(peer.ask(encode_get(topic, group, 0, 0, 1000, 7, **more)), Value)


def test_a_reload_changes_what_is_taken(harness, peer):
    assert peer.ask_frame(batch("t", 0, PACKED)).code == ResponseCode.MESSAGE_ILLEGAL
    harness.ini = harness.ini.replace("[topic=t]\n", "[topic=t]\nacceptCompressed=true\n")
    harness.broker.reload_config()
    harness.threads.run()
    assert peer.ask_frame(batch("t", 0, PACKED)).code == ResponseCode.SUCCESS


def test_a_filter_of_the_broker_sees_the_payload_as_it_was_sent():
    payload = b"L" * 1000
    assert FilteredMessage("t", 0, 0, 1, PACKED, compress(payload, 3)).payload == payload
