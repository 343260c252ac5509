"""What a filter by content is, and what it means (docs/filters.md)."""

import pickle
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.protocol.errors import InvalidWhere
from metaq.protocol.limits import MAX_WHERE_CHARACTERS, MAX_WHERE_CONDITIONS, MAX_WHERE_DEPTH, MAX_WHERE_NUMBER
from metaq.protocol.where import Where, parse_where
from metaq.protocol.where.expression import truth
from metaq.protocol.where.values import FALSE, TRUE, UNKNOWN

WORDS = {FALSE: "false", UNKNOWN: "unknown", TRUE: "true"}


def says(text, **properties):
    """What the filter says of a message with these properties."""
    return WORDS[truth(Where(text).expression, properties.get)]


CONDITIONS: dict[str, dict[str | float | bytes | None, str]] = {
    # texts compare as texts, by code points
    "p = 'EU'": {"EU": "true", "eu": "false"},
    "p <> 'EU'": {"US": "true"},
    "p != 'EU'": {"EU": "false"},
    "p > 'EU'": {"EV": "true"},
    "p < 'ä'": {"z": "true"},
    "p >= '10'": {"9": "true"},
    "'EU' = p": {"EU": "true"},
    "p = 'it''s'": {"it's": "true"},
    "p = ''": {"": "true"},
    # a number and a text that is one; what is no number cannot be compared with one
    "p > 100": {"150": "true", "99.5": "false", "many": "unknown"},
    "p <> 100": {"many": "unknown"},
    "p = 1e3": {"1000": "true"},
    "p = 1000": {"1.0E3": "true"},
    "p = -7": {"-7": "true"},
    "p = 7": {"+7": "true", **dict.fromkeys([" 7", "0x7", "7_0", "nan", ".7", True], "unknown")},
    "p < 7": {"-inf": "unknown"},
    "p > 7": {"1" * MAX_WHERE_NUMBER: "true", "1" * (MAX_WHERE_NUMBER + 1): "unknown", None: "unknown"},
    "p = '7'": {7: "true"},
    "p = '7.0'": {7: "true", "7": "false"},
    "100 < p": {150: "true"},
    "100 >= p": {150: "false"},
    "p = 'x'": {7: "unknown"},
    "p = 1": {b"1": "unknown"},
    "p = '1'": {b"1": "unknown"},
    # integers are exact, also beyond what a double holds
    "p = 9007199254740993": {9007199254740993: "true", 9007199254740992: "false", "9007199254740992": "false"},
    "p < 9223372036854775808": {9223372036854775807: "true"},
    # truth values
    "p = TRUE": {True: "true", "yes": "unknown", 2: "unknown"},
    "p = true": {"TRUE": "true"},
    "p <> TRUE": {"false": "true"},
    "p = FALSE": {True: "false"},
    "FALSE <> p": {True: "true"},
    "p = 'true'": {True: "true"},
    "p > 'true'": {True: "unknown"},
    "p": {True: "true", "false": "false", "EU": "unknown"},
    "NOT p": {False: "true", None: "unknown"},
    # BETWEEN
    "p BETWEEN 1 AND 3": {1: "true", 3: "true", "3.5": "false", None: "unknown"},
    "p NOT BETWEEN 1 AND 3": {4: "true", None: "unknown"},
    "p BETWEEN 3 AND 1": {2: "false"},
    "p BETWEEN 'a' AND 'c'": {"b": "true"},
    # IN
    "p IN ('EU', 'US')": {"US": "true", "CN": "false"},
    "p NOT IN ('EU', 'US')": {"CN": "true"},
    "p IN ('EU', 7)": {"7.0": "true", "US": "unknown"},
    "p IN (7, TRUE)": {"true": "true"},
    "p IN ('EU')": {None: "unknown", b"EU": "unknown"},
    "p NOT IN ('EU')": {None: "unknown"},
    # LIKE
    "p LIKE 'E%'": {"EU": "true", "E": "true", None: "unknown"},
    "p LIKE '%U'": {"EU\nU": "true"},
    "p LIKE '_U'": {"EU": "true", "U": "false"},
    "p LIKE 'a%b%c'": {"a--b--c": "true", "a--c--b": "false"},
    "p LIKE 'ab%ba'": {"aba": "false"},
    "p LIKE '%'": {"": "true"},
    "p LIKE ''": {"": "true"},
    "p LIKE 'a.c'": {"abc": "false"},
    "p LIKE '_'": {"ä": "true"},
    "p LIKE '10!%%' ESCAPE '!'": {"10% off": "true", "100": "false"},
    "p NOT LIKE 'E%'": {"US": "true"},
    "p LIKE '1%'": {"12": "true", 12: "unknown"},
    # NULL
    "p IS NULL": {None: "true", "": "false"},
    "p IS NOT NULL": {b"": "true"},
    "NOT p IS NULL": {None: "false"},
}


