"""metaq 1.x text (wire.md §1-4): recorded bytes, the cutting test, and what the Java decoder refuses."""

import json
from pathlib import Path

import pytest

from metaq.protocol.errors import LocalProtocolError, RemoteProtocolError
from metaq.protocol.limits import INT32_MAX, INT32_MIN, MAX_BODY_BYTES, MAX_LINE_BYTES, MAX_RECORD_BODY_BYTES
from metaq.protocol.requests import RequestReader
from metaq.protocol.text import (
    AnswerReader,
    Get,
    IgnoredAnswer,
    OffsetQuery,
    Put,
    Quit,
    Result,
    Stats,
    Sync,
    TooLargePut,
    TransactionCommand,
    TransactionType,
    Value,
    Version,
    encode_get,
    encode_offset,
    encode_put,
    encode_result,
    encode_stats,
    encode_transaction,
    encode_value_line,
    encode_version,
    parse_command,
    parse_common_put,
    parse_put_result,
)
from tests.unit.protocol.decoding import assert_decodes

GOLDEN = Path(__file__).resolve().parents[2] / "data" / "golden" / "wire" / "wire.json"
RECORDED = json.loads(GOLDEN.read_text())

COMMANDS = [
    (b"put t3 0 5 0 907060870 2\r\nhello", Put("t3", 0, 0, 907060870, None, 2, b"hello")),
    (b"put t3 -1 5 0 -1 -2\r\nhello", Put("t3", -1, 0, -1, None, -2, b"hello")),
    (b"put t3 0 5 0 3\r\nhello", Put("t3", 0, 0, -1, None, 3, b"hello")),
    (b"put t3 2 4 0 TX:s:1 4\r\ntx-b", Put("t3", 2, 0, -1, "TX:s:1", 4, b"tx-b")),
    (b"put t3 2 4 1 7 null 4\r\ntx-b", Put("t3", 2, 1, 7, "null", 4, b"tx-b")),
    (b"put t3 2 4 1 7 XID:1:0a:0B:q 4\r\ntx-b", Put("t3", 2, 1, 7, "XID:1:0a:0b:q", 4, b"tx-b")),
    (b"put t3 1 0 0 0 7\r\n", Put("t3", 1, 0, 0, None, 7, b"")),
    (b"put \xe4\xb8\xad 007 +1 -5 2147483647 -2147483648\r\n\n", Put("中", 7, -5, INT32_MAX, None, INT32_MIN, b"\n")),
    (b"put lazy 0 5 0 -1 4 \r\nhello", Put("lazy", 0, 0, -1, None, 4, b"hello")),
    (b"put t 0 2 0 1 4\r\n\r\n", Put("t", 0, 0, 1, None, 4, b"\r\n")),
    (b"get t3 g1 0 -5 1048576 20\r\n", Get("t3", "g1", 0, -5, 1048576, 20)),
    (b"get t3 g1 0 9223372036854775807 1 20 more\r\n", Get("t3", "g1", 0, (1 << 63) - 1, 1, 20)),
    (b"offset t3 g 0 26 41\r\n", OffsetQuery("t3", "g", 0, 26, 41)),
    (b"stats\r\n", Stats("", INT32_MAX)),
    (b"stats  60\r\n", Stats("", 60)),
    (b"stats topics\r\n", Stats("topics", INT32_MAX)),
    (b"version\r\n", Version(INT32_MAX)),
    (b"vxx 1\r\n", Version(1)),
    (b"q\r\n", Quit()),
    (b"transaction TX:a:1 a BEGIN 30 16\r\n", TransactionCommand("TX:a:1", "a", TransactionType.BEGIN, 30, None, 16)),
    (b"transaction null s RECOVER q 47\r\n", TransactionCommand(None, "s", TransactionType.RECOVER, None, "q", 47)),
    (b"transaction TX:a:1 a BEGIN 30 q 16\r\n", TransactionCommand("TX:a:1", "a", TransactionType.BEGIN, 30, "q", 16)),
    (b"sync o 2 3 0 777 -1 5\r\nabc", Sync("o", 2, 0, 777, -1, 5, b"abc")),
    (b"sync o 2 3 0 -778 6\r\nabc", Sync("o", 2, 0, -778, -1, 6, b"abc")),
    (b"result 200 3 7\r\n0.1", IgnoredAnswer()),
    (b"value 3 7\r\nabc", IgnoredAnswer()),
]

