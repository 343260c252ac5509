"""Frames and their extFields (docs/protocol.md): layout byte by byte, the cutting test, bounds."""

from typing import Any

import pytest

from metaq.protocol import remoting, sends
from metaq.protocol.errors import LocalProtocolError, RemoteProtocolError
from metaq.protocol.frames import ONE_WAY, RESPONSE, encode_frame, frame_bytes, parse_frame
from metaq.protocol.limits import MAX_FRAME_BYTES, MAX_FRAME_HEADER_BYTES
from metaq.protocol.pulls import PullReply, PullRequest, decode_runs, encode_runs
from metaq.protocol.record import encode_record
from metaq.protocol.requests import RequestReader
from metaq.protocol.shared import AcquireRequest
from metaq.protocol.text import Version
from metaq.protocol.topic_partition import TopicPartition
from metaq.protocol.transaction_requests import CompleteTransactionRequest, TransactionRequest
from tests.frames import FrameReader
from tests.unit.protocol.decoding import assert_decodes

VALUES = [
    sends.SendRequest("t", -1, -(1 << 31), 7),
    sends.SendReply(-5, 3, 1 << 40),
    sends.SendBatchRequest("t", 0, 500),
    PullRequest("t", 1, -1, 1 << 20, "g", ("a", "b"), 500, 9),
    PullRequest("t", 1, 0, 1 << 20, sizes=True),
    AcquireRequest("t", 1, "g", "m", 10, 1 << 20, 30_000),
    AcquireRequest("t", 1, "g", "m", 10, 1 << 20, 30_000, 500, "latest", True, "n > 1", ("a", "b")),
    PullReply(1, 0, 10, 3, 9, 2),
    PullReply(1, 0, 10, 3, 9, 0, 7),
    remoting.PartitionRequest("t", 1),
    remoting.SearchByTimeRequest("t", 1, 1_700_000_000_000),
    remoting.OffsetReply(5),
    remoting.MessageCountsRequest("t", 1, 5),
    remoting.MessageCountsReply(5, 3, 0, 100),
    remoting.StatsRequest("topics"),
    sends.SendRequest("t", 1, tx_key="TX:s:1"),
    sends.SendManyRequest(("t", "u"), 2, 500),
    sends.SendManyReply(2),
    remoting.SearchByCountRequest("t", 1, 5, 6, 7),
    TransactionRequest(None, "RECOVER", qualifier="q"),
    TransactionRequest("XID:1:00ff:01:tm", "BEGIN", "s", 5),
    CompleteTransactionRequest("XID:1:00ff:01:tm", "forget"),
    remoting.ClosePartitionsRequest("t", 2, 2),
    remoting.OpenPartitionsRequest("t"),
    remoting.ViewMessageRequest("t", -5),
    remoting.QueryMessageRequest("t", "k", 5, 6, 7, 0, True),
    remoting.FoundReply(1, 2, True),
]


def test_a_frame_has_the_documented_layout():
    raw = encode_frame(10, -1, {"topic": "t", "partition": 3}, 2, flag=RESPONSE) + b"hi"
    header = (
        b'{"code":10,"language":"PYTHON","version":1,"opaque":-1,"flag":1,"remark":"",'
        b'"extFields":{"topic":"t","partition":"3"}}'
    )
    assert raw == (4 + len(header) + 2).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + b"hi"
    assert raw[0] == 0


def test_numbers_and_text_are_written_alike():
    numbers = encode_frame(1, 2, {"a": 1, "b": -5})
    assert numbers == encode_frame(1, 2, {"a": "1", "b": "-5"})


@pytest.mark.parametrize("remark", ["", 'quote " and \\ and é and \n'])
def test_a_frame_is_decoded_however_it_is_cut(remark):
    raw = encode_frame(11, 5, {"x": "é\u2028", "y": 1}, 3, remark=remark, flag=ONE_WAY) + b"abc"
    frame = parse_frame(raw, 0, len(raw))
    assert (frame.code, frame.opaque, frame.remark, bytes(frame.body)) == (11, 5, remark, b"abc")
    assert frame.ext == {"x": "é\u2028", "y": "1"}
    assert frame.is_one_way
    assert not frame.is_response
    assert_decodes(FrameReader, raw, [frame])
    assert_decodes(RequestReader, raw, [frame])


def test_frames_and_text_share_a_connection_however_they_are_cut():
    raw = encode_frame(34, 1, {})
    frame = parse_frame(raw, 0, len(raw))
    assert_decodes(RequestReader, raw + b"version 1\r\n" + raw, [frame, Version(1), frame])


