"""The values of message properties, and how each type is written in a record's property list.

| value | as written | e.g. |
|---|---|---|
| str | as it is; a text that begins with 0x03 gets 0x03 `s` in front | `EU` |
| int | 0x03 `i` and the number in decimal | 0x03 `i-7` |
| float | 0x03 `f` and the shortest decimal that is read as the same number (Python's repr) | 0x03 `f0.5` |
| bool | 0x03 `b` and 0 or 1 | 0x03 `b1` |
| bytes | 0x03 `x` and their base64 | 0x03 `x/wA=` |

Texts are written as earlier versions of metaq wrote them, and these versions can read them. A reader that does not know
the prefixes with 0x03 takes every value as a text. People can still read the value in this text, for example the 7 in
0x03 `i7`.
"""

from __future__ import annotations

import math
import re
from base64 import b64decode, b64encode

from .errors import LocalProtocolError
from .limits import INT64_MAX

__all__ = [
    "RESERVED_PREFIX",
    "TYPE_MARK",
    "PropertyValue",
    "decode_value",
    "encode_value",
    "plain_text",
    "property_text",
]

PropertyValue = str | int | float | bool | bytes
"""The types of a property's value. An int has at most 64 bits, signed; a float is finite."""

TYPE_MARK = "\x03"
"""The first character of a written value that is not a text. If a text itself begins with this character, it is written
with 0x03 `s` in front, so that no reader takes it for a value of another type.
"""

RESERVED_PREFIX = "metaq."
"""Prefix of the names of metaq's own properties. The name of a user's property must not begin with this prefix."""

_INT64_MIN = -INT64_MAX - 1
_is_int = re.compile(r"-?[0-9]{1,19}").fullmatch
_is_float = re.compile(r"-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?").fullmatch
_BOOLS = {"0": False, "1": True}


def plain_text(text: str) -> str:
    """Return the text as a plain str. The function is needed for a text that is also an Enum member, because Python
    would format the member as Class.MEMBER.
    """
    return text if type(text) is str else str.__str__(text)


def encode_value(value: PropertyValue, name: str = "value") -> str:
    """Return the value as it is written in a property list. name: the name of the value in error texts.

    Raises TypeError for a value of another type. Raises LocalProtocolError for an int of more than 64 bits, and for NaN
    and infinity, because neither JSON nor a filter by content can express them.
    """
    if isinstance(value, str):
        text = plain_text(value)
        return f"{TYPE_MARK}s{text}" if text.startswith(TYPE_MARK) else text
    if isinstance(value, bool):  # before int: a bool is also an int
        return f"{TYPE_MARK}b{int(value)}"
    if isinstance(value, int):
        if not _INT64_MIN <= value <= INT64_MAX:
            raise LocalProtocolError(f"properties[{name!r}]={value} has more than 64 bits: write it as a text")
        return f"{TYPE_MARK}i{int(value)}"
    if isinstance(value, float):
        if not math.isfinite(value):
            raise LocalProtocolError(f"properties[{name!r}]={value} is no finite number: leave it out, or write a text")
        return f"{TYPE_MARK}f{float(value)!r}"
    if isinstance(value, bytes):
        return f"{TYPE_MARK}x{b64encode(value).decode('ascii')}"
    if value is None:
        remedy = "leave it out"
    elif isinstance(value, bytearray | memoryview):
        remedy = "write bytes(...)"
    else:
        remedy = f"write it as one of these, for example {str(value)!r}"
    raise TypeError(
        f"properties[{name!r}]={value!r} is no str, int, float, bool or bytes but {type(value).__name__}: {remedy}"
    )


def decode_value(text: str) -> PropertyValue:
    """Decode a value from its text in a property list. A text that `encode_value` never writes is returned unchanged,
    because another program may have written it.
    """
    if not text.startswith(TYPE_MARK):
        return text
    kind, written = text[1:2], text[2:]
    if kind == "s":
        return written
    if kind == "i" and _is_int(written) and _INT64_MIN <= (number := int(written)) <= INT64_MAX:
        return number
    if kind == "f" and _is_float(written) and math.isfinite(real := float(written)):
        return real
    if kind == "b" and written in _BOOLS:
        return _BOOLS[written]
    if kind == "x":
        try:
            return b64decode(written.encode("ascii"), validate=True)
        except ValueError:  # not ASCII, or not base64
            return text
    return text


def property_text(value: PropertyValue) -> str:
    """Return a value as a text for people, and for programs that handle only texts: true or false, numbers in decimal,
    bytes in base64.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return b64encode(value).decode("ascii")
    return repr(value)
