"""Define the truth values of filters by content, and interpret a property's value as a number or a truth value."""

from __future__ import annotations

import math
import re
from typing import Final, Literal

from ..limits import MAX_WHERE_NUMBER
from ..properties import PropertyValue

__all__ = ["FALSE", "TRUE", "UNKNOWN", "NullableValue", "Truth", "as_bool", "as_number", "negated", "truth_of"]

Truth = Literal[0, 1, 2]
"""SQL's three truth values as numbers: 0 is false, 1 is unknown, 2 is true. So AND is the minimum, OR is the maximum,
and NOT is 2 minus the value.
"""

FALSE: Final = 0
UNKNOWN: Final = 1
TRUE: Final = 2

NullableValue = PropertyValue | None
"""A property's value; None means that the message does not have the property."""

_is_whole = re.compile(r"[+-]?[0-9]+").fullmatch
_is_decimal = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?").fullmatch
_NEGATED: tuple[Truth, Truth, Truth] = (TRUE, UNKNOWN, FALSE)
_BOOLS = {"true": True, "false": False}


def truth_of(condition: bool) -> Truth:
    """Return the truth value TRUE or FALSE for a Python bool."""
    return TRUE if condition else FALSE


def negated(truth: Truth) -> Truth:
    """Return the result of NOT for a truth value."""
    return _NEGATED[truth]


def as_number(value: NullableValue) -> int | float | None:
    """Return the value as a number, or None if it is not a number. A text counts as a number if it is a decimal number
    of at most MAX_WHERE_NUMBER characters, without blanks, and small enough for a float. Producers of Kafka and of Java
    1.x write numbers as such texts.
    """
    if isinstance(value, str):
        if len(value) > MAX_WHERE_NUMBER or not _is_decimal(value):
            return None
        if _is_whole(value):
            return int(value)
        value = float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def as_bool(value: NullableValue) -> bool | None:
    """Return the value as a bool, or None if it is not a truth value. The texts true and false count as truth values,
    in upper or lower case.
    """
    if isinstance(value, bool):
        return value
    return _BOOLS.get(value.lower()) if isinstance(value, str) and len(value) <= 5 else None