@pytest.mark.parametrize("producer", [0, 1, 2**63 - 1])
@pytest.mark.parametrize("opaque", [0, 1, 999_999_999])
def test_a_send_in_our_producers_form_is_decoded_like_any_frame(producer, opaque):
    sequence = 77 if producer else 0
    raw = sends.SendHeaders(producer).encode(opaque, TopicPartition("a-topic", 0, 7), 3, 2**31 - 1, 2, sequence) + b"hi"
    expected, found = parse_frame(raw, 0, len(raw)), sends.parse_common_send(b"-" + raw + b"more", 1, len(raw))
    assert found == expected
    assert (found.ext.get("topic"), "partition" in found.ext, "txKey" in found.ext) == ("a-topic", True, False)
    assert sends.SendRequest.from_ext(found.ext) == sends.SendRequest.from_ext(expected.ext)
    assert_decodes(RequestReader, raw, [expected])


def test_other_forms_of_a_send_are_left_to_the_general_decoder():
    usual = sends.SendRequest("t", 0, 0, 5, None, 9, 9)
    raw = encode_frame(10, 5, usual.to_ext())
    assert sends.parse_common_send(raw, 0, len(raw)) is not None
    changes: list[dict[str, Any]] = [
        *({"topic": topic} for topic in ('a"b', "é", "a topic", "a" * 241)),
        *({"partition": -1}, {"checksum": -1}, {"checksum": 2**31}, {"producerId": 0}, {"producerId": 2**63}),
        *({"sequence": 0}, {"txKey": "TX:s:1"}, {"more": "x"}),
    ]
    others: list[tuple[int, int, int, dict[str, Any]]] = [
        (11, 5, 0, {}),
        (10, -1, 0, {}),
        (10, 1_000_000_000, 0, {}),
        (10, 5, ONE_WAY, {}),
    ]
    for code, opaque, flag, change in [*others, *((10, 5, 0, change) for change in changes)]:
        other = encode_frame(code, opaque, usual.to_ext() | change, flag=flag)
        assert sends.parse_common_send(other, 0, len(other)) is None, change
    longer = raw[:3] + bytes([raw[3] + 1]) + raw[4:7] + bytes([raw[7] + 1]) + raw[8:] + b" "
    assert parse_frame(longer, 0, len(longer)).opaque == 5
    assert sends.parse_common_send(longer, 0, len(longer)) is None


def test_the_answer_to_a_send_is_what_the_codec_writes():
    for values in [(0, -1, 0, -1), (2**31 - 1, 2**63 - 1, 9, 2**62)]:
        assert sends.encode_sent_reply(*values) == encode_frame(
            0, values[0], sends.SendReply(*values[1:]).to_ext(), flag=RESPONSE
        )
        for replicas in (1, 3, 255, 1000):
            ext = sends.send_reply(*values[1:], replicas).to_ext()
            assert sends.encode_sent_reply(*values, replicas) == encode_frame(0, values[0], ext, flag=RESPONSE)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_ext_fields_carry_every_value(value):
    ext = {name: str(each) for name, each in value.to_ext().items()}
    assert type(value).from_ext(ext) == value


@pytest.mark.parametrize("value", [value for value in VALUES if not isinstance(value, remoting.StatsRequest)])
def test_a_missing_or_wrong_ext_field_is_named(value):
    with pytest.raises(RemoteProtocolError, match=r"extFields\.\w+ is missing"):
        type(value).from_ext({})
    ext = {name: str(each) for name, each in value.to_ext().items()}
    for name, each in value.to_ext().items():
        if isinstance(each, int):
            for wrong in ("x", "", "1.5", "9" * 30, " 1", "٣"):
                with pytest.raises(RemoteProtocolError, match=name):
                    type(value).from_ext(ext | {name: wrong})


def test_what_has_its_default_may_be_left_out():
    assert PullRequest("t", 1, 0, 9).to_ext().keys().isdisjoint({"tags", "sizes", "verify"})
    assert AcquireRequest("t", 1, "g", "m", 1, 9, 9).to_ext().keys().isdisjoint({"tags", "where", "ordered"})
    assert AcquireRequest("t", 1, "g", "m", 1, 9, 9, tags=("a", "b")).to_ext()["tags"] == "a||b"
    assert PullReply(1, 0, 10, 3).to_ext().keys().isdisjoint({"records", "damagedFrom"})
    assert "txKey" not in sends.SendRequest("t", 1).to_ext()
    assert PullRequest.from_ext({"topic": "t", "partition": "1", "offset": "0", "maxBytes": "9"}) == PullRequest(
        "t", 1, 0, 9
    )


def test_a_range_of_partitions_does_not_end_before_its_start():
    with pytest.raises(RemoteProtocolError, match=r"extFields\.end"):
        remoting.ClosePartitionsRequest.from_ext({"topic": "t", "start": "3", "end": "2"})