@pytest.mark.parametrize(
    ("text", "value", "answer"), [(text, *each) for text, answers in CONDITIONS.items() for each in answers.items()]
)
def test_a_condition_says(text, value, answer):
    assert says(text, p=value) == answer


def test_a_number_is_no_truth_value():
    assert says("p = TRUE", p=1) == "unknown"


A, B, N = "x = 1", "x = 2", "y = 1"  # true, false, unknown
LOGIC = {
    "true": [
        *(f"{A} AND {A}", f"{A} OR {N}", f"NOT NOT {A}", "TRUE", "FALSE OR TRUE"),
        # AND binds before OR, NOT before both
        *(f"{A} OR {B} AND {B}", f"NOT ({B} AND {B})", f"not({B})aNd\n{A}"),
    ],
    "false": [
        *(f"{A} AND {B}", f"{B} AND {N}", f"{B} OR {B}", f"NOT {A}"),
        *(f"({A} OR {B}) AND {B}", f"NOT {B} AND {B}"),
    ],
    "unknown": [f"{A} AND {N}", f"{N} AND {N}", f"{B} OR {N}", f"NOT {N}"],
}


@pytest.mark.parametrize(("text", "answer"), [(text, answer) for answer, texts in LOGIC.items() for text in texts])
def test_logic_has_three_values(text, answer):
    assert says(text, x=1) == answer


def test_names_may_have_dots_dashes_and_letters_of_any_script():
    assert says('metaq.type = \'t\' AND a-b = 1 AND größe > 1 AND "a b" = 2 AND "AND" = 3 AND "q""" = 4', **{
        "metaq.type": "t", "a-b": 1, "größe": 2, "a b": 2, "AND": 3, 'q"': 4,
    }) == "true"  # fmt: skip


def test_names_are_those_of_properties_letter_by_letter():
    assert says("Region = 'EU'", region="EU") == "unknown"


@pytest.mark.parametrize(
    ("text", "position", "words"),
    [
        ("", 0, "expected a property, a literal ('text', a number, TRUE or FALSE), NOT or (, found the end"),
        ("  ", 2, "found the end"),
        ("region =", 8, "expected a literal ('text', a number, TRUE or FALSE), found the end"),
        ("region = EU", 9, "expected a literal ('text', a number, TRUE or FALSE), found 'EU'"),
        (
            'region = "EU"',
            9,
            "expected a literal ('text', a number, TRUE or FALSE); texts stand in '…', names of properties in \"…\", "
            "found '\"EU\"'",
        ),
        ('a IN ("x")', 6, "FALSE); texts stand in '…'"),
        ('a LIKE "x%"', 7, "expected a pattern in '…'; texts stand in '…', names of properties in \"…\", found"),
        ("region == 'EU'", 8, "found '='"),
        ("region 'EU'", 7, "expected a comparison, BETWEEN, IN, LIKE, IS, AND, OR or the end, found \"'EU'\""),
        ("a = 5 b", 6, "expected AND, OR or the end, found 'b'"),
        ('"a\x02b" = 5', 0, "expected a name without the characters 1 and 2, which no property's name has, found"),
        ("(a = 5", 6, "expected ), found the end"),
        ("a = 5)", 5, "expected AND, OR or the end, found ')'"),
        ("5", 1, "expected a comparison (=, <>, <, <=, >, >=), found the end"),
        ("5 = 5", 4, "expected a property: one side of a comparison is one, found '5'"),
        ("a = 'x", 6, "expected the ' that ends the text of character 5, found the end"),
        ('"a = 5', 6, 'expected the " that ends the name of character 1, found the end'),
        ('"" = 5', 0, "expected a name between the quotation marks, found none"),
        ("a ; b", 2, "expected a property, a literal or an operator, found ';'"),
        ("a = 1.2.3", 4, "found '1.2.3'"),
        ("a = 1x", 4, "found '1x'"),
        ("a > TRUE", 2, "expected = or <>, as of TRUE and FALSE none is greater, found '>'"),
        ("a BETWEEN 1 AND 'x'", 10, "expected two numbers or two texts, found '1'"),
        ("a BETWEEN TRUE AND FALSE", 10, "expected two numbers or two texts"),
        ("a BETWEEN 1 OR 2", 12, "expected AND, found 'OR'"),
        ("a IN ()", 6, "expected a literal"),
        ("a IN (1 2)", 8, "expected , or ), found '2'"),
        ("a IN 1", 5, "expected (, found '1'"),
        ("a LIKE 5", 7, "expected a pattern in '…', found '5'"),
        ("a LIKE 'x!y' ESCAPE '!'", 7, "escapes itself, % or _ ('!' stands in front of 'y')"),
        ("a LIKE 'x!' ESCAPE '!'", 7, "stands in front of ''"),
        ("a LIKE 'x' ESCAPE '!!'", 18, "expected one character, neither % nor _"),
        ("a LIKE 'x' ESCAPE '%'", 18, "expected one character, neither % nor _"),
        ("a IS 5", 5, "expected NULL, found '5'"),
        ("a NOT = 5", 6, "expected BETWEEN, IN or LIKE, found '='"),
        ("a = NULL", 4, "expected a literal"),
        ("a = 1e999", 4, f"expected a number of at most {MAX_WHERE_NUMBER} characters that a double can hold"),
        ("a = " + "9" * 65, 4, f"expected a number of at most {MAX_WHERE_NUMBER} characters"),
        ("a = '\ufffd'", 5, "expected a character of a text"),
        ("__import__('os')", 10, "expected a comparison"),
    ],
)  # fmt: skip
def test_what_is_no_filter_is_refused_where_it_goes_wrong(text, position, words):
    with pytest.raises(InvalidWhere) as refused:
        Where(text)
    assert (refused.value.position, words in str(refused.value)) == (position, True), str(refused.value)
    assert str(refused.value).startswith(f"where: at character {position + 1}: ")


