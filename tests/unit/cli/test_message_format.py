"""Formats of `metaq consume`."""

from types import SimpleNamespace

import pytest

from metaq.cli.message_format import compile_format, message_fields, printable_time


def message(**changes):
    values = {
        "topic": "trades",
        "partition": SimpleNamespace(broker_id=2, partition=3),
        "offset": 4096,
        "id": 77,
        "payload": b"buy \xc3\xa4",
        "attribute": None,
        "tag": "fx",
        "keys": ("o-1", "o-2"),
        "headers": {"a": "1"},
        "timestamp": 1_700_000_000_123,
    }
    return SimpleNamespace(**(values | changes))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%s", b"buy \xc3\xa4"),
        ("%t [%p] at %o: %s\\n", b"trades [2-3] at 4096: buy \xc3\xa4\n"),
        ("%b|%i|%k|%K|%g|%S", b"2|77|o-1 o-2|7|fx|6"),
        ("%T %h %a", b"1700000000123 a=1 "),
        ("100%%\\t\\\\\\x41\\0", b"100%\t\\A\0"),
        ("ä", b"\xc3\xa4"),
        ("", b""),
    ],
)
def test_format_writes_each_field_and_escape(text, expected):
    assert compile_format(text)(message()) == expected


def test_absent_values_are_written_as_in_kcat():
    absent = message(keys=(), timestamp=None, tag=None)
    assert compile_format("%K|%k|%T|%g")(absent) == b"-1||-1|"


@pytest.mark.parametrize(("text", "named"), [("%q", "%q"), ("50%", "%"), ("\\q", "\\q"), ("end\\", "\\"), ("\\xZZ", "\\x")])
def test_unknown_field_or_escape_is_refused_by_name(text, named):
    with pytest.raises(ValueError, match="choose") as refused:
        compile_format(text)
    assert named in str(refused.value)


def test_json_has_the_payload_as_text_or_else_as_hex():
    assert message_fields(message())["payload"] == "buy ä"
    binary = message_fields(message(payload=b"\xff\x00"))
    assert binary["payload_hex"] == "ff00"
    assert "payload" not in binary
    assert binary["partition"] == "2-3"


def test_time_is_printed_in_utc_or_as_unknown():
    assert printable_time(0) == "1970-01-01T00:00:00.000+00:00"
    assert printable_time(None) == "-"