REFUSED = [
    *(b"", b"  ", b"foo bar", b"GET t3 g1 0 0 100 1", b"p"),
    *(b"putx t3 0 5 0 1", b"put t3 0 5 0", b"put t3 0 5 0 1 2 3 4", b"put t3 0 -1 0 -1 4", b"put t3 0 5 x -1 4"),
    *(b"put  t3 0 5 0 -1 4", b"put t3 0 5 0 +907060870 4", b"put t3 0 5 0 2147483648 4", b"put t3 0 1_0 0 1 4"),
    *(b"put t3 0 5 0 1 2147483648", b"put t3 0 5 0 1 -2147483649", b"put t3 0 2147483648 0 1 4"),
    *(b"put t3 0 \xd9\xa3 0 1 4", b"sync t3 0 5 0 9", b"sync t3 0 %d 0 9 1 4" % (MAX_RECORD_BODY_BYTES + 1)),
    *(b"get t3 g1 0 0 100", b"get t3 g1 0 abc 100 1", b"get t3 g1 0 9223372036854775808 100 1"),
    *(b"version 2147483648", b"version abc", b"version 1\nversion 2", b"offset t3 g1 0 0"),
    *(b"transaction", b"transaction TX:s:1 s FOO 1", b"transaction foo s BEGIN 1"),
    *(b"transaction XID:1:0:zz:q s BEGIN 1", b"transaction XID:1:0a:0a :q s BEGIN 1"),
    *(b"transaction TX:s\n:1 s BEGIN 1", b"transaction TX:s:1 s BEGIN 1 q 5 6"),
    b"transaction TX:" + b"s" * 1024 + b":1 s BEGIN 1",
]


@pytest.mark.parametrize(("raw", "command"), COMMANDS, ids=lambda each: each[:40] if isinstance(each, bytes) else "")
def test_a_command_is_decoded_however_it_is_cut(raw, command):
    assert_decodes(RequestReader, raw, [command])


def test_pipelined_commands_are_decoded_in_order_however_they_are_cut():
    assert_decodes(RequestReader, b"".join(raw for raw, _ in COMMANDS), [command for _, command in COMMANDS])


@pytest.mark.parametrize("line", REFUSED)
def test_what_the_java_decoder_refuses_ends_the_stream_behind_the_good_commands(line):
    reader = RequestReader()
    assert reader.receive(b"version 1\r\n" + line + b"\r\nversion 2\r\n") == [Version(1)]
    assert isinstance(reader.failure, RemoteProtocolError)
    assert reader.receive(b"version 3\r\n") == []


@pytest.mark.parametrize("chunk", [1000, 1 << 18, 1 << 30])
def test_the_body_of_a_put_that_is_too_large_is_dropped_and_the_stream_goes_on(chunk):
    size = MAX_BODY_BYTES + 1
    raw = b"version 1\r\nput t3 7 %d 0 1 4\r\n" % size + bytes(size) + b"put t3 0 2 0 1 5\r\nhi" + b"version 6\r\n"
    reader = RequestReader()
    found = []
    for start in range(0, len(raw), chunk):
        found += reader.receive(raw[start : start + chunk])
        assert reader.buffered_bytes < 100
    assert found == [Version(1), TooLargePut("t3", 7, size, 4), Put("t3", 0, 0, 1, None, 5, b"hi"), Version(6)]


def test_recorded_requests_of_the_java_client_are_understood():
    recorded = [entry for entry in RECORDED if entry["source"] == "java-client"]
    assert len(recorded) > 30
    for entry in recorded:
        reader = RequestReader()
        assert len(reader.receive(bytes.fromhex(entry["request_hex"]))) == 1, entry["name"]
        assert reader.failure is None
        assert reader.buffered_bytes == 0


def test_recorded_answers_of_the_java_broker_are_understood_however_they_are_cut():
    count = 0
    for entry in RECORDED:
        raw = bytes.fromhex(entry["response_hex"])
        values = AnswerReader().receive(raw)
        if values and len(raw) < 1000:
            count += 1
            assert_decodes(AnswerReader, raw, values)
    assert count > 80