def header(text: bytes) -> bytes:
    return (4 + len(text)).to_bytes(4, "big") + len(text).to_bytes(4, "big") + text


@pytest.mark.parametrize(
    "raw",
    [
        *(header(b"not json"), header(b"[]"), header(b"[" * 100_000), header(b'{"a":"\xff"}'), header(b'{"remark":5}')),
        *(header(b'{"code":%b}' % code) for code in (b'"1"', b"1.5", b"true", b"99999999999")),
        *(header(b'{"extFields":%b}' % fields) for fields in (b'{"a":1.5}', b'{"a":true}', b"[1]")),
        (1 << 24).to_bytes(4, "big") + b"\0\0\0\1",
        b"\0\0\0\3\0\0\0\1",
        b"\0\0\0\x20\1\0\0\1",
        b"\0\xff\xff\0" + (MAX_FRAME_HEADER_BYTES + 1).to_bytes(4, "big"),
    ],
)
def test_a_frame_that_cannot_be_is_refused(raw):
    with pytest.raises(RemoteProtocolError):
        FrameReader().receive(raw)


def test_missing_header_fields_have_defaults():
    raw = header(b"{}")
    assert parse_frame(raw, 0, len(raw))[:5] == (0, 0, 0, "", {})


def test_the_bound_is_checked_before_anything_is_buffered():
    assert frame_bytes((MAX_FRAME_BYTES - 4).to_bytes(4, "big") + b"\0\0\0\2", 0) == MAX_FRAME_BYTES
    with pytest.raises(RemoteProtocolError):
        frame_bytes((MAX_FRAME_BYTES - 3).to_bytes(4, "big") + b"\0\0\0\2", 0)
    with pytest.raises(LocalProtocolError):
        encode_frame(1, 1, {}, MAX_FRAME_BYTES)


def test_batch_is_split_by_its_table():
    records = [encode_record(b"a" * size, 0, 0) for size in (0, 5)]
    table = b"".join(len(record).to_bytes(4, "big") for record in records)
    sizes, data = sends.split_batch(memoryview(table + b"".join(records)), 2)
    assert sizes.tolist() == [20, 25]
    assert data == b"".join(records)
    for wrong in (table[:4], table + records[0], table + b"".join(records) + b"x", b"\0\0\0\1" * 2 + b"xx"):
        with pytest.raises(RemoteProtocolError):
            sends.split_batch(memoryview(wrong), 2)


def test_runs_are_found_again():
    first, second = bytes(20), b"x" * 21
    body = memoryview(encode_runs([(5, 20), (100, 21)]) + first + second)
    assert [(offset, bytes(data)) for offset, data in decode_runs(body, 2)] == [(5, first), (100, second)]
    for wrong, count in ((body[:-1], 2), (body[:10], 1), (body, 1)):
        with pytest.raises(RemoteProtocolError):
            decode_runs(wrong, count)


@pytest.mark.parametrize("length", [0, 19])
def test_a_run_that_has_no_room_for_a_record_is_refused(length):
    body = memoryview(encode_runs([(5, 20), (100, length)]) + bytes(20 + length))
    with pytest.raises(RemoteProtocolError, match=rf"a run of {length} bytes at 100 holds no record"):
        decode_runs(body, 2)


def test_more_runs_than_an_answer_may_have_records_are_refused():
    fields = {"nextOffset": "0", "minOffset": "0", "maxOffset": "0", "behind": "0"}
    assert PullReply.from_ext({**fields, "runs": "65536"}).runs == 65536
    with pytest.raises(RemoteProtocolError, match=r"runs"):
        PullReply.from_ext({**fields, "runs": "65537"})


@pytest.mark.parametrize("body", [b"", b"x", bytes(70_000)])
def test_a_reader_that_is_given_what_it_wants_copies_nothing_and_finds_the_same_frames(body):
    raw = encode_frame(11, 5, {"topic": "t"}, len(body), flag=RESPONSE) + body
    stream, reader, found, received, begun = raw * 3, FrameReader(), [], [], []
    while stream:
        received.append(stream[: reader.wanted_bytes])
        stream = stream[len(received[-1]) :]
        found += reader.receive(received[-1])
        begun += [] if reader.begun is None else [reader.begun]
    whole = parse_frame(raw, 0, len(raw))
    assert found == [whole] * 3
    assert begun == ([whole._replace(body=memoryview(b""))] * 3 if body else [])
    parts = 3 if body else 2  # prefix, header, body
    assert len(received) == 3 * parts
    if body:
        assert [frame.body.obj is part for frame, part in zip(found, received[2::parts], strict=True)] == [True] * 3
