"""Print the tables of the command line. The library rich is used only on a terminal, where it fits tables to the
terminal's width. Tables for a pipe or a file are printed without it, because loading rich takes a third of the time of
a short command.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

from rich.cells import cell_len

from metaq.protocol.printable import one_line

from .output import UNKNOWN

__all__ = ["print_table"]

_GAP = " " * 3


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table with the head `columns` on stdout. Integers are right-aligned and their digits are grouped by
    thousands; None is shown as `-`.

    On a terminal the table fits the terminal's width: texts are folded, numbers are not. If the table is too wide even
    with folded texts, each row is printed as several lines, each with a column's name and its value. In a pipe or a
    file each row is one line.
    """
    cells = [list(row) for row in rows]
    numeric = [bool(cells) and all(_is_right(row[index]) for row in cells) for index in range(len(columns))]
    texts = [[_cell(value) for value in row] for row in cells]
    widths = [max(map(cell_len, column)) for column in zip(columns, *texts, strict=True)]
    if _is_plain(sys.stdout):
        print(*_lines(columns, texts, numeric, widths), sep="\n")
    else:
        from .terminal import print_fitting  # not needed for a pipe

        print_fitting(columns, texts, numeric, widths)


def _is_plain(stream: TextIO) -> bool:
    """Whether tables on this stream are printed as plain text, without rich."""
    encoding = stream.encoding or "utf-8"
    return encoding.lower().startswith("utf") and not stream.isatty() and "FORCE_COLOR" not in os.environ


def _lines(
    columns: Sequence[str], texts: Sequence[Sequence[str]], numeric: Sequence[bool], widths: Sequence[int]
) -> list[str]:
    """Return the lines of the table as plain text. The lines are the same as those that the library rich prints for its
    table style SIMPLE_HEAD without a limit of width.
    """
    line = "─" * (sum(widths) + len(_GAP) * (len(widths) - 1))
    blank = " " * (len(line) + 2)
    head, *body = (f" {_GAP.join(map(_padded, row, numeric, widths))} " for row in (columns, *texts))
    return [blank, head, f" {line} ", *body, blank]


def _padded(text: str, right: bool, width: int) -> str:
    blanks = " " * (width - cell_len(text))
    return blanks + text if right else text + blanks


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_right(value: object) -> bool:
    return value is None or value == UNKNOWN or _is_number(value)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if _is_number(value):
        return f"{value:,}"
    return one_line(str(value))