def test_half_a_character_is_refused():
    with pytest.raises(InvalidWhere, match="at character 6: expected a character of a text"):
        Where("a = '" + chr(0xD800) + "'")


def test_a_filter_is_bounded_in_length_depth_and_conditions():
    def nested(depth):
        return "(" * depth + "a" + ")" * depth

    def many(count):
        return " OR ".join(["a = 1"] * count)

    for fits in (nested(MAX_WHERE_DEPTH), many(MAX_WHERE_CONDITIONS), "a".ljust(MAX_WHERE_CHARACTERS)):
        Where(fits)
    with pytest.raises(InvalidWhere, match=rf"at character {MAX_WHERE_DEPTH + 1}: expected at most {MAX_WHERE_DEPTH}"):
        Where(nested(MAX_WHERE_DEPTH + 1))
    with pytest.raises(InvalidWhere, match=f"a filter has {MAX_WHERE_CONDITIONS} conditions at most"):
        Where(many(MAX_WHERE_CONDITIONS + 1))
    with pytest.raises(InvalidWhere, match=f"a filter has {MAX_WHERE_CHARACTERS} characters at most"):
        Where("a".ljust(MAX_WHERE_CHARACTERS + 1))
    Where("NOT " * 1000 + "a")  # no recursion


def test_no_pattern_makes_like_slow():
    """A regular expression with several .* needs time that grows with a power of the text's length."""
    where = Where("p LIKE '" + "%a" * 20 + "b'")
    started = time.process_time()
    assert truth(where.expression, {"p": "a" * 60_000}.get) == FALSE
    assert time.process_time() - started < 1


@given(st.text(max_size=12) | st.text(alphabet="ab%_", max_size=12), st.text(alphabet="ab%_.\\", max_size=6))
def test_like_is_what_a_regular_expression_says(text, pattern):
    expected = re.fullmatch(
        "".join({"%": ".*", "_": "."}.get(each, re.escape(each)) for each in pattern), text, re.DOTALL
    )
    assert says(f"p LIKE '{pattern}'", p=text) == ("true" if expected else "false")


@given(st.text(max_size=60) | st.text(alphabet="a'\"() =<>!1.ANDORTISUL%_,-", max_size=40))
def test_any_text_is_a_filter_or_is_refused(text):
    position = 0
    try:
        Where(text)
    except InvalidWhere as refused:
        position = refused.position
    assert 0 <= position <= len(text)


VALUES = st.one_of(
    st.none(),
    st.sampled_from(["EU", "", "7", "7.5", "true", "x"]),
    st.integers(-10, 10),
    st.floats(allow_nan=True),
    st.booleans(),
    st.binary(max_size=2),
)
LITERALS = st.sampled_from(["'EU'", "''", "'7'", "'true'", "7", "7.5", "-3", "TRUE", "FALSE"])


@given(VALUES, st.lists(LITERALS, min_size=1, max_size=4))
def test_in_is_an_or_of_equals(value, literals):
    ors = " OR ".join(f"p = {each}" for each in literals)
    assert says(f"p IN ({', '.join(literals)})", p=value) == says(ors, p=value)


@given(VALUES, LITERALS)
def test_not_equal_is_not_of_equal_and_both_are_unknown_together(value, literal):
    assert says(f"p <> {literal}", p=value) == says(f"NOT p = {literal}", p=value)


def test_a_parsed_filter_is_kept_and_travels_as_its_text():
    assert parse_where("a = 1") is parse_where("a = 1")
    where = pickle.loads(pickle.dumps(parse_where("a = 1")))
    assert (where.text, where.conditions, [each.name for each in where.names]) == ("a = 1", 1, ["a"])
    assert repr(where) == "Where('a = 1')"
