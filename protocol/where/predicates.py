"""Define the predicates on one property of a message. `test(value)` evaluates a predicate for the property's value. The
result is UNKNOWN if the property is missing, or if its value cannot be compared with the literal.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from .values import FALSE, TRUE, UNKNOWN, NullableValue, Truth, as_bool, as_number, truth_of

__all__ = ["COMPARISONS", "CompareBool", "CompareNumber", "CompareText", "In", "IsNull", "Like", "Literal", "Predicate"]

Literal = str | int | float | bool

COMPARISONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


_ANY: Final = "."
"""The regular expression for the character `_` of a LIKE pattern. A dot in a LIKE pattern stands for itself, so its
regular expression is a dot after a backslash.
"""


class Predicate(Protocol):
    """A predicate on one property. Predicates are immutable, so any thread may use them."""

    def test(self, value: NullableValue) -> Truth:
        """Return the predicate's result for a message. value: the value of the property in the message; None means that
        the message does not have the property.
        """


class IsNull:
    """`name IS NULL`."""

    def test(self, value: NullableValue) -> Truth:
        return truth_of(value is None)


class CompareText:
    """The predicate `name < 'text'`, or the same with another comparison operator. Texts are compared by their code
    points. If the property's value is a number, the literal text is also read as a number, and the two numbers are
    compared. In the same way a truth value is compared by = and <>. If the text is no number or no truth value, the
    result is UNKNOWN.
    """

    def __init__(self, comparison: str, text: str) -> None:
        self.comparison = comparison
        self.text = text
        self._compare = COMPARISONS[comparison]
        self._number = as_number(text)
        self._bool = as_bool(text)

    def test(self, value: NullableValue) -> Truth:
        if isinstance(value, str):
            return truth_of(self._compare(value, self.text))
        if isinstance(value, bool):
            if self._bool is None or self.comparison not in ("=", "<>"):
                return UNKNOWN
            return truth_of(self._compare(value, self._bool))
        number = as_number(value)
        if number is None or self._number is None:
            return UNKNOWN
        return truth_of(self._compare(number, self._number))


class CompareNumber:
    """The predicate `name < 5`, or the same with another comparison operator."""

    def __init__(self, comparison: str, number: int | float) -> None:
        self.comparison = comparison
        self.number = number
        self._compare = COMPARISONS[comparison]

    def test(self, value: NullableValue) -> Truth:
        number = as_number(value)
        return UNKNOWN if number is None else truth_of(self._compare(number, self.number))


class CompareBool:
    """The predicate `name = TRUE`, or the same with another comparison operator or with FALSE. The filter `name` means
    the same as `name = TRUE`.
    """

    def __init__(self, flag: bool) -> None:
        self.flag = flag

    def test(self, value: NullableValue) -> Truth:
        found = as_bool(value)
        return UNKNOWN if found is None else truth_of(found is self.flag)


class In:
    """The predicate `name IN (…)`: the value is equal to one of the literals. The result is the same as for one `=` for
    each literal, joined by OR, but the test costs only as much as one `=`.
    """

    def __init__(self, literals: Iterable[Literal]) -> None:
        literals = tuple(literals)
        self.texts = frozenset(each for each in literals if isinstance(each, str))
        self.bools = frozenset(each for each in literals if isinstance(each, bool))
        self.numbers = frozenset(each for each in literals if not isinstance(each, str | bool))
        self._text_numbers = frozenset(map(as_number, self.texts))
        self._text_bools = frozenset(map(as_bool, self.texts))

    def test(self, value: NullableValue) -> Truth:
        if value is None or isinstance(value, bytes):
            return UNKNOWN
        number, flag = as_number(value), as_bool(value)
        if isinstance(value, str):
            equal = value in self.texts
            unknown = (number is None and bool(self.numbers)) or (flag is None and bool(self.bools))
        elif isinstance(value, bool):
            equal = flag in self._text_bools
            unknown = bool(self.numbers) or None in self._text_bools
        else:
            equal = number is not None and number in self._text_numbers
            unknown = number is None or bool(self.bools) or None in self._text_numbers
        if equal or (number is not None and number in self.numbers) or (flag is not None and flag in self.bools):
            return TRUE
        return UNKNOWN if unknown else FALSE


class Like:
    """The predicate `name LIKE 'pattern'`. In the pattern, `%` matches any text and `_` matches any single character.
    After the escape character, both match only themselves.

    The test takes the pieces of the pattern between two % in their order, and searches for each piece once, from the
    end of the previous match on. A piece without _ is searched for as plain text. A piece with _ is searched for by a
    regular expression, which costs ten times as much. In the worst case a test takes `searched` steps for each
    character of the value.

    searched: the number of characters of all pieces that are between two %.
    """

    def __init__(self, pattern: str, escape: str = "") -> None:
        """Raises ValueError if the escape character precedes anything but itself, % or _."""
        pieces: list[list[str]] = [[]]
        rest = iter(pattern)
        for each in rest:
            if each == escape:
                each = next(rest, "")
                if each not in (escape, "%", "_") or not each:
                    raise ValueError(f"{escape!r} stands in front of {each!r}")
                pieces[-1].append(re.escape(each))
            elif each == "%":
                pieces.append([])
            else:
                pieces[-1].append(_ANY if each == "_" else re.escape(each))
        first, *others = pieces
        self._first = _compiled(first)
        between = [each for each in others[:-1] if each]
        self._middle = tuple(map(_searcher, between))
        self._last = _compiled([*others[-1], "\\Z"]) if others else None
        self._last_length = len(pieces[-1])
        self.searched = sum(map(len, between))

    def test(self, value: NullableValue) -> Truth:
        return truth_of(self._matches(value)) if isinstance(value, str) else UNKNOWN

    def _matches(self, text: str) -> bool:
        if self._last is None:
            return self._first.fullmatch(text) is not None
        found = self._first.match(text)
        if found is None:
            return False
        end = found.end()
        for search in self._middle:
            end = search(text, end)
            if end < 0:
                return False
        start = len(text) - self._last_length
        return start >= end and self._last.match(text, start) is not None


def _compiled(piece: Iterable[str]) -> re.Pattern[str]:
    return re.compile("".join(piece), re.DOTALL)


def _searcher(piece: list[str]) -> Callable[[str, int], int]:
    """Return a function that searches for the part `piece` of a LIKE pattern. The returned function gets a text and a
    start position. It returns the end of the first match, or -1 if there is no match. piece: the regular expression of
    each character of this part of the pattern.
    """
    if _ANY in piece:
        search = _compiled(piece).search

        def end_of_match(text: str, start: int) -> int:
            found = search(text, start)
            return -1 if found is None else found.end()

        return end_of_match
    plain = "".join(each[-1] for each in piece)
    length = len(plain)

    def end_of_text(text: str, start: int) -> int:
        found = text.find(plain, start)
        return found if found < 0 else found + length

    return end_of_text
