"""Prepare texts of other programs for a terminal: replace control characters by visible escape sequences, because a
terminal would execute such characters.
"""

from __future__ import annotations

import re

__all__ = ["has_control", "one_line", "printable"]

# C0 except tab and newline, DEL and C1; ends of lines and paragraphs, and marks that change the direction; halves of
# surrogate pairs, which no stream accepts
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def has_control(text: str) -> bool:
    """Return whether `printable` would change the text."""
    return _OBEYED.search(text) is not None


def printable(text: str) -> str:
    """Return `text` with an escape sequence such as `\\x1b` or `\\u202e` in place of each control character that a
    terminal would execute. Tabs and newlines are not replaced.
    """
    return _OBEYED.sub(_escaped, text)


def one_line(text: str) -> str:
    """Like `printable`, but also escape tabs and newlines. Use this function for a table's cell, which must stay on one
    line.
    """
    return printable(text).replace("\t", "\\t").replace("\n", "\\n")


def _escaped(found: re.Match[str]) -> str:
    code = ord(found.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
