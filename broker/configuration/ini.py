"""Parse the text of a server.ini (storage.md §9) into sections of keys with their line numbers, and read the values as
numbers, flags and other types. This module does no I/O.
"""

from __future__ import annotations

import ast
import difflib
import operator
import re
from collections.abc import Callable, Set
from typing import NamedTuple

from metaq.protocol.errors import ConfigError
from metaq.protocol.limits import INT32_MAX, INT32_MIN

__all__ = ["Entry", "Section", "SectionValues", "check_keys", "evaluate_int32", "parse_ini", "wrong"]


class Entry(NamedTuple):
    """One line `key=value`. If several lines of a section have the same key, only the last of these lines is used.
    where: `<file>:<line>`.
    """

    key: str
    value: str
    where: str


class Section(dict[str, Entry]):
    """The entries of one section by key. If the last line with a key has a blank value, the key counts as not set, and
    the entry is in `blank` instead of this dict.
    """

    def __init__(self) -> None:
        super().__init__()
        self.blank: dict[str, Entry] = {}

    def put(self, entry: Entry) -> None:
        """Add an entry. If the section already has an entry with this key, the new entry replaces it."""
        self.pop(entry.key, None)
        self.blank.pop(entry.key, None)
        (self if entry.value else self.blank)[entry.key] = entry


_SECTION = re.compile(r"\[(.*)\]")
_ASSIGNMENT = re.compile(r"([^=:]*)[=:](.*)", re.DOTALL)


def parse_ini(text: str, name: str) -> dict[str, Section]:
    """Parse the text of an ini file. Return its sections by name, in the order of the text. Sections with the same name
    are merged; if a key occurs several times, its last value is used.

    Comments are lines that start with `;` or `#`. A key with a blank value is not set. Raises ConfigError with `name`
    and the line number for a line that is neither a section, a comment nor an assignment.
    """
    sections: dict[str, Section] = {}
    current: Section | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line[0] in ";#":
            continue
        where = f"{name}:{number}"
        if header := _SECTION.fullmatch(line):
            current = sections.setdefault(header[1].strip(), Section())
            continue
        assignment = _ASSIGNMENT.fullmatch(line)
        if assignment is None:
            raise ConfigError(where, line, "is neither [section] nor key=value nor a comment (; or #)")
        if current is None:
            raise ConfigError(where, line, "stands before the first [section]: put it below [system]")
        current.put(Entry(assignment[1].strip(), assignment[2].strip(), where))
    return sections


# --- integer expressions ----------------------------------------------------------------------------------------------

_MAX_TEXT = 200
_MAX_BITS = 256
_DECIMAL = re.compile(r"[+-]?[0-9]+")
_EXPRESSION = re.compile(r"(?:0[xX][0-9a-fA-F]+|[0-9]+|[-+*/%&|^~() \t]|<<|>>)*")


def _divide(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)  # towards zero, as in Java
    return quotient if (a < 0) == (b < 0) else -quotient


def _modulo(a: int, b: int) -> int:
    return a - b * _divide(a, b)


def _shift_left(a: int, b: int) -> int:
    if b > _MAX_BITS:
        raise ValueError(f"shift by {b} bits")
    return a << b


_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _divide,
    ast.Mod: _modulo,
    ast.LShift: _shift_left,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
_UNARY: dict[type[ast.unaryop], Callable[[int], int]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Invert: operator.invert,
}


def evaluate_int32(text: str) -> int:
    """Evaluate an integer expression such as `1024*1024`, `0x10` or `(8 + 2) / 3`. If the result does not fit into a
    signed 32-bit integer, its higher bits are dropped, as in 1.x.

    The expression may contain only numbers, + - * / % << >> & | ^ ~ and brackets. Raises a ValueError that describes
    the mistake.
    """
    if _DECIMAL.fullmatch(text):
        value = int(text)  # Python's grammar does not allow leading zeros
    elif len(text) > _MAX_TEXT:
        raise ValueError("is too long for a number")
    elif not _EXPRESSION.fullmatch(text):  # Python's grammar allows more forms of numbers: 1_000, 0b1
        raise ValueError("is not an integer expression")
    else:
        try:
            value = _evaluate(ast.parse(text, mode="eval").body)
        except (SyntaxError, ZeroDivisionError, RecursionError, MemoryError) as error:
            raise ValueError(f"is not an integer expression ({error})") from error
    return (value - INT32_MIN & 0xFFFFFFFF) + INT32_MIN if not INT32_MIN <= value <= INT32_MAX else value


def _evaluate(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return value
        case ast.BinOp(left, op, right) if type(op) in _BINARY:
            return _BINARY[type(op)](_evaluate(left), _evaluate(right))
        case ast.UnaryOp(op, operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_evaluate(operand))
    raise ValueError(f"is not an integer expression ({ast.unparse(node)!r} is not understood)")


# --- values -----------------------------------------------------------------------------------------------------------


def check_keys(section: Section, name: str, known: Set[str]) -> None:
    """Raise ConfigError for a key of the section `name` that is not in `known`; the error names the most similar known
    key.
    """
    for entry in (*section.values(), *section.blank.values()):
        if entry.key in known:
            continue
        close = difflib.get_close_matches(entry.key, known, 1, 0.0)
        hint = f"did you mean {close[0]}? known keys: {', '.join(sorted(known))}"
        raise ConfigError(f"{entry.where}: {entry.key}", entry.value, f"is not a key of [{name}]; {hint}")


def wrong(entry: Entry, remedy: str) -> ConfigError:
    """Return a ConfigError that names the entry's line, key and value, and the remedy."""
    return ConfigError(f"{entry.where}: {entry.key}", entry.value, remedy)


class SectionValues:
    """Methods that read the values of one section with their types. If a key is not set, these methods return the
    default that the caller passes; if the caller passes none, they raise ConfigError.
    """

    def __init__(self, section: Section, name: str, file: str) -> None:
        self._section = section
        self._name = name
        self._file = file

    def entry(self, key: str) -> Entry | None:
        return self._section.get(key)

    def blank(self, key: str) -> Entry | None:
        """Return the key's entry if its value is blank. Return None if the section has no such entry."""
        return self._section.blank.get(key)

    def text(self, key: str, default: str) -> str:
        entry = self._section.get(key)
        return default if entry is None else entry.value

    def boolean(self, key: str, default: bool) -> bool:
        entry = self._section.get(key)
        if entry is None:
            return default
        if entry.value not in ("true", "false"):
            raise wrong(entry, "must be true or false")
        return entry.value == "true"

    def integer(self, key: str, default: int | None, low: int = -(1 << 31), high: int = (1 << 31) - 1) -> int:
        entry = self._section.get(key)
        if entry is None:
            if default is None:
                raise ConfigError(f"{self._file}: {key}", "", f"is required: set it in [{self._name}]")
            return default
        try:
            value = evaluate_int32(entry.value)
        except ValueError as error:
            raise wrong(entry, f"{error}: use a whole number such as 1024*1024") from error
        if not low <= value <= high:
            seen = "" if str(value) == entry.value else f", but is {value} as a 32-bit number"
            raise wrong(entry, f"must be {low} … {high}{seen}")
        return value
