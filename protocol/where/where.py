"""Define Where, a parsed filter by content, which tells whether the filter matches a single record."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from ..limits import MAX_WHERE_ATTRIBUTE
from ..properties import RESERVED_PREFIX, decode_value
from ..record import ATTRIBUTE_FLAG, PROPERTIES_FLAG, RESERVED_PROPERTIES, Buffer, attribute_of
from .expression import And, Condition, Expression, Not, Or, truth
from .parser import parse_expression
from .predicates import Like
from .values import TRUE, NullableValue

__all__ = ["PropertyName", "Where", "parse_where", "value_of"]

_WHOLE = frozenset(("TAGS", "ATTR"))
"""If a record's attribute is not a property list, it is 1.x's attribute, which also counts as the tag. So for such a
record, filters use the whole attribute as the value of each of these two properties.
"""

_NAME_END, _VALUE_END = b"\x01", b"\x02"


class PropertyName:
    """A property that a filter tests. is_typed: whether the property's value may be a number, a bool or bytes; if not,
    it is always a text. is_whole: whether the property is one of _WHOLE.
    """

    __slots__ = ("is_typed", "is_whole", "item", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_typed = name not in RESERVED_PROPERTIES and not name.startswith(RESERVED_PREFIX)
        self.is_whole = name in _WHOLE
        self.item = b"".join((_VALUE_END, name.encode("utf-8"), _NAME_END))
        """The bytes that precede the property's value in a property list, including the byte that ends the value of the
        property before it.
        """

    def raw_value(self, attribute: bytes, flag: int) -> bytes | None:
        """Return the property's value as it is written in the attribute of a record with this flag, or None if the
        property is missing. If the property list has the property several times, the last value counts, as in
        `decode_attribute`.
        """
        if not flag & PROPERTIES_FLAG:
            return attribute if self.is_whole else None
        item = self.item
        start = attribute.rfind(item) + len(item)
        if start < len(item):
            if not attribute.startswith(item[1:]):
                return None
            start = len(item) - 1
        end = attribute.find(_VALUE_END, start)
        return attribute[start:] if end < 0 else attribute[start:end]


def value_of(raw: bytes, is_typed: bool) -> NullableValue:
    """Decode a property's value from its bytes in a property list. Invalid UTF-8 becomes replacement characters, as in
    Java.
    """
    text = raw.decode("utf-8", "replace")
    return decode_value(text) if is_typed else text


class Where:
    """A filter by content. The object is immutable, so any thread may use it. A pickled Where contains only the
    filter's text, which is parsed again when the object is unpickled.
    """

    __slots__ = ("_names", "conditions", "expression", "holds_for_none", "names", "searched", "text")

    def __init__(self, text: str) -> None:
        """Raises InvalidWhere."""
        self.text = text
        self.expression = parse_expression(text)
        conditions = tuple(_conditions_of(self.expression))
        self._names = {each.name: PropertyName(each.name) for each in conditions}
        self.names = tuple(self._names.values())
        """The properties that the filter tests, each once."""
        self.conditions = len(conditions)
        """The number of conditions in the filter. The more conditions, the higher is the cost of testing a message. If
        there are 0 conditions, the filter matches all messages or no message.
        """
        self.searched = sum(each.predicate.searched for each in conditions if isinstance(each.predicate, Like))
        """An upper bound of the cost of the filter's LIKE predicates: the sum of their numbers `searched`
        (predicates.py), that is, the maximum number of search steps for each character of a message's attribute.
        """
        self.holds_for_none = truth(self.expression, lambda name: None) == TRUE
        """Whether the filter matches a message that has no properties."""

    def __reduce__(self) -> tuple[type[Where], tuple[str]]:
        return Where, (self.text,)

    def __repr__(self) -> str:
        return f"Where({self.text!r})"

    def name(self, name: str) -> PropertyName:
        """Return the property of this name, which must be among `names`."""
        return self._names[name]

    def holds_for(self, body: Buffer, flag: int) -> bool:
        """Return whether the filter matches the record with this body and flag. A call takes some microseconds; for
        many records use `matching` (many_records.py).
        """
        return self.holds_for_attribute(attribute_of(body, flag) if flag & ATTRIBUTE_FLAG else None, flag)

    def holds_for_attribute(self, attribute: bytes | None, flag: int) -> bool:
        """Like `holds_for`, but the caller passes the record's attribute instead of the record's body. The attribute is
        None if the record has none, or if the attribute's stated length does not fit into the body.
        """
        if attribute is None or len(attribute) > MAX_WHERE_ATTRIBUTE:
            return self.holds_for_none
        names = self._names

        def lookup(name: str) -> NullableValue:
            asked = names[name]
            raw = asked.raw_value(attribute, flag)
            return None if raw is None else value_of(raw, asked.is_typed)

        return truth(self.expression, lookup) == TRUE


def parse_where(text: str) -> Where:
    """Parse a filter. If an earlier call has parsed the same text and the result is still in the cache, return this
    result. Raises InvalidWhere.

    A request that waits at the broker keeps only the filter's text, because a Where takes up to 80 bytes of memory for
    each character of the text. The broker calls this function again when it evaluates the filter.
    """
    return (_parse_short if len(text) <= _SHORT else _parse_long)(text)


_SHORT = 512
"""Maximum number of characters of a filter that counts as short."""


@lru_cache(maxsize=256)
def _parse_short(text: str) -> Where:
    return Where(text)


@lru_cache(maxsize=32)
def _parse_long(text: str) -> Where:
    return Where(text)


def _conditions_of(expression: Expression) -> Iterator[Condition]:
    if isinstance(expression, Condition):
        yield expression
    elif isinstance(expression, And | Or):
        for each in expression.of:
            yield from _conditions_of(each)
    elif isinstance(expression, Not):
        yield from _conditions_of(expression.of)
