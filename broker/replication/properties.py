"""Java's .properties files (java.util.Properties.load): pairs of texts, comments, continued lines, escapes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Property", "parse_properties"]

_KEY = re.compile(r"(?:\\.|[^\\=: \t\f])*", re.DOTALL)
_SEPARATOR = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class Property(NamedTuple):
    """line: of its first character, from 1."""

    key: str
    value: str
    line: int


def parse_properties(source: bytes) -> dict[str, Property]:
    """The pairs of a file, ISO-8859-1 as Java reads it; the last one of a repeated key wins.

    Source of the format: java.util.Properties. Damaged \\u escapes, which Java refuses, are kept as they are.
    """
    found = {}
    for number, line in _logical_lines(source.decode("iso-8859-1")):
        key = _KEY.match(line)
        assert key is not None  # matches the empty text too
        separator = _SEPARATOR.match(line, key.end())
        assert separator is not None
        name = _unescape(key.group())
        found[name] = Property(name, _unescape(line[separator.end() :]), number)
    return found


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines joined where one ends in an odd number of backslashes, without comments and blank ones."""
    lines = enumerate(re.split(r"\r\n|\r|\n", text), 1)
    for number, natural in lines:
        line = natural.lstrip(" \t\f")
        if not line or line[0] in "#!":
            continue
        while (len(line) - len(line.rstrip("\\"))) % 2:
            line = line[:-1] + next(lines, (0, ""))[1].lstrip(" \t\f")
        yield number, line


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else _ESCAPED.get(found[2], found[2]), text)
