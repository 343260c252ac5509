"""A filter on many records at once says of each what it says of that one, and both what the expression means."""

import struct
import tracemalloc
from unittest import mock

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaq.protocol.properties import decode_value
from metaq.protocol.record import encode_record
from metaq.protocol.where import Where, many_records
from metaq.protocol.where.expression import truth
from metaq.protocol.where.many_records import matching
from metaq.protocol.where.values import TRUE
from tests.properties import LISTED, body_with

NAMES = ["a", "b", "ab", "a.b-c", "ä", "TAGS", "KEYS", "ATTR", "metaq.due"]
RAW_VALUES = [
    *(b"", b"EU", b"US", "ä€".encode(), b"\xff", b"E\xc3", b"true", b"FALSE", b"a\x01b"),
    *(b"0", b"-0", b"7", b"+7", b"007", b"7.0", b"7.50", b".5", b"7.", b"1e3", b"1E999", b"nan", b"inf"),
    *(b"1_0", b" 7", b"--7", b"-", b"1.2.3", b"123456789012345", b"1234567890123456", b"9007199254740993"),
    *(b"123456789.12345678", b"9" * 64, b"9" * 65, b"x" * 70, b"y" * 300, b"z" * 1100),
    # with their types
    *(b"\x03i7", b"\x03i-7", b"\x03i+7", b"\x03i7.5", b"\x03i9223372036854775807", b"\x03i9223372036854775808"),
    *(b"\x03f7.0", b"\x03f7.5", b"\x03f1e+16", b"\x03fnan", b"\x03finf", b"\x03b1", b"\x03b0", b"\x03b2"),
    *(b"\x03xRVU=", b"\x03x!", b"\x03sEU", b"\x03s\x03i7", b"\x03", b"\x03q"),
]
LITERALS = [
    *("'EU'", "'US'", "''", "'ä€'", "'7'", "'7.0'", "'true'", "'\x03i7'", "'\x03q'", "TRUE", "FALSE"),
    *("7", "-7", "7.5", "0", "1000", "1e3", "123456789012345", "9007199254740992", "9223372036854775807", "9" * 64),
]
PATTERNS = [
    *("'%'", "'E%'", "'%U'", "'_U'", "'%7%'", "''", "'%\x03%'", "'ä_'", "'!%%' ESCAPE '!'"),
    *("'%E%'", "'%_U%'", "'%E%%U%'", "'%.%'", "'E%7%0'", "'%!_%' ESCAPE '!'", "'%ä_%'", "'%x_x%z%'"),
]


