"""Formats of `metaq consume`."""

import pytest

from metaq.cli.output import compile_format, message_fields
from metaq.client.records.message import Message
from metaq.client.records.results import TopicPartition
from metaq.protocol.message_id import counter_at, message_id
from metaq.protocol.record import encode_attributes, encode_body

STORED_MS = 1_700_000_000_123
OUR_ID = message_id(counter_at(STORED_MS), 2)


def message(payload=b"buy \xc3\xa4", message_id=OUR_ID, **attributes):
    flag, raw = encode_attributes(**attributes)
    return Message(TopicPartition("trades", 2, 3), 4096, message_id, flag, bytes(encode_body(payload, flag, raw)))


def full_message():
    return message(tag="fx", keys=["o-1", "o-2"], properties={"a": "1", "b": 2, "c": b"\xff", "d": True})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%s", b"buy \xc3\xa4"),
        ("%t [%p] at %o: %s\\n", b"trades [2-3] at 4096: buy \xc3\xa4\n"),
        ("%b|%i|%k|%K|%g|%S", b"2|%d|o-1 o-2|7|fx|6" % OUR_ID),
        ("%T %h %a", b"1700000000123 a=1,b=2,c=/w==,d=true "),
        ("100%%\\t\\\\\\x41\\0", b"100%\t\\A\0"),
        ("ä", b"\xc3\xa4"),
        ("", b""),
    ],
)
def test_format_writes_each_field_and_escape(text, expected):
    assert compile_format(text)(full_message()) == expected


def test_a_terminal_obeys_no_message_while_a_pipe_gets_its_bytes():
    evil = message(b"\x1b[2J\xff\n\t\xe2\x80\xae", tag="\x9b31m", keys=["\x07"])
    assert compile_format("\\x1b%s", terminal=True)(evil) == b"\x1b\\x1b[2J\\xff\n\t\\u202e"
    assert compile_format("%g %k", terminal=True)(evil) == b"\\x9b31m \\x07"
    assert compile_format("%s", terminal=False)(evil) == b"\x1b[2J\xff\n\t\xe2\x80\xae"


def test_absent_values_are_written_as_in_kcat():
    absent = message(message_id=-5)
    assert compile_format("%K|%k|%T|%g")(absent) == b"-1||-1|"


@pytest.mark.parametrize(
    ("text", "named"), [("%q", "%q"), ("50%", "%"), ("\\q", "\\q"), ("end\\", "\\"), ("\\xZZ", "\\x")]
)
def test_unknown_field_or_escape_is_refused_by_name(text, named):
    with pytest.raises(ValueError, match="choose") as refused:
        compile_format(text)
    assert named in str(refused.value)


def test_json_has_the_payload_as_text_or_else_as_hex():
    assert message_fields(message())["payload"] == "buy ä"
    binary = message_fields(message(b"\xff\x00"))
    assert binary["payload_hex"] == "ff00"
    assert "payload" not in binary
    assert binary["partition"] == "2-3"


def test_json_has_properties_with_their_types_and_bytes_as_base64():
    assert message_fields(full_message())["properties"] == {"a": "1", "b": 2, "c": {"base64": "/w=="}, "d": True}
