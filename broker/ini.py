"""The syntax of server.ini (storage.md §9): sections, keys with their lines, numbers that are expressions. No I/O."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from typing import NamedTuple

from metaq.protocol.errors import ConfigError
from metaq.protocol.limits import INT32_MAX, INT32_MIN

__all__ = ["Entry", "Section", "evaluate_int32", "parse_ini"]


class Entry(NamedTuple):
    """One `key=value`: the last one of its key wins. `where` is `<file>:<line>`."""

    key: str
    value: str
    where: str


Section = dict[str, Entry]

_SECTION = re.compile(r"\[(.*)\]")
_ASSIGNMENT = re.compile(r"([^=:]*)[=:](.*)", re.DOTALL)


def parse_ini(text: str, name: str) -> dict[str, Section]:
    """Sections by name, in order; a repeated section merges, the last value of a key wins.

    Comments are lines that start with `;` or `#`. A blank value means: not set. Raises ConfigError naming `name` and
    the line for anything that is neither a section, a comment, nor an assignment.
    """
    sections: dict[str, Section] = {}
    current: Section | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line[0] in ";#":
            continue
        where = f"{name}:{number}"
        if header := _SECTION.fullmatch(line):
            current = sections.setdefault(header[1].strip(), {})
            continue
        assignment = _ASSIGNMENT.fullmatch(line)
        if assignment is None:
            raise ConfigError(where, line, "is neither [section] nor key=value nor a comment (; or #)")
        if current is None:
            raise ConfigError(where, line, "stands before the first [section]: put it below [system]")
        key, value = assignment[1].strip(), assignment[2].strip()
        if value:
            current[key] = Entry(key, value, where)
        else:
            current.pop(key, None)
    return sections


# --- integer expressions ----------------------------------------------------------------------------------------------

_MAX_TEXT = 200
_MAX_BITS = 256
_DECIMAL = re.compile(r"[+-]?[0-9]+")


def _divide(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)  # towards zero, as Java does
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
    """The value of an integer expression such as `1024*1024`, `0x10` or `(8 + 2) / 3`, wrapped to 32 bits as 1.x does.

    Raises ValueError saying what is wrong. Nothing but numbers, + - * / % << >> & | ^ ~ and brackets is understood.
    """
    if _DECIMAL.fullmatch(text):
        value = int(text)  # Python's grammar has no leading zeros
    elif len(text) > _MAX_TEXT:
        raise ValueError("is too long for a number")
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
