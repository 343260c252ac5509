"""Property values and how they are written."""

import enum
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.protocol.errors import LocalProtocolError
from metaq.protocol.properties import decode_value, encode_value, property_text
from metaq.protocol.record import EXPIRES_FLAG, decode_attribute, encode_attributes

VALUES = (
    st.text()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.booleans()
) | st.binary()


@given(VALUES)
def test_every_value_comes_back_with_its_type(value):
    found = decode_value(encode_value(value))
    assert (type(found), found) == (type(value), value)
    if isinstance(value, float) and isinstance(found, float):
        assert math.copysign(1, found) == math.copysign(1, value)


@given(st.text())
def test_any_text_is_read_as_some_value(text):
    assert isinstance(decode_value(text), str | int | float | bool | bytes)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("EU", "EU"),
        ("", ""),
        ("\x03i7", "\x03s\x03i7"),
        (-7, "\x03i-7"),
        (True, "\x03b1"),
        (False, "\x03b0"),
        (0.5, "\x03f0.5"),
        (1e300, "\x03f1e+300"),
        (b"\xff\x00", "\x03x/wA="),
        (b"", "\x03x"),
    ],
)
def test_a_value_is_written_as_the_protocol_says(value, written):
    assert encode_value(value) == written


@pytest.mark.parametrize(
    "text",
    [
        *("\x03", "\x03z1", "\x03i", "\x03i1_0", "\x03i 1", "\x03i9223372036854775808"),
        *("\x03fnan", "\x03f1e999", "\x03fx", "\x03b2", "\x03b", "\x03x/w", "\x03xé"),
    ],
)
def test_what_is_never_written_is_a_text_as_it_stands(text):
    assert decode_value(text) == text


@pytest.mark.parametrize(
    ("value", "error", "said"),
    [
        (
            1 << 63,
            LocalProtocolError,
            r"properties\['n'\]=9223372036854775808 has more than 64 bits: write it as a text",
        ),
        (-(1 << 63) - 1, LocalProtocolError, "more than 64 bits"),
        (math.nan, LocalProtocolError, r"properties\['n'\]=nan is no finite number: leave it out"),
        (-math.inf, LocalProtocolError, "no finite number"),
        (
            [1],
            TypeError,
            r"properties\['n'\]=\[1\] is no str, int, float, bool or bytes but list: write it as one of these",
        ),
        (None, TypeError, "NoneType: leave it out"),
        (bytearray(b"x"), TypeError, "bytearray: write bytes"),
    ],
)
def test_what_is_no_value_is_refused_by_name_with_a_remedy(value, error, said):
    with pytest.raises(error, match=said):
        encode_value(value, "n")


def test_a_text_for_people_says_every_type():
    assert [property_text(value) for value in ("x", 7, 0.5, True, b"\xff")] == ["x", "7", "0.5", "true", "/w=="]


def test_texts_alone_are_written_byte_for_byte_as_before_there_were_types():
    flag, raw = encode_attributes(None, "t", ["k"], {"a": "1", "b": ""})
    assert (flag, raw) == (3, b"TAGS\x01t\x02KEYS\x01k\x02a\x011\x02b\x01\x02")


def test_metaqs_own_properties_are_apart_from_the_users():
    flag, raw = encode_attributes(properties={"a": 1}, reserved={"metaq.expires": "12", "metaq.type": "x"})
    found = decode_attribute(raw, flag)
    assert flag & EXPIRES_FLAG
    assert (found.properties, found.reserved) == ({"a": 1}, {"metaq.expires": "12", "metaq.type": "x"})
    assert found.expires_ms == 12


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "9" * 19])
def test_an_expiry_that_is_no_time_is_none(text):
    flag, raw = encode_attributes(reserved={"metaq.expires": text})
    assert decode_attribute(raw, flag).expires_ms is None


@pytest.mark.parametrize("name", ["metaq.", "metaq.expires", "metaq.other", "TAGS", "KEYS", "ATTR"])
def test_a_reserved_name_is_refused(name):
    with pytest.raises(LocalProtocolError, match="reserved: choose another"):
        encode_attributes(properties={name: "x"})


class Region(str, enum.Enum):  # noqa: UP042  # a StrEnum is formatted as its value
    EU = "eu-1"
    MARKED = "\x03i7"


def test_a_text_that_is_a_member_of_an_enum_is_written_as_its_value():
    """Formatting one gives `Region.EU` since Python 3.11."""
    flag, data = encode_attributes("a", Region.EU, [Region.EU], {Region.EU: Region.EU, "m": Region.MARKED})
    found = decode_attribute(data, flag)
    assert (found.tag, found.keys, found.properties) == ("eu-1", ("eu-1",), {"eu-1": "eu-1", "m": "\x03i7"})
    assert encode_attributes(tag=Region.EU) == encode_attributes(tag="eu-1")