@pytest.mark.parametrize("raw", [raw for raw, command in COMMANDS if isinstance(command, Put) and raw.count(b" ") == 6])
def test_the_fast_way_for_puts_says_the_same_as_the_general_one_or_leaves_it_alone(raw):
    put, end = parse_common_put(raw, 0)
    command, length = parse_command(raw[: raw.index(b"\r\n")])
    if put is None:
        assert end == 0
    else:
        assert isinstance(command, Put)
        assert put == command._replace(body=raw[-length:] if length else b"")
        assert end == len(raw)


def test_the_fast_way_takes_what_the_java_client_sends():
    raw = encode_put("topic", 3, 1, 12345, -2147483000, b"x" * 100)
    assert parse_common_put(raw, 0) == (Put("topic", 3, 1, 12345, None, -2147483000, b"x" * 100), len(raw))
    assert parse_common_put(raw[:-1], 0) == (None, 0)


def test_what_the_client_encodes_is_what_the_broker_reads():
    commands = {
        encode_put("t", -1, 1, 5, -3, b"body"): Put("t", -1, 1, 5, None, -3, b"body"),
        encode_get("t", "g", 2, -1, 100, 4): Get("t", "g", 2, -1, 100, 4),
        encode_offset("t", "g", 1, 1 << 40, 5): OffsetQuery("t", "g", 1, 1 << 40, 5),
        encode_stats("", 6): Stats("", 6),
        encode_stats("topics", 7): Stats("topics", 7),
        encode_version(8): Version(8),
    }
    assert_decodes(RequestReader, b"".join(commands), list(commands.values()))


def test_transactions_are_encoded_in_the_recorded_bytes():
    verbs = puts = 0
    for raw in (bytes.fromhex(step["request_hex"]) for step in RECORDED if step.get("request_hex")):
        reader = RequestReader()
        found = reader.receive(raw)
        for command in () if reader.failure else found:
            if isinstance(command, TransactionCommand):
                key, session, kind, timeout, qualifier, opaque = command
                assert encode_transaction(key, session, kind, timeout or 0, qualifier or "", opaque) == raw
                verbs += 1
            elif isinstance(command, Put) and command.tx_key and command.checksum >= 0:
                topic, partition, flag, checksum, key, opaque, body = command
                assert encode_put(topic, partition, flag, checksum, opaque, body, key) == raw
                puts += 1
    assert verbs > 50
    assert puts > 5


def test_a_qualifier_of_digits_is_read_as_one():
    line = encode_transaction(None, "s", TransactionType.RECOVER, 0, "42", 7)
    assert parse_command(line[:-2])[0] == TransactionCommand(None, "s", TransactionType.RECOVER, 0, "42", 7)


def test_what_the_broker_encodes_is_what_the_client_reads():
    raw = encode_result(500, "Grüße", -1) + encode_value_line(3, 2) + b"abc"
    assert_decodes(AnswerReader, raw, [Result(500, -1, "Grüße"), Value(2, memoryview(b"abc"))])


@pytest.mark.parametrize("name", ["", "a b", "a\r", "a\n"])
def test_a_name_that_is_no_token_is_never_sent(name):
    with pytest.raises(LocalProtocolError):
        encode_put(name, 0, 0, 0, 0, b"")


def test_a_line_without_end_is_refused_at_the_bound_and_not_before():
    reader = RequestReader()
    assert reader.receive(b"v" * MAX_LINE_BYTES) == []
    assert reader.failure is None
    reader.receive(b"vv")
    assert isinstance(reader.failure, RemoteProtocolError)


@pytest.mark.parametrize("line", [b"foo 1 2 3", b"result 200 -1 1", b"value x 1", b"result 200 99999999 1"])
def test_a_wrong_answer_raises(line):
    with pytest.raises(RemoteProtocolError):
        AnswerReader(max_body_bytes=1000).receive(line + b"\r\n")


def test_put_result_has_three_numbers_and_ignores_more():
    assert parse_put_result("-5468 1 25 7") == (-5468, 1, 25)
    with pytest.raises(RemoteProtocolError):
        parse_put_result("1 2")