@st.composite
def attributes(draw):
    """The bytes of an attribute: mostly lists, some of them strange."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=80))
    items = draw(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(RAW_VALUES)), max_size=5))
    data = b"".join(name.encode() + b"\x01" + value + b"\x02" for name, value in items)
    return data + draw(st.sampled_from([b"", b"", b"", b"a", b"a\x017", b"\x01\x01", b"\x02", b"\xc3"]))


@st.composite
def records(draw):
    """(body, flag), also of records with an attribute that does not fit."""
    flag = draw(st.sampled_from([LISTED, LISTED, LISTED, LISTED, 1, 0, 2, LISTED | 8, 0xF3]))
    payload = draw(st.sampled_from([b"", b"pay", b"a\x017\x02b\x01EU\x02" * 3, b"\x02a\x01EU\x02", bytes(300)]))
    if not flag & 1:
        return payload, flag
    attribute = draw(attributes())
    wrong = draw(st.sampled_from([0, 0, 0, 0, 0, 0, 1, 100_000, -1 << 31]))
    length = (len(attribute) + wrong) if wrong >= 0 else wrong
    body = struct.pack(">i", length) + attribute + payload
    return (body[: draw(st.integers(0, 5))] if draw(st.integers(0, 30)) == 0 else body), flag


names = st.sampled_from([*("a", "b", "ab", "a.b-c", "ä", "TAGS", "KEYS", "ATTR", "metaq.due"), '"a"', "nowhere"])
literals = st.sampled_from(LITERALS)


@st.composite
def conditions(draw):
    name, negated = draw(names), draw(st.sampled_from(["", "NOT "]))
    match draw(st.integers(0, 6)):
        case 0:
            return name
        case 1:
            return f"{name} IS {negated}NULL"
        case 2:
            return f"{name} {negated}IN ({', '.join(draw(st.lists(literals, min_size=1, max_size=10)))})"
        case 3:
            return f"{name} {negated}LIKE {draw(st.sampled_from(PATTERNS))}"
        case 4:
            low, high = draw(st.sampled_from([("0", "7"), ("-7", "1e3"), ("'A'", "'F'"), ("7.5", "9007199254740993")]))
            return f"{name} {negated}BETWEEN {low} AND {high}"
        case _:
            literal = draw(literals)
            signs = ["=", "<>", "!="] if literal in ("TRUE", "FALSE") else ["=", "<>", "<", "<=", ">", ">="]
            sides = (name, literal) if draw(st.booleans()) else (literal, name)
            return f" {draw(st.sampled_from(signs))} ".join(sides)


expressions = st.recursive(
    conditions(),
    lambda of: st.one_of(
        st.tuples(of, st.sampled_from(["AND", "OR"]), of).map(lambda three: "({}) {} ({})".format(*three)),
        of.map(lambda one: f"NOT ({one})"),
    ),
    max_leaves=5,
)


def meant(where, body, flag):
    """By the whole attribute decoded first, as `decode_attribute` does."""
    found = {}
    if flag & 1 and len(body) >= 4 and 0 <= (length := struct.unpack_from(">i", body)[0]) <= len(body) - 4:
        text = body[4 : 4 + length].decode("utf-8", "replace")
        if flag & 2:
            for item in text.split("\x02"):
                name, mark, value = item.partition("\x01")
                if mark:
                    reserved = name in ("TAGS", "KEYS", "ATTR") or name.startswith("metaq.")
                    found[name] = value if reserved else decode_value(value)
        else:
            found = {"TAGS": text, "ATTR": text}
    return truth(where.expression, found.get) == TRUE


def laid_out(bodies_and_flags):
    """The records back to back, and where each begins and how large it is."""
    stored = [encode_record(body, 1 << 60, flag) for body, flag in bodies_and_flags]
    sizes = np.array(list(map(len, stored)), np.int64)
    return b"".join(stored), np.cumsum(sizes) - sizes, sizes


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    text=expressions, some=st.lists(records(), max_size=40), front=st.binary(max_size=3), behind=st.binary(max_size=3)
)
def test_many_records_at_once_get_the_answers_of_each(text, some, front, behind):
    where = Where(text)
    data, starts, sizes = laid_out(some)
    data, starts = front + data + behind, starts + len(front)
    expected = [meant(where, *record) for record in some]
    assert [where.holds_for(*record) for record in some] == expected
    assert matching(where, data, starts, sizes).tolist() == expected
    with mock.patch.object(many_records, "_FEW", 1):
        assert matching(where, data, starts, sizes).tolist() == expected


def test_rows_of_a_matrix_are_many_and_get_the_same_answers():
    """Enough records of all widths that none is decoded by itself but the longest."""
    some = [
        (
            body_with({"a": "EU" if number % 3 else "US", "b": number % 200, "pad": "p" * (number % 1300)}, bytes(5)),
            LISTED,
        )
        for number in range(3000)
    ]
    data, starts, sizes = laid_out(some)
    for text in ("a = 'EU' AND b > 100", "a LIKE '_S' OR b IN (1, 2, 3)", "pad IS NULL", "pad = '' OR b < 5"):
        where = Where(text)
        found = matching(where, data, starts, sizes)
        assert found.tolist() == [meant(where, *record) for record in some]
        assert found.any() == (text != "pad IS NULL")


def test_records_between_others_are_found_where_they_are():
    some = [(body_with({"a": number}), LISTED) for number in range(100)]
    data, starts, sizes = laid_out(some)
    odd = np.arange(1, 100, 2)
    assert matching(Where("a < 6"), memoryview(data), starts[odd], sizes[odd]).tolist() == [True] * 3 + [False] * 47


def test_a_payload_that_looks_like_properties_is_none():
    look_alike = b"\x02a\x017\x02" * 20
    some = [
        (body_with({"b": "x"}, look_alike), LISTED),
        (look_alike, 0),
        (body_with({"a": 8}, look_alike), LISTED),
    ] * 30
    data, starts, sizes = laid_out(some)
    assert not matching(Where("a = 7"), data, starts, sizes).any()
    assert matching(Where("a = 8"), data, starts, sizes).sum() == 30


def test_of_a_name_that_is_there_twice_the_last_one_counts():
    body = body_with({"a": "first"})
    attribute = b"a\x01first\x02b\x01x\x02a\x01last\x02"
    body = struct.pack(">i", len(attribute)) + attribute
    data, starts, sizes = laid_out([(body, LISTED)] * 50)
    assert matching(Where("a = 'last'"), data, starts, sizes).all()
    assert not matching(Where("a = 'first'"), data, starts, sizes).any()


def test_an_attribute_that_is_too_long_to_look_into_counts_as_none():
    fitting, longer = ((body_with({"a": "x" * (65_536 - 3 + extra)}), LISTED) for extra in (0, 1))
    data, starts, sizes = laid_out([fitting, longer])
    assert matching(Where("a IS NOT NULL"), data, starts, sizes).tolist() == [True, False]
    assert [Where("a IS NOT NULL").holds_for(*each) for each in (fitting, longer)] == [True, False]


def test_every_record_of_a_header_alone_has_no_properties():
    data, starts, sizes = laid_out([(b"", LISTED)] * 30)
    assert matching(Where("a IS NULL"), data, starts, sizes).all()


def test_a_record_that_could_take_too_many_steps_is_given_without_a_look():
    where = Where("a LIKE '%x_x%' OR a LIKE '%abc%'")
    assert where.searched == 6
    fitting, longer = (body_with({"a": "y" * length}) for length in (97, 98))  # of attributes of 100 and 101 bytes
    data, starts, sizes = laid_out([(fitting, LISTED), (longer, LISTED), (b"", 0)] * 30)
    assert matching(where, data, starts, sizes, most_steps=600).tolist() == [False, True, False] * 30
    assert not matching(where, data, starts, sizes).any()


def test_attributes_full_of_marks_cost_no_more_memory_than_others():
    """Each mark may look like the end of a name that is as long as the filter: 1 GB were copied to compare them."""
    data, starts, sizes = laid_out([(struct.pack(">i", 1000) + b"\x02" * 1000, LISTED)] * 250)
    tracemalloc.start()
    assert not matching(Where(f"{'n' * 900} = 'x'"), data, starts, sizes).any()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40 * len(data)
